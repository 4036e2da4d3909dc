"""What stands in a function's place is the function but for its calls, and leaves alone what is no tool."""

from __future__ import annotations

import asyncio
import collections
import concurrent.futures
import contextlib
import functools
import gc
import inspect
import multiprocessing
import pickle
import sys
import types
import weakref
from collections.abc import Iterator
from typing import Any

import pydantic
import pytest

import ravi_otel
from ravi_otel import instrument_tools

SOURCE = """
def search(q, *, most=3):
    return [q] * most

async def fetch(url):
    return url

def fails():
    raise KeyError("its own")
"""


@pytest.fixture
def module() -> Iterator[Any]:
    made = types.ModuleType("more_tools_of_a_test")
    sys.modules[made.__name__] = made
    exec(SOURCE, vars(made))
    yield made
    del sys.modules[made.__name__]


class Box:
    def ask(self, q: str) -> str:
        return q.upper()


def used() -> Any:
    return ravi_otel.run("r")


def test_what_stands_in_a_mapping_or_list_is_still_what_it_was_but_for_its_calls(module: Any) -> None:
    box = Box()
    functions: dict[str, Any] = {
        "ask": box.ask,
        "more": functools.partial(module.search, most=1),
        "plain": module.search,
        "get": module.fetch,
    }
    with instrument_tools(functions), used() as run:
        assert functions["ask"].__self__ is box
        assert functions["more"].func is module.search
        assert isinstance(functions["more"], functools.partial)
        assert inspect.isfunction(functions["plain"])
        assert inspect.iscoroutinefunction(functions["get"])
        assert inspect.signature(functions["plain"]) == inspect.signature(module.search)
        assert (functions["ask"]("a"), functions["more"]("b"), asyncio.run(functions["get"](url="u"))) == ("A", ["b"], "u")
        assert run.stats().tool_calls == 3
        assert pickle.loads(pickle.dumps(functions["plain"])) is module.search


def in_a_pool(q: str) -> str:
    return q.upper()


def test_a_tool_can_be_handed_to_a_pool_of_processes() -> None:
    functions = {"search": in_a_pool}
    context = multiprocessing.get_context("spawn")
    with instrument_tools(functions), concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as pool:
        assert pool.submit(functions["search"], "a").result(60) == "A"


def test_a_partial_or_a_wrapper_of_a_tool_counts_once(module: Any) -> None:
    tool = ravi_otel.tool(module.search)
    functions: dict[str, Any] = {"search": functools.partial(tool, most=1), "plain": module.search}
    with instrument_tools(functions) as tools, used() as run:
        held = functions["plain"]
        functions["plain"] = functools.wraps(held)(lambda q: [*held(q), "more"])
        with instrument_tools(functions) as again:
            functions["search"]("a")
            functions["plain"]("a")
            assert run.stats().tool_calls == 2
    assert dict(tools.skipped) == {"search": "a tool already"}
    assert again.names == ()


def test_what_pydantic_calls_itself_is_no_tool() -> None:
    class Query(pydantic.BaseModel):
        q: str = ""

        def model_post_init(self, context: Any, /) -> None:
            self.q = "post"

        def ask(self) -> str:
            return self.q

    with instrument_tools(Query) as tools, used() as run:
        assert Query().ask() == "post"
        assert (tools.names, run.stats().tool_calls) == (("ask",), 1)


def test_a_member_that_raises_when_it_is_looked_at_is_left_alone(module: Any) -> None:
    class Rude:
        def __getattribute__(self, name: str) -> Any:
            raise PermissionError(name)

        def __call__(self) -> int:
            return 1

    module.rude = Rude()
    with instrument_tools(module) as tools:
        assert "search" in tools.names
        assert "PermissionError" in tools.skipped["rude"]


def test_each_mapping_of_a_chain_is_changed_and_put_back_where_it_has_the_function(module: Any) -> None:
    first, second = {"fetch": module.fetch}, {"search": module.search, "fetch": module.fails}
    chain = collections.ChainMap(first, second)
    with instrument_tools(chain) as tools, used() as run:
        assert chain["search"]("a", most=1) == ["a"]
        assert (set(tools.names), run.stats().tool_calls) == ({"search", "fetch"}, 1)
    assert first == {"fetch": module.fetch}
    assert second == {"search": module.search, "fetch": module.fails}
    assert second["search"] is module.search


class Given:
    pass


def refuses(given: Given) -> None:
    raise KeyError("its own")


async def refuses_later(given: Given) -> None:
    raise KeyError("its own")


@pytest.mark.parametrize("fn", [refuses, refuses_later])
def test_what_a_tool_was_given_lives_no_longer_than_its_error(fn: Any) -> None:
    async def program() -> Any:
        given = Given()
        alive = weakref.ref(given)
        with contextlib.suppress(KeyError):
            tool: Any = ravi_otel.tool(fn)
            called = tool(given)
            await called
        del given
        return alive()

    gc.disable()
    try:
        with used():
            assert asyncio.run(program()) is None
    finally:
        gc.enable()


def test_a_tool_that_raises_stop_iteration_raises_it_as_it_was() -> None:
    own = StopIteration(1)

    @ravi_otel.tool
    def stops() -> None:
        raise own

    with used(), pytest.raises(StopIteration) as raised:
        stops()
    assert raised.value is own
    assert (own.__context__, own.__cause__, own.__suppress_context__) == (None, None, False)
