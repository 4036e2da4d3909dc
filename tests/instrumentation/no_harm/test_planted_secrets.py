"""Thousands of secrets, each in another place: with content off none of them is told anywhere."""

from __future__ import annotations

import io
import json
import logging
import os
import random
import re
import sqlite3
import traceback
from collections.abc import Iterator
from contextlib import closing, redirect_stderr, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import openai
import pytest
from client_walk import used
from memory_wire import HTTP, AsyncMemoryTransport, MemoryTransport, Served, Wire
from odd_answers import AT_ONCE, EVENTS, JSON, event_bytes
from operations import Operation, present
from seen import forget, got

import ravi_otel
from ravi_otel._local import otlp as _otlp
from ravi_otel._runtime.stopping import drain
from ravi_otel.testing import Capture

WANTED = int(os.environ.get("RAVI_LONG", "0") or 0)
COUNT = 500 if WANTED == 0 else max(10_000, WANTED)
MARK = re.compile(r"plant-\d{6}-[0-9a-f]{8}")
"""What every secret looks like: no program would have such a text by chance."""

MODES = ("plain", "with_raw_response", "with_streaming_response")
ENDS = ("well", "error", "retried", "refused", "broken", "cut")


@dataclass
class Plants:
    """Make secrets, and remember where each was planted."""

    chance: random.Random
    made: dict[str, str] = field(default_factory=dict)

    def __call__(self, where: str) -> str:
        secret = f"plant-{len(self.made):06d}-{self.chance.getrandbits(32):08x}"
        self.made[secret] = where
        return secret


@dataclass
class Everywhere:
    """Hold all that leaves us: spans, events, log records, metrics, the store's files, lines on stderr."""

    capture: Capture
    store: Path
    lines: list[str]
    stderr: io.StringIO

    def found(self) -> set[str]:
        said = [repr(self._spans()), repr(self._metrics()), repr(self._events()), *self.lines, self.stderr.getvalue()]
        said += [*self._bytes(), *self._kept(), *self._sent_later()]
        return {found for text in said for found in MARK.findall(text)}

    def _bytes(self) -> list[str]:
        """Give the store's files as they are on the disk, the log ahead of the database too, and what was freed in it."""
        return [_text(each.read_bytes()) for each in self.store.rglob("*") if each.is_file()]

    def _kept(self) -> Iterator[str]:
        """Give every value of every table, the index's own too: a long one lies on several pages, so that its bytes are in no row."""
        for (table,) in self._asked("SELECT name FROM sqlite_master WHERE type = 'table'"):
            for row in self._asked(f"SELECT * FROM {_text(table)}"):
                yield from map(_text, row)

    def _sent_later(self) -> Iterator[str]:
        """Give what a replay would send: bytes are kept in another writing than they have."""
        for signal in _otlp.SIGNALS:
            rows = [_text(row) for (row,) in self._asked(f"SELECT data FROM otlp WHERE signal = '{signal}'")]
            yield _text(_otlp.request(signal, rows).SerializeToString())

    def ends(self) -> set[str]:
        """Give how the calls ended that the store has."""
        return {_text(status) for (status,) in self._asked("SELECT status FROM calls")}

    def signals(self) -> set[str]:
        """Give of what the store has something to send."""
        return {_text(signal) for (signal,) in self._asked("SELECT signal FROM otlp WHERE records > 0")}

    def _asked(self, question: str) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(f"file:{self.store / 'runs.db'}?mode=ro", uri=True)) as connection:
            connection.text_factory = bytes
            return connection.execute(question).fetchall()

    def _spans(self) -> list[Any]:
        spans = self.capture.spans()
        assert spans
        return [
            (
                each.name,
                each.attributes,
                each.status.description,
                each.links,
                each.resource.attributes,
                [_event(event) for event in each.events],
            )
            for each in spans
        ]

    def _metrics(self) -> list[Any]:
        names = self.capture.metric_names()
        assert names
        return [(name, [(point.attributes, point.value) for point in self.capture.metric(name)]) for name in names]

    def _events(self) -> list[Any]:
        return [(event.name, event.attributes, event.body) for event in self.capture.events()]


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _event(event: Any) -> Any:
    return event.name, event.attributes


class Lines(logging.Handler):
    """Keep our lines and OpenTelemetry's, with their tracebacks."""

    def __init__(self, lines: list[str]) -> None:
        super().__init__(logging.DEBUG)
        self.lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        if record.name.startswith(("ravi", "opentelemetry")):
            self.lines.append(logging.Formatter().format(record))


@pytest.fixture
def everywhere(capture: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("RAVI_STORE", str(tmp_path / "store"))
    monkeypatch.delenv("RAVI_RAISE_BUGS")
    lines: list[str] = []
    stderr, handler, root = io.StringIO(), Lines(lines), logging.getLogger()
    root.addHandler(handler)
    level = root.level
    root.setLevel(logging.DEBUG)
    logging.getLogger("httpx2").setLevel(logging.WARNING)
    try:
        with redirect_stderr(stderr):
            yield Everywhere(capture, tmp_path / "store", lines, stderr)
    finally:
        logging.getLogger("httpx2").setLevel(logging.NOTSET)
        root.setLevel(level)
        root.removeHandler(handler)


def client_of(colour: str, wire: Wire, plant: Plants) -> Any:
    """Make a client with secrets wherever a client takes any."""
    settings: dict[str, Any] = {
        "api_key": plant("api key"),
        "organization": plant("organization"),
        "project": plant("project"),
        "base_url": f"http://{plant('user of URL')}:{plant('password of URL')}@wire.test/{plant('path of base URL')}/v1",
        "default_headers": {"X-Tenant": plant("default header"), "Cookie": plant("cookie")},
        "default_query": {"key": plant("default query")},
        "max_retries": 1,
    }
    if colour == "sync":
        return openai.OpenAI(**settings, http_client=openai.DefaultHttpxClient(transport=MemoryTransport(wire)))
    return openai.AsyncOpenAI(**settings, http_client=openai.DefaultAsyncHttpxClient(transport=AsyncMemoryTransport(wire)))


def sown(value: Any, plant: Plants, where: str) -> Any:
    """Give a copy of some arguments or of an answer with a secret in each text that says something.

    Names of models, roles, types, states and the like say what an API allows, not what a user writes.
    """
    if isinstance(value, dict):
        return {key: _under(key, each, plant, where) for key, each in value.items()}
    if isinstance(value, list):
        return [sown(each, plant, where) for each in value]
    return f"{value} {plant(where)}" if isinstance(value, str) and value != "[DONE]" else value


def _under(key: str, value: Any, plant: Plants, where: str) -> Any:
    if key in _ECHOING and isinstance(value, str) and not where.startswith("request"):
        return f"sk-{plant(f'{where}.{key}')}"  # a key a server writes where a name should be
    return value if key in _SAYING_NOTHING else sown(value, plant, f"{where}.{key}")


_ECHOING = frozenset({"id", "model", "finish_reason", "service_tier", "system_fingerprint"})
_SAYING_NOTHING = frozenset(
    """model role type object status finish_reason service_tier size quality background output_format language endpoint purpose
    completion_window encoding_format response_format voice stream_format seconds system_fingerprint id name created usage cast_to
    stream_cls embedding b64_json audio text_format call_id item_id tool_choice""".split()  # noqa: SIM905 - names read better as text
)


def extras(operation: Operation, plant: Plants) -> dict[str, Any]:
    if operation.path in {"post", "get", "request"}:
        return {}
    return {
        "extra_headers": {"X-Secret": plant("extra header"), "Authorization": f"Bearer {plant('authorization')}"},
        "extra_query": {"q": plant("extra query")},
        "extra_body": {
            "metadata": {"a": plant("metadata")},
            "user": plant("user"),
            "x": [plant("extra body")],
            "safety_identifier": plant("user"),
        },
    }


def answers(operation: Operation, end: str, plant: Plants) -> tuple[Served, ...]:
    telling = (("x-account", plant("answer's header")), ("set-cookie", plant("answer's cookie")))
    wrong = {
        "error": {
            "message": plant("error text"),
            "param": plant("error's param"),
            "type": "requests",
            "code": None,
            "detail": plant("error body"),
        }
    }
    failure = Served((json.dumps(wrong).encode(),), 429 if end == "retried" else 400, (JSON, AT_ONCE, *telling))
    if end == "error":
        return (failure,)
    if end == "broken":
        return (Served((f"<html>{plant('broken answer')}".encode(),), headers=(EVENTS if operation.events else JSON, *telling)),)
    if operation.events is not None:
        parts = tuple(event_bytes(name, sown(data, plant, "event")) for name, data in operation.events)
        kind = EVENTS
    else:
        body = operation.body
        parts = (plant("bytes").encode() if isinstance(body, bytes) else json.dumps(sown(body, plant, "answer")).encode(),)
        kind = JSON
    if end == "cut":
        return (Served(parts[:2], headers=(kind, *telling), fails="ReadError"),)
    whole = Served(parts, headers=(kind, *telling))
    return (failure, whole) if end == "retried" else (whole,)


async def asked(client: Any, operation: Operation, mode: str, plant: Plants) -> Any:
    owner, _, name = operation.path.rpartition(".")
    at = client
    for each in filter(None, owner.split(".")):
        at = getattr(at, each)
    if mode != "plain" and hasattr(getattr(at, mode, None), name):
        at = getattr(at, mode)
    given = sown(operation.given(), plant, "request")
    if given.get("stream_cls"):
        given.pop("stream"), given.pop("stream_cls")
    path = (
        operation.positional
        if operation.positional == (dict,)
        else tuple(f"/{plant('path')}{each}?k={plant('query')}" for each in operation.positional)
    )
    return await used(await got(getattr(at, name)(*path, **given, **extras(operation, plant))))


def test_no_planted_secret_is_told(everywhere: Any, loop: Any, colour: str) -> None:
    plant, wire = Plants(random.Random(colour)), Wire()
    operations = list(present().values())
    capture, refusals, at = everywhere.capture, list[str](), 0
    providers = {
        "tracer_provider": capture.tracer_provider,
        "meter_provider": capture.meter_provider,
        "logger_provider": capture.logger_provider,
    }
    with ravi_otel.instrument(**providers):
        while len(plant.made) < COUNT / 2 or at < len(operations):
            operation, mode, end = operations[at % len(operations)], MODES[at % 3], ENDS[(at // 2) % len(ENDS)]
            at += 1
            client = client_of(colour, wire, plant)
            wire.play(*answers(operation, end, plant))
            with suppress(Exception), ravi_otel.run("r", limits=["requests=0"] if end == "refused" else ["tokens=100000"]):
                try:
                    loop.run(asked(client, operation, mode, plant)) if colour == "async" else asked(client, operation, mode, plant).send(
                        None
                    )
                except ravi_otel.BudgetExhaustedError as refusal:
                    refusals += traceback.format_exception_only(refusal)
        forget()
        drain()
        ravi_otel.flush()
    assert {"ok", "error", "refused"} <= everywhere.ends(), "the store has something in it"
    assert {"traces", "logs"} <= everywhere.signals()
    told = everywhere.found() | {found for text in refusals for found in MARK.findall(text)}
    print(f"{len(plant.made)} secrets planted in {at} calls, {len(told)} told")
    assert len(plant.made) >= COUNT / 2
    assert refusals
    assert sorted({plant.made[secret] for secret in told}) == []


def test_what_is_told_on_purpose_is_found(everywhere: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The search itself can fail: what is told on purpose is found by it."""
    plant = Plants(random.Random(1))
    span = everywhere.capture.tracer_provider.get_tracer("t").start_span("s")
    span.set_attribute("a", json.dumps({"b": plant("attribute")}))
    span.end()
    assert set(MARK.findall(repr(everywhere._spans()))) == set(plant.made)
    assert HTTP.__name__ in {"httpx", "httpx2"}


def test_what_is_captured_on_purpose_is_found_in_the_store(everywhere: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The search of the store can fail too: each way of it finds what is kept there on purpose."""
    monkeypatch.setenv("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", "SPAN_ONLY")
    monkeypatch.setenv("RAVI_CONTENT_TEXT_BYTES", "60000")  # more than the 4,096 of a page
    plant, wire = Plants(random.Random(2)), Wire()
    secrets = [plant("short message"), *(plant("long message") for _ in range(2_000))]
    client = openai.OpenAI(
        api_key="k", base_url="http://wire.test/v1", http_client=openai.DefaultHttpxClient(transport=MemoryTransport(wire))
    )
    operation = present()["chat"]
    given = {**operation.given(), "messages": [{"role": "user", "content": each} for each in (secrets[0], " ".join(secrets[1:]))]}
    with ravi_otel.instrument(tracer_provider=everywhere.capture.tracer_provider), ravi_otel.run("r"):
        wire.play(*answers(operation, "well", plant))
        client.chat.completions.create(**given)
    ravi_otel.flush()
    for search in (everywhere._kept, everywhere._sent_later):
        assert set(secrets) <= {found for text in search() for found in MARK.findall(text)}
    assert secrets[0] in {found for text in everywhere._bytes() for found in MARK.findall(text)}
