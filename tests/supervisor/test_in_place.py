"""The values of a program that calls its own tools are judged as JSON, and given to the function as they were."""

import copy
import functools
import itertools
import statistics
import types
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from refund_gate import APPROVE

import ravi_otel
from ravi_otel.errors import ConfigurationError, StopRun, ToolDeniedError
from ravi_otel.supervisor import Decision, DecisionKind, ToolGateway


class Sees:
    """Approve, and remember what was judged; with `puts` revise that in first."""

    def __init__(self, puts=None):
        self.args, self.puts = [], puts

    def review(self, action, state, policy):
        self.args.append(action["args"])
        if self.puts is not None:
            puts, self.puts = self.puts, None
            return Decision(DecisionKind.REVISE, "other", {**action, "args": puts})
        return APPROVE


def given(value):
    return value


def called(fn, *args, supervisor=None, **kwargs):
    tools, sees = {fn.__name__: fn}, supervisor or Sees()
    with ravi_otel.run("program"), ravi_otel.instrument_tools(tools, supervisor=sees):
        return tools[fn.__name__](*args, **kwargs), sees.args


def test_a_function_that_nobody_wrote_for_a_gate_takes_its_tuple():
    assert called(statistics.mean, (1, 2))[0] == 1.5


def test_a_tuple_arrives_as_one_where_a_list_is_annotated():
    def total(values: list[int]) -> int:
        assert type(values) is tuple
        return sum(values)

    assert called(total, (1, 2)) == (3, [{"values": [1, 2]}])


def test_what_the_supervisor_puts_in_its_place_is_what_arrives():
    assert called(given, (1, 2), supervisor=Sees({"value": [3]}))[0] == [3]


def test_values_without_a_name_are_judged_each_by_the_annotation():
    def pay(user: int, *amounts: int) -> tuple[Any, ...]:
        return (user, *amounts)

    assert called(pay, 1, 2, 3) == ((1, 2, 3), [{"user": 1, "amounts": [2, 3]}])
    with pytest.raises(ToolDeniedError, match=r"amounts\[1\] must be int"):
        called(pay, 1, 2, "3")


def test_a_model_cannot_name_what_has_no_name():
    def pay(user: int, *amounts: int, **more: Any) -> tuple[Any, ...]:
        return (user, amounts, more)

    with ravi_otel.run("desk"), ToolGateway({"pay": pay}) as gateway, pytest.raises(StopRun, match="takes no argument 'amounts'"):
        gateway.call("pay", '{"user": 1, "amounts": [true, "1e9"]}')


def test_a_model_gives_json_and_nothing_else():
    with ravi_otel.run("desk"), ToolGateway({"given": given}) as gateway, pytest.raises(StopRun) as stop:
        gateway.call("given", {"value": (1, 2)})
    assert stop.value.reason == "tool_bad_args:given"


# -- what can be read only once ------------------------------------------------------------------------------------------


def awaitable():
    async def nothing():
        return None

    return nothing()


@dataclass
class Batch:
    rows: Any


ONCE = [
    itertools.count,
    lambda: (each for each in itertools.count()),
    lambda: [itertools.count()],
    lambda: {"a": (itertools.count(),)},
    lambda: Batch(itertools.count()),
]


@pytest.mark.parametrize("make", ONCE)
def test_what_can_be_read_only_once_is_refused_and_not_read(make):
    value = make()
    with pytest.raises(ToolDeniedError, match="can be read only once") as denied:
        called(given, value)
    assert denied.value.stop_reason == "tool_bad_args:given"
    assert "skip=['given']" in str(denied.value)
    if isinstance(value, itertools.count):
        assert next(value) == 0


def test_something_to_await_is_refused_and_not_awaited():
    waits = awaitable()
    with pytest.raises(ToolDeniedError, match="can be read only once"):
        called(given, waits)
    waits.close()


@pytest.mark.parametrize("hint", [Iterable[int], Iterable])
def test_a_list_for_something_to_iterate_over_arrives_whole(hint):
    def delete(ids) -> list[int]:
        return [*ids, *ids]

    delete.__annotations__["ids"] = hint
    assert called(delete, [1, 2]) == ([1, 2, 1, 2], [{"ids": [1, 2]}])
    assert called(delete, (1, 2))[0] == [1, 2, 1, 2]
    with ravi_otel.run("desk"), ToolGateway({"delete": delete}) as gateway:
        assert gateway.call("delete", '{"ids": [4, 5]}') == [4, 5, 4, 5]


@pytest.mark.parametrize("hint", [Iterator[int], Generator[int, None, None]])
def test_an_annotation_of_what_is_read_once_takes_nothing(hint, caplog):
    def delete(ids) -> list[int]:
        raise AssertionError

    delete.__annotations__["ids"] = hint
    with pytest.raises(ToolDeniedError, match="unknown_arg_spec"):
        called(delete, [1, 2])
    assert "no call of delete can pass its gate" in caplog.text


# -- what cannot be judged -----------------------------------------------------------------------------------------------


@dataclass(eq=False)
class Order:
    usd: int


class Sneaky(tuple):
    __slots__ = ()

    def __iter__(self):
        return iter(("harmless",))


@pytest.mark.parametrize("value", [Order(1), object(), Sneaky(("harmful",)), {1: 2}, 10**30], ids=lambda value: type(value).__name__)
def test_what_cannot_be_judged_is_refused_with_a_way_out(value):
    with pytest.raises(ToolDeniedError, match=r"put no gate before it: instrument_tools\(\.\.\., skip=\['given'\]\)"):
        called(given, value)


def test_an_argument_called_cls_or_self_is_judged_where_it_is_an_argument():
    def move(cls: str, amount: int) -> str:
        return f"{amount} to {cls}"

    assert called(move, "thief", 5) == ("5 to thief", [{"cls": "thief", "amount": 5}])


def test_the_argument_of_a_static_method_is_judged_whatever_it_is_called():
    class Desk:
        @staticmethod
        def move(cls: str) -> str:  # noqa: PLW0211 - that it is no class is the point
            return cls

        def pay(self, usd: int) -> int:
            return usd

    sees = Sees()
    with ravi_otel.run("desk"), ravi_otel.instrument_tools(Desk, supervisor=sees):
        assert (Desk.move("thief"), Desk().pay(3)) == ("thief", 3)
    assert sees.args == [{"cls": "thief"}, {"usd": 3}]


# -- which functions -------------------------------------------------------------------------------------------------------


def other(value):
    return value


def main():
    return "started"


@pytest.mark.parametrize("choice", [{"skip": ["main"]}, {"only": ["given", "other"]}])
@pytest.mark.parametrize("supervisor", [None, Sees()])
def test_functions_are_left_out_by_name(choice, supervisor, caplog):
    tools = {"given": given, "other": other, "main": main}
    with ravi_otel.instrument_tools(tools, supervisor=supervisor, **choice) as made:
        assert made.names == ("given", "other")
        assert dict(made.skipped) == {"main": "left out as asked"}
        assert tools["main"] is main
    assert caplog.records == []


@pytest.mark.parametrize(
    ("choice", "words"),
    [
        ({"skip": ["man"]}, "skip=.* did you mean 'main'"),
        ({"only": ["man"]}, "only=.* did you mean 'main'"),
        ({"skip": ["main"], "only": ["main"]}, "give one of the two"),
        ({"skip": "main"}, "a list of names"),
    ],
)
def test_what_names_no_function_is_refused_and_nothing_is_changed(choice, words):
    tools = {"main": main}
    with pytest.raises(ConfigurationError, match=words):
        ravi_otel.instrument_tools(tools, **choice)
    assert tools == {"main": main}


# -- what no gate stands before is said ------------------------------------------------------------------------------------


def test_what_of_a_class_or_module_runs_without_the_gate_is_said(caplog):
    class Desk:
        def pay(self, usd: int) -> int:
            return usd

        refund = pay
        big = functools.partialmethod(pay, 10**6)

        @property
        def opened(self) -> str:
            return "opened"

    module = types.ModuleType("desk_tools")
    exec("from statistics import mean\ndef close(): return 'closed'", vars(module))
    with ravi_otel.instrument_tools(Desk, supervisor=Sees()), ravi_otel.instrument_tools(module, supervisor=Sees()) as made:
        assert made.names == ("close",)
    said = caplog.text
    for words in ("pay and refund are one function", "big is a partialmethod", "opened is a property", "mean is written elsewhere"):
        assert words in said


def test_a_tool_is_copied_as_a_function_is():
    config = {"tools": {"given": given}}
    with ravi_otel.instrument_tools(config["tools"], supervisor=Sees()):
        assert copy.deepcopy(config)["tools"]["given"] is config["tools"]["given"]
        assert copy.copy(config["tools"]["given"]) is config["tools"]["given"]


def test_an_argument_called_self_goes_by_its_name():
    def keywords(**more: int) -> dict[str, int]:
        return more

    assert called(keywords, self=1)[0] == {"self": 1}
