"""Who waits in line: each task is one, a thread is one, and none of them is kept alive by being named."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import weakref
from importlib.util import find_spec
from types import ModuleType

import pytest

import ravi_otel
from ravi_otel import HookEvent
from ravi_otel._enforcement.sleeper import on_any_event_loop
from ravi_otel._flow import owner


async def _owner() -> object:
    return owner()


@pytest.mark.anyio
async def test_a_task_is_the_same_whenever_it_asks_and_no_other_task_is():
    assert owner() == owner()
    assert owner() != await asyncio.create_task(_owner())


@pytest.mark.anyio
async def test_whoever_knows_a_task_by_its_name_keeps_neither_it_nor_its_result():
    task = asyncio.create_task(_owner())
    name, seen = await task, weakref.ref(task)
    del task
    await asyncio.sleep(0)  # the loop lets go of it in its next turn
    gc.collect()
    assert seen() is None
    assert name != owner()


@pytest.mark.skipif(find_spec("trio") is None, reason="trio is not installed")
@pytest.mark.parametrize("anyio_backend", ["trio"])
@pytest.mark.anyio
async def test_a_task_of_trio_is_told_apart_from_its_thread():
    assert owner() == owner()
    assert owner() != threading.get_ident()


def test_a_thread_is_named_by_itself():
    assert owner() == threading.get_ident()


def _beginning(*begun: str) -> ModuleType:
    """Give trio as it is found while another thread imports it: of what it will have, nothing but these modules, which are empty."""
    module = ModuleType("trio")
    for name in begun:
        setattr(module, name, ModuleType(f"trio.{name}"))
    return module


@pytest.mark.parametrize("begun", [(), ("lowlevel",)])
def test_nobody_runs_in_trio_while_another_thread_imports_it(monkeypatch: pytest.MonkeyPatch, begun: tuple[str, ...]) -> None:
    monkeypatch.setitem(sys.modules, "trio", _beginning(*begun))
    assert owner() == threading.get_ident()
    assert not on_any_event_loop()


@pytest.mark.parametrize("begun", [(), ("lowlevel",)])
def test_a_hook_that_is_dispatched_while_another_thread_imports_trio_runs_elsewhere(
    monkeypatch: pytest.MonkeyPatch, begun: tuple[str, ...]
) -> None:
    ran = threading.Event()
    hooks = ravi_otel.HookManager()

    async def callback(context: object) -> None:
        ran.set()

    hooks.register(HookEvent.REVIEW, callback)
    monkeypatch.setitem(sys.modules, "trio", _beginning(*begun))
    with pytest.raises(StopIteration):
        hooks.dispatch(HookEvent.REVIEW, {}).send(None)  # by a loop of neither kind
    assert ran.wait(10)
