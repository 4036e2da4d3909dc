"""Requests to models past all that is wrapped are told where a limit would have to cover them; what is sent is never changed."""

from __future__ import annotations

import _thread
import asyncio
import http.client
import itertools
import json
import logging
import queue
import socket
import urllib.request

import aiohttp
import httpcore
import httpx
import httpx2
import openai
import pytest
import requests
import urllib3

import ravi_otel
from ravi_otel import BudgetExhaustedError
from ravi_otel._instrumentation.model_hosts import asks_model, provider_at
from ravi_otel.agents import ReActAgent
from ravi_otel.policy._contracts import ChatMessage, Generation
from ravi_otel.policy._usage import Usage
from ravi_otel.testing import Raw, ScriptedLLM

ASK = {"model": "gpt-4o-mini", "messages": [{"role": "user", "content": "hi"}]}
PROVIDERS = [
    "api.openai.com",
    "api.anthropic.com",
    "generativelanguage.googleapis.com",
    "europe-west4-aiplatform.googleapis.com",
    "bedrock-runtime.eu-central-1.amazonaws.com",
    "api.mistral.ai",
    "api.cohere.com",
    "api.groq.com",
    "api.deepseek.com",
    "openrouter.ai",
    "acme.openai.azure.com",
]
CLASSES = [
    (http.client.HTTPConnection, "endheaders"),
    (http.client.HTTPConnection, "getresponse"),
    (httpcore.HTTP11Connection, "handle_request"),
    (httpcore.AsyncHTTP11Connection, "handle_async_request"),
    (aiohttp.ClientRequest, "send"),
    (aiohttp.ClientSession, "_request"),
    (aiohttp.StreamReader, "_read_nowait_chunk"),
    (httpx.Client, "send"),
    (httpx.Client, "_send_single_request"),
    (httpx2.AsyncClient, "send"),
    (urllib3.HTTPConnectionPool, "urlopen"),
    (urllib3.HTTPResponse, "read"),
    (openai._base_client.SyncAPIClient, "request"),
]


def _async(library):
    async def asked(url, method="POST"):
        async with library.AsyncClient() as client:
            return (await client.request(method, url, json=ASK)).content

    return lambda *words: asyncio.run(asked(*words))


async def _by_aiohttp(url, method="POST"):
    async with aiohttp.ClientSession() as session, session.request(method, url, json=ASK) as reply:
        return await reply.read()


def _by_urllib(url, method="POST"):
    headers = {"content-type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(url, json.dumps(ASK).encode(), headers, method=method)) as reply:
        return reply.read()


def _by_urllib3(url, method="POST"):
    with urllib3.PoolManager() as pool:
        return pool.request(method, url, json=ASK).data


STACKS = {
    "httpx": lambda url, method="POST": httpx.request(method, url, json=ASK).content,
    "httpx async": _async(httpx),
    "httpx2": lambda url, method="POST": httpx2.request(method, url, json=ASK).content,
    "httpx2 async": _async(httpx2),
    "requests": lambda url, method="POST": requests.request(method, url, json=ASK).content,
    "urllib3": _by_urllib3,
    "urllib": _by_urllib,
    "aiohttp": lambda *words: asyncio.run(_by_aiohttp(*words)),
}
UNREAD = "urllib"
"""What is over no HTTP library that is wrapped."""


@pytest.fixture
def server(monkeypatch):
    """Be every host whose name is looked up."""
    found = socket.getaddrinfo
    monkeypatch.setattr(socket, "getaddrinfo", lambda _host, *words, **more: found("127.0.0.1", *words, **more))
    with ScriptedLLM(lambda _: Raw(b"{}")) as scripted:
        yield scripted


@pytest.fixture
def told(caplog):
    """Give the warnings about calls that no limit covers."""
    caplog.set_level(logging.INFO, "ravi_otel")
    return lambda level=logging.WARNING: [
        each.getMessage() for each in caplog.records if "do not cover" in each.msg and each.levelno == level
    ]


def url_of(server, host="api.openai.com", path="/v1/chat/completions"):
    return f"http://{host}:{server.base_url.rpartition(':')[2].partition('/')[0]}{path}"


def test_plain_http_to_a_model_under_a_limit_is_told_once(server, told):
    ravi_otel.instrument()
    with ravi_otel.run("nightly", limits=["requests=0"]):
        assert [_by_urllib(url_of(server)) for _ in range(3)] == [b"{}"] * 3
    (warning,) = told()
    assert "the limits of run 'nightly' do not cover 1 request to api.openai.com" in warning
    assert "RAVI_ALLOW_UNSEEN=on" in warning


@pytest.mark.parametrize("stack", [stack for stack in STACKS if stack != UNREAD])
def test_what_an_http_library_sends_is_covered_and_refused(server, told, stack):
    ravi_otel.instrument()
    with ravi_otel.run("nightly", limits=["requests=1"]):
        assert STACKS[stack](url_of(server)) == b"{}"
        with pytest.raises(BudgetExhaustedError):
            STACKS[stack](url_of(server))
    assert (len(server.requests), told()) == (1, [])


@pytest.mark.parametrize("stack", STACKS)
def test_what_is_sent_and_answered_is_the_same_as_without_us(server, stack):
    STACKS[stack](url_of(server))
    ravi_otel.instrument(limits=["requests=9"])
    STACKS[stack](url_of(server))
    alone, seen = server.requests
    assert (seen.method, seen.path, seen.body, seen.headers) == (alone.method, alone.path, alone.body, alone.headers)


@pytest.mark.parametrize("host", PROVIDERS)
def test_the_hosts_of_providers_are_known(server, told, host):
    ravi_otel.instrument(limits=["cost=1usd"])
    _by_urllib(url_of(server, host))
    assert [f"1 request to {host}" in each for each in told()] == [True]


def test_each_host_is_told_once(server, told):
    ravi_otel.instrument(limits=["requests=5"])
    for host in (*PROVIDERS[:3], *PROVIDERS[:3]):
        _by_urllib(url_of(server, host))
    assert len(told()) == 3


@pytest.mark.parametrize(
    ("host", "method", "path"),
    [
        ("api.example.com", "POST", "/v1/chat/completions"),
        ("api.openai.com.example.com", "POST", "/v1/chat/completions"),
        ("s3.amazonaws.com", "POST", "/"),
        ("api.openai.com", "GET", "/v1/models"),
        ("generativelanguage.googleapis.com", "POST", "/v1beta/models/gemini-2.5-flash:countTokens"),
        ("api.anthropic.com", "POST", "/v1/messages/count_tokens"),
    ],
)
def test_what_asks_no_model_is_not_told(server, told, host, method, path):
    ravi_otel.instrument(limits=["requests=0"])
    try:
        _by_urllib(url_of(server, host, path), method)
    except urllib.error.HTTPError as error:  # which the server has no answer for
        error.close()
    assert told() == []


def test_without_a_limit_nothing_is_told(server, told):
    ravi_otel.instrument()
    with ravi_otel.run("r"):
        _by_urllib(url_of(server))
    with ravi_otel.run("r", limits=["requests=0"]):
        pass
    _by_urllib(url_of(server))
    assert told() == []


def test_where_limits_only_observe_or_are_set_aside_nothing_is_told(server, told):
    ravi_otel.instrument(enforcement="observe", limits=["requests=0"])
    _by_urllib(url_of(server))
    ravi_otel.uninstrument()
    ravi_otel.instrument()
    with ravi_otel.run("r", limits=["tokens=5:suspend=allow"]), ravi_otel.suspend_limits("a summary"):
        _by_urllib(url_of(server))
    assert told() == []


@pytest.mark.parametrize("where", ["agent", "block", "time", "process"])
def test_every_limit_that_is_in_force_around_counts(server, told, where):
    ravi_otel.instrument(limits=["requests=9"] if where == "process" else ())
    scopes = {
        "agent": lambda: ravi_otel.agent("a", limits=["requests=1"]),
        "block": lambda: ravi_otel.apply_limits(["tokens=5"]),
        "time": lambda: ravi_otel.run("r", limits=["time=90s"]),
        "process": lambda: ravi_otel.run("r"),
    }
    with scopes[where]():
        _by_urllib(url_of(server))
    assert len(told()) == 1


def test_a_model_that_is_watched_through_its_client_alone_says_what_it_does_not_watch(server, told):
    with openai.OpenAI(base_url=server.base_url, api_key="k") as client:
        ravi_otel.instrument(client=client, limits=["requests=5"])
        _by_urllib(url_of(server))
    assert told() == []  # one client was chosen, and all others left out


@pytest.mark.parametrize("kind", [openai.OpenAI, openai.AsyncOpenAI])
@pytest.mark.parametrize("transport", ["its own", "aiohttp", "its request in another thread", "requests in another thread"])
def test_calls_of_a_wrapped_client_are_covered(told, monkeypatch, kind, transport):
    if transport != "its own" and (transport == "aiohttp") is (kind is openai.OpenAI):
        pytest.skip("aiohttp has no sync client, and a task needs no thread")
    found = socket.getaddrinfo
    monkeypatch.setattr(socket, "getaddrinfo", lambda _host, *words, **more: found("127.0.0.1", *words, **more))

    async def asked(client):
        async with client:
            for _ in range(2):
                await client.chat.completions.create(**ASK)

    ravi_otel.instrument(limits=["requests=2"])
    with ScriptedLLM("ok") as server:
        client = kind(base_url=url_of(server, path="/v1"), api_key="k", max_retries=0, **_through(transport))
        if kind is openai.OpenAI:
            with client:
                for _ in range(2):
                    client.chat.completions.create(**ASK)
                with pytest.raises(BudgetExhaustedError):
                    client.chat.completions.create(**ASK)
        else:
            asyncio.run(asked(client))
        assert len(server.requests) == 2
    assert told() == []


def _through(transport):
    if transport == "its own":
        return {}
    if transport != "aiohttp":
        return {"http_client": _http_of(openai).Client(transport=_elsewhere(_http_of(openai), transport))}

    class OverAiohttp(_http_of(openai).AsyncBaseTransport):
        async def handle_async_request(self, request):
            async with (
                aiohttp.ClientSession() as session,
                session.request(request.method, str(request.url), data=await request.aread(), headers=dict(request.headers)) as reply,
            ):
                body = await reply.read()
                return _http_of(openai).Response(reply.status, content=body, headers={"content-type": "application/json"}, request=request)

    return {"http_client": _http_of(openai).AsyncClient(transport=OverAiohttp())}


def _elsewhere(library, how):
    """Make a transport whose requests leave from a thread that knows nothing of the call."""
    answers = queue.SimpleQueue()

    class Elsewhere(library.BaseTransport):
        def handle_request(self, request):
            _thread.start_new_thread(lambda: answers.put(self.sent(request)), ())
            return answers.get(timeout=20)

        def sent(self, request):
            if how.startswith("its"):
                with library.HTTPTransport() as inner:
                    answer = inner.handle_request(request)
                    answer.read()
                    return answer
            reply = requests.request(request.method, str(request.url), data=request.read(), headers=dict(request.headers))
            return library.Response(reply.status_code, content=reply.content, headers={"content-type": "application/json"}, request=request)

    return Elsewhere()


def _http_of(package):
    """Give the HTTP library that this version of the client stands on."""
    return next(library for library in (httpx, httpx2) if issubclass(package.DefaultHttpxClient, library.Client))


class OverHttp:
    """A model behind a client of the program's own, which our agents count and limit as a call."""

    def __init__(self, url):
        self.url = url

    async def generate(self, messages, *, tools=()):
        async with httpx.AsyncClient() as client:
            await client.post(self.url, json=ASK)
        return Generation(ChatMessage("assistant", "ok"), Usage(10, 5), "stop")


def test_what_an_agent_asks_through_a_client_of_its_own_is_covered(server, told):
    ravi_otel.instrument(limits=["turns=1"])
    results = [asyncio.run(ReActAgent("r", model=OverHttp(url_of(server))).run("hi")) for _ in range(2)]
    assert [result.stop_reason for result in results] == ["success", "limit_turns"]
    assert (len(server.requests), told()) == (1, [])


def test_a_websocket_to_a_model_is_told(server, told):
    async def connect():
        async with aiohttp.ClientSession() as session, session.ws_connect(url_of(server, path="/v1/realtime")):
            pass

    ravi_otel.instrument(limits=["requests=5"])
    with pytest.raises(aiohttp.WSServerHandshakeError):
        asyncio.run(connect())
    assert len(told()) == 1


def test_retries_and_redirects_of_a_wrapped_client_are_covered(server, told):
    ravi_otel.instrument(limits=["requests=9"])
    answers = iter([Raw(b"{}", status=500), Raw(b"", status=307, headers={"location": "/v1/chat/completions"})])
    with ScriptedLLM(lambda _: next(answers, "ok")) as asked, openai.OpenAI(base_url=url_of(asked, path="/v1"), api_key="k") as client:
        client.chat.completions.create(**ASK)
        assert len(asked.requests) == 3
    assert told() == []


def test_the_environment_accepts_it_and_it_is_said_all_the_same(server, told, monkeypatch):
    monkeypatch.setenv("RAVI_ALLOW_UNSEEN", "on")
    ravi_otel.instrument(limits=["requests=0"])
    _by_urllib(url_of(server))
    assert told() == []
    assert len(told(logging.INFO)) == 1


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))), ids=str)
def test_every_order_of_coming_and_going_leaves_the_identical_methods(order):
    before = [owner.__dict__[name] for owner, name in CLASSES]
    steps = [
        lambda: ravi_otel.instrument(limits=["requests=1"]),
        ravi_otel.uninstrument,
        ravi_otel.instrument,
    ]
    for step in order:
        try:
            steps[step]()
        except ravi_otel.ConfigurationError:
            continue  # other limits would forget what those before have counted
    ravi_otel.uninstrument()
    assert [owner.__dict__[name] is one for (owner, name), one in zip(CLASSES, before, strict=True)] == [True] * len(CLASSES)


def test_an_ollama_on_this_machine_is_a_model():
    assert provider_at("localhost", 11_434) == "ollama"
    assert provider_at("localhost", 8000) is None


def test_managing_the_models_of_a_server_asks_none_of_them():
    assert [asks_model("POST", path) for path in ("/api/chat", "/api/pull", "/api/show", "/v1/embeddings")] == [True, False, False, True]
