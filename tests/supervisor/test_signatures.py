"""A tool's arguments are what its own signature says, or they are refused by name: see `argument_table` for each value and each type."""

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
import functools
import math
import pickle
from collections.abc import AsyncIterator, Awaitable
from types import MappingProxyType
from typing import Annotated, Any, NotRequired, TypedDict, Unpack

import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ravi_otel.errors import ConfigurationError
from ravi_otel.supervisor import ToolSignature
from ravi_otel.supervisor._arguments import BadArguments, BadResult, UnfitError
from ravi_otel.supervisor._json import MOST_CHARS, NotPlainError, canonical


class Plan(enum.Enum):
    FREE = 1
    PRO = 2


class Order(pydantic.BaseModel):
    number: int
    amount_usd: float = 5


class Choice(TypedDict):
    colour: str
    size: NotRequired[int]


class Weird:
    pass


class Text(str):
    __slots__ = ()

    def __eq__(self, other):
        return True

    __hash__ = str.__hash__


class Cents(int):
    pass


def refund(user_id: int, amount_usd: float, reason: str) -> dict[str, Any]:
    """Give money back."""


async def refund_later(user_id: int, amount_usd: float, reason: str) -> dict[str, Any]:
    """Give money back."""


class Refund:
    def __call__(self, user_id: int, amount_usd: float, reason: str) -> dict[str, Any]:
        """Give money back."""

    def method(self, user_id: int, amount_usd: float, reason: str) -> dict[str, Any]:
        """Give money back."""


@functools.wraps(refund)
def wrapped(*args, **kwargs):
    return refund(*args, **kwargs)


CALLABLES = [refund, refund_later, Refund(), Refund().method, wrapped, functools.partial(refund)]


def refused(signature, arguments, **options):
    with pytest.raises(BadArguments) as caught:
        signature.read(arguments, **options)
    return caught.value


@pytest.mark.parametrize("fn", CALLABLES, ids=["function", "async", "object", "method", "wrapped", "partial"])
def test_any_callable_has_a_signature(fn):
    signature = ToolSignature.of(fn, "refund")
    assert signature.required == ("user_id", "amount_usd", "reason")
    assert signature.read('{"reason":"late","user_id":42,"amount_usd":10}') == {"user_id": 42, "amount_usd": 10.0, "reason": "late"}
    assert refused(signature, {"user_id": True, "amount_usd": 1, "reason": "x"}).spelling == "bad_arg_type:refund:user_id"


def test_name_and_description_are_those_of_the_function():
    signature = ToolSignature.of(refund)
    assert (signature.name, signature.description) == ("refund", "Give money back.")


def test_what_has_no_signature_is_no_tool():
    with pytest.raises(ConfigurationError, match="whose signature cannot be read"):
        ToolSignature.of(type("T", (), {"__call__": 3})(), "t")


GOOD = '{"user_id": 42, "amount_usd": 10, "reason": "late"}'
TEXTS = {
    "bool as int": ('{"user_id": true, "amount_usd": 10, "reason": "x"}', "bad_arg_type:refund:user_id"),
    "bool as float": ('{"user_id": 1, "amount_usd": true, "reason": "x"}', "bad_arg_type:refund:amount_usd"),
    "text as int": ('{"user_id": "42", "amount_usd": 10, "reason": "x"}', "bad_arg_type:refund:user_id"),
    "text as float": ('{"user_id": 1, "amount_usd": "100", "reason": "x"}', "bad_arg_type:refund:amount_usd"),
    "float as int": ('{"user_id": 42.0, "amount_usd": 10, "reason": "x"}', "bad_arg_type:refund:user_id"),
    "int as text": ('{"user_id": 1, "amount_usd": 10, "reason": 5}', "bad_arg_type:refund:reason"),
    "null": ('{"user_id": null, "amount_usd": 10, "reason": "x"}', "bad_arg_type:refund:user_id"),
    "list": ('{"user_id": [1], "amount_usd": 10, "reason": "x"}', "bad_arg_type:refund:user_id"),
    "NaN": ('{"user_id": 1, "amount_usd": NaN, "reason": "x"}', "bad_arg_type:refund:amount_usd"),
    "Infinity": ('{"user_id": 1, "amount_usd": -Infinity, "reason": "x"}', "bad_arg_type:refund:amount_usd"),
    "1e400": ('{"user_id": 1, "amount_usd": 1e400, "reason": "x"}', "bad_arg_type:refund:amount_usd"),
    "huge int": ('{"user_id": 1' + "0" * 5_000 + ', "amount_usd": 1, "reason": "x"}', "too_large:refund"),
    "int of 65 bits": (f'{{"user_id": {2**64}, "amount_usd": 1, "reason": "x"}}', "too_large:refund"),
    "inexact int as float": (f'{{"user_id": 1, "amount_usd": {2**53 + 1}, "reason": "x"}}', "bad_arg_type:refund:amount_usd"),
    "duplicate key": ('{"user_id": 1, "amount_usd": 1, "reason": "x", "amount_usd": 5000}', "duplicate_key:refund"),
    "duplicate key, escaped": ('{"user_id": 1, "amount_usd": 1, "reason": "x", "amount\\u005fusd": 5000}', "duplicate_key:refund"),
    "missing": ('{"user_id": 1, "reason": "x"}', "missing_required_arg:refund:amount_usd"),
    "extra": (GOOD[:-1] + ', "approved": true}', "extra_tool_args:refund"),
    "Cyrillic look-alike": (GOOD[:-1] + ', "\u0430mount_usd": 5000}', "extra_tool_args:refund"),
    "full-width look-alike": (GOOD[:-1] + ', "\uff41mount_usd": 5000}', "extra_tool_args:refund"),
    "zero-width look-alike": (GOOD[:-1] + ', "amount_usd\u200b": 5000}', "extra_tool_args:refund"),
    "other case": (GOOD[:-1] + ', "Amount_USD": 5000}', "extra_tool_args:refund"),
    "white space": (GOOD[:-1] + ', " amount_usd": 5000}', "extra_tool_args:refund"),
    "empty key": (GOOD[:-1] + ', "": 5000}', "extra_tool_args:refund"),
    "dunder": (GOOD[:-1] + ', "__class__": "x"}', "extra_tool_args:refund"),
    "self": (GOOD[:-1] + ', "self": "x"}', "extra_tool_args:refund"),
    "lone surrogate": ('{"user_id": 1, "amount_usd": 1, "reason": "\\ud800"}', "half_character:refund"),
    "list, not object": ("[1, 2]", "not_object:refund"),
    "text, not object": ('"x"', "not_object:refund"),
    "no JSON": ("{user_id: 1}", "non_json:refund"),
    "nothing": ("", "non_json:refund"),
    "something behind": (GOOD + " {}", "non_json:refund"),
    "deep": ("[" * 100_000, "too_deep:refund"),
    "deep inside": ('{"user_id": ' + "[" * 40 + "]" * 40 + ', "amount_usd": 1, "reason": "x"}', "too_deep:refund"),
    "long": (f'{{"user_id": 1, "amount_usd": 1, "reason": "{"x" * MOST_CHARS}"}}', "too_large:refund"),
}


@pytest.mark.parametrize(("text", "spelling"), TEXTS.values(), ids=TEXTS)
def test_smuggled_text_is_refused_by_name(text, spelling):
    assert refused(ToolSignature.of(refund), text).spelling == spelling


OBJECTS = {
    "bool as int": ({"user_id": True}, "bad_arg_type:refund:user_id"),
    "NaN": ({"amount_usd": math.nan}, "bad_arg_type:refund:amount_usd"),
    "text subclass": ({"reason": Text("x")}, "bad_arg_type:refund:reason"),
    "int subclass": ({"user_id": Cents(5)}, "bad_arg_type:refund:user_id"),
    "text as bytes": ({"reason": b"x"}, "bad_arg_type:refund:reason"),
    "an object": ({"reason": Weird()}, "bad_arg_type:refund:reason"),
    "a date": ({"reason": dt.date(2026, 1, 2)}, "bad_arg_type:refund:reason"),
    "key subclass": ({Text("more"): 1}, "extra_tool_args:refund"),
    "key of another type": ({7: 1}, "extra_tool_args:refund"),
    "lone surrogate in a key": ({"\ud800": 1}, "extra_tool_args:refund"),
}


@pytest.mark.parametrize(("changed", "spelling"), OBJECTS.values(), ids=OBJECTS)
def test_smuggled_objects_are_refused_by_name(changed, spelling):
    assert refused(ToolSignature.of(refund), {"user_id": 42, "amount_usd": 10.0, "reason": "late"} | changed).spelling == spelling


@pytest.mark.parametrize("arguments", [None, 5, [("user_id", 1)], Text('{"user_id": 1}'), b"{}"])
def test_arguments_are_an_object_or_its_text(arguments):
    assert refused(ToolSignature.of(refund), arguments).spelling == "not_object:refund"


def test_a_look_alike_is_told_from_the_name_it_looks_like():
    error = refused(ToolSignature.of(refund), {"user_id": 1, "\u0430mount_usd": 5, "reason": "x"})
    said = "refund takes no argument '\\u0430mount_usd'; it takes 'amount_usd', which is another name."
    assert error.message == f"{said} Its arguments: user_id, amount_usd, reason."


def test_the_message_shows_no_value_of_a_refused_argument():
    assert "hunter2" not in refused(ToolSignature.of(refund), {"user_id": "hunter2", "amount_usd": 1, "reason": "x"}).message


def test_minus_zero_is_zero_so_that_it_is_no_other_call():
    read = ToolSignature.of(refund).read('{"user_id": -0, "amount_usd": -0.0, "reason": "x"}')
    assert canonical(read) == '{"amount_usd":0.0,"reason":"x","user_id":0}'


def test_a_frozen_mapping_is_read_like_any_other_and_copied():
    given = {"user_id": 42, "amount_usd": 10.0, "reason": "late"}
    read = ToolSignature.of(refund).read(MappingProxyType(given))
    given["amount_usd"] = 5_000.0
    assert read["amount_usd"] == 10.0


def test_what_a_rule_fills_in_may_be_absent_and_nothing_else():
    signature = ToolSignature.of(refund)
    assert signature.read({"user_id": 1, "amount_usd": 1}, may_lack={"reason"}) == {"user_id": 1, "amount_usd": 1.0}
    assert refused(signature, {"user_id": 1}, may_lack={"reason"}).spelling == "missing_required_arg:refund:amount_usd"


def test_a_default_is_filled_in_so_that_what_is_judged_is_what_runs():
    def tool(a: int, limit: float = 5_000, plan: Plan = Plan.PRO, other: Any = Weird(), tags: list[str] = []): ...  # noqa: B006, B008 - as careless tools

    read = ToolSignature.of(tool).read({"a": 1})
    assert read == {"a": 1, "limit": 5_000.0, "plan": 2, "tags": []}
    assert type(read["limit"]) is float


def test_a_default_that_was_filled_in_is_never_the_tools_own_object():
    def tool(tags: list[str] = []): ...  # noqa: B006 - a default as a careless tool has it

    signature = ToolSignature.of(tool)
    signature.read({})["tags"].append("x")
    assert signature.read({}) == {"tags": []}


def typed(annotation):
    def tool(value): ...

    tool.__annotations__ = {"value": annotation}
    return ToolSignature.of(tool)


@pytest.mark.parametrize(
    ("annotation", "given", "code"),
    [
        ("NoSuchType", 1, "unknown_arg_spec"),
        (Any, Weird(), "unknown_arg_spec"),
        (dt.date, 5, "bad_arg_type"),
        (list[str], [Text("a")], "bad_arg_type"),
        (dict[int, str], {"01": "a"}, "extra_tool_args"),
    ],
)
def test_a_value_that_its_annotation_does_not_mean_is_refused(annotation, given, code):
    error = refused(typed(annotation), {"value": given})
    assert (error.code, error.argument) == (code, "value")


def test_further_names_are_taken_where_the_tool_takes_them_but_no_look_alikes():
    def tool(amount_usd: float, **rest: int): ...

    signature = ToolSignature.of(tool)
    assert signature.read({"amount_usd": 1, "more": 2}) == {"amount_usd": 1.0, "more": 2}
    assert refused(signature, {"amount_usd": 1, "more": "2"}).spelling == "bad_arg_type:tool:more"
    for key in ("\u0430mount_usd", "amount_usd\u200b", "Amount_usd", "__class__", "a-b", "", "\u00e9"):
        assert refused(signature, {"amount_usd": 1, key: 2}).spelling == "extra_tool_args:tool"


def test_unpacked_names_are_names_of_the_tool():
    def tool(**rest: Unpack[Choice]): ...

    signature = ToolSignature.of(tool)
    assert signature.read({"colour": "red"}) == {"colour": "red"}
    assert refused(signature, {"size": 1}).spelling == "missing_required_arg:tool:colour"
    assert refused(signature, {"colour": "red", "weight": 1}).spelling == "extra_tool_args:tool"


def test_arguments_without_a_name_are_none_a_model_can_give():
    def tool(a: int, *args: int): ...

    assert refused(ToolSignature.of(tool), {"a": 1, "args": [2]}).spelling == "extra_tool_args:tool"


def test_all_arguments_together_have_the_bounds_of_one():
    def tool(a: str, b: str): ...

    half = "x" * (MOST_CHARS * 2 // 3)
    assert refused(ToolSignature.of(tool), {"a": half, "b": half}).spelling == "too_large:tool"


def test_each_call_is_made_of_values_of_its_own():
    signature = typed(Order)
    read = signature.read({"value": {"number": 1}})
    signature.values(read)["value"].number = 2
    assert signature.values(read)["value"].number == 1


def test_values_are_held_to_the_signature_again():
    with pytest.raises(BadArguments) as caught:
        ToolSignature.of(refund).values({"user_id": "x"})
    assert caught.value.spelling == "bad_arg_type:refund:user_id"


RESULTS = [
    (dict[str, int], {"a": 1}, {"a": "1"}),
    (int, 1, True),
    (float, 1, "1"),
    (None, None, 1),
    (Order, Order(number=1), {"number": "1"}),
    (Weird, Weird(), 5),
    (Choice, {"colour": "x"}, {}),
    (Awaitable[int], 1, "1"),
    (list[str] | None, None, [1]),
]


@pytest.mark.parametrize(("annotation", "good", "bad"), RESULTS, ids=[str(index) for index in range(len(RESULTS))])
def test_a_result_is_what_the_annotation_says(annotation, good, bad):
    def tool(): ...

    tool.__annotations__ = {"return": annotation}
    signature = ToolSignature.of(tool)
    assert signature.read_result(good) is good
    with pytest.raises(BadResult) as caught:
        signature.read_result(bad)
    assert (caught.value.tool, caught.value.message.startswith(f"tool returned '{type(bad).__name__}', not ")) == ("tool", True)


@pytest.mark.parametrize("annotation", [None, AsyncIterator[int], "NoSuchType", Any])
def test_a_result_of_which_nothing_can_be_said_passes(annotation):
    def tool(): ...

    if annotation is not None:
        tool.__annotations__ = {"return": annotation}
    stream = iter([1])
    assert ToolSignature.of(tool).read_result(stream) is stream
    assert next(stream) == 1


def test_the_schema_says_what_a_model_may_write():
    def tool(user_id: int, plan: Plan, orders: list[Order], note: Annotated[str, pydantic.Field(description="Why.")] = "none"): ...

    schema = ToolSignature.of(tool).json_schema()
    assert schema["properties"]["user_id"] == {"type": "integer"}
    assert schema["properties"]["orders"] == {"items": {"$ref": "#/$defs/Order"}, "type": "array"}
    assert schema["properties"]["note"] == {"description": "Why.", "type": "string", "default": "none"}
    assert (schema["required"], schema["additionalProperties"]) == (["user_id", "plan", "orders"], False)
    assert set(schema["$defs"]) == {"Order", "Plan"}


def test_the_schema_says_what_further_names_may_be():
    def tool(**rest: int): ...

    assert ToolSignature.of(tool).json_schema()["additionalProperties"] == {"type": "integer"}


def test_the_errors_cross_a_process():
    error = BadArguments("bad_arg_type", "t", "a", "t: a is wrong.")
    copied = pickle.loads(pickle.dumps(error))
    assert (copied.spelling, str(copied)) == ("bad_arg_type:t:a", "t: a is wrong.")
    result = pickle.loads(pickle.dumps(BadResult("t", "wrong")))
    assert (result.tool, result.message) == ("t", "wrong")


def takes_scalars(truth: bool, whole: int, number: float, text: str):
    """Take one of each."""


SCALARS = st.one_of(
    st.booleans(),
    st.none(),
    st.integers(),
    st.sampled_from(
        [2**53, 2**53 + 1, -(2**53) - 1, 2**63, 2**64 - 1, 2**64, 10**30, -0.0, 0, 1, 1.0, 1e300, "", "\ud800", "é", "1", "x" * 3000]
    ),
    st.floats(),
    st.text(),
    st.lists(st.integers(), max_size=2),
)


@pytest.mark.parametrize("parameter", ToolSignature.of(takes_scalars).parameters.values(), ids=lambda each: each.name)
@given(value=SCALARS)
def test_the_short_way_of_a_plain_type_reads_and_makes_just_what_the_long_way_does(parameter, value):
    def outcome(known, read):
        try:
            got = getattr(known, read)(value)
        except (UnfitError, NotPlainError) as error:
            return type(error), error.code, str(error)
        return type(got), repr(got)

    longer = dataclasses.replace(parameter, exactly=None)
    assert parameter.exactly is not None
    assert outcome(parameter, "fit") == outcome(longer, "fit")
    if outcome(longer, "fit")[0] not in (UnfitError, NotPlainError):
        assert outcome(parameter, "made") == outcome(longer, "made")
