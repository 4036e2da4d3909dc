"""A gate does not enter itself, and knows whose object the first argument of a function is."""

import contextvars
import json
import logging
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import pydantic
import pytest
from opentelemetry.sdk.trace import TracerProvider

sys.path.insert(0, str(Path(__file__).parent))

from test_in_place import Sees, called

import ravi_otel
from ravi_otel.errors import BudgetExhaustedError, ToolDeniedError
from ravi_otel.supervisor import AuditLog, Gate


def functions_of_json():
    return {name: getattr(json, name) for name in ("dump", "dumps", "load", "loads", "detect_encoding")}


def test_what_the_gate_itself_works_with_may_be_behind_it():
    sees = Sees()
    with ravi_otel.run("program"), ravi_otel.instrument_tools(json, supervisor=sees) as made:
        assert set(made.names) == set(functions_of_json())
        assert json.dumps({"a": 1}) == '{"a": 1}'
        assert json.loads(b'{"a": 2}') == {"a": 2}
    assert next(args for args in sees.args if "obj" in args)["obj"] == {"a": 1}


def test_what_is_written_down_is_written_past_the_gate(tmp_path):
    gate = Gate(Sees(), tools=functions_of_json(), audit=AuditLog(tmp_path), loops=False)
    with ravi_otel.run("program"), ravi_otel.instrument_tools(json, supervisor=gate):
        assert json.dumps([1]) == "[1]"
    assert len(list(tmp_path.glob("*.jsonl"))) == 1


@pytest.mark.parametrize("supervisor", [None, Sees()], ids=["observed", "gated"])
def test_what_tells_and_counts_a_call_is_no_call_itself(supervisor, monkeypatch):
    monkeypatch.setenv("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", "true")
    given = {} if supervisor is None else {"supervisor": supervisor}
    provider = TracerProvider()
    with (
        ravi_otel.instrument(tracer_provider=provider),
        ravi_otel.run("program", limits=["tool_calls=1"]),
        ravi_otel.instrument_tools(json, **given),
    ):
        assert json.dumps({"a": 1}) == '{"a": 1}'
        with pytest.raises(BudgetExhaustedError):
            json.dumps({"a": 2})


def validated(by):
    def hold(value: Any) -> Any:
        by(value)
        return value

    return Annotated[int, pydantic.AfterValidator(hold)]


def test_a_validator_that_calls_its_own_tool_is_refused_in_one_sentence():
    ran = []
    tools: dict[str, Any] = {}

    def again(value):
        tools["pay"](value)

    def pay(amount: validated(again)) -> None:
        ran.append(amount)

    tools["pay"] = pay
    why = "Its own arguments, or its result, are read by calling it"
    with (
        ravi_otel.run("program"),
        ravi_otel.instrument_tools(tools, supervisor=Sees()),
        pytest.raises(ToolDeniedError, match=why) as denied,
    ):
        tools["pay"](5)
    assert (ran, denied.value.stop_reason) == ([], "tool_bad_args:pay")


def test_a_validator_may_call_another_tool_which_is_judged():
    sees, found = Sees(), []
    tools: dict[str, Any] = {"look": lambda value: found.append(value) or value}

    def look(value):
        tools["look"](value)

    def pay(amount: validated(look)) -> int:
        return amount

    tools["pay"] = pay
    with ravi_otel.run("program"), ravi_otel.instrument_tools(tools, supervisor=sees):
        assert tools["pay"](5) == 5
    assert {"value": 5} in sees.args
    assert set(found) == {5}


def test_what_a_validator_began_may_call_the_tool_once_it_was_read():
    contexts, tools = [], {}

    def pay(amount: validated(lambda value: contexts.append(contextvars.copy_context()))) -> int:
        return amount

    tools["pay"] = pay
    with ravi_otel.run("program"), ravi_otel.instrument_tools(tools, supervisor=Sees()):
        tools["pay"](5)
        assert contexts[0].run(tools["pay"], 6) == 6


# -- whose object it is ------------------------------------------------------------------------------------------------


class Desk:
    def __init__(self):
        self.paid = []

    @staticmethod
    def move(cls: str, amount: int) -> str:  # noqa: PLW0211 - that is what is asked here
        return f"{amount} to {cls}"

    @staticmethod
    def send(self: str, amount: int) -> str:  # noqa: PLW0211 - as above
        return f"{amount} to {self}"

    def pay(self, amount, **more):
        self.paid.append(amount)
        return amount, more


@pytest.mark.parametrize(("fn", "name"), [(Desk.move, "cls"), (Desk.send, "self")])
def test_an_argument_that_is_called_as_an_object_is_judged(fn, name):
    assert called(fn, "attacker", 5) == ("5 to attacker", [{name: "attacker", "amount": 5}])
    assert called(fn, **{name: "attacker"}, amount=5) == ("5 to attacker", [{name: "attacker", "amount": 5}])
    with pytest.raises(ToolDeniedError, match=f"argument '{name}' is missing"):
        called(fn, amount=5)


def test_the_object_of_a_method_in_a_mapping_is_no_argument():
    desk = Desk()
    assert called(Desk.pay, desk, 5, to="me") == ((5, {"to": "me"}), [{"amount": 5, "to": "me"}])
    assert called(desk.pay, 6) == ((6, {}), [{"amount": 6}])
    assert desk.paid == [5, 6]


def test_what_is_no_object_of_the_class_is_judged_as_an_argument():
    sees = Sees()
    with pytest.raises(AttributeError):
        called(Desk.pay, "attacker", 5, supervisor=sees)
    assert sees.args == [{"self": "attacker", "amount": 5}]


# -- what is said --------------------------------------------------------------------------------------------------------


def test_what_takes_a_function_or_a_class_is_said_where_it_is_placed(caplog):
    def call(fn: Callable[[int], int], n: int) -> int:
        return fn(n)

    def make(kind: type) -> object:
        return kind()

    def late(n: int, fn: Callable[[int], int] | None = None) -> int:
        return n if fn is None else fn(n)

    with ravi_otel.instrument_tools({"call": call, "make": make, "late": late}, supervisor=Sees()):
        assert ["no call of" in line and line.split()[4] for line in caplog.messages] == ["call", "make"]


def test_a_name_alike_is_judged_beside_the_other():
    def tag(name, /, **attrs):
        return name, attrs

    assert called(tag, "img", name="logo") == (("img", {"name": "logo"}), [{"name": "img", "attrs_name": "logo"}])


def test_an_object_that_holds_what_is_read_once_is_said_to_hold_it():
    def keep(value):
        return value

    logger = logging.getLogger("held")
    logger.addHandler(logging.StreamHandler(sys.__stderr__))
    with pytest.raises(ToolDeniedError, match="it is a Logger with what can be read only once, or with more than is read, in it"):
        called(keep, logger)
    with pytest.raises(ToolDeniedError, match="is of type 'lock'"):
        called(keep, threading.Lock())
