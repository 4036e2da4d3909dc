from __future__ import annotations

import pytest

from ravi_otel.policy import Kind, StopReason
from ravi_otel.policy._runs import family


@pytest.mark.parametrize("kind", Kind)
def test_every_built_in_kind_has_a_reason(kind):
    assert StopReason.for_kind(kind) == f"limit_{kind}"


@pytest.mark.parametrize("kind", ["sql_rows", "custom", "success", ""])
def test_a_kind_of_the_program_is_custom(kind):
    assert StopReason.for_kind(kind) is StopReason.LIMIT_CUSTOM


@pytest.mark.parametrize(("label", "reason"), [("tool.search", StopReason.LIMIT_TOOL_CALLS), ("tokens@x", StopReason.LIMIT_TOKENS)])
def test_a_label_is_read_like_its_kind(label, reason):
    assert StopReason.for_kind(label) is reason


def test_the_enum_is_closed():
    plain = {"success", "error", "cancelled", "deadline", "paused", "closed", "store_failed", "store_lost", "limit_custom", "abandoned"}

    budgets = {"max_steps", "max_tool_calls", "max_seconds"}
    agents = {"ask_timeout", "not_accepted", "human_rejected", "history_error", "middleware_terminated"}
    models = {f"llm_{what}" for what in ("timeout", "empty", "length", "refusal", "content_filter", "broken_off")}
    families = {"llm_error", "guardrail", "supervisor_block", "loop_detected", "invalid_action"}
    tools = {f"tool_{what}" for what in ("denied", "missing", "error", "bad_args", "bad_result")}
    known = {*plain, *budgets, *agents, *models, *families, *tools, *(f"limit_{kind}" for kind in Kind)}
    assert {str(reason) for reason in StopReason} == known


@pytest.mark.parametrize(
    ("reason", "told"),
    [("supervisor_block:over_the_cap", "supervisor_block"), ("llm_error:Error:x", "llm_error"), ("max_steps", "max_steps"), ("", "")],
)
def test_a_family_is_what_stands_before_the_first_colon(reason, told):
    assert family(reason) == told
