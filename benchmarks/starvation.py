"""Print that no healthy run is starved: calls that fit are all made, none stalls, and only what is spent is refused.

    python benchmarks/starvation.py [--into docs/bounds.md]

32 calls of 500 tokens each (250 in, 250 out) are made at once and state no cap, so that 1,274 are held for each; then what could
stand in its own way: tools within tools, a stream that is read while its tool calls a model, a last call that was kept back, a
synchronous call inside a coroutine. The exit status is 1 when a row is not as promised.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crowd import MODES, Crowd
from openai import OpenAI
from pages import printed_into

import ravi_otel
from ravi_otel import BudgetContendedError, BudgetExhaustedError
from ravi_otel.testing import ScriptedLLM, Text

CALLS = 32
LONGEST_S = 20.0
"""Less than a call waits in line at most: whoever comes back sooner was served, or refused at once."""

ASK: dict[str, Any] = {"model": "gpt-4o-mini", "messages": [{"role": "user", "content": "word " * 194 + "wor"}]}
"""250 tokens as they are counted from outside: 973 bytes are 244, and 7 for the message and the request, less one."""

PATIENT = Text("ok", usage=(250, 250), think_s=0.02)


@dataclass(frozen=True)
class Row:
    """Tell how the calls of one scene ended; `promised` is how they must."""

    scene: str
    limit: str
    done: int
    exhausted: int
    contended: int
    took_s: float
    promised: tuple[int, int, int]

    @property
    def good(self) -> bool:
        """Tell whether it is as promised, and nobody waited for what would never come."""
        return (self.done, self.exhausted, self.contended) == self.promised and self.took_s < LONGEST_S


def sorted_out(results: list[Any]) -> tuple[int, int, int]:
    """Count what was done, refused as exhausted, and given up; raise anything else."""
    counts = Counter(type(one) if isinstance(one, BaseException) else None for one in results)
    for one in results:
        if isinstance(one, BaseException) and not isinstance(one, (BudgetExhaustedError, BudgetContendedError)):
            raise one
    return counts[None], counts[BudgetExhaustedError], counts[BudgetContendedError]


def measured(scene: str, limit: str, promised: tuple[int, int, int], work: Callable[[Any], list[Any]]) -> Row:
    """Do the work in a run with the limit."""
    started = time.monotonic()
    with ravi_otel.run("starvation", limits=[limit]) as run:
        results = work(run)
    return Row(scene, limit, *sorted_out(results), time.monotonic() - started, promised)


def plain(server: ScriptedLLM, mode: str, limit: int, promised: tuple[int, int, int]) -> Row:
    """Make the calls and nothing else."""
    crowd = Crowd(server.base_url, mode)
    return measured(f"{CALLS} calls of 500, {mode}", f"tokens={limit}", promised, lambda _: crowd.call([ASK] * CALLS))


def nested(server: ScriptedLLM, mode: str) -> Row:
    """Make each call in a tool within a tool within an agent."""
    crowd = Crowd(server.base_url, mode)
    client = OpenAI(base_url=server.base_url, api_key="any", max_retries=0)

    @ravi_otel.tool
    def inner() -> object:
        return client.chat.completions.create(**ASK)

    @ravi_otel.tool
    def outer() -> object:
        return inner()

    def blocking(number: int) -> object:
        with ravi_otel.agent(f"a{number}"):
            return outer()

    @ravi_otel.tool
    async def awaited() -> object:
        return await asyncio.to_thread(inner)

    async def awaiting(number: int) -> object:
        async with ravi_otel.agent(f"a{number}"):
            return await awaited()

    with client:
        return measured(f"in nested tools, {mode}", "tokens=20000", (CALLS, 0, 0), lambda _: crowd.act(CALLS, blocking, awaiting))


@contextmanager
def _held_by(client: Any, **more: Any) -> Iterator[Any]:
    """Open a stream, which holds what it was granted until it is read or closed."""
    with client.chat.completions.create(**{**ASK, **more}, stream=True) as stream:
        yield stream


def own_chain(server: ScriptedLLM) -> Row:
    """Ask, while a stream of one's own holds everything: the answer must come at once."""

    def work(_: Any) -> list[Any]:
        with OpenAI(base_url=server.base_url, api_key="any", max_retries=0) as client, _held_by(client, max_tokens=2_000):
            return _caught(lambda: client.chat.completions.create(**ASK))

    return measured("under its own open stream", "tokens=2000", (0, 0, 1), work)


def sync_in_coroutine(server: ScriptedLLM) -> Row:
    """Ask synchronously on the thread of an event loop, while another thread holds everything."""

    def work(_: Any) -> list[Any]:
        with OpenAI(base_url=server.base_url, api_key="any", max_retries=0) as client:
            opened, asked = threading.Event(), threading.Event()

            def hold() -> None:
                with _held_by(client, max_tokens=2_000):
                    opened.set()
                    asked.wait(LONGEST_S)

            async def ask() -> list[Any]:
                return _caught(lambda: client.chat.completions.create(**ASK))

            thread = threading.Thread(target=hold)
            thread.start()
            opened.wait(LONGEST_S)
            try:
                return asyncio.run(ask())
            finally:
                asked.set()
                thread.join()

    return measured("synchronous, in a coroutine", "tokens=2000", (0, 0, 1), work)


def wrapped_up(server: ScriptedLLM, mode: str) -> Row:
    """Spend what there is, then make the call that a tenth was kept back for."""
    crowd = Crowd(server.base_url, mode)

    def work(run: Any) -> list[Any]:
        results = crowd.call([ASK] * CALLS)
        with OpenAI(base_url=server.base_url, api_key="any", max_retries=0) as client, run.wrap_up():
            return [*results, *_caught(lambda: client.chat.completions.create(**ASK))]

    return measured(f"a last call of 1,000 kept back, {mode}", "tokens=10000:on=final", (19, CALLS - 18, 0), work)


def _caught(act: Callable[[], object]) -> list[Any]:
    try:
        return [act()]
    except (BudgetExhaustedError, BudgetContendedError) as error:
        return [error]


def rows(server: ScriptedLLM) -> Iterator[Row]:
    """Measure every scene."""
    for mode in MODES:
        yield plain(server, mode, 100_000, (CALLS, 0, 0))
        yield plain(server, mode, 20_000, (CALLS, 0, 0))
        yield plain(server, mode, 10_000, (20, 12, 0))
        yield nested(server, mode)
        yield wrapped_up(server, mode)
    yield own_chain(server)
    yield sync_in_coroutine(server)


def print_rows(server: ScriptedLLM) -> bool:
    """Print the table; tell whether every row is as promised."""
    print("\n| 32 calls at once | limit | done | exhausted | contended | s | as promised |\n|---|---|---:|---:|---:|---:|---|")
    good = True
    for row in rows(server):
        good = good and row.good
        told = "yes" if row.good else f"**no**: {row.promised}"
        print(f"| {row.scene} | {row.limit} | {row.done} | {row.exhausted} | {row.contended} | {row.took_s:.2f} | {told} |", flush=True)
    return good


def main() -> int:
    """Print the table; give 1 when a row is not as promised."""
    options = argparse.ArgumentParser(description="Print that no healthy run is starved.")
    options.add_argument("--into", type=Path, help="a page with the table of an earlier run, to be replaced")
    given = options.parse_args()
    logging.getLogger("ravi_otel").setLevel(logging.CRITICAL)  # it would tell every limit that is passed, and that is meant
    with printed_into(given.into, "starvation"), ScriptedLLM(PATIENT) as server, ravi_otel.instrument():
        print(f"{time.strftime('%d %B %Y', time.gmtime())}")
        good = print_rows(server)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
