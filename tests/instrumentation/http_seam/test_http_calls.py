"""A model that is asked over a plain HTTP library is counted, priced, traced and limited as one that is asked through a client."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any

import httpx
import openai
import pytest
import requests
import urllib3
from requests.adapters import HTTPAdapter

import ravi_otel
from ravi_otel import BudgetExhaustedError
from ravi_otel._runtime.stopping import drain
from ravi_otel.testing import Disconnect, Failure, Raw, Text

STREAM = {"model": "gpt-4o-mini", "messages": [{"role": "user", "content": "hi"}], "stream": True}
WITH_USAGE = {**STREAM, "stream_options": {"include_usage": True}}
ANSWER = Text("It is in Oslo, as far as I know.", usage=(120, 80))


@pytest.fixture(autouse=True)
def _put_back() -> Iterator[None]:
    yield
    ravi_otel.uninstrument()


def test_a_whole_answer_is_one_call_with_its_usage(model: Any, stack: Any) -> None:
    with model(ANSWER) as asked:
        without = stack.ask(asked.url)
        asked.instrument()
        with ravi_otel.run("nightly") as run:
            assert _plain(*stack.ask(asked.url)) == _plain(*without)
        stats = run.stats()
        assert (stats.requests, stats.turns, stats.input_tokens, stats.output_tokens) == (1, 1, 120, 80)
        assert run.cost_usd is not None
        assert run.cost_usd > 0
        (span,) = asked.spans()
        told = span.attributes
        assert (told["gen_ai.operation.name"], told["gen_ai.request.model"], told["gen_ai.usage.output_tokens"]) == (
            "chat",
            "gpt-4o-mini",
            80,
        )
        assert (told["server.address"], told["server.port"]) == ("127.0.0.1", int(asked.host.partition(":")[2]))


@pytest.mark.parametrize("body", [WITH_USAGE, STREAM], ids=["usage told", "usage estimated"])
def test_a_stream_is_one_call_and_is_read_as_it_passes(model: Any, stack: Any, body: Any) -> None:
    with model(ANSWER) as asked:
        without = stack.read(asked.url, body)
        asked.instrument()
        with ravi_otel.run("nightly") as run:
            assert _same(stack.read(asked.url, body), without)
        drain()
        stats = run.stats()
        assert stats.requests == 1
        if body is WITH_USAGE:
            assert (stats.input_tokens, stats.output_tokens) == (120, 80)
        else:
            assert stats.output_tokens > 5
        (span,) = asked.spans()
        assert span.attributes["gen_ai.response.finish_reasons"] == ("stop",)


def _plain(status: int, body: bytes) -> Any:
    """Leave out what the server counts."""
    told = json.loads(body)
    return status, {name: value for name, value in told.items() if name not in ("id", "created")}


def _same(one: bytes, other: bytes) -> bool:
    """Whether two streams are the same but for the ids that the server gives each answer."""
    return len(one) == len(other) and one.count(b"data:") == other.count(b"data:")


def test_a_refused_call_never_leaves(model: Any, stack: Any) -> None:
    with model(ANSWER) as asked:
        asked.instrument()
        with ravi_otel.run("nightly", limits=["requests=1"]):
            stack.ask(asked.url)
            with pytest.raises(BudgetExhaustedError, match="1 of 1 request used"):
                stack.ask(asked.url)
        assert len(asked.server.requests) == 1


def test_threads_at_once_send_what_the_limit_allows_and_no_more(model: Any, stack: Any) -> None:
    with model(ANSWER) as asked:
        asked.instrument()
        with ravi_otel.run("nightly", limits=["requests=5"]) as run, ThreadPoolExecutor(32) as pool:
            together = threading.Barrier(32)

            def ask() -> bool:
                together.wait(timeout=60)
                try:
                    return stack.ask(asked.url)[0] == 200
                except BudgetExhaustedError:
                    return False

            went = [each.result() for each in [pool.submit(copy_context().run, ask) for _ in range(32)]]
        assert (sum(went), len(asked.server.requests), run.stats().requests) == (5, 5, 5)


@pytest.mark.parametrize("status", [400, 429, 500, 503])
def test_an_error_is_the_programs_as_it_is_and_is_billed_where_that_may_be(model: Any, stack: Any, status: int) -> None:
    with model(Failure(status, "no")) as asked:
        without = stack.ask(asked.url)
        asked.instrument()
        with ravi_otel.run("nightly") as run:
            assert stack.ask(asked.url) == without
        stats = run.stats()
        assert (stats.requests, stats.errors, stats.output_tokens) == (1, 1, 0)
        assert (stats.input_tokens > 0) is (status >= 500)
        (span,) = asked.spans()
        assert span.attributes["error.type"] == str(status)


def test_a_server_that_hangs_up_is_the_libraries_own_error(model: Any, stack: Any) -> None:
    with model(Disconnect()) as asked:
        with pytest.raises(Exception) as without:
            stack.ask(asked.url)
        asked.instrument()
        with ravi_otel.run("nightly") as run, pytest.raises(type(without.value)):
            stack.ask(asked.url)
        assert (run.stats().errors, run.stats().requests >= 1) == (1, True)


def test_a_host_that_cannot_be_reached_has_used_nothing(model: Any, stack: Any) -> None:
    with model(ANSWER) as asked:
        asked.instrument()
    with ravi_otel.run("nightly", limits=["requests=1"]) as run:
        for _ in range(2):
            with pytest.raises(Exception) as failed:
                stack.ask(asked.url, **({"retries": False} if stack is _urllib3(stack) else {}))
            assert not isinstance(failed.value, ravi_otel.RaviError)
    assert run.stats().requests == 0


def _urllib3(stack: Any) -> Any:
    return stack if "urllib3" in stack._ask.__qualname__ else None


def test_closing_a_stream_early_is_charged_by_what_came(model: Any, stack: Any) -> None:
    slow = Text(" ".join(["word"] * 400), chunks=200, chunk_s=0.01)
    with model(slow) as asked:
        asked.instrument()
        with ravi_otel.run("nightly") as run:
            assert stack.read(asked.url, STREAM, most=2)
        drain()
        stats = run.stats()
        assert stats.requests == 1
        assert 0 < stats.output_tokens < 400
        (span,) = asked.spans()
        assert span.attributes["error.type"] == "abandoned"
        asked.server.wait_for_hang_ups(1)


def test_a_stream_ends_with_our_error_where_its_limit_is_used_up(model: Any, stack: Any) -> None:
    long = Text(" ".join(["word"] * 4_000), chunks=1_000, usage="missing", chunk_s=0.001)
    with model(long) as asked:
        asked.instrument()
        with ravi_otel.run("nightly", limits=["tokens=300"]) as run, pytest.raises(BudgetExhaustedError) as cut:
            stack.read(asked.url, STREAM)
        drain()
        assert cut.value.partial
        assert run.stats().output_tokens < 1_000
        asked.server.wait_for_hang_ups(1)


def test_a_strict_limit_writes_its_cap_into_the_body_and_nothing_else(model: Any, stack: Any) -> None:
    body = {"model": "gpt-4o-mini", "messages": [{"role": "user", "content": "hi"}], "temperature": 0.25, "user": "é"}
    with model(ANSWER) as asked:
        asked.instrument(admission="strict")
        given = json.loads(json.dumps(body))
        with ravi_otel.run("nightly", limits=["tokens=5000"]):
            assert stack.ask(asked.url, given)[0] == 200
        assert given == body
        (sent,) = asked.server.requests
        assert int(sent.headers["content-length"]) == len(sent.raw)
        (went,) = asked.bodies()
        cap = went.pop("max_completion_tokens", None) or went.pop("max_tokens", None)
        assert went == body
        assert 0 < cap < 5000


def test_a_body_that_nobody_can_look_at_is_refused_by_a_strict_limit_and_counted_by_any_other(model: Any) -> None:
    def written() -> Iterator[bytes]:
        yield json.dumps({"model": "gpt-4o-mini", "messages": STREAM["messages"]}).encode()

    with model(ANSWER) as asked:
        asked.instrument()
        for post in (
            lambda: httpx.post(asked.url, content=written()),
            lambda: requests.post(asked.url, data=written()),
            lambda: urllib3.PoolManager().urlopen("POST", asked.url, body=written()),
        ):
            with ravi_otel.run("strict", limits=["tokens=500:admission=strict"]), pytest.raises(BudgetExhaustedError, match="no JSON"):
                post()
            with ravi_otel.run("nightly", limits=["requests=1"]) as run:
                post()
            assert run.stats().requests == 1


@pytest.mark.parametrize(
    ("said", "cost"),
    [
        ({"cost": 0.00014}, 0.00014),
        ({"cost": 0.000001, "is_byok": True, "cost_details": {"upstream_inference_cost": 0.00002}}, 0.000021),
    ],
    ids=["the router's key", "the program's key"],
)
def test_a_cost_that_openrouter_tells_is_the_calls(model: Any, stack: Any, said: Any, cost: float) -> None:
    used = {"prompt_tokens": 12, "completion_tokens": 8, "total_tokens": 20, **said}
    told: dict[str, Any] = {"id": "g", "model": "nobody/knows-this", "choices": [], "usage": used}
    with model(Raw(json.dumps(told).encode())) as asked:
        asked.instrument(providers={asked.host: "openrouter"}, detail="full")
        with ravi_otel.run("nightly") as run:
            stack.ask(asked.url)
        assert run.cost_usd == pytest.approx(cost)
        (span,) = asked.spans()
        assert span.attributes["ravi.usage.cost.source"] == "told"


def test_a_signed_body_is_never_written_to(model: Any, stack: Any) -> None:
    with model(ANSWER) as asked:
        asked.instrument()
        signed = {"headers": {"Authorization": "AWS4-HMAC-SHA256 Credential=x"}}
        with ravi_otel.run("strict", limits=["tokens=500:admission=strict"]), pytest.raises(BudgetExhaustedError, match="signed"):
            stack.ask(asked.url, **signed)
        assert not asked.server.requests


def test_what_a_client_above_has_counted_is_counted_once(model: Any) -> None:
    with model(ANSWER) as asked:
        asked.instrument()
        with ravi_otel.run("nightly", limits=["requests=2"]) as run, openai.OpenAI(base_url=asked.server.base_url, api_key="k") as client:
            client.chat.completions.create(model="gpt-4o-mini", messages=[{"role": "user", "content": "hi"}])
            raw = client.with_raw_response.chat.completions.create(model="gpt-4o-mini", messages=[{"role": "user", "content": "hi"}])
            assert raw.parse()
        assert (run.stats().requests, len(asked.spans())) == (2, 2)


def test_another_call_that_is_made_inside_of_one_is_one_of_its_own(model: Any) -> None:
    with model(ANSWER) as asked:
        asked.instrument()
        other = {"model": "gpt-4o-mini", "messages": [{"role": "user", "content": "is this safe?"}]}

        def guard(_: httpx.Request) -> None:
            requests.post(asked.url, json=other)

        hooks: dict[str, list[Any]] = {"request": [guard]}
        with ravi_otel.run("nightly") as run, httpx.Client(event_hooks=hooks) as client:
            client.post(asked.url, json=STREAM)
        assert (run.stats().requests, len(asked.server.requests), len(asked.spans())) == (2, 2, 2)


def test_a_retry_is_a_request_of_the_same_call(model: Any) -> None:
    answers = [Failure(503, "later"), Failure(503, "later"), ANSWER]
    with model(answers) as asked:
        asked.instrument()
        retry = urllib3.Retry(5, status_forcelist=[503], allowed_methods=None, backoff_factor=0)
        with ravi_otel.run("nightly") as run, requests.Session() as session:
            session.mount("http://", HTTPAdapter(max_retries=retry))
            assert session.post(asked.url, json={"model": "gpt-4o-mini", "messages": STREAM["messages"]}).ok
        assert (run.stats().requests, run.stats().turns, run.stats().output_tokens) == (3, 1, 80)
        assert len(asked.spans()) == 1


def test_a_retry_that_is_refused_ends_with_our_error(model: Any) -> None:
    with model(Failure(503, "later")) as asked:
        asked.instrument()
        retry = urllib3.Retry(5, status_forcelist=[503], allowed_methods=None, backoff_factor=0)
        with (
            ravi_otel.run("nightly", limits=["requests=2"]),
            urllib3.PoolManager(retries=retry) as pool,
            pytest.raises(BudgetExhaustedError),
        ):
            pool.request("POST", asked.url, body=json.dumps({"model": "gpt-4o-mini", "messages": STREAM["messages"]}).encode())
        assert len(asked.server.requests) == 2


def test_a_redirect_is_a_request_of_the_same_call(model: Any, stack: Any) -> None:
    answers = [Raw(b"", status=307, headers={"location": "/v1/chat/completions"}), ANSWER]
    with model(answers) as asked:
        asked.instrument()
        with ravi_otel.run("nightly") as run:
            more = {"follow_redirects": True} if "httpx" in stack._ask.__qualname__ else {}
            assert stack.ask(asked.url, **more)[0] == 200
        assert (run.stats().requests, run.stats().output_tokens, len(asked.server.requests)) == (2, 80, 2)


def test_a_format_that_cannot_be_read_is_a_request_whose_usage_is_unknown(anything: str, stack: Any) -> None:
    ravi_otel.instrument(formats={anything: "google"})
    with ravi_otel.run("nightly", limits=["requests=1"]) as run:
        assert stack.ask(f"http://{anything}/v9/models/x:dreamUp", {"dream": "of sheep"}) == (200, b"{}")
    stats = run.stats()
    assert (stats.requests, stats.unreported_calls, run.cost_usd) == (1, 1, None)


@pytest.mark.parametrize("path", ["/v1/messages/count_tokens", "/api/pull"])
def test_what_asks_no_model_passes(model: Any, stack: Any, path: str) -> None:
    with model(Raw(b"{}")) as asked:
        asked.instrument("auto")
        with ravi_otel.run("nightly", limits=["requests=0"]) as run:
            stack.ask(f"http://{asked.host}{path}", {"model": "m"})
        assert run.stats().requests == 0


def test_a_host_that_is_no_models_passes(model: Any, stack: Any) -> None:
    with model(Raw(b"{}")) as asked:
        ravi_otel.instrument()
        with ravi_otel.run("nightly", limits=["requests=0"]) as run:
            stack.ask(asked.url)
        assert run.stats().requests == 0
