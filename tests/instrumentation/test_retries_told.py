"""What each attempt of a call brought is told, each is one request, and the idempotency key stays the program's."""

from __future__ import annotations

from typing import Any

import openai
import pytest

import ravi_otel
from ravi_otel.hooks._events import CallRecord
from ravi_otel.hooks._listeners import Listener
from ravi_otel.testing import Capture, Disconnect, Failure, Text

ASK: dict[str, Any] = {"model": "gpt-4o-mini", "messages": [{"role": "user", "content": "Count."}]}
IDS = [f"req_{number:032x}" for number in range(4)]


def failing(number: int, status: int, **more: str) -> Failure:
    return Failure(status, headers={"x-request-id": IDS[number], "x-ratelimit-remaining-requests": str(number), **more})


class Heard(Listener):
    """Keep the records of calls that ended."""

    def __init__(self) -> None:
        self.records: list[CallRecord] = []

    def call_ended(self, record: CallRecord) -> None:
        self.records.append(record)


async def awaited(value: Any) -> Any:
    return await value if hasattr(value, "__await__") else value


async def asked(client: Any, **more: Any) -> Any:
    made = await awaited(client.chat.completions.create(**ASK, **more))
    if hasattr(made, "__aiter__"):
        return [chunk async for chunk in made]
    return list(made) if more.get("stream") else made


@pytest.fixture
def heard(capture: Capture, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("RAVI_USAGE_HOSTS", "127.0.0.1")
    heard = Heard()
    with ravi_otel.instrument(tracer_provider=capture.tracer_provider) as instrumentation:
        instrumentation.listen(heard)
        yield heard


@pytest.mark.parametrize("stream", [False, True])
def test_each_attempt_tells_what_its_answer_told(stream: bool, colour: str, stage: Any, clients: Any, heard: Heard) -> None:
    last = Text("one", headers={"x-request-id": IDS[2], "x-ratelimit-remaining-requests": "2"})
    client = clients.make(colour, stage.play(failing(0, 429, **{"retry-after-ms": "1"}), failing(1, 503), last))
    with ravi_otel.run("r", limits=["requests=10"]) as run:
        clients.run(colour, asked(client, stream=stream))
        (reading,) = run.limits
        assert (reading.used, reading.held, run.stats().requests) == (3, 0, 3)
    (record,) = heard.records
    assert [(each.attempt, each.status, each.error_type, each.request_id) for each in record.retries] == [
        (1, 429, "429", IDS[0]),
        (2, 503, "503", IDS[1]),
    ]
    assert [each.rate_limits["x-ratelimit-remaining-requests"] for each in record.retries] == ["0", "1"]
    assert record.retries[0].rate_limits["retry-after-ms"] == "1"
    assert record.retries[0].wait_s == 0.001
    assert all(each.wait_s is not None and each.wait_s >= 0 for each in record.retries)
    assert (record.request_id, record.rate_limits) == (IDS[2], {"x-ratelimit-remaining-requests": "2"})
    assert record.requests == 3


@pytest.mark.parametrize("detail", [None, "default", "full"])
@pytest.mark.parametrize("said", ["", "full", "FULL", "more"])
def test_the_headers_of_a_plain_answer_are_told_in_full_detail_alone(
    detail: Any, said: str, colour: str, stage: Any, clients: Any, capture: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAVI_DETAIL", said)
    client = clients.make(colour, stage.play(Text("one", headers={"x-request-id": IDS[2], "x-ratelimit-remaining-requests": "2"})))
    with ravi_otel.instrument(tracer_provider=capture.tracer_provider, detail=detail):
        clients.run(colour, asked(client))
    (span,) = capture.spans()
    told = {name: value for name, value in (span.attributes or {}).items() if name.startswith("http.response.header.")}
    full = {"http.response.header.x-request-id": (IDS[2],), "http.response.header.x-ratelimit-remaining-requests": ("2",)}
    assert told == (full if detail == "full" or (detail is None and said.lower() == "full") else {})


def test_a_detail_that_is_none_is_refused_with_the_words_that_are() -> None:
    with pytest.raises(ravi_otel.ConfigurationError, match=r"instrument\(detail\).*default.*full"):
        ravi_otel.instrument(detail="everything")  # type: ignore[arg-type]  # what a program without types may write


def test_a_call_whose_every_attempt_fails_tells_the_last_answer(colour: str, stage: Any, clients: Any, heard: Heard) -> None:
    client = clients.make(colour, stage.play(failing(0, 500), failing(1, 500), failing(2, 500)), max_retries=2)
    with ravi_otel.run("r", limits=["requests=10"]) as run:
        with pytest.raises(openai.InternalServerError):
            clients.run(colour, asked(client))
        assert run.stats().requests == 3
    (record,) = heard.records
    assert [each.request_id for each in record.retries] == IDS[:2]
    assert record.request_id == IDS[2]
    assert (record.http_status, record.error_type) == (500, "InternalServerError")


def test_an_attempt_without_an_answer_is_told_without_one(colour: str, stage: Any, clients: Any, heard: Heard) -> None:
    client = clients.make(colour, stage.play(Disconnect(0), Text("one")))
    clients.run(colour, asked(client))
    (record,) = heard.records
    (retry,) = record.retries
    assert (retry.status, retry.request_id, dict(retry.rate_limits)) == (None, None, {})
    assert retry.error_type in {"ReadError", "RemoteProtocolError"}


@pytest.mark.parametrize("way", ["of the client", "argument", "header"])
@pytest.mark.parametrize("stream", [False, True])
def test_every_attempt_has_the_same_idempotency_key(
    way: str, stream: bool, colour: str, stage: Any, clients: Any, heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = clients.make(colour, stage.play(failing(0, 500), failing(1, 500), Text("one")))
    chosen: dict[str, Any] = {}
    if way == "of the client":
        client._idempotency_header = "Idempotency-Key"
    elif way == "argument":
        client._idempotency_header = "Idempotency-Key"
        monkeypatch.setattr(client, "_idempotency_key", lambda: "chosen")
    else:
        chosen["extra_headers"] = {"Idempotency-Key": "chosen"}
    with ravi_otel.run("r", limits=["requests=10"]):
        clients.run(colour, asked(client, stream=stream, **chosen))
    keys = [request.headers["idempotency-key"] for request in stage.server.requests]
    assert len(keys) == 3
    if way == "of the client" and openai.__version__.startswith("1."):
        return  # older clients make a new one for each attempt, with us and without us
    assert len(set(keys)) == 1
    assert way == "of the client" or keys[0] == "chosen"


def test_a_key_given_with_the_options_of_a_request_goes_out_as_it_is(colour: str, stage: Any, clients: Any, heard: Heard) -> None:
    client = clients.make(colour, stage.play(failing(0, 500), Text("one")))
    client._idempotency_header = "Idempotency-Key"

    async def program() -> None:
        await awaited(client.post("/chat/completions", cast_to=object, body=ASK, options={"idempotency_key": "mine"}))

    clients.run(colour, program())
    assert [request.headers["idempotency-key"] for request in stage.server.requests] == ["mine", "mine"]
