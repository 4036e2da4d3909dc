"""A proposed action has one of two shapes, and text and object are read alike."""

from __future__ import annotations

import json
import math
import pickle
from types import MappingProxyType

import pytest

from ravi_otel.supervisor import InvalidAction, ToolSignature, read_action


def issue_refund(user_id: int, amount_usd: float, reason: str):
    """Give money back."""


def untyped(value: NoSuchType):  # noqa: F821 - the name that nobody knows is the example
    """Take what nobody knows."""


def ping():
    """Take nothing."""


SIGNATURES = {fn.__name__: ToolSignature.of(fn) for fn in (issue_refund, untyped, ping)}
REFUND = {"user_id": 42, "amount_usd": 10.0, "reason": "late"}


class Dict(dict):
    def __getitem__(self, key):
        return "final"


class Word(str):
    __slots__ = ()

    def __eq__(self, other):
        return True

    __hash__ = str.__hash__


def tool(name="issue_refund", args=REFUND, **more):
    return {"kind": "tool", "name": name, "args": args} | more


def refused(raw, **options):
    with pytest.raises(InvalidAction) as caught:
        read_action(raw, SIGNATURES, **options)
    assert caught.value.raw is raw
    return caught.value.reason.removeprefix("invalid_action:")


BOTH = [
    ([], "not_object"),
    (5, "not_object"),
    (None, "not_object"),
    ({}, "bad_kind"),
    ({"kind": "Tool", "name": "ping"}, "bad_kind"),
    ({"kind": None}, "bad_kind"),
    ({"kind": ["tool"]}, "bad_kind"),
    ({"\u043aind": "tool", "name": "ping"}, "bad_kind"),
    ({"kind": "final", "answer": "Done.", "name": "ping"}, "extra_keys_final"),
    ({"kind": "final", "answer": "Done.", "\u0430nswer": "x"}, "extra_keys_final"),
    ({"kind": "final"}, "bad_final_answer"),
    ({"kind": "final", "answer": " \n"}, "bad_final_answer"),
    ({"kind": "final", "answer": 5}, "bad_final_answer"),
    ({"kind": "final", "answer": {"a": 1}}, "bad_final_answer"),
    ({"kind": "final", "answer": "\ud800"}, "bad_final_answer"),
    (tool(approved=True), "extra_keys_tool"),
    (tool(__class__="x"), "extra_keys_tool"),
    ({"kind": "tool", "args": {}}, "bad_tool_name"),
    (tool(name=""), "bad_tool_name"),
    (tool(name=7), "bad_tool_name"),
    (tool(name="a\nb"), "bad_tool_name"),
    (tool(name=True), "bad_tool_name"),
    (tool(args=[]), "bad_tool_args"),
    (tool(args=None), "missing_required_arg:issue_refund:user_id"),
    (tool(args=False), "bad_tool_args"),
    (tool(args="{}"), "bad_tool_args"),
    (tool(name="send_money"), "unknown_tool:send_money"),
    (tool(name=" issue_refund"), "unknown_tool: issue_refund"),
    (tool(name="issue_r\u0435fund"), "unknown_tool:issue_r\\u0435fund"),
    (tool(args=REFUND | {"approved": True}), "extra_tool_args:issue_refund"),
    (tool(args=REFUND | {"\u0430mount_usd": 5_000}), "extra_tool_args:issue_refund"),
    (tool(args={"user_id": 42, "reason": "late"}), "missing_required_arg:issue_refund:amount_usd"),
    (tool(args=REFUND | {"amount_usd": "100"}), "bad_arg_type:issue_refund:amount_usd"),
    (tool(args=REFUND | {"user_id": True}), "bad_arg_type:issue_refund:user_id"),
    (tool(args=REFUND | {"amount_usd": math.nan}), "bad_arg_type:issue_refund:amount_usd"),
    (tool(args=REFUND | {"amount_usd": math.inf}), "bad_arg_type:issue_refund:amount_usd"),
    (tool(args=REFUND | {"reason": "\ud800"}), "bad_tool_args"),
    (tool(args=REFUND | {"user_id": 10**30}), "bad_tool_args"),
    (tool(name="untyped", args={"value": 1}), "unknown_arg_spec:untyped:value"),
]


@pytest.mark.parametrize("as_text", [False, True], ids=["object", "text"])
@pytest.mark.parametrize(("raw", "reason"), BOTH, ids=[f"{index}-{reason.partition(':')[0]}" for index, (_, reason) in enumerate(BOTH)])
def test_what_is_no_action_is_refused_by_name_as_object_and_as_text(raw, reason, as_text):
    assert refused(json.dumps(raw) if as_text else raw) == reason


TEXTS = [
    ("", "non_json"),
    ("Sure! {}", "non_json"),
    ('```json\n{"kind": "final", "answer": "x"}\n```', "non_json"),
    ('{"kind": "final", "answer": "x"} {"kind": "tool"}', "non_json"),
    ('{"kind": "final", "answer": "x", "kind": "tool"}', "non_json"),
    ('{"kind": "tool", "name": "ping", "args": {}, "args": {"a": 1}}', "non_json"),
    ('{"kind": "tool", "name": "issue_refund", "args": {"user_id": 1, "user_id": 2}}', "non_json"),
    ("[" * 100_000, "non_json"),
    ('{"kind": "tool", "name": "ping", "args": ' + '{"a":' * 100_000, "non_json"),
    ('{"kind": "tool", "name": "issue_refund", "args": {"user_id": 1' + "0" * 5_000 + "}}", "bad_tool_args"),
    ('{"kind": "tool", "name": "issue_refund", "args": {"user_id": 1, "amount_usd": 1e400}}', "bad_arg_type:issue_refund:amount_usd"),
    ('"tool"', "not_object"),
    (" " * (1 << 21), "non_json"),
]


@pytest.mark.parametrize(("text", "reason"), TEXTS, ids=range(len(TEXTS)))
def test_text_that_is_no_json_to_rely_on_is_refused(text, reason):
    assert refused(text) == reason


@pytest.mark.parametrize(
    "raw", [Dict(kind="final", answer="x"), Word('{"kind": "final", "answer": "x"}'), b'{"kind": "final"}', [("kind", "final")]]
)
def test_what_poses_as_an_object_is_none(raw):
    assert refused(raw) == "not_object"


def test_what_poses_as_a_word_is_none():
    assert refused({"kind": Word("tool"), "name": "ping"}) == "bad_kind"
    assert refused({"kind": "tool", "name": Word("ping")}) == "bad_tool_name"
    assert refused({"kind": "tool", "name": "ping", Word("args"): {}}) == "extra_keys_tool"


@pytest.mark.parametrize(
    "raw", [tool(), json.dumps(tool()), MappingProxyType(tool(args=MappingProxyType(REFUND)))], ids=["object", "text", "frozen"]
)
def test_a_tool_action_is_read_with_its_arguments(raw):
    assert read_action(raw, SIGNATURES) == tool()


@pytest.mark.parametrize("without", [{}, {"args": None}, {"args": {}}])
def test_a_tool_that_takes_nothing_needs_no_args(without):
    assert read_action({"kind": "tool", "name": "ping", **without}, SIGNATURES) == {"kind": "tool", "name": "ping", "args": {}}


def test_a_final_action_is_read_without_the_white_space_around_it():
    assert read_action('{"kind": "final", "answer": " Done.\\n"}', SIGNATURES) == {"kind": "final", "answer": "Done."}


def test_what_a_rule_fills_in_may_be_absent():
    raw = tool(args={"user_id": 1, "amount_usd": 2.0})
    assert refused(raw) == "missing_required_arg:issue_refund:reason"
    assert read_action(raw, SIGNATURES, may_lack={"issue_refund": {"reason"}})["args"] == {"user_id": 1, "amount_usd": 2.0}
    assert refused(raw, may_lack={"ping": {"reason"}}) == "missing_required_arg:issue_refund:reason"


def test_what_is_read_does_not_change_with_what_was_given():
    args = dict(REFUND)
    read = read_action(tool(args=args), SIGNATURES)
    args["amount_usd"] = 5_000.0
    assert read["args"]["amount_usd"] == 10.0


def test_a_made_up_name_is_short_and_printable_in_the_reason():
    made_up = "\u202e" * 200
    assert refused(tool(name=made_up)) == "unknown_tool:" + ascii(made_up)[1:61]


def test_the_error_crosses_a_process():
    with pytest.raises(InvalidAction) as caught:
        read_action({"kind": "x"}, SIGNATURES)
    copied = pickle.loads(pickle.dumps(caught.value))
    assert (copied.reason, str(copied), copied.raw) == ("invalid_action:bad_kind", caught.value.message, {"kind": "x"})
