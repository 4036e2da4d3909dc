from __future__ import annotations

import asyncio
import http.client
import json
import logging
import socket
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest

from ravi_otel.errors import ConfigurationError, MissingExtraError
from ravi_otel.testing import Failure, Raw, Request, ScriptedLLM, Text, Vector


def _post(server: ScriptedLLM, path: str, body: bytes, method: str = "POST") -> tuple[int, dict]:
    connection = http.client.HTTPConnection("127.0.0.1", int(server.url.rpartition(":")[2]), timeout=10)
    try:
        connection.request(method, path, body, {"content-type": "application/json"})
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


@pytest.mark.parametrize("body", [b"", b"{", b"[1]", b"\xff\xfe", b"[" * 100_000])
def test_a_body_that_is_no_json_object_is_a_400_and_takes_no_answer(serve, chat, body):
    server, client = serve(["first"])
    status, answer = _post(server, "/v1/chat/completions", body)
    assert (status, answer["error"]["type"]) == (400, "invalid_request_error")
    assert client.chat.completions.create(**chat).choices[0].message.content == "first"


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/chat/completions", {"model": "m"}, "messages"),
        ("/v1/chat/completions", {"messages": []}, "model"),
        ("/v1/embeddings", {"model": "m"}, "input"),
        ("/v1/chat/completions", {"model": "m", "messages": "hello"}, "messages"),
        ("/v1/chat/completions", {"model": "m", "messages": [{}], "n": 1_000_000_000}, "n"),
        ("/v1/embeddings", {"model": "m", "input": "x", "dimensions": 0}, "dimensions"),
    ],
)
def test_a_wrong_parameter_is_a_400_that_names_it(serve, path, body, param):
    server, _ = serve("x")
    status, answer = _post(server, path, json.dumps(body).encode())
    assert (status, answer["error"]["param"]) == (400, param)


def test_an_unknown_path_is_a_404_and_a_wrong_method_a_405(serve):
    server, _ = serve("x")
    assert _post(server, "/v1/nothing", b"{}")[0] == 404
    assert _post(server, "/v1/embeddings", b"", "GET")[0] == 405


@pytest.mark.parametrize(
    "body", [{"messages": [None, 7, {"content": [3, {"text": {}}]}]}, {"messages": [[]], "n": "two"}, {"messages": [{}], "n": None}]
)
def test_hostile_messages_are_answered_all_the_same(serve, body):
    server, _ = serve("x")
    status, _ = _post(server, "/v1/chat/completions", json.dumps({"model": 5, **body}).encode())
    assert status == 200
    assert server.script_errors == ()


def test_requests_can_be_read_back(serve, chat):
    server, client = serve("x")
    client.chat.completions.create(**chat, extra_query={"a": "b"})
    (request,) = server.requests
    assert (request.index, request.method, request.path, request.query) == (0, "POST", "/v1/chat/completions", "a=b")
    assert request.body == json.loads(request.raw) == chat
    assert request.headers["authorization"] == "Bearer any"
    assert (request.model, request.streamed) == ("gpt-4o-mini", False)


def test_a_function_answers_each_request(serve, chat):
    def script(request: Request) -> str:
        return f"{request.index}: {request.body['messages'][-1]['content']}"

    _, client = serve(script)
    assert client.chat.completions.create(**chat).choices[0].message.content == "0: Where is my order?"
    assert client.chat.completions.create(**chat).choices[0].message.content == "1: Where is my order?"


def test_a_script_that_ran_out_fails_at_once_and_says_so(serve, chat):
    server, client = serve(["one"], max_retries=5)
    client.chat.completions.create(**chat)
    for _ in range(2):
        with pytest.raises(openai.InternalServerError, match="The script has 1 answers and one more was asked for"):
            client.chat.completions.create(**chat)
    assert len(server.requests) == 3


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (lambda request: request.body["no such key"], "KeyError"),
        (lambda _: 7, "which is no Answer"),
        (lambda _: Text("x", extra={"bad": object()}), "not JSON serializable"),
        (lambda _: Vector(), "The script answered Vector to /v1/chat/completions, which takes Text, ToolCalls, Refusal, Failure, Raw"),
    ],
)
def test_a_script_that_fails_is_an_error_that_is_not_retried(serve, chat, script, said):
    server, client = serve(script, max_retries=5)
    with pytest.raises(openai.InternalServerError, match=said):
        client.chat.completions.create(**chat)
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: ScriptedLLM(7), "is no script"),
        (lambda: Failure(99), "no final HTTP status"),
        (lambda: Raw(b"", 100), "no final HTTP status"),
        (lambda: ScriptedLLM("x").url, "no address before it is started"),
    ],
)
def test_a_wrong_argument_is_one_clear_sentence(make, said):
    with pytest.raises(ConfigurationError, match=said):
        make()


def test_starting_twice_is_refused_and_stopping_twice_does_nothing():
    server = ScriptedLLM("x").start()
    try:
        with pytest.raises(ConfigurationError, match="called twice"):
            server.start()
    finally:
        server.stop()
        server.stop()


def test_a_stopped_server_can_be_started_again(chat):
    server = ScriptedLLM("x")
    for count in (1, 2):
        with server, openai.OpenAI(base_url=server.base_url, api_key="any", max_retries=0) as client:
            client.chat.completions.create(**chat)
        assert len(server.requests) == count


def test_stopping_cuts_what_is_in_flight_and_logs_nothing(chat, caplog):
    caplog.set_level(logging.INFO)
    others = set(threading.enumerate())  # servers that fixtures of other tests keep
    server = ScriptedLLM(Text("never", think_s=60)).start()
    with openai.OpenAI(base_url=server.base_url, api_key="any", max_retries=0) as client, ThreadPoolExecutor(1) as pool:
        call = pool.submit(client.chat.completions.create, **chat)
        server.wait_for(1)
        server.stop()
        with pytest.raises(openai.APIConnectionError):
            call.result(timeout=10)
    assert [record for record in caplog.records if record.name.startswith("uvicorn")] == []
    assert server.in_flight == 0
    assert not any(thread.name == "ScriptedLLM" for thread in set(threading.enumerate()) - others)


def test_a_small_write_leaves_at_once(serve, chat):
    server, client = serve("x")
    server.hold()
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(client.chat.completions.create, **chat)
        server.wait_for(1)
        sockets = [protocol.transport.get_extra_info("socket") for protocol in server._state.connections]
        assert [found.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0 for found in sockets] == [True]
        server.release()
        call.result(timeout=10)


def test_held_answers_are_let_go_in_order_of_arrival(serve, chat):
    server, client = serve(lambda request: str(request.index))
    server.hold()
    with ThreadPoolExecutor(3) as pool:
        calls = []
        for count in range(3):
            calls.append(pool.submit(client.chat.completions.create, **chat))
            server.wait_for(count + 1)
        assert server.in_flight == 3
        for count, call in enumerate(calls):
            server.release(1)
            assert call.result(timeout=10).choices[0].message.content == str(count)
            assert server.in_flight == 2 - count
    server.release(1)
    client.chat.completions.create(**chat)  # a permit given before is good for the next request
    assert server.peak_concurrency == 3


def test_waiting_in_vain_says_how_far_it_came(serve):
    server, _ = serve("x")
    with pytest.raises(TimeoutError, match=r"0 of 2 requests arrived within timeout_s=0\.01"):
        server.wait_for(2, timeout_s=0.01)


def test_calls_one_after_the_other_are_never_seen_together(serve, chat):
    server, client = serve("x")
    for count in range(20):
        client.chat.completions.create(**chat)
        assert server.sent.answers == count + 1
    assert server.peak_concurrency == 1


@pytest.mark.anyio
async def test_256_calls_at_once_are_all_in_flight_and_all_answered(chat):
    with ScriptedLLM("x") as server:
        server.hold()
        async with openai.AsyncOpenAI(base_url=server.base_url, api_key="any", max_retries=0) as client:
            calls = [asyncio.create_task(client.chat.completions.create(**chat)) for _ in range(256)]
            await asyncio.to_thread(server.wait_for, 256, 30)
            assert server.in_flight == 256
            server.release()
            replies = await asyncio.gather(*calls)
        assert len({reply.id for reply in replies}) == 256
        assert (server.peak_concurrency, server.sent.answers, server.in_flight) == (256, 256, 0)


@pytest.mark.anyio
async def test_a_cancelled_call_is_a_hang_up_even_while_held(chat):
    with ScriptedLLM("x") as server:
        server.hold()
        async with openai.AsyncOpenAI(base_url=server.base_url, api_key="any", max_retries=0) as client:
            call = asyncio.create_task(client.chat.completions.create(**chat))
            await asyncio.to_thread(server.wait_for, 1)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            await asyncio.to_thread(server.wait_for_hang_ups, 1)
        await asyncio.to_thread(server.wait_until_idle)
        assert server.sent.answers == 0


def test_a_missing_http_server_is_named_with_the_extra_that_installs_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'ravi-otel\[testing\]'"):
        ScriptedLLM("x").start()


@pytest.mark.parametrize("stream", [False, True])
def test_headers_that_are_given_win_over_the_usual_ones(serve, chat, stream):
    _, client = serve([Text("first", headers={"X-Request-Id": "mine"})])
    answer = client.chat.completions.with_raw_response.create(**chat, stream=stream)
    assert answer.headers.get_list("x-request-id") == ["mine"]
