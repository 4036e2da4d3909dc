"""Run the same programs without us and with us, and hold everything they can see side by side."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import warnings
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any
from unittest import mock

import openai
from memory_wire import Answers, AsyncMemoryTransport, MemoryTransport, Served, Wire
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor
from seen import ADDRESS, forget, told

import ravi_otel
from ravi_otel import cost_limit
from ravi_otel._runtime.background_calls import AWAITED
from ravi_otel._runtime.state import STATE
from ravi_otel._runtime.stopping import drain

CAPTURE = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
COLOURS = ("sync", "async")
GENEROUS = [
    *("tokens=1000000000", "requests=1000000", "turns=1000000", "messages=1000000000", "time=3600s"),
    cost_limit(1_000_000, on_unpriced="warn"),
]
Program = Callable[[Any], Awaitable[Any]]
COUNTED: list[int] = []
"""How many programs were compared, one entry a batch."""


@dataclass(frozen=True)
class Case:
    """Be a program, with what it is answered, on a client of this colour and kind."""

    name: str
    program: Program
    answers: tuple[Served | Answers, ...]
    colour: str = "sync"
    client: str = "plain"
    debug: bool = False


def _openai(colour: str, pool: Any, **more: Any) -> Any:
    kind = openai.OpenAI if colour == "sync" else openai.AsyncOpenAI
    return kind(**{"api_key": "sk-test", "base_url": "http://wire.test:8080/v1", "http_client": pool, **more})


def _azure(colour: str, pool: Any) -> Any:
    kind = openai.AzureOpenAI if colour == "sync" else openai.AsyncAzureOpenAI
    return kind(api_key="k", azure_endpoint="http://azure.test", api_version="2025-01-01", http_client=pool)


def _module(colour: str, pool: Any) -> Any:
    """Give the client that the module keeps, which is a blocking one."""
    if colour == "async":
        return _openai(colour, pool, default_query={"v": "2"})
    openai.api_key, openai.base_url, openai.http_client = "sk-module", "http://wire.test/v1/", pool
    openai.api_type = "openai"
    openai._reset_client()  # type: ignore[attr-defined]  # its own way to begin again
    return openai._load_client()  # type: ignore[attr-defined]  # what every module-level call uses


CLIENTS: dict[str, Callable[[str, Any], Any]] = {
    "plain": _openai,
    "openai's host": lambda colour, pool: _openai(colour, pool, base_url="https://api.openai.com/v1"),
    "azure": _azure,
    "copy": lambda colour, pool: _openai(colour, pool).with_options(timeout=9, max_retries=1, default_headers={"X-Mine": "1"}),
    "strict": lambda colour, pool: _openai(colour, pool, _strict_response_validation=True),
    "no retries": lambda colour, pool: _openai(colour, pool, max_retries=0, organization="org", project="proj", base_url="http://[::1]:9/x/v1/"),
    "module": _module,
    "admin": _openai if openai.__version__.startswith(("1.", "2.")) else lambda colour, pool: _openai(colour, pool, admin_api_key="admin"),
}  # fmt: skip


class Ends(SpanProcessor):
    """Count which spans began and ended, by the case they belong to."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        self.case = ""
        self.began = 0
        self.open: dict[int, str] = {}
        self.twice: list[str] = []

    def faults(self) -> list[str]:
        none = [] if self.began else ["no span at all began"]
        return [*none, *(f"never ended: {name}" for name in self.open.values()), *(f"ended twice: {name}" for name in self.twice)]

    def on_start(self, span: Any, parent_context: Any = None) -> None:
        self.began += 1
        self.open[span.context.span_id] = f"{self.case}: {span.name}"

    def on_end(self, span: ReadableSpan) -> None:
        if self.open.pop(span.context.span_id, None) is None:  # type: ignore[union-attr]  # a span always has one
            self.twice.append(f"{self.case}: {span.name}")


class Lines(logging.Handler):
    def __init__(self, lines: list[Any]) -> None:
        super().__init__()
        self.lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        if not record.name.startswith("ravi_otel.limits"):
            text = re.sub(r"in [\d.]+ seconds", "", ADDRESS.sub("0x", record.getMessage()))
            self.lines.append((record.name, record.levelno, text, told(record.exc_info[1]) if record.exc_info else None))


@dataclass
class SideBySide:
    """Compare; `capture` receives what is told."""

    loop: asyncio.Runner
    capture: Any
    wire: Wire = field(default_factory=Wire)
    ends: Ends = field(default_factory=Ends)

    def __post_init__(self) -> None:
        self._pools = {
            "sync": openai.DefaultHttpxClient(transport=MemoryTransport(self.wire)),
            "async": openai.DefaultAsyncHttpxClient(transport=AsyncMemoryTransport(self.wire)),
        }
        self._clients: dict[tuple[str, str], Any] = {}
        self.capture.tracer_provider.add_span_processor(self.ends)

    def differences(self, cases: list[Case], *, capturing: bool = False, usage: bool = False, around: Any = None) -> dict[str, list[str]]:
        """Give what differs for any case, empty when nothing does; assert that everything was settled.

        `around` is entered besides, after us: a wrapper that should be found out.
        """
        without = [self._seen(case) for case in cases]
        environment = {CAPTURE: "span_and_event" if capturing else "no_content", "RAVI_INCLUDE_USAGE": "1" if usage else "0"}
        given: list[Any] = []
        left: list[str] = []
        self.ends.begin()
        with mock.patch.dict(os.environ, environment), self._instrumented(capturing), ravi_otel.run("compared", limits=GENEROUS) as run:
            with around or nullcontext():
                for case in cases:
                    self.ends.case = case.name
                    given.append(self._seen(case))
            left += self.unsettled()
            left += [f"{reading.held} held of {reading.limit}" for reading in run.limits if reading.held]
        left += self.ends.faults()
        self.capture.clear()
        COUNTED.append(len(cases))
        pairs = zip(cases, without, given, strict=True)
        found = {case.name: lines for case, one, other in pairs if (lines := narrowed(one, other))}
        return found | ({"afterwards": left} if left else {})

    def unsettled(self) -> list[str]:
        """Let everything end that can; say what does not."""
        drain()
        for _ in range(2):
            if not (len(STATE.engine.ledger) or self.ends.open):  # type: ignore[arg-type]  # the ledger of one process knows its length
                break
            forget()  # what nobody closed
            self.loop.run(asyncio.sleep(0))
            drain()
        AWAITED.give_up()  # what was begun in the background, and nobody looked at
        left = len(STATE.engine.ledger)  # type: ignore[arg-type]  # the same
        return [f"{left} calls still in the ledger"] if left else []

    def _instrumented(self, capturing: bool) -> Any:
        capture = self.capture
        handle = ravi_otel.instrument(
            tracer_provider=capture.tracer_provider, meter_provider=capture.meter_provider, logger_provider=capture.logger_provider
        )
        STATE.options = replace(STATE.options, content=capturing, each_chunk=capturing)
        return handle

    def client(self, colour: str, kind: str) -> Any:
        if kind == "module":
            return CLIENTS[kind](colour, self._pools[colour])
        if (colour, kind) not in self._clients:
            self._clients[colour, kind] = CLIENTS[kind](colour, self._pools[colour])
        return self._clients[colour, kind]

    def run(self, colour: str, program: Any) -> Any:
        """Run a program written once: with a blocking client it never really awaits."""
        if colour == "async":
            return self.loop.run(program)
        try:
            program.send(None)
        except StopIteration as end:
            return end.value
        raise AssertionError("the blocking program awaited something")

    def _seen(self, case: Case) -> dict[str, Any]:
        self.wire.play(*case.answers)
        lines: list[Any] = []
        root = logging.getLogger()
        before, root.handlers = root.handlers, [Lines(lines)]
        level = logging.DEBUG if case.debug else logging.INFO
        if level != root.level:  # else what each logger knows of its level would be looked for again
            root.setLevel(level)
        try:
            with warnings.catch_warnings(record=True) as warned:
                warnings.simplefilter("always")
                outcome = self.run(case.colour, _outcome(case.program, self.client(case.colour, case.client)))
        finally:
            root.handlers = before
        kinds = [(each.category, str(each.message), each.filename.rpartition("/")[2]) for each in warned]
        return {"sent": self.wire.sent, "outcome": outcome, "warnings": kinds, "logs": lines}


async def _outcome(program: Program, client: Any) -> Any:
    try:
        return await program(client)
    except (Exception, asyncio.CancelledError) as error:
        return told(error)


def narrowed(one: Any, other: Any, path: str = "") -> list[str]:
    """Tell where two of the same shape differ, and how; a test that fails shows this."""
    if type(one) is type(other) and isinstance(one, dict):
        return [line for key in {**one, **other} for line in narrowed(one.get(key), other.get(key), f"{path}.{key}")]
    if type(one) is type(other) and isinstance(one, (list, tuple)) and len(one) == len(other):
        return [line for at, each in enumerate(one) for line in narrowed(each, other[at], f"{path}[{at}]")]
    return [] if one == other else [f"{path}: without us {_short(one, other)}, with us {_short(other, one)}"]


def _short(value: Any, other: Any) -> str:
    """Give the text of a value from a little before where it differs."""
    text, beside = repr(value), repr(other)
    same = next((at for at, pair in enumerate(zip(text, beside, strict=False)) if pair[0] != pair[1]), min(len(text), len(beside)))
    start = max(0, same - 80)
    return ("..." if start else "") + text[start : same + 160]
