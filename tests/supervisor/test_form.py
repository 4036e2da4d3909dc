"""A tool's schema as a form, and what is wrong with an edit."""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Literal

import pydantic
import pytest
from approval_desk import requested

from ravi_otel import ConfigurationError
from ravi_otel.supervisor import ToolSignature
from ravi_otel.supervisor.approval._request import check_edit, form_fields, schema_flaw


class Shade(Enum):
    RED = "red"
    BLUE = "blue"


class Address(pydantic.BaseModel):
    street: str
    number: int


def refund(  # noqa: PLR0917 - as many kinds of argument as there are
    order: int,
    amount: Annotated[float, pydantic.Field(gt=0, le=500, description="In the order's currency")],
    currency: Literal["USD", "EUR"] = "USD",
    shade: Shade = Shade.RED,
    note: Annotated[str, pydantic.Field(max_length=10)] | None = None,
    urgent: bool = False,
    address: Address | None = None,
    tags: list[str] = [],  # noqa: B006 - a default that JSON has
    anything=None,
) -> str:
    return f"{order} {amount} {currency} {shade} {note} {urgent} {address} {tags} {anything}"


SCHEMA = ToolSignature.of(refund).json_schema()
RIGHT = {"order": 1, "amount": 80.0, "currency": "USD", "shade": "red", "note": None, "urgent": False, "address": None, "tags": []}


def test_each_argument_says_what_it_may_be():
    assert {name: field.says for name, field in form_fields(SCHEMA).items()} == {
        "order": "whole number",
        "amount": "number, more than 0, at most 500",
        "currency": "one of a few, may be left out",
        "shade": "one of a few, may be left out",
        "note": "text or null, 0 to 10 characters, may be left out",
        "urgent": "true or false, may be left out",
        "address": "JSON or null, may be left out",
        "tags": "JSON, may be left out",
        "anything": "JSON, may be left out",
    }
    assert form_fields(SCHEMA)["currency"].choices == ("USD", "EUR")
    assert form_fields(SCHEMA)["shade"].choices == ("red", "blue")
    assert form_fields(SCHEMA)["amount"].about == "In the order's currency"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({}, None),
        ({"note": "well"}, None),
        ({"amount": 80}, None),
        ({"address": {"street": "a", "number": 1}}, None),
        ({"amount": 0}, "amount must be more than 0."),
        ({"amount": 501}, "amount must be at most 500."),
        ({"amount": "80"}, "amount must be a number."),
        ({"amount": True}, "amount must be a number."),
        ({"order": 1.5}, "order must be a whole number."),
        ({"currency": "GBP"}, 'currency must be one of "USD", "EUR".'),
        ({"shade": "green"}, 'shade must be one of "red", "blue".'),
        ({"note": "much too long"}, "note must have at most 10 characters."),
        ({"urgent": 1}, "urgent must be true or false."),
        ({"address": {"street": "a"}}, "address.number is needed."),
        ({"address": {"street": "a", "number": "b"}}, "address.number must be a whole number."),
        ({"tags": ["a", 1]}, "tags[1] must be text."),
        ({"tags": "a"}, "tags must be a list."),
        ({"amout": 1}, "'amout' is no argument of its tool"),
    ],
)
def test_what_a_tool_does_not_take_is_said_in_one_sentence_and_the_program_agrees(changes, why):
    edited = {**RIGHT, **changes}
    said = schema_flaw(SCHEMA, edited)
    assert (said is None) == (why is None)
    assert (said or "").startswith(why or "")
    try:
        ToolSignature.of(refund).read(edited)
    except Exception:
        assert why is not None
    else:
        assert why is None


def test_what_is_missing_is_said():
    assert schema_flaw(SCHEMA, {"order": 1}) == "amount is needed."


@pytest.mark.parametrize(
    "hostile",
    [
        {"properties": 7, "required": "order", "$defs": []},
        {"properties": {"a": {"$ref": "#/$defs/A"}}, "$defs": {"A": {"$ref": "#/$defs/A"}}},
        {"properties": {"a": {"anyOf": [{"anyOf": [{"type": "string"}]}, 7, None]}}},
        {"properties": {"a": {"type": ["string", 7], "enum": "x", "minimum": "much", "minLength": True}}},
        {"properties": {"a": {"type": "string", "pattern": "(a+)+$"}}},
    ],
)
def test_a_schema_that_somebody_made_up_breaks_nothing(hostile):
    assert isinstance(form_fields(hostile), dict)
    schema_flaw(hostile, {"a": "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa!"})


def test_a_whole_number_is_written_as_the_tool_reads_it():
    asked = requested({"order": 1, "amount": 120.0}, schema=SCHEMA)
    assert repr(check_edit(asked, {"order": 1, "amount": 80})["amount"]) == "80.0"
    with pytest.raises(ConfigurationError, match="amount must be at most 500"):
        check_edit(asked, {"order": 1, "amount": 8_000})


def test_without_a_schema_an_edit_keeps_the_kind_of_what_was_asked():
    with pytest.raises(ConfigurationError, match="was a number"):
        check_edit(requested({"amount": 1}), {"amount": "x"})
