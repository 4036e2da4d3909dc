"""Who waits in line: each task is one, a thread is one, and none of them is kept alive by being named."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from importlib.util import find_spec

import pytest

from ravi_otel.runtime.patience import owner


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
