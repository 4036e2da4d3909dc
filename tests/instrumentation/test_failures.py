"""What retries and failures cost: attempts are counted, and what was not used is given back."""

from __future__ import annotations

import socket
from typing import Any

import openai
import pydantic
import pytest

import ravi_otel
from ravi_otel import BudgetExhaustedError, cost_limit
from ravi_otel.testing import Capture, Disconnect, Failure, Raw, Text

ASK: dict[str, Any] = {"model": "gpt-4o-mini", "messages": [{"role": "user", "content": "Say hello."}]}
QUICK = {"retry-after-ms": "1"}
BUSY = Failure(429, "slow down", headers=QUICK)
BROKEN = Failure(500, headers=QUICK)
WORDS = Text("hello", usage=(12, 3))
LIMITS = ["requests=100", "turns=100", "tokens=100000", cost_limit(5)]


class Greeting(pydantic.BaseModel):
    word: str


async def asked(client: Any, **given: Any) -> Any:
    made = client.chat.completions.create(**{**ASK, **given})
    return await made if hasattr(made, "__await__") else made


async def failed(client: Any, **given: Any) -> Exception:
    with pytest.raises(Exception) as raised:
        await asked(client, **given)
    return raised.value


def used(run: Any) -> dict[str, float]:
    assert all(reading.held == 0 for reading in run.limits)
    return {str(reading.limit.kind): reading.used for reading in run.limits}


def span_of(capture: Capture) -> Any:
    (span,) = capture.spans("chat gpt-4o-mini")
    return span


@pytest.mark.parametrize("failures", [[BUSY], [BROKEN, BUSY], [Disconnect(0)], [Disconnect(0), BROKEN]])
def test_each_attempt_that_was_sent_is_a_request_and_the_call_one_turn(
    failures: list[Any], colour: str, stage: Any, clients: Any, instrumented: Capture
) -> None:
    client = clients.make(colour, stage.play(*failures, WORDS))
    with ravi_otel.run("r", limits=LIMITS) as run:
        clients.run(colour, asked(client))
        assert used(run) | {"cost": 0} == {"requests": len(failures) + 1, "turns": 1, "tokens": 15, "cost": 0}
        assert run.stats().requests == len(stage.server.requests) == len(failures) + 1
    span = span_of(instrumented)
    assert span.attributes["ravi.retry.count"] == len(failures)
    statuses = [event.attributes.get("http.response.status_code") for event in span.events if "retry" in event.name]
    assert statuses == [getattr(failure, "status", None) for failure in failures]


@pytest.mark.parametrize("allowed", [1, 2])
def test_a_retry_past_the_limit_is_refused_and_nothing_more_is_sent(
    allowed: int, colour: str, stage: Any, clients: Any, instrumented: Capture
) -> None:
    client = clients.make(colour, stage.play(BUSY), max_retries=5)
    with ravi_otel.run("r", limits=[f"requests={allowed}", "tokens=100000"]) as run:
        error = clients.run(colour, failed(client))
        assert isinstance(error, BudgetExhaustedError)
        assert len(stage.server.requests) == allowed
        assert used(run)["requests"] == allowed
        assert isinstance(clients.run(colour, failed(client)), BudgetExhaustedError)
        assert len(stage.server.requests) == allowed
    assert instrumented.spans("chat gpt-4o-mini")[0].attributes["error.type"] == "ravi.limit_exceeded"


def test_a_retry_after_the_end_of_the_run_or_its_cancellation_is_not_sent(
    colour: str, stage: Any, clients: Any, instrumented: Capture
) -> None:
    client = clients.make(colour, stage.play(BUSY), max_retries=5)
    with ravi_otel.run("r", limits=LIMITS) as run:
        stage.server._script = lambda _: (run.cancel("enough"), BUSY)[1]
        try:
            error = clients.run(colour, failed(client))
        finally:
            stage.server._script = stage._next
    assert isinstance(error, ravi_otel.CancellationError)
    assert len(stage.server.requests) == 1


def test_a_connection_refused_costs_nothing_and_one_accepted_after_it_one_request(
    colour: str, stage: Any, clients: Any, http: Any, instrumented: Capture
) -> None:
    url = stage.play(WORDS)
    refusals = [http.ConnectError("refused"), http.ConnectTimeout("slow"), http.PoolTimeout("full")]
    kind: Any = type(clients.blocking if colour == "sync" else clients.awaiting)
    pool = kind(event_hooks={"request": [_refuse(colour, refusals)]})
    client = clients.make(colour, url, http_client=pool, max_retries=3)
    with ravi_otel.run("r", limits=LIMITS) as run:
        clients.run(colour, asked(client))
        clients.run(colour, _close(client))
        assert used(run)["requests"] == 1
        assert run.stats().requests == 1
    assert span_of(instrumented).attributes["ravi.retry.count"] == 3


def _refuse(colour: str, refusals: list[Exception]) -> Any:
    def refuse(_: Any) -> None:
        if refusals:
            raise refusals.pop()

    async def refuse_async(_: Any) -> None:
        refuse(_)

    return refuse if colour == "sync" else refuse_async


async def _close(client: Any) -> None:
    done = client.close()
    if done is not None:
        await done


@pytest.mark.parametrize("retries", [0, 2])
def test_what_never_left_gives_everything_back(retries: int, colour: str, clients: Any, instrumented: Capture) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: refused
        client = clients.make(colour, f"http://127.0.0.1:{taken.getsockname()[1]}/v1", max_retries=retries)
        with ravi_otel.run("r", limits=LIMITS) as run:
            assert isinstance(clients.run(colour, failed(client)), openai.APIConnectionError)
            assert set(used(run).values()) == {0}
            assert (run.stats().requests, run.stats().turns, run.stats().total_tokens) == (0, 0, 0)


def test_a_body_that_cannot_be_written_gives_everything_back(colour: str, stage: Any, clients: Any, instrumented: Capture) -> None:
    client = clients.make(colour, stage.play(WORDS))
    with ravi_otel.run("r", limits=LIMITS) as run:
        assert isinstance(clients.run(colour, failed(client, extra_body={"x": object()})), TypeError)
        assert set(used(run).values()) == {0}
    assert stage.server.requests == ()


@pytest.mark.parametrize("status", [400, 401, 404, 422, 429])
def test_a_refusal_by_the_provider_costs_a_request_and_no_tokens(
    status: int, colour: str, stage: Any, clients: Any, instrumented: Capture
) -> None:
    client = clients.make(colour, stage.play(Failure(status)), max_retries=0)
    with ravi_otel.run("r", limits=LIMITS) as run:
        clients.run(colour, failed(client))
        assert used(run) == {"requests": 1, "turns": 1, "tokens": 0, "cost": 0}


@pytest.mark.parametrize("answer", [Failure(500), Disconnect(0), Disconnect(1), Text("late", think_s=30)])
def test_a_failure_after_dispatch_keeps_the_size_of_the_request(
    answer: Any, colour: str, stage: Any, clients: Any, instrumented: Capture, http: Any
) -> None:
    client = clients.make(colour, stage.play(answer), max_retries=0, timeout=http.Timeout(20, read=0.2))
    with ravi_otel.run("r", limits=LIMITS) as run:
        clients.run(colour, failed(client))
        spent = used(run)
        assert spent["requests"] == 1
        assert 0 < spent["tokens"] < 100
        assert 0 < spent["cost"] < 0.001


def test_an_answer_cut_short_that_a_parser_refuses_costs_what_it_reports(
    colour: str, stage: Any, clients: Any, instrumented: Capture
) -> None:
    client = clients.make(colour, stage.play(Text('{"word": "hel', finish_reason="length", usage=(40, 8))))
    chat = client.beta.chat if openai.__version__.startswith("1.") else client.chat

    async def parsed() -> None:
        made = chat.completions.parse(**ASK, response_format=Greeting)
        return await made if hasattr(made, "__await__") else made

    with ravi_otel.run("r", limits=LIMITS) as run:
        with pytest.raises(openai.LengthFinishReasonError):
            clients.run(colour, parsed())
        assert used(run)["tokens"] == 48
    span = span_of(instrumented)
    assert span.attributes["error.type"] == "LengthFinishReasonError"
    assert span.attributes["gen_ai.response.finish_reasons"] == ("length",)


def test_a_body_that_is_no_json_costs_what_was_held(colour: str, stage: Any, clients: Any, instrumented: Capture) -> None:
    client = clients.make(colour, stage.play(Raw(b"<html>", content_type="text/html")))
    with ravi_otel.run("r", limits=LIMITS) as run:
        clients.run(colour, asked(client))
        assert used(run)["tokens"] > 1000


def test_the_idempotency_header_stays_the_same_in_every_attempt(colour: str, stage: Any, clients: Any, instrumented: Capture) -> None:
    client = clients.make(colour, stage.play(BUSY, BUSY, WORDS), max_retries=2)
    clients.run(colour, asked(client, extra_headers={"Idempotency-Key": "one"}))
    assert [request.headers["idempotency-key"] for request in stage.server.requests] == ["one"] * 3
    assert [request.headers.get("x-stainless-retry-count") for request in stage.server.requests] == ["0", "1", "2"]


def test_the_pause_the_server_asks_for_is_on_the_span(colour: str, stage: Any, clients: Any, instrumented: Capture) -> None:
    client = clients.make(colour, stage.play(Failure(429, headers={"retry-after-ms": "30"}), WORDS))
    clients.run(colour, asked(client))
    (event,) = span_of(instrumented).events
    assert event.attributes["ravi.retry.wait_s"] == pytest.approx(0.03)


def test_listing_models_costs_nothing(colour: str, stage: Any, clients: Any, instrumented: Capture) -> None:
    client = clients.make(colour, stage.play(WORDS))

    async def listed() -> None:
        made = client.models.list()
        return await made if hasattr(made, "__await__") else made

    with ravi_otel.run("r", limits=LIMITS) as run:
        clients.run(colour, listed())
        assert set(used(run).values()) == {0}
