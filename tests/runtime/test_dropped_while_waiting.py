"""A stream that nobody holds any more must not keep those in line waiting."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from typing import Any

import openai
import pytest

import ravi_otel
from ravi_otel._enforcement.sleeper import Sleeper
from ravi_otel._runtime.state import STATE
from ravi_otel._runtime.stopping import drain
from ravi_otel.hooks._listeners import Listener
from ravi_otel.supervisor import Decision, DecisionKind, Gate
from ravi_otel.testing import ScriptedLLM, Text

ASK: dict[str, Any] = {"model": "gpt-4o-mini", "messages": [{"role": "user", "content": "hi"}], "stream": True, "max_tokens": 50}
SCRIPT = Text("a b c d " * 5)
SOON_S = 25


def test_threads_in_line_go_on_when_streams_are_dropped():
    with ScriptedLLM(SCRIPT) as server, openai.OpenAI(base_url=server.base_url, api_key="k", max_retries=0) as client:
        ravi_otel.instrument(limits=["output_tokens=100"])

        def drop() -> None:
            with suppress(ravi_otel.BudgetError):
                next(iter(client.chat.completions.create(**ASK)))

        threads = [threading.Thread(target=drop, daemon=True) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(SOON_S)
        assert not any(thread.is_alive() for thread in threads)


@pytest.mark.anyio
async def test_tasks_in_line_go_on_when_streams_are_dropped():
    with ScriptedLLM(SCRIPT) as server:
        async with openai.AsyncOpenAI(base_url=server.base_url, api_key="k", max_retries=0) as client:
            ravi_otel.instrument(limits=["output_tokens=100"])

            async def drop() -> None:
                with suppress(ravi_otel.BudgetError):
                    await client.chat.completions.create(**ASK)

            await asyncio.wait_for(asyncio.gather(*(drop() for _ in range(3))), SOON_S)


def test_a_sleeper_on_a_thread_may_be_woken_by_what_it_does_meanwhile():
    done: list[Sleeper] = []
    sleeper = Sleeper(lambda: done.append(sleeper) or sleeper.wake())  # type: ignore[func-returns-value]  # append gives None
    sleeper.block(SOON_S)
    assert (len(done), sleeper.woken) == (1, True)


@pytest.mark.anyio
async def test_a_sleeper_in_a_task_may_be_woken_by_what_it_does_meanwhile():
    done: list[Sleeper] = []
    sleeper = Sleeper(lambda: done.append(sleeper) or sleeper.wake())  # type: ignore[func-returns-value]  # append gives None
    await sleeper.wait(SOON_S)
    assert (len(done), sleeper.woken) == (1, True)


@pytest.mark.parametrize("gated", [False, True], ids=["plain", "gated"])
def test_a_tool_that_is_dropped_while_its_refusal_is_held_back_tells_its_end_later(gated: bool) -> None:
    """A finaliser may be dropping it, in which no code of the program's may run."""
    told: list[bool] = []
    closing: list[int] = []

    class Ends(Listener):
        def tool_ended(self, record: Any) -> None:
            told.append(threading.get_ident() in closing)

    class Approves:
        def review(self, *_: Any) -> Decision:
            return Decision(DecisionKind.APPROVE, "fine")

    async def look_up() -> None: ...

    async def main() -> None:
        with ravi_otel.instrument(limits=["tool_calls=0"]) as handle, ravi_otel.run("r"):
            handle.listen(Ends())
            STATE.locate()[0].engine.pause_after = lambda _: 60.0
            call = (ravi_otel.tool(look_up, gate=Gate(Approves(), tools=[look_up])) if gated else ravi_otel.tool(look_up))()
            call.send(None)
            closing.append(threading.get_ident())
            call.close()
            closing.clear()
            drain()
            assert told == [False]

    asyncio.run(main())
