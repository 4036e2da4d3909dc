"""What a gate is shown of a call's arguments, and what the function is called with."""

import json
import sys
from pathlib import Path
from types import MappingProxyType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ravi_otel
from ravi_otel import ToolDeniedError
from ravi_otel._runtime.tool_call import ToolCall
from ravi_otel.policy._contracts import GateVerdict

sys.path.insert(0, str(Path(__file__).parent))

from own_gates import OwnGate


def plain(a, b=2):
    return a, b


def by_place(a, b=2, /, c=3):
    return a, b, c


def rest(a, b=2, *more, c=3):
    return a, b, more, c


def keywords(a, /, *, b, **more):
    return a, b, more


def named_alike(name, **fn):
    return name, fn


CALLS = [
    (plain, (1,), {}, {"a": 1}),
    (plain, (1, 5), {}, {"a": 1, "b": 5}),
    (plain, (), {"b": 5, "a": 1}, {"a": 1, "b": 5}),
    (by_place, (1,), {}, {"a": 1}),
    (by_place, (1, 5), {"c": 6}, {"a": 1, "b": 5, "c": 6}),
    (by_place, (1,), {"c": 6}, {"a": 1, "c": 6}),
    (rest, (1,), {}, {"a": 1}),
    (rest, (1, 5, 6, 7), {"c": 8}, {"a": 1, "b": 5, "more": [6, 7], "c": 8}),
    (rest, (), {"a": 1, "c": 8}, {"a": 1, "c": 8}),
    (keywords, (1,), {"b": 2, "d": 3}, {"a": 1, "b": 2, "d": 3}),
    (named_alike, ("x",), {"fn": 1, "gate": 2, "arguments": 3}, {"name": "x", "fn": 1, "gate": 2, "arguments": 3}),
]


@pytest.mark.parametrize(("fn", "args", "kwargs", "named"), CALLS)
def test_a_call_goes_by_names_through_the_gate_and_arrives_as_it_was_made(fn, args, kwargs, named):
    gate = OwnGate()
    assert ravi_otel.tool(fn, gate=gate)(*args, **kwargs) == fn(*args, **kwargs)
    assert gate.requests[0].arguments == named


@pytest.mark.parametrize(("fn", "args", "kwargs", "named"), CALLS)
def test_named_arguments_of_a_model_arrive_the_same_way(fn, args, kwargs, named):
    assert ToolCall("act", fn, json.dumps(named), OwnGate()).run() == fn(*args, **kwargs)


@pytest.mark.parametrize(
    ("fn", "arguments", "result"),
    [
        (by_place, {"a": 1, "c": 5}, (1, 2, 5)),
        (rest, {"a": 1, "more": [9]}, (1, 2, (9,), 3)),
        (rest, {"a": 1, "more": []}, (1, 2, (), 3)),
    ],
)
def test_what_stands_before_others_by_place_has_its_default(fn, arguments, result):
    assert ToolCall("act", fn, arguments, OwnGate()).run() == result


@pytest.mark.parametrize(
    ("fn", "arguments", "why"),
    [
        (plain, {}, "the argument 'a' is missing"),
        (plain, {"a": 1, "z": 2}, "it has no argument 'z'"),
        (plain, {"a": 1, "ａ": 2}, "it has no argument 'ａ'"),  # noqa: RUF001 - a look-alike is what this is about
        (keywords, {"a": 1}, "the argument 'b' is missing"),
        (rest, {"a": 1, "more": "text"}, "the argument 'more' takes a list"),
        (keywords, {"a": 1, "b": 2, 3: 4}, "a name among its arguments is no text"),
        (plain, "{", "no JSON object with distinct names"),
        (plain, '{"a": 1, "a": 2}', "no JSON object with distinct names"),
        (plain, '{"a": {"b": 1, "b": 2}}', "no JSON object with distinct names"),
        (plain, '{"a": NaN}', "no JSON object with distinct names"),
        (plain, '{"a": -Infinity}', "no JSON object with distinct names"),
        (plain, "[1]", "its arguments are no JSON object"),
        (plain, '{"a": ' + "[" * 100_000 + "]" * 100_000 + "}", "no JSON object with distinct names"),
        (plain, '{"a": ' + "[" * 70 + "]" * 70 + "}", "nested deeper than 64"),
        (plain, [("a", 1)], "its arguments are no mapping"),
    ],
)
def test_arguments_that_a_function_cannot_be_called_with_execute_nothing(fn, arguments, why):
    gate = OwnGate()
    with pytest.raises(ToolDeniedError) as raised:
        ToolCall("act", fn, arguments, gate).run()
    assert why in raised.value.reason
    assert raised.value.stop_reason == "tool_bad_args:act"
    assert gate.outcome.status == "refused"


def test_a_gate_is_shown_what_a_model_wrote_even_where_it_is_no_json():
    gate = OwnGate(before=GateVerdict(allowed=False, reason="non_json"))
    with pytest.raises(ToolDeniedError, match="non_json"):
        ToolCall("act", plain, '{"a": ', gate).run()
    assert gate.requests[0].arguments == '{"a": '


def test_a_gate_is_shown_a_call_that_does_not_fit_so_that_it_may_fill_it_in():
    gate = OwnGate(before=lambda request: GateVerdict(allowed=True, arguments={**request.arguments, "a": 7}))
    assert ravi_otel.tool(plain, gate=gate)(b=1) == (7, 1)
    assert gate.requests[0].arguments == {"b": 1}


@pytest.mark.parametrize(
    ("fn", "args", "kwargs", "words"),
    [
        (plain, (1, 2, 3), {}, r"plain\(\) takes 2 positional arguments but 3 were given"),
        (plain, (1,), {"a": 2}, r"plain\(\) got multiple values for argument 'a'"),
        (by_place, (), {"a": 2}, r"by_place\(\) got an argument by name that goes by place only: 'a'"),
    ],
)
def test_a_call_that_has_no_names_is_the_callers_own_error(fn, args, kwargs, words):
    gate = OwnGate()
    with pytest.raises(TypeError, match=words):
        ravi_otel.tool(fn, gate=gate)(*args, **kwargs)
    assert gate.asked == []


def tag(name="x", /, **more):
    return name, more


def log(msg, *args, **more):
    return msg, args, more


ALIKE = [
    (keywords, (1,), {"a": 2, "b": 3}, {"a": 1, "more_a": 2, "b": 3}),
    (tag, (), {"name": "logo"}, {"more_name": "logo"}),
    (tag, ("img",), {"name": "logo"}, {"name": "img", "more_name": "logo"}),
    (tag, ("img",), {"name": 1, "more_name": 2}, {"name": "img", "more_more_name": 1, "more_name": 2}),
    (log, ("m",), {"args": 1}, {"msg": "m", "more_args": 1}),
    (log, ("m", 2), {"args": 1}, {"msg": "m", "args": [2], "more_args": 1}),
]


@pytest.mark.parametrize(("fn", "args", "kwargs", "named"), ALIKE)
def test_two_values_of_one_name_are_shown_under_two(fn, args, kwargs, named):
    gate = OwnGate()
    assert ravi_otel.tool(fn, gate=gate)(*args, **kwargs) == fn(*args, **kwargs)
    assert gate.requests[0].arguments == named


# -- whose they are ------------------------------------------------------------------------------------------------------


def test_nobody_can_change_what_was_judged_before_it_runs():
    asked = {"a": {"amount": 10}, "b": [1]}

    def cheat(*_):
        asked["a"]["amount"] = 9_999
        asked["b"].append(2)
        return GateVerdict(allowed=True)

    assert ToolCall("act", plain, asked, OwnGate(before=cheat)).run() == ({"amount": 10}, [1])


def test_a_gate_that_changes_what_it_is_shown_changes_nothing():
    def cheat(_, arguments):
        arguments["a"]["amount"] = 9_999
        return GateVerdict(allowed=True, arguments={"a": 1})

    assert ToolCall("act", plain, {"a": {"amount": 10}}, OwnGate(admit=cheat)).run() == ({"amount": 10}, 2)


def test_a_gate_that_keeps_its_verdict_cannot_change_it_later():
    effective = {"a": {"amount": 10}}

    def cheat(*_):
        effective["a"]["amount"] = 9_999
        return GateVerdict(allowed=True)

    gate = OwnGate(before=GateVerdict(allowed=True, arguments=effective), admit=cheat)
    assert ToolCall("act", plain, {}, gate).run() == ({"amount": 10}, 2)


def test_a_tool_that_changes_its_arguments_changes_nobody_elses():
    def spend(a):
        a["amount"] = 0

    asked, gate = {"a": {"amount": 10}}, OwnGate()
    ToolCall("act", spend, asked, gate).run()
    assert asked == {"a": {"amount": 10}} == gate.requests[0].arguments
    assert gate.outcome.verdict.arguments == {"a": {"amount": 10}}


def test_read_only_mappings_and_objects_of_the_programs_own_pass():
    own = object()
    assert ToolCall("act", plain, MappingProxyType({"a": own, "b": (1, [2])}), OwnGate()).run() == (own, (1, [2]))


# -- methods -------------------------------------------------------------------------------------------------------------


def _toolbox(gate):
    class Toolbox:
        kind = "box"

        def __init__(self):
            self.done = []

        @ravi_otel.tool(gate=gate)
        def note(self, text, *, twice=False):
            self.done.append(text * (2 if twice else 1))
            return len(self.done)

        @classmethod
        @ravi_otel.tool(gate=gate)
        def of(cls, x):
            return cls.kind, x

        @staticmethod
        @ravi_otel.tool(gate=gate)
        def free(x):
            return x

        @staticmethod
        @ravi_otel.tool(gate=gate)
        def to(cls, x):  # noqa: PLW0211 - an argument of that name is what is asked about
            return cls, x

    return Toolbox


def test_the_object_of_a_method_is_no_argument():
    gate = OwnGate()
    box = _toolbox(gate)()
    assert box.note("a", twice=True) == 1
    assert box.done == ["aa"]
    assert gate.requests[0].arguments == {"text": "a", "twice": True}


def test_class_and_static_methods_are_tools_too():
    gate = OwnGate()
    box = _toolbox(gate)
    assert (box.of(1), box.free(2)) == (("box", 1), 2)
    assert next(one.arguments for one in gate.requests if one.tool == "of") == {"x": 1}


@pytest.mark.parametrize("whose", ["attacker", int, None])
def test_what_a_static_method_is_given_is_an_argument_whatever_it_is_called(whose):
    gate = OwnGate()
    assert _toolbox(gate).to(whose, 5) == (whose, 5)
    assert gate.requests[0].arguments == {"cls": whose, "x": 5}


def test_a_method_of_a_subclass_is_called_on_its_object():
    gate = OwnGate()
    assert type("Sub", (_toolbox(gate),), {})().note("a") == 1
    assert gate.requests[0].arguments == {"text": "a"}


def test_a_bound_method_is_walked_as_it_is():
    box = _toolbox(OwnGate())()
    assert ToolCall("note", type(box).note.__wrapped__.__get__(box), {"text": "b"}, OwnGate()).run() == 1
    assert box.done == ["b"]


def test_a_builtin_without_a_signature_takes_what_it_is_given_by_name():
    assert ToolCall("dict", dict, {"a": 1}, OwnGate()).run() == {"a": 1}


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=50)
@given(st.dictionaries(st.text(), json_values, max_size=4))
def test_whatever_a_model_asks_for_arrives_unchanged(arguments):
    def act(**given):
        return given

    assert ToolCall("act", act, json.dumps(arguments), OwnGate()).run() == arguments
