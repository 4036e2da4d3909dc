"""One scripted server, one client of each colour, and the comparison of a program with us and without us."""

from __future__ import annotations

import asyncio
import gc
import inspect
import logging
import re
import sys
import warnings
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import openai
import openai._base_client as base_client
import pydantic
import pytest

import ravi_otel
from ravi_otel import cost_limit
from ravi_otel._runtime.state import STATE
from ravi_otel._runtime.stopping import drain
from ravi_otel.testing import Answer, Capture, Failure, ScriptedLLM

GENEROUS = [
    *("tokens=1000000000", "requests=1000000", "turns=1000000", "messages=1000000000", "time=3600s"),
    cost_limit(1_000_000, on_unpriced="warn"),
]
BOUNDARY = re.compile(r"[0-9a-f]{32}")
ADDRESS = re.compile(r"0x[0-9a-f]+")


class Stage:
    """Play any number of scripts, one after the other, on one server: ids start again with each."""

    def __init__(self) -> None:
        self._answers: list[Answer] = []
        self.server = ScriptedLLM(self._next)

    def _next(self, _: Any) -> Answer:
        if not self._answers:
            return Failure(500, "no answer left", headers={"x-should-retry": "false"})
        return self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]

    def play(self, *answers: Answer) -> str:
        """Answer these, the last of them for ever; give the base URL."""
        self.server.wait_until_idle()
        self.server._requests.clear()
        self._answers = list(answers)
        return self.server.base_url

    def seen(self) -> list[Any]:
        """Give what was sent: method, path, query, headers, bytes."""
        return [
            BOUNDARY.sub("boundary", repr((each.method, each.path, each.query, sorted(each.headers.items()), each.raw)))
            for each in self.server.requests
        ]


@dataclass
class Clients:
    """Make clients that share one connection pool a colour, because a pool costs 20 ms."""

    loop: asyncio.Runner
    blocking: Any = field(default_factory=openai.DefaultHttpxClient)
    awaiting: Any = field(default_factory=openai.DefaultAsyncHttpxClient)

    def make(self, colour: str, url: str, **settings: Any) -> Any:
        known = {"api_key": "sk-test", "base_url": url} | settings
        if colour == "sync":
            return openai.OpenAI(**{"http_client": self.blocking, **known})
        return openai.AsyncOpenAI(**{"http_client": self.awaiting, **known})

    def run(self, colour: str, program: Awaitable[Any]) -> Any:
        """Run a program written once: with a blocking client it never really awaits."""
        if colour == "async":
            return self.loop.run(program)  # type: ignore[arg-type]  # a coroutine, always
        try:
            program.send(None)  # type: ignore[attr-defined]  # a coroutine, always
        except StopIteration as end:
            return end.value
        raise AssertionError("the blocking program awaited something")


@pytest.fixture(scope="session", autouse=True)
def _modules_are_not_looked_through() -> Iterator[None]:
    """Set aside what the imports made: many tests here collect garbage, and with it each time takes 200 ms."""
    openai.OpenAI(api_key="k").beta.threads.runs.steps  # noqa: B018 - imports much that would be imported later
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(scope="session")
def http() -> Any:
    """Give the HTTP library this version of the client is built on."""
    found = next(kind for kind in openai.DefaultHttpxClient.__mro__ if kind.__module__.startswith("httpx"))
    return sys.modules[found.__module__.partition(".")[0]]


@pytest.fixture(scope="session")
def stage() -> Iterator[Stage]:
    stage = Stage()
    with stage.server:
        yield stage


@pytest.fixture(scope="session")
def clients() -> Iterator[Clients]:
    with asyncio.Runner() as runner:
        clients = Clients(runner)
        yield clients
        clients.blocking.close()
        runner.run(clients.awaiting.aclose())


@pytest.fixture(autouse=True)
def _retries_do_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base_client, "INITIAL_RETRY_DELAY", 0.001)
    monkeypatch.setattr(base_client, "MAX_RETRY_DELAY", 0.002)


@pytest.fixture
def capture() -> Iterator[Capture]:
    with Capture() as capture:
        yield capture


@pytest.fixture
def instrumented(capture: Capture) -> Iterator[Capture]:
    """Instrument with everything captured."""
    with ravi_otel.instrument(
        tracer_provider=capture.tracer_provider, meter_provider=capture.meter_provider, logger_provider=capture.logger_provider
    ):
        yield capture


@pytest.fixture(params=["sync", "async"])
def colour(request: pytest.FixtureRequest) -> str:
    return str(request.param)


# -- what a program saw ---------------------------------------------------------------------------------------------


async def got(value: Any) -> Any:
    """Await what a client of the other colour gives as it is."""
    return await value if inspect.isawaitable(value) else value


async def told(error: BaseException) -> dict[str, Any]:
    return {
        "type": type(error),
        "text": ADDRESS.sub("0x", str(error)),
        "args": ADDRESS.sub("0x", repr(error.args)),
        "cause": type(error.__cause__),
        "context": type(error.__context__),
        "suppressed": error.__suppress_context__,
        "fields": ADDRESS.sub("0x", repr(sorted((key, repr(value)) for key, value in vars(error).items() if not key.startswith("_")))),
        "notes": getattr(error, "__notes__", None),
    }


async def shown(value: Any) -> Any:
    """Write down a result with everything its user could see of it; a stream is read to its end."""
    if isinstance(value, pydantic.BaseModel):
        return (
            type(value),
            value.model_dump(warnings=False),
            sorted(value.model_fields_set),
            getattr(value, "_request_id", None),
            value.model_extra,
        )
    if hasattr(type(value), "__stream__"):
        return type(value), value.response.status_code, await streamed(value)
    if hasattr(type(value), "http_request"):
        return await raw(value)
    return type(value), ADDRESS.sub("0x", repr(value))


async def streamed(stream: Any) -> list[Any]:
    seen: list[Any] = []
    try:
        if hasattr(stream, "__aiter__"):
            async for item in stream:
                seen += [await shown(item)]
        else:
            for item in stream:
                seen += [await shown(item)]
    except Exception as error:
        seen.append(await told(error))
    seen.append(stream.response.is_closed)
    return seen


async def raw(response: Any) -> Any:
    headers = sorted((key, value) for key, value in response.headers.items() if key != "date")
    seen: list[Any] = [
        type(response),
        response.status_code,
        headers,
        BOUNDARY.sub("boundary", repr(response.http_request.content)),
        response.retries_taken,
    ]
    try:
        seen.append(await shown(await got(response.parse())))
        seen.append(await shown(await got(response.parse())))
    except Exception as error:
        seen.append(await told(error))
    heard = {"__getstate__", "close", "aclose", "read", "aread", "iter_raw", "aiter_raw"}
    watched = {"_elapsed"} if response.is_closed else {"_elapsed"} | heard
    fields = sorted(key for key in vars(response.http_response) if key not in watched)
    seen.extend([response.is_closed, fields, sorted(vars(response))])
    return seen


COUNTED: list[int] = []
"""How many programs were compared, one entry a test."""


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if COUNTED:
        terminalreporter.write_line(f"{sum(COUNTED)} programs ran without us and with us")


Program = Callable[[Any], Awaitable[Any]]
"""What a case does with a client."""


class Compare:
    """Run a program without us, then with us, and hold everything it can see side by side."""

    def __init__(self, stage: Stage, clients: Clients, capture: Capture) -> None:
        self._stage = stage
        self._clients = clients
        self._capture = capture

    def __call__(self, colour: str, program: Program, *answers: Answer, **settings: Any) -> dict[str, Any]:
        """Compare one program; give what was seen."""
        return self.all(colour, {"it": (program, answers)}, **settings)["it"]

    def all(self, colour: str, programs: dict[str, tuple[Program, tuple[Answer, ...]]], **settings: Any) -> dict[str, Any]:
        """Assert that nothing differs for any of them, and that everything was settled; give what was seen without us."""
        without = {name: self._seen(colour, *each, settings) for name, each in programs.items()}
        capture, given = self._capture, dict[str, Any]()
        with (
            ravi_otel.instrument(
                tracer_provider=capture.tracer_provider, meter_provider=capture.meter_provider, logger_provider=capture.logger_provider
            ),
            ravi_otel.run("compared", limits=GENEROUS) as run,
        ):
            for name, each in programs.items():
                given[name] = self._seen(colour, *each, settings)
                drain()
                if len(STATE.engine.ledger):  # type: ignore[arg-type]  # the ledger of one process knows its length
                    gc.collect()  # a stream nobody closed
                    drain()
                assert len(STATE.engine.ledger) == 0, name  # type: ignore[arg-type]  # the same
            assert all(reading.held == 0 for reading in run.limits)
        COUNTED.append(len(without))
        assert {name: seen for name, seen in given.items() if seen != without[name]} == {
            name: seen for name, seen in without.items() if seen != given[name]
        }
        return without

    def _seen(self, colour: str, program: Program, answers: tuple[Answer, ...], settings: dict[str, Any]) -> dict[str, Any]:
        url = self._stage.play(*answers)
        lines: list[Any] = []
        handler = _Lines(lines)
        root = logging.getLogger()
        root.addHandler(handler)
        try:
            with warnings.catch_warnings(record=True) as warned:
                warnings.simplefilter("always")
                outcome = self._clients.run(colour, _outcome(program, self._clients, colour, url, settings))
        finally:
            root.removeHandler(handler)
        # When a socket the client forgot is collected is chance.
        warnings_seen = [(each.category, str(each.message)) for each in warned if each.category is not ResourceWarning]
        return {"sent": self._stage.seen(), "outcome": outcome, "warnings": warnings_seen, "logs": lines}


class _Lines(logging.Handler):
    def __init__(self, lines: list[Any]) -> None:
        super().__init__()
        self._lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        if not record.name.startswith("ravi_otel.limits"):
            self._lines.append((record.name, record.levelno, re.sub(r"in [\d.]+ seconds", "", ADDRESS.sub("0x", record.getMessage()))))


async def _outcome(program: Program, clients: Clients, colour: str, url: str, settings: dict[str, Any]) -> Any:
    client = clients.make(colour, url, **settings)
    client.shown = shown
    try:
        return await shown(await program(client))
    except (Exception, asyncio.CancelledError) as error:
        return await told(error)
    finally:
        if "http_client" in settings:
            await got(client.close())


@pytest.fixture
def compare(stage: Stage, clients: Clients, capture: Capture) -> Compare:
    return Compare(stage, clients, capture)


@pytest.fixture
def settled(capture: Capture) -> Callable[[Any, list[str | None]], None]:
    """Give a check: so many calls ended, each once and so, and nothing of theirs is held any more."""

    def check(run: Any, expected: list[str | None]) -> None:
        gc.collect()
        drain()
        spans = capture.spans("chat gpt-4o-mini")
        assert [(span.attributes or {}).get("error.type") for span in spans] == expected
        assert len({span.context.span_id for span in spans if span.context}) == len(expected)
        assert len(STATE.engine.ledger) == 0  # type: ignore[arg-type]  # the ledger of one process knows its length
        assert [reading.held for reading in run.limits] == [0] * len(run.limits)

    return check
