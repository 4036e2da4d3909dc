"""Batches: what their output tells was used is counted once, at the batch price, in the scope that fetches it."""

from __future__ import annotations

import inspect
import json
from typing import Any

import pytest

import ravi_otel
from ravi_otel.instrumentation.openai.endpoints import batches
from ravi_otel.instrumentation.openai.endpoints.batch_files import FILES
from ravi_otel.instrumentation.openai.endpoints.registry import endpoint_for
from ravi_otel.runtime.awaited import AWAITED
from ravi_otel.testing import Raw, ScriptedLLM

GENEROUS = ["tokens=1000000000", "cost=1000usd"]
USED = ("gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens")


@pytest.fixture(autouse=True)
def _nothing_is_known():
    FILES._known.clear()
    AWAITED._fetched.clear()


async def got(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


def line(number: int, usage: Any, model: str = "gpt-4o-mini", status: int = 200) -> str:
    body = {"id": f"chatcmpl-{number}", "object": "chat.completion", "model": model, "choices": [], "usage": usage}
    answer = {"status_code": status, "request_id": "r", "body": body}
    return json.dumps({"id": f"batch_req_{number}", "custom_id": f"c{number}", "response": answer, "error": None})


def chat(given: int, made: int) -> dict[str, int]:
    return {"prompt_tokens": given, "completion_tokens": made, "total_tokens": given + made}


def file_of(*lines: str) -> Raw:
    return Raw("\n".join([*lines, ""]).encode(), content_type="application/octet-stream")


def batch(**more: Any) -> Raw:
    known = {"id": "batch_1", "object": "batch", "endpoint": "/v1/chat/completions", "status": "completed", "output_file_id": "file-out"}
    return Raw(json.dumps(known | more).encode(), content_type="application/json")


def used(span: Any) -> tuple[Any, ...]:
    return tuple(span.attributes.get(name) for name in USED)


def play(clients: Any, colour: str, url: str, program: Any) -> Any:
    return clients.run(colour, program(clients.make(colour, url, max_retries=0)))


TWO = file_of(line(1, chat(100, 10)), line(2, chat(200, 20)), line(3, None, status=400))
PRICE = (300 * 0.15 + 30 * 0.60) / 1e6


@pytest.mark.parametrize("flavour", ["plain", "raw"])
def test_the_output_of_a_batch_is_counted_where_it_is_fetched(clients, stage, colour, instrumented, flavour):
    async def program(client: Any) -> Any:
        with ravi_otel.run("r", limits=GENEROUS) as run:
            files = client.files.with_raw_response if flavour == "raw" else client.files
            await got(files.content("file-out"))
        return run

    run = play(clients, colour, stage.play(TWO), program)
    assert (run.stats().total_tokens, run.stats().requests, run.limits[0].used) == (330, 0, 330)
    assert run.cost_usd == pytest.approx(PRICE / 2)
    assert run.limits[1].used == pytest.approx(PRICE / 2)
    (span,) = instrumented.spans("GET files.content")
    assert used(span) == (300, 30)
    assert span.attributes["gen_ai.operation.name"] == "fetch_response"
    assert sum(point.sum for point in instrumented.metric("gen_ai.client.token.usage")) == 330


@pytest.mark.parametrize("way", ["read", "iter_bytes"])
def test_the_output_is_counted_when_its_body_was_read_by_the_program(clients, stage, colour, instrumented, way):
    async def program(client: Any) -> Any:
        with ravi_otel.run("r", limits=GENEROUS) as run:
            if colour == "async":
                async with client.files.with_streaming_response.content("file-out") as body:
                    _ = await body.read() if way == "read" else [part async for part in body.iter_bytes()]
            else:
                with client.files.with_streaming_response.content("file-out") as body:
                    _ = body.read() if way == "read" else list(body.iter_bytes())
        return run

    run = play(clients, colour, stage.play(TWO), program)
    assert (run.stats().total_tokens, run.limits[0].used) == (330, 330)


def test_more_lines_than_a_batch_may_have_are_not_read(monkeypatch):
    monkeypatch.setattr(batches, "_MOST_LINES", 1)
    assert total(f"{line(1, chat(7, 3))}\n{line(2, chat(1, 1))}\n".encode()) == (7, 3, "estimated")


def test_a_file_known_from_its_batch_is_told_as_such_from_the_start(clients, stage, colour, instrumented):
    async def program(client: Any) -> Any:
        seen = await got(client.batches.retrieve("batch_1"))
        await got(client.files.content(seen.output_file_id))

    play(clients, colour, stage.play(batch(), TWO), program)
    assert [used(span) for span in instrumented.spans("fetch_response")] == [(300, 30)]


def test_a_page_of_batches_tells_their_files(clients, stage, colour, instrumented):
    async def program(client: Any) -> None:
        await got(client.batches.list())

    page = {"object": "list", "data": [json.loads(batch().body)], "has_more": False}
    play(clients, colour, stage.play(Raw(json.dumps(page).encode(), content_type="application/json")), program)
    assert ("", "file-out") in FILES


def test_a_file_that_is_fetched_again_counts_nothing_more(clients, stage, colour, instrumented):
    async def program(client: Any) -> Any:
        with ravi_otel.run("r", limits=GENEROUS) as run:
            for _ in range(3):
                await got(client.files.content("file-out"))
        return run

    run = play(clients, colour, stage.play(TWO), program)
    assert run.stats().total_tokens == 330
    assert [used(span) for span in instrumented.spans("GET files.content")] == [(300, 30), (None, None), (None, None)]


def test_a_limit_that_is_used_up_never_refuses_what_was_spent_before(clients, stage, colour, instrumented):
    async def program(client: Any) -> Any:
        with ravi_otel.run("r", limits=["tokens=10"]) as run:
            found = await got(client.files.content("file-out"))
            with pytest.raises(ravi_otel.BudgetExhaustedError):
                await got(client.responses.create(model="gpt-4o-mini", input="hi"))
        return run, found.content

    run, content = play(clients, colour, stage.play(TWO), program)
    assert (run.limits[0].used, content) == (330, TWO.body)


def test_each_model_has_its_own_price_and_an_unknown_one_leaves_the_cost_unknown(clients, stage, colour, instrumented):
    async def program(client: Any) -> Any:
        with ravi_otel.run("r", limits=GENEROUS) as run:
            await got(client.files.content("file-out"))
        return run

    run = play(clients, colour, stage.play(file_of(line(1, chat(300, 30)), line(2, chat(5, 5), model="nobody-knows"))), program)
    assert (run.stats().total_tokens, run.stats().unpriced_calls) == (340, 1)
    assert run.limits[1].used == pytest.approx(PRICE / 2)
    (span,) = instrumented.spans("GET files.content")
    assert "ravi.usage.cost_usd" not in span.attributes


def test_any_other_file_is_a_plain_span(clients, stage, colour, instrumented):
    async def program(client: Any) -> Any:
        with ravi_otel.run("r", limits=GENEROUS) as run:
            await got(client.files.content("file-in"))
        return run

    asked = json.dumps({"custom_id": "c1", "method": "POST", "url": "/v1/chat/completions", "body": {"usage": chat(5, 5)}})
    run = play(clients, colour, stage.play(file_of(asked)), program)
    assert run.stats().total_tokens == 0
    (span,) = instrumented.spans("GET files.content")
    assert not [name for name in span.attributes if name.startswith("gen_ai.")]


def test_a_batch_is_begun_by_one_request_of_no_tokens(clients, stage, colour, instrumented):
    async def program(client: Any) -> Any:
        with ravi_otel.run("r", limits=GENEROUS) as run:
            await got(client.batches.create(input_file_id="file-in", endpoint="/v1/chat/completions", completion_window="24h"))
        return run

    run = play(clients, colour, stage.play(batch(output_file_id=None, status="validating")), program)
    assert (run.stats().requests, run.stats().turns, run.stats().total_tokens) == (1, 0, 0)


def test_what_another_provider_says_of_a_file_is_about_none_of_ours(monkeypatch):
    monkeypatch.setattr(batches, "_SMALL", 10)
    told = {"object": "batch", "output_file_id": "file-1", "model": "gpt-4o-mini", "usage": {"input_tokens": 1, "output_tokens": 1}}
    batches.learn(told, "")
    (part,) = endpoint_for("GET", "/files/file-1/content", "", "openai").reply(line(1, chat(70, 30)).encode()).spent
    assert part.usage.total_tokens == 100


def test_a_name_of_a_file_that_is_too_long_is_not_kept():
    batches.learn({"object": "batch", "output_file_id": "f" * 1_000}, "openai")
    assert len(FILES._known) == 0


def test_the_same_file_at_another_host_is_another_file(clients, stage, colour, instrumented):
    async def program(client: Any) -> Any:
        with ravi_otel.run("r", limits=GENEROUS) as run:
            await got(clients.make(colour, there.base_url, max_retries=0).files.content("file-out"))
            await got(client.files.content("file-out"))
        return run

    with ScriptedLLM([file_of(line(1, chat(1, 1)))]) as there:
        assert play(clients, colour, stage.play(TWO), program).stats().total_tokens == 332


def test_the_span_of_a_batch_has_no_id_of_an_answer_and_the_model_where_it_is_one(clients, stage, colour, instrumented):
    async def program(client: Any) -> Any:
        await got(client.files.content("file-out"))

    play(clients, colour, stage.play(TWO), program)
    (span,) = instrumented.spans("GET files.content")
    assert "gen_ai.response.id" not in span.attributes
    assert span.attributes["gen_ai.response.model"] == "gpt-4o-mini"


def reply(body: Any, name: str = "file-1") -> Any:
    return endpoint_for("GET", f"/files/{name}/content").reply(body)


def total(body: Any) -> tuple[int, int, str]:
    usages = [part.usage for part in reply(body).spent]
    return sum(one.input_tokens for one in usages), sum(one.output_tokens for one in usages), usages[0].source


def test_responses_and_embeddings_in_a_batch_are_read_too():
    told = [line(1, {"input_tokens": 7, "output_tokens": 3}), line(2, {"prompt_tokens": 5, "total_tokens": 5})]
    assert total("\n".join(told).encode()) == (12, 3, "reported")


def test_a_file_given_as_text_is_read_too():
    assert total(line(1, chat(7, 3))) == (7, 3, "reported")


@pytest.mark.parametrize("hostile", ["{", "[" * 100_000, "null", "7", '"text"', "\x00", "[1]"])
def test_a_line_that_cannot_be_read_is_skipped_and_the_sum_is_marked(hostile):
    assert total(f"{line(1, chat(7, 3))}\n{hostile}\n{line(2, chat(1, 1))}".encode()) == (8, 4, "estimated")


@pytest.mark.parametrize(
    "usage", [None, 7, "x", [], {}, chat(-1, 2), {"prompt_tokens": float("nan"), "completion_tokens": 1}, chat(2**60, 1)]
)
def test_usage_that_is_none_is_skipped(usage):
    assert total(f"{line(1, chat(7, 3))}\n{line(2, usage)}".encode()) == (7, 3, "reported")


@pytest.mark.parametrize("body", [None, 7, b"", "", b"\n\n", b"%PDF-1.7", b"{}", b"[1]", b'{"custom_id": 1}', {"content": 7}])
def test_what_is_no_output_of_a_batch_tells_nothing(body):
    assert reply(body).spent == ()


def test_what_lies_beyond_the_bound_is_not_read_and_the_sum_is_marked(monkeypatch):
    one = line(1, chat(7, 3))
    monkeypatch.setattr(batches, "_MOST_BYTES", len(one) + 10)
    assert total(f"{one}\n{line(2, chat(1, 1))}\n".encode()) == (7, 3, "estimated")


def test_what_lies_beyond_the_bound_is_told_by_its_batch(monkeypatch):
    told = {"object": "batch", "output_file_id": "file-1", "model": "gpt-4o-mini", "usage": {"input_tokens": 70, "output_tokens": 30}}
    batches.learn(told, "")
    one = line(1, chat(7, 3))
    monkeypatch.setattr(batches, "_MOST_BYTES", len(one) + 10)
    assert total(f"{one}\n{line(2, chat(1, 1))}\n".encode()) == (70, 30, "reported")


def test_a_large_file_is_not_read_whose_batch_told_its_usage(monkeypatch):
    told = {"object": "batch", "output_file_id": "file-1", "model": "gpt-4o-mini", "usage": {"input_tokens": 70, "output_tokens": 30}}
    batches.learn(told, "")
    monkeypatch.setattr(batches, "_SMALL", 10)
    assert total(line(1, chat(7, 3)).encode()) == (70, 30, "reported")


def test_more_models_than_are_kept_apart_are_added_up_without_a_name(monkeypatch):
    monkeypatch.setattr(batches, "_MOST_MODELS", 2)
    body = "\n".join(line(number, chat(1, 1), model=f"m{number}") for number in range(10)).encode()
    assert len(reply(body).spent) <= 3
    assert total(body) == (10, 10, "reported")
