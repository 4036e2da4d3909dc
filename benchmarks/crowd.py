"""Do one thing many times at once, in tasks or in threads, against a provider that counts for itself what it was asked."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Self

from openai import AsyncOpenAI, OpenAI

from ravi_otel._enforcement.ledger.contract import Ledger
from ravi_otel._enforcement.ledger.judge import Denied, Extended, Grant, Reservation
from ravi_otel._flow import Flow, is_done
from ravi_otel.testing import Answer, Request, ScriptedLLM, Text, ToolCalls

MODES = ("tasks", "threads")
MODEL = "gpt-4o-mini"
INPUT_NANO, OUTPUT_NANO = 150, 600
"""The list price of the model in nano-USD a token, written down here so that no table of the package is believed."""

PROMPT = "word " * 74 + "wo"
INPUT = 100
"""Tokens of the prompt, as this provider tells them."""


def call(messages: int = 1, **more: Any) -> dict[str, Any]:
    """Give the arguments of one chat completion whose conversation has so many messages already."""
    return {"model": MODEL, "messages": [{"role": "user", "content": PROMPT}] * messages, **more}


class Provider:
    """Answer each chat with as many tokens as it would like to say, or the request's own cap if that is less."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.server = ScriptedLLM(self._answer)
        self.begin(0, 0.0)

    def __enter__(self) -> Self:
        self.server.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.__exit__(None, None, None)

    def begin(self, output: int, think_s: float) -> None:
        """Count from zero; answer with `output` tokens after `think_s`."""
        self.output, self._think_s = output, think_s
        self.sent = self.tokens = self.nano = self.longest = self.capped = 0

    def _answer(self, request: Request) -> Answer:
        body = request.body
        caps = [body[name] for name in ("max_completion_tokens", "max_tokens") if isinstance(body.get(name), int)]
        output = min([self.output, *caps])
        messages = body.get("messages", ())
        with self._lock:
            self.sent += 1
            self.tokens += INPUT + output
            self.nano += INPUT * INPUT_NANO + output * OUTPUT_NANO
            self.longest = max(self.longest, len(messages) + 1)
            self.capped += output < self.output
        usage, reason = (INPUT, output), "length" if output < self.output else "stop"
        if body.get("tools") and messages[-1]["role"] != "tool":
            return ToolCalls([("work", {})], usage=usage, think_s=self._think_s)
        return Text("ok", usage=usage, finish_reason=reason, think_s=self._think_s)


@dataclass
class Crowd:
    """Make many calls at once, on clients of one HTTP pool, and give what came of each: a result or an exception."""

    url: str
    mode: str

    def call(self, asks: Sequence[Mapping[str, Any]]) -> list[Any]:
        """Make chat completions."""
        if self.mode == "threads":
            with OpenAI(base_url=self.url, api_key="any", max_retries=0, timeout=120) as client:
                return self.blocking([partial(client.chat.completions.create, **ask) for ask in asks])

        async def calls() -> list[Any]:
            async with AsyncOpenAI(base_url=self.url, api_key="any", max_retries=0, timeout=120) as client:
                return await asyncio.gather(*(client.chat.completions.create(**ask) for ask in asks), return_exceptions=True)

        return asyncio.run(calls())

    def act(self, count: int, blocking: Callable[[int], object], awaiting: Callable[[int], Awaitable[object]]) -> list[Any]:
        """Do anything: `blocking` in threads, `awaiting` in tasks, each with its number."""
        if self.mode == "threads":
            return self.blocking([partial(blocking, number) for number in range(count)])

        async def acts() -> list[Any]:
            return await asyncio.gather(*(awaiting(number) for number in range(count)), return_exceptions=True)

        return asyncio.run(acts())

    def blocking(self, acts: Sequence[Callable[[], object]]) -> list[Any]:
        """Call each in a thread of its own."""
        with ThreadPoolExecutor(len(acts)) as pool:
            futures = [pool.submit(act) for act in acts]
            return [future.exception() or future.result() for future in futures]


@dataclass
class Watched:
    """Pass every step to a ledger, and note what each operation was granted, in all: by kind, of the first account of the kind."""

    ledger: Ledger
    grants: dict[str, dict[str, int]] = field(default_factory=dict[str, dict[str, int]])

    def __getattr__(self, name: str) -> Any:
        return getattr(self.ledger, name)

    def __len__(self) -> int:
        return len(self.ledger)  # type: ignore[arg-type]  # the ledger of one process knows its length

    def reserve(self, request: Reservation) -> Flow[Grant | Denied]:
        """Pass it on."""
        answering = self.ledger.reserve(request)
        if is_done(answering):
            self._note(answering.value)
            return answering
        return self._waited(answering)

    def _waited(self, answering: Flow[Grant | Denied]) -> Flow[Grant | Denied]:
        answer = yield from answering
        self._note(answer)
        return answer

    def _note(self, answer: Grant | Denied) -> None:
        if isinstance(answer, Grant):
            self.grants[answer.op_id] = {str(line.account.kind): held for line, held in answer.holds}

    def extend(self, op_id: str, more: Mapping[str, int]) -> Flow[Extended]:
        """Pass it on."""
        extended = yield from self.ledger.extend(op_id, more)
        for kind, amount in extended.more.items():
            self.grants[op_id][kind] = self.grants[op_id].get(kind, 0) + amount
        return extended

    def release(self, op_id: str) -> Flow[None]:
        """Pass it on: what was given back was not used."""
        self.grants.pop(op_id, None)
        return self.ledger.release(op_id)
