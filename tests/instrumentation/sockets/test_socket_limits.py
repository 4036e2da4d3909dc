"""Keep limits over sockets whatever shape a message has, and tell each refusal the same everywhere."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from talking import CREATE, HAS_RESPONSES, QUIET, USER, Talk, answering, got, play, spans, until

import ravi_otel
from ravi_otel._instrumentation.socket_seam import Unread, read_message
from ravi_otel.errors import BudgetExhaustedError
from ravi_otel.testing import Capture
from ravi_otel.testing._sockets import ScriptedSocket, realtime_events

pytestmark = QUIET
TEXT = json.dumps(CREATE)
DEEP = '{"type": "response.create", "metadata": ' + "[" * 100_000 + "]" * 100_000 + "}"


def _made() -> Iterator[str]:
    yield TEXT[:9]
    yield TEXT[9:]


SHAPES: dict[str, Callable[[], Any]] = {
    "text": lambda: TEXT,
    "bytes": TEXT.encode,
    "bytearray": lambda: bytearray(TEXT.encode()),
    "memoryview": lambda: memoryview(TEXT.encode()),
    "strided": lambda: memoryview(bytes(byte for pair in zip(TEXT.encode(), TEXT.encode(), strict=True) for byte in pair))[::2],
    "list": lambda: [TEXT[:9], TEXT[9:]],
    "tuple": lambda: (TEXT[:9].encode(), memoryview(TEXT[9:].encode())),
    "mark": lambda: "\ufeff" + TEXT,
    "marked bytes": ("\ufeff" + TEXT).encode,
    "utf-16": lambda: TEXT.encode("utf-16"),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_a_message_is_read_in_every_shape_that_can_leave(shape: str) -> None:
    assert read_message(SHAPES[shape]()) == CREATE


@pytest.mark.parametrize("given", [_made(), (part for part in [b"{}"]), {TEXT: 1}.keys(), "{no json", b"\xff\xfe\xff", DEEP])
def test_what_cannot_be_read_may_ask_for_anything(given: Any) -> None:
    assert isinstance(read_message(given), Unread)


@pytest.mark.parametrize("given", [[], (), ["text", b"bytes"], [7], 7, None, object(), "[]", "7", b'"text"'])
def test_what_asks_for_nothing_or_cannot_be_sent_is_no_request(given: Any) -> None:
    assert read_message(given) is None


def test_an_iterator_is_left_to_whoever_sends_it() -> None:
    parts = _made()
    read_message(parts)
    assert "".join(parts) == TEXT


@pytest.mark.skipif(not HAS_RESPONSES, reason="this version has no send_raw()")
@pytest.mark.parametrize("shape", [*SHAPES, "iterator"])
def test_no_shape_of_a_message_passes_a_limit(instrumented: Capture, clients: Any, colour: str, shape: str) -> None:
    make = {**SHAPES, "iterator": _made}[shape]

    async def program(talk: Talk) -> None:
        connection = await talk.realtime()
        for _ in range(2):
            await got(connection.send_raw(make()))
        with pytest.raises(BudgetExhaustedError):
            await got(connection.send_raw(make()))
        await got(connection.close())

    with ScriptedSocket() as server, ravi_otel.run("r", limits=["requests=2"]) as run:
        play(clients, colour, server, program)
        assert len(server.wait_for(2)) == 2
    assert (run.stats().requests, run.stats().refused) == (2, 1)
    assert all(reading.held == 0 for reading in run.limits)


@pytest.mark.skipif(not HAS_RESPONSES, reason="this version has no send_raw()")
def test_an_unread_message_is_answered_like_any_other(instrumented: Capture, clients: Any, colour: str) -> None:
    async def program(talk: Talk) -> None:
        connection = await talk.realtime()
        await got(connection.send_raw(_made()))
        await until(connection, "response.done")
        await got(connection.close())

    with ScriptedSocket(answering(realtime_events())) as server, ravi_otel.run("r", limits=["tokens=90000"]) as run:
        play(clients, colour, server, program)
        assert server.received[0].event == CREATE
    assert (run.stats().requests, run.stats().total_tokens, run.limits[0].used) == (1, 200, 200)


@pytest.mark.parametrize(
    ("limit", "sentence"),
    [
        ("requests=1", "1 of 1 request used in run 'r', so nothing more is sent to a model."),
        ("tokens=200", "200 of 200 tokens used in run 'r', so nothing more is sent to a model."),
        ("turns=1", "1 of 1 turn used in run 'r', so nothing more is sent to a model."),
    ],
)
def test_a_refusal_of_what_is_used_up_is_true_and_told_alike_everywhere(
    instrumented: Capture, clients: Any, colour: str, limit: str, sentence: str
) -> None:
    kind, _, amount = limit.partition("=")

    async def program(talk: Talk) -> None:
        connection = await talk.realtime()
        await got(connection.response.create())
        await until(connection, "response.done")
        for _ in range(3):
            with pytest.raises(BudgetExhaustedError) as refused:
                await got(connection.conversation.item.create(item=USER))
            assert str(refused.value).startswith(sentence)
            assert refused.value.used == refused.value.threshold == int(amount)
        await got(connection.close())

    with ScriptedSocket(answering(realtime_events())) as server, ravi_otel.run("r", limits=[limit]) as run:
        play(clients, colour, server, program)
        assert len(server.received) == 1
    (session,) = spans(instrumented, "realtime")
    assert (run.stats().refused, run.limits[0].denied) == (3, 3)
    assert sum(point.value for point in instrumented.metric("ravi.limit.denied")) == 3
    assert [event.attributes["ravi.limit.decision"] for event in session.events if event.name.endswith("exceeded")] == ["denied"]
    assert (session.attributes["ravi.limit.decision"], session.attributes["ravi.limit.kind"]) == ("denied", kind)
    assert "error.type" not in session.attributes


def test_a_session_has_no_metrics_of_a_call(instrumented: Capture, clients: Any, colour: str) -> None:
    async def program(talk: Talk) -> None:
        connection = await talk.realtime()
        await got(connection.close())

    with ScriptedSocket() as server:
        play(clients, colour, server, program)
    assert len(spans(instrumented, "realtime")) == 1
    assert list(instrumented.metric("gen_ai.client.operation.duration")) == []
