from __future__ import annotations

import pytest

from ravi_otel.policy import Kind, StopReason


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
    plain = {"success", "error", "cancelled", "deadline", "paused", "closed", "store_failed", "store_lost", "limit_custom"}

    assert {str(reason) for reason in StopReason} == plain | {f"limit_{kind}" for kind in Kind}
