"""Make N calls at once under another library's own limits, in its own environment; `overshoot.py` asks, a line of JSON at a time.

Nothing of ravi-otel is here. `limits_of_….py` do the work, each in the way its library's documentation gives for one budget over many
calls. They answer `{"charged": what the library counted, "ran": tools that ran}`, or `{"none": why}` where there is no such limit.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

MODEL = "gpt-4o-mini"
Told = dict[str, Any]


def in_threads(count: int, act: Callable[[int], object]) -> list[object]:
    """Call it with 0, 1, …, each in a thread of its own; give results and exceptions."""
    with ThreadPoolExecutor(count) as pool:
        futures = [pool.submit(act, number) for number in range(count)]
        return [future.exception() or future.result() for future in futures]


async def in_tasks(count: int, act: Callable[[int], Awaitable[object]]) -> list[object]:
    """Await it with 0, 1, … all at once; give results and exceptions."""
    return await asyncio.gather(*(act(number) for number in range(count)), return_exceptions=True)


def refused_only(results: list[object], refusal: type[BaseException]) -> None:
    """Raise what was no refusal: then nothing was measured."""
    for one in results:
        if isinstance(one, BaseException) and not isinstance(one, refusal):
            raise one


def serve(work: Callable[[Told], Told]) -> None:
    """Answer until nobody asks any more."""
    for line in sys.stdin:
        print(json.dumps(work(json.loads(line))), flush=True)
