"""Print how far limits are overshot when N calls are made at once: the real client, a scripted server on loopback.

`python benchmarks/overshoot.py [N ...]` (default 1 8 32 256). Each row is one run with one limit, hit by N calls at
once from tasks or from threads. `sent` is what reached the server (tool calls: what was executed), `charged` what the
ledger wrote, `overshoot` how far that passes the limit, `spent` and `waited` how many calls were refused for good and
how many gave up waiting. Each call of the token and cost rows really uses 200 tokens: 100 in, 100 out.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

from openai import AsyncOpenAI, OpenAI
from rich.console import Console
from rich.table import Table

import ravi_otel
from ravi_otel import BudgetContendedError, BudgetExhaustedError, Limit, cost_limit, request_limit, token_limit, tool_call_limit, turn_limit
from ravi_otel.testing import ScriptedLLM, Text

MODEL = "gpt-4o-mini"
PROMPT = "word " * 74 + "wo"
"""100 tokens as the server counts them: 372 bytes are 93, and 7 for the message and the request."""


@dataclass(frozen=True)
class Row:
    """Say what is asked of one limit."""

    kind: str
    limit: Callable[[int], Limit]
    cap: int | None = None
    tool: bool = False


def _half(count: int) -> int:
    return 200 * max(1, count // 4)


ROWS = (
    Row("requests", lambda count: request_limit(max(1, count // 4))),
    Row("turns", lambda count: turn_limit(max(1, count // 4))),
    Row("tool_calls", lambda count: tool_call_limit(max(1, count // 4)), tool=True),
    Row("tokens, no cap", lambda count: token_limit(_half(count))),
    Row("tokens, cap 100", lambda count: token_limit(_half(count)), cap=100),
    Row("cost, no cap", lambda count: cost_limit(_half(count) / 1_000)),
    Row("cost, cap 100", lambda count: cost_limit(_half(count) / 1_000), cap=100),
)


@ravi_otel.tool
def _work() -> None:
    """Do nothing, as a tool."""


async def _tasks(server: ScriptedLLM, count: int, call: dict[str, Any], *, tool: bool) -> list[Any]:
    async def act() -> None:
        await asyncio.sleep(0)
        _work()

    async with AsyncOpenAI(base_url=server.base_url, api_key="any", max_retries=0) as client:
        made = (act() if tool else client.chat.completions.create(**call) for _ in range(count))
        return await asyncio.gather(*made, return_exceptions=True)


def _threads(server: ScriptedLLM, count: int, call: dict[str, Any], *, tool: bool) -> list[Any]:
    with OpenAI(base_url=server.base_url, api_key="any", max_retries=0) as client, ThreadPoolExecutor(count) as pool:
        act = _work if tool else partial(client.chat.completions.create, **call)
        futures = [pool.submit(act) for _ in range(count)]
        return [future.exception() or future.result() for future in futures]


def _measure(server: ScriptedLLM, count: int, mode: str, row: Row) -> tuple[str, ...]:
    call: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": PROMPT}]}
    if row.cap is not None:
        call["max_tokens"] = row.cap
    before, started = len(server.requests), time.perf_counter()
    with ravi_otel.run("overshoot", limits=[row.limit(count)]) as run:
        if mode == "tasks":
            results = asyncio.run(_tasks(server, count, call, tool=row.tool))
        else:
            results = _threads(server, count, call, tool=row.tool)
    taken = time.perf_counter() - started
    (reading,) = run.limits
    sent = run.stats().tool_calls if row.tool else len(server.requests) - before
    spent = sum(isinstance(one, BudgetExhaustedError) for one in results)
    waited = sum(isinstance(one, BudgetContendedError) for one in results)
    odd = [one for one in results if isinstance(one, BaseException) and not isinstance(one, (BudgetExhaustedError, BudgetContendedError))]
    if odd:
        raise odd[0]
    over = max(0, reading.used - reading.limit.amount)
    cells = (count, mode, row.kind, reading.limit.amount, sent, reading.used, over, spent, waited)
    return *(f"{cell:g}" if isinstance(cell, float) else str(cell) for cell in cells), f"{taken * 1_000:.0f}"


def main() -> None:
    """Print the table."""
    counts = [int(one) for one in sys.argv[1:]] or [1, 8, 32, 256]
    table = Table("N", "mode", "kind", "limit", "sent", "charged", "overshoot", "spent", "waited", "ms")
    prices = {MODEL: {"input": 1_000, "output": 1_000}}
    with ScriptedLLM(Text("ok", usage=(100, 100))) as server, ravi_otel.instrument(prices=prices):
        for row in ROWS:
            for mode in ("tasks", "threads"):
                for count in counts:
                    table.add_row(*_measure(server, count, mode, row))
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
