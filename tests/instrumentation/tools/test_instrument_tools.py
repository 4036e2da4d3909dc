"""Functions become tools where they are kept, and the identical objects come back."""

from __future__ import annotations

import abc
import asyncio
import dataclasses
import functools
import inspect
import pickle
import sys
import threading
import types
from collections.abc import Callable, Iterator
from types import MappingProxyType
from typing import Any

import pydantic
import pytest

import ravi_otel
from ravi_otel import BudgetExhaustedError, ConfigurationError, instrument_tools

SOURCE = '''
import asyncio
import functools
import json as codec
from textwrap import dedent

def search(q, *, most=3):
    """Find."""
    return [q] * most

async def fetch(url):
    await asyncio.sleep(0)
    return url

def fails():
    raise KeyError("its own")

def pages():
    yield 1

async def streams():
    yield 1

def _hidden():
    return 1

@functools.cache
def cached():
    return 1

class Thing:
    pass

LIMIT = 3
'''


@pytest.fixture
def module() -> Iterator[Any]:
    made = types.ModuleType("tools_of_a_test")
    sys.modules[made.__name__] = made
    exec(SOURCE, vars(made))
    yield made
    del sys.modules[made.__name__]


class Base:
    def inherited(self) -> str:
        return "base"


class Toolbox(Base):
    kind = "box"

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def search(self, q: str) -> str:
        self.seen.append(q)
        return q.upper()

    async def fetch(self, url: str) -> str:
        return url

    @classmethod
    def make(cls) -> Toolbox:
        return cls()

    @staticmethod
    def add(a: int, b: int) -> int:
        return a + b

    @property
    def size(self) -> int:
        return len(self.seen)

    def pages(self) -> Iterator[int]:
        yield 1

    def _hidden(self) -> int:
        return 1

    def __len__(self) -> int:
        return 1


def by_default() -> int:
    return 1


def used(*limits: str) -> Any:
    return ravi_otel.run("r", limits=limits)


def test_the_functions_a_module_defines_are_counted_and_give_what_they_gave(module: Any) -> None:
    with instrument_tools(module) as tools, used() as run:
        assert module.search("a", most=2) == ["a", "a"]
        assert asyncio.run(module.fetch("u")) == "u"
        with pytest.raises(KeyError, match="its own"):
            module.fails()
        assert module._hidden() == module.cached() == 1
        assert list(module.pages()) == [1]
        assert run.stats().tool_calls == 3
    assert tools.skipped.keys() == {"pages", "streams", "cached", "Thing"}
    assert "generator" in tools.skipped["pages"]


def test_what_a_module_imported_stays_as_it_is(module: Any) -> None:
    before = dict(vars(module))
    with instrument_tools(module) as tools:
        changed = {name for name, value in vars(module).items() if before[name] is not value}
        assert changed == set(tools.names) == {"search", "fetch", "fails"}


@pytest.mark.parametrize("way", ["remove", "with", "uninstrument"])
def test_the_identical_objects_come_back(module: Any, way: str) -> None:
    before, own = dict(vars(module)), dict(vars(Toolbox))
    with ravi_otel.instrument():
        handles = [instrument_tools(module), instrument_tools(Toolbox)]
        assert module.search is not before["search"]
        if way == "uninstrument":
            ravi_otel.uninstrument()
        for handle in handles:
            if way == "remove":
                handle.remove()
            elif way == "with":
                with handle:
                    pass
    assert all(vars(module)[name] is value for name, value in before.items())
    assert all(vars(Toolbox)[name] is value for name, value in own.items())


def test_a_class_has_its_own_methods_of_every_sort_as_tools() -> None:
    with instrument_tools(Toolbox) as tools, used() as run:
        box = Toolbox.make()
        assert isinstance(box, Toolbox)
        assert (box.search("a"), asyncio.run(box.fetch("u")), Toolbox.add(1, 2), box.add(3, 4), box.size) == ("A", "u", 3, 7, 1)
        assert box.inherited() == "base"
        assert box._hidden() == len(box) == 1
        assert run.stats().tool_calls == 5
        assert set(tools.names) == {"search", "fetch", "make", "add"}
    assert tools.skipped.keys() == {"pages"}


def test_signature_name_doc_and_colour_stay_the_functions_own(module: Any) -> None:
    search, fetch = module.search, module.fetch
    with instrument_tools(module):
        assert inspect.signature(module.search) == inspect.signature(search)
        assert (module.search.__name__, module.search.__doc__, module.search.__module__) == ("search", "Find.", module.__name__)
        assert inspect.isfunction(module.search)
        assert inspect.iscoroutinefunction(module.fetch)
        assert not inspect.iscoroutinefunction(module.search)
        assert pickle.loads(pickle.dumps(module.search)) is module.search
    assert inspect.iscoroutinefunction(fetch)


def test_a_mapping_is_changed_in_place_and_its_keys_name_the_tools() -> None:
    def look(q: str) -> str:
        return q

    functions: dict[str, Any] = {"search": look, "join": ",".join, "double": functools.partial(int.__mul__, 2), "schema": Base, "n": 3}
    before = dict(functions)
    with instrument_tools(functions) as tools, used("tool.search=1") as run:
        assert (functions["search"]("q"), functions["join"](["a", "b"]), functions["double"](4)) == ("q", "a,b", 8)
        with pytest.raises(BudgetExhaustedError, match="search"):
            functions["search"]("again")
        assert run.stats().tool_calls == 3
        assert tools.names == ("search", "join", "double")
        assert tools.skipped.keys() == {"schema", "n"}
    assert list(functions.items()) == list(before.items())


def test_a_list_is_changed_in_place_also_when_the_program_moves_its_functions() -> None:
    def one() -> int:
        return 1

    def two() -> int:
        return 2

    functions: list[Any] = [one, two, lambda: 3]
    nameless = functions[2]
    with instrument_tools(functions) as tools, used() as run:
        assert [each() for each in functions] == [1, 2, 3]
        assert run.stats().tool_calls == 2
        assert tools.skipped.keys() == {"[2]"}
        functions.insert(0, max)
        functions.reverse()
    assert functions == [nameless, two, one, max]


def test_an_object_that_is_more_than_a_function_is_left_alone_and_said_so() -> None:
    class Framework:
        name = "search"

        def __call__(self) -> int:
            return 1

    kept = Framework()
    functions: list[Any] = [kept]
    tools = instrument_tools(functions)
    assert functions[0] is kept
    assert "Framework" in next(iter(tools.skipped.values()))


def test_a_tool_is_wrapped_once_however_it_became_one(module: Any) -> None:
    module.search = ravi_otel.tool(module.search)
    first = instrument_tools(module)
    second = instrument_tools(module)
    with used() as run:
        module.search("a")
        module.fails.__wrapped__  # noqa: B018 - that it is wrapped
        asyncio.run(module.fetch("u"))
        assert run.stats().tool_calls == 2
    assert second.names == ()
    assert first.skipped["search"] == second.skipped["fetch"] == "a tool already"


def test_what_somebody_holds_of_ours_does_nothing_once_it_is_removed(module: Any) -> None:
    original = module.search
    tools = instrument_tools(module)
    held = module.search

    @functools.wraps(held)
    def theirs(*args: Any, **kwargs: Any) -> Any:
        return held(*args, **kwargs)

    module.search = theirs
    tools.remove()
    with used() as run:
        assert module.search("a") == original("a")
        assert run.stats().tool_calls == 0
        assert module.search is theirs
        with instrument_tools(module):
            module.search("a")
        assert run.stats().tool_calls == 1


def test_fields_and_validators_are_no_tools_and_abstract_methods_stay_abstract() -> None:
    @dataclasses.dataclass
    class Plan:
        how: Callable[[], int] = by_default

        def steps(self) -> int:
            return 1

    class Query(pydantic.BaseModel):
        q: str

        @pydantic.field_validator("q")
        @classmethod
        def check(cls, value: str) -> str:
            return value.strip()

        def ask(self) -> str:
            return self.q

    class Shape(abc.ABC):
        @abc.abstractmethod
        def area(self) -> int: ...

        def twice(self) -> int:
            return 2

    class Square(Shape):
        def area(self) -> int:
            return 4

    with instrument_tools(Plan) as plan, instrument_tools(Query) as query, instrument_tools(Shape) as shape, used() as run:
        assert (plan.names, query.names, shape.names) == (("steps",), ("ask",), ("twice",))
        assert (Plan().steps(), Query(q=" a ").ask(), Square().twice(), Square().area()) == (1, "a", 2, 4)
        with pytest.raises(TypeError):
            Shape()  # type: ignore[abstract]  # that it still is
        assert run.stats().tool_calls == 3


@pytest.mark.parametrize(
    ("target", "says"),
    [
        (MappingProxyType({"a": max}), "cannot be changed in place"),
        ((max,), "Give the list"),
        ({max}, "Give the list"),
        (max, "Decorate it with @ravi_otel.tool"),
        (3, "takes a module, a class"),
        (None, "takes a module, a class"),
        ("tools.py", "takes a module, a class"),
    ],
)
def test_what_cannot_be_changed_is_refused_with_the_way_out(target: Any, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        instrument_tools(target)


def test_a_class_that_refuses_is_left_whole() -> None:
    class Sealed(type):
        def __setattr__(cls, name: str, value: Any) -> None:
            if name == "two" and not hasattr(value, "plain"):
                raise PermissionError("sealed")
            super().__setattr__(name, value)

    class Box(metaclass=Sealed):
        def one(self) -> int:
            return 1

        def two(self) -> int:
            return 2

    before = dict(vars(Box))
    with pytest.raises(ConfigurationError, match="PermissionError"):
        instrument_tools(Box)
    assert all(vars(Box)[name] is value for name, value in before.items())


def test_instrument_takes_tools_and_uninstrument_gives_them_back(module: Any) -> None:
    before = dict(vars(module))
    functions: list[Any] = [Toolbox.add]
    with ravi_otel.instrument(tools=(module, functions)):
        with used() as run:
            module.search("a")
            functions[0](1, 2)
            assert run.stats().tool_calls == 2
        ravi_otel.instrument(tools=module)
        with used() as run:
            module.search("a")
            assert run.stats().tool_calls == 1
    assert all(vars(module)[name] is value for name, value in before.items())
    assert functions == [Toolbox.add]


def test_tools_that_cannot_be_leave_nothing_instrumented(module: Any) -> None:
    search = module.search
    with pytest.raises(ConfigurationError, match="takes a module"):
        ravi_otel.instrument(tools=(module, 3))
    assert module.search is search


class Mapping(dict[str, Any]):
    """Be a program's own mapping, and do a thing each time something is put into it."""

    act: Any = None

    def __setitem__(self, key: str, value: Any) -> None:
        if self.act is not None:
            self.act()
        super().__setitem__(key, value)


@pytest.mark.parametrize("other", [ravi_otel.instrument, lambda: instrument_tools({"id": id}).remove()])
def test_code_of_a_target_runs_while_nobody_else_is_kept_from_instrumenting(other: Callable[[], object]) -> None:
    def act() -> None:
        thread = threading.Thread(target=lambda: done.append(other()), daemon=True)
        thread.start()
        thread.join(10)
        through.append(len(done))

    done: list[Any] = []
    through: list[int] = []
    mapping = Mapping(add=Toolbox.add)
    mapping.act = act
    with ravi_otel.instrument(tools=mapping):
        assert through == [1]
        assert mapping["add"] is not Toolbox.add
        mapping.act = None
    ravi_otel.uninstrument()
    assert mapping["add"] is Toolbox.add


def test_tools_are_given_back_where_the_rest_of_what_was_asked_for_is_refused() -> None:
    functions: list[Any] = [Toolbox.add]
    with ravi_otel.instrument(limits=["tokens=5"]):
        with pytest.raises(ConfigurationError, match="would forget what its limits"):
            ravi_otel.instrument(limits=["tokens=6"], tools=functions)
        assert functions == [Toolbox.add]
