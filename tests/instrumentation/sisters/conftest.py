"""Clients of the sister packages on one scripted server, and a program's view of them with us and without us."""

from __future__ import annotations

import asyncio
import gc
import logging
import re
import warnings
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import anthropic
import anthropic._base_client as anthropic_base
import groq
import groq._base_client as groq_base
import pydantic
import pytest

import ravi_otel
from ravi_otel import cost_limit
from ravi_otel._instrumentation.formats.format import Host
from ravi_otel._runtime.state import STATE
from ravi_otel._runtime.stopping import drain
from ravi_otel.testing import Answer, Capture, Failure, ScriptedLLM

GENEROUS: list[Any] = [
    "tokens=1000000000",
    "requests=1000000",
    "turns=1000000",
    "messages=1000000000",
    cost_limit(1_000_000, on_unpriced="warn"),
]
ADDRESS = re.compile(r"0x[0-9a-f]+")
WAITS = re.compile(r"in [\d.]+ seconds")
KEYS = re.compile(r"stainless-python-retry-[0-9a-f-]+")
CLIENTS = {
    ("anthropic", "sync"): anthropic.Anthropic,
    ("anthropic", "async"): anthropic.AsyncAnthropic,
    ("groq", "sync"): groq.Groq,
    ("groq", "async"): groq.AsyncGroq,
}

Program = Callable[[Any], Awaitable[Any]]


class Sisters:
    """Run programs, written once for both colours, against scripted answers; one client of each sort for all."""

    def __init__(self, runner: asyncio.Runner) -> None:
        self._runner = runner
        self._answers: list[Answer] = []
        self.server = ScriptedLLM(lambda _: self._answers.pop(0) if len(self._answers) > 1 else self._answers[0])
        self.clients: dict[tuple[str, str], Any] = {}
        self.capture = Capture()

    def open(self) -> None:
        """Make the clients."""
        self.clients = {at: made(base_url=self.server.url, api_key="k", max_retries=2) for at, made in CLIENTS.items()}

    def close(self) -> None:
        """Close the clients."""
        for (_, colour), client in self.clients.items():
            if colour == "sync":
                client.close()
            else:
                self._runner.run(client.close())

    def run(self, package: str, colour: str, program: Program, *answers: Answer) -> Any:
        """Give what a program returns."""
        self.server.wait_until_idle()
        self.server._requests.clear()
        self._answers = list(answers) or [Failure(500, "no answer left")]
        coroutine: Any = program(self.clients[package, colour])
        if colour == "async":
            return self._runner.run(coroutine)
        try:
            coroutine.send(None)
        except StopIteration as end:
            return end.value
        raise AssertionError("the blocking program awaited something")

    def seen(self, package: str, colour: str, program: Program, *answers: Answer) -> dict[str, Any]:
        """Give everything a program could see: result or error, warnings and log lines, and what was sent."""
        lines: list[Any] = []
        handler = Lines(lines)
        logging.getLogger().addHandler(handler)
        try:
            with warnings.catch_warnings(record=True) as warned:
                warnings.simplefilter("always")
                outcome = self.run(package, colour, _outcome(program), *answers)
        finally:
            logging.getLogger().removeHandler(handler)
        sent = [
            KEYS.sub("key", repr((one.method, one.path, one.query, sorted(one.headers.items()), one.raw))) for one in self.server.requests
        ]
        told = [(one.category, str(one.message)) for one in warned if one.category is not ResourceWarning]
        return {"sent": sent, "outcome": outcome, "warnings": told, "logs": lines}

    def compare(self, package: str, colour: str, *programs: Program, answers: tuple[Answer, ...], **settings: Any) -> dict[str, Any]:
        """Assert that each program sees the same with us and without us, and that nothing stays held; give what they see by name."""
        without = {program.__name__: self.seen(package, colour, program, *answers) for program in programs}
        with self.instrumented(**settings), ravi_otel.run("compared", limits=GENEROUS) as run:
            for program in programs:
                given = self.seen(package, colour, program, *answers)
                assert given == without[program.__name__], program.__name__
            settle()
            assert len(STATE.engine.ledger) == 0  # type: ignore[arg-type]  # the ledger of one process knows its length
            assert all(reading.held == 0 for reading in run.limits)
        return without

    def instrumented(self, **settings: Any) -> Any:
        """Instrument with everything captured."""
        capture = self.capture
        return ravi_otel.instrument(
            tracer_provider=capture.tracer_provider,
            meter_provider=capture.meter_provider,
            logger_provider=capture.logger_provider,
            **settings,
        )


def settle() -> None:
    """Settle what was dropped without an end."""
    gc.collect()
    drain()


class Lines(logging.Handler):
    """Keep log lines without what differs from run to run."""

    def __init__(self, lines: list[Any]) -> None:
        super().__init__()
        self._lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        if not record.name.startswith("ravi_otel"):
            self._lines.append((record.name, record.levelno, WAITS.sub("", ADDRESS.sub("0x", record.getMessage()))))


def _outcome(program: Program) -> Program:
    async def outcome(client: Any) -> Any:
        try:
            return await shown(await program(client))
        except Exception as error:
            return told(error)

    return outcome


def told(error: BaseException) -> Any:
    fields = sorted((key, ADDRESS.sub("0x", repr(value))) for key, value in vars(error).items() if not key.startswith("_"))
    return type(error), str(error), type(error.__cause__), error.__suppress_context__, fields


async def got(value: Any) -> Any:
    """Await what a client of the other colour gives as it is."""
    return await value if hasattr(value, "__await__") else value


async def listed(stream: Any) -> list[Any]:
    """Read a stream of either colour to its end, or to its error."""
    seen: list[Any] = []
    try:
        if hasattr(stream, "__aiter__"):
            async for item in stream:
                seen += [await shown(item)]
        else:
            for item in stream:
                seen += [await shown(item)]
    except Exception as error:
        seen.append(told(error))
    return seen


async def shown(value: Any) -> Any:
    """Write down a result with everything its user could see of it."""
    if isinstance(value, pydantic.BaseModel):
        return type(value), value.model_dump(warnings=False), sorted(value.model_fields_set), getattr(value, "_request_id", None)
    if hasattr(type(value), "__stream__"):
        return type(value), value.response.status_code, await listed(value), value.response.is_closed
    if hasattr(type(value), "http_request"):
        return type(value), value.status_code, value.http_request.content, value.retries_taken, await _parsed(value)
    return type(value), ADDRESS.sub("0x", repr(value))


async def _parsed(raw: Any) -> Any:
    try:
        return await shown(await got(raw.parse()))
    except Exception as error:
        return told(error)


@pytest.fixture(scope="session")
def sisters_for_all() -> Iterator[Sisters]:
    with asyncio.Runner() as runner:
        sisters = Sisters(runner)
        with sisters.server:
            sisters.open()
            yield sisters
            sisters.close()


@pytest.fixture
def sisters(sisters_for_all: Sisters) -> Iterator[Sisters]:
    with Capture() as capture:
        sisters_for_all.capture = capture
        yield sisters_for_all


@pytest.fixture(autouse=True)
def _sisters_do_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    for base in (anthropic_base, groq_base):
        monkeypatch.setattr(base, "INITIAL_RETRY_DELAY", 0.001)
        monkeypatch.setattr(base, "MAX_RETRY_DELAY", 0.002)


@pytest.fixture
def anthropic_host() -> Host:
    return Host("anthropic", assumed=False, address="api.anthropic.com", port=443)
