"""A call pays for each request that leaves, redirected or sent again by a transport, and sends none past a limit."""

from __future__ import annotations

import _thread
import asyncio
import queue
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anthropic
import groq
import httpx
import httpx2
import openai
import pytest

import ravi_otel
from ravi_otel.testing import Capture, Failure, Raw, Request, ScriptedLLM, Text

ASK: dict[str, Any] = {"max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
CLIENTS: dict[str, Callable[..., Any]] = {
    "openai": openai.OpenAI,
    "openai, async": openai.AsyncOpenAI,
    "anthropic": anthropic.Anthropic,
    "anthropic, async": anthropic.AsyncAnthropic,
    "groq": groq.Groq,
    "groq, async": groq.AsyncGroq,
}


@pytest.fixture(params=CLIENTS)
def client(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def elsewhere(request: Request) -> Raw:
    return Raw(b"", status=307, headers={"location": request.path})


def ask(name: str, llm: ScriptedLLM, **more: Any) -> Any:
    """Ask once, over a client of this name."""
    client = CLIENTS[name](base_url=llm.base_url if name.startswith("openai") else llm.url, api_key="k", **more)
    asked = client.messages.create if hasattr(client, "messages") else client.chat.completions.create
    model = "claude-haiku-4-5" if hasattr(client, "messages") else "gpt-4o-mini"

    async def awaited() -> Any:
        async with client:
            return await asked(model=model, **ASK)

    if name.endswith("async"):
        return asyncio.run(awaited())
    with client:
        return asked(model=model, **ASK)


SAID = {
    "README.md": "attempts that left this process, with retries and redirects",
    "docs/limits.md": "attempts that left this process, with retries and redirects",
    "docs/bounds.md": "A retry, a request that follows a redirect, and one that a transport of the program's sends again",
    "docs/zero-code.md": "Each request that follows a redirect counts, as a retry does",
}
"""What the tests of this file hold."""


@pytest.mark.parametrize("page", SAID)
def test_the_pages_say_that_a_request_that_follows_a_redirect_is_one_more(page: str) -> None:
    text = " ".join((Path(__file__).parents[2] / page).read_text(encoding="utf-8").split())
    assert SAID[page] in text


@pytest.mark.parametrize("retries", [0, 2])
@pytest.mark.usefixtures("instrumented")
def test_no_more_requests_leave_than_a_limit_allows(client: str, retries: int) -> None:
    with ScriptedLLM(elsewhere) as llm, ravi_otel.run("r", limits=["requests=2", "tokens=5000"]) as run:
        with pytest.raises(ravi_otel.BudgetExhaustedError, match="2 of 2 requests used") as caught:
            ask(client, llm, max_retries=retries)
        assert len(llm.requests) == 2
        assert [(reading.used, reading.held) for reading in run.limits] == [(2, 0), (0, 0)]
        assert caught.value.__cause__ is None


def test_the_requests_that_follow_are_told_as_retries_with_the_status_that_asked_for_them(client: str, instrumented: Capture) -> None:
    script = iter([Raw(b"", status=308, headers={"location": "?again"}), Text("done")])
    with ScriptedLLM(lambda _: next(script)) as llm, ravi_otel.run("r", limits=["requests=10"]) as run:
        answer = ask(client, llm, max_retries=0)
        assert "done" in str(answer)
        assert run.stats().requests == len(llm.requests) == 2
    (span,) = [span for span in instrumented.spans() if span.attributes and span.attributes.get("gen_ai.request.model")]
    assert span.attributes is not None
    assert (span.attributes["ravi.request.count"], span.attributes["ravi.retry.count"]) == (2, 1)
    (event,) = span.events
    assert event.attributes is not None
    assert event.attributes["http.response.status_code"] == 308


@pytest.mark.usefixtures("instrumented")
def test_a_redirect_that_the_program_does_not_follow_is_one_request() -> None:
    with ScriptedLLM(elsewhere) as llm, ravi_otel.run("r", limits=["requests=10"]) as run:
        http = openai.DefaultHttpxClient(follow_redirects=False)
        with pytest.raises(openai.APIStatusError):
            ask("openai", llm, max_retries=0, http_client=http)
        assert run.stats().requests == len(llm.requests) == 1


@pytest.mark.usefixtures("instrumented")
def test_a_request_that_only_fetches_a_key_meanwhile_is_none_of_a_model(http: Any) -> None:
    def auth_flow(_: Any, request: Any) -> Any:
        yield http.Request("GET", request.url.join("/v1/models"))
        yield request

    keys: Any = type("Keys", (http.Auth,), {"auth_flow": auth_flow})
    with ScriptedLLM("yes") as llm, ravi_otel.run("r", limits=["requests=1"]) as run:
        ask("openai", llm, max_retries=0, http_client=openai.DefaultHttpxClient(auth=keys()))
        assert run.stats().requests == 1
        assert [request.path for request in llm.requests] == ["/v1/models", "/v1/chat/completions"]


# -- transports of the program's own ------------------------------------------------------------------------------------------------


def through(name: str, sends: Callable[[Callable[[], Any]], Any]) -> dict[str, Any]:
    """Give a client of this name a transport that has the library's own send its request, as `sends` calls it."""
    package = sys.modules[CLIENTS[name].__module__.partition(".")[0]]
    library = next(one for one in (httpx, httpx2) if issubclass(package.DefaultHttpxClient, one.Client))
    if name.endswith("async"):

        class OwnAsync(library.AsyncBaseTransport):  # type: ignore[misc, name-defined]  # of either library
            async def handle_async_request(self, request: Any) -> Any:
                async with library.AsyncHTTPTransport() as inner:
                    tried: Any = None
                    for _ in range(3):
                        tried = await inner.handle_async_request(request)
                        await tried.aread()
                        if tried.status_code < 500:
                            break
                    return tried

        return {"http_client": library.AsyncClient(transport=OwnAsync())}

    class Own(library.BaseTransport):  # type: ignore[misc, name-defined]  # of either library
        def handle_request(self, request: Any) -> Any:
            def send() -> Any:
                with library.HTTPTransport() as inner:
                    for _ in range(3):
                        tried = inner.handle_request(request)
                        tried.read()
                        if tried.status_code < 500:
                            break
                    return tried

            return sends(send)

    return {"http_client": library.Client(transport=Own())}


def here(send: Callable[[], Any]) -> Any:
    return send()


def in_a_bare_thread(send: Callable[[], Any]) -> Any:
    answers: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def sent() -> None:
        try:
            answers.put((send(), None))
        except BaseException as error:
            answers.put((None, error))

    _thread.start_new_thread(sent, ())
    answer, error = answers.get(timeout=20)
    if error is not None:
        raise error
    return answer


@pytest.mark.parametrize("sends", [here, in_a_bare_thread])
@pytest.mark.usefixtures("instrumented")
def test_what_a_transport_of_the_program_sends_again_is_paid_for_as_well(client: str, sends: Any) -> None:
    script = iter([Failure(500, "once"), Failure(500, "twice"), Text("done")])
    with ScriptedLLM(lambda _: next(script)) as llm, ravi_otel.run("r", limits=["requests=10"]) as run:
        assert "done" in str(ask(client, llm, max_retries=0, **through(client, sends)))
        assert run.limits[0].used == run.stats().requests == len(llm.requests) == 3


@pytest.mark.parametrize("sends", [here, in_a_bare_thread])
@pytest.mark.parametrize("retries", [0, 2])
@pytest.mark.usefixtures("instrumented")
def test_a_transport_of_the_program_sends_no_more_than_a_limit_allows(client: str, retries: int, sends: Any) -> None:
    with ScriptedLLM(lambda _: Failure(500, "always")) as llm, ravi_otel.run("r", limits=["requests=2", "tokens=5000"]) as run:
        with pytest.raises(ravi_otel.BudgetExhaustedError, match="2 of 2 requests used"):
            ask(client, llm, max_retries=retries, **through(client, sends))
        assert len(llm.requests) == 2
        assert [reading.held for reading in run.limits] == [0, 0]
        assert run.limits[0].used == 2


@pytest.mark.usefixtures("instrumented")
def test_what_a_transport_sends_again_after_it_met_no_server_is_paid_for_once() -> None:
    library = next(one for one in (httpx, httpx2) if issubclass(openai.DefaultHttpxClient, one.Client))

    class Stubborn(library.HTTPTransport):  # type: ignore[misc, name-defined]  # of either library
        def handle_request(self, request: Any) -> Any:
            right = request.url
            request.url = right.copy_with(port=1)
            with pytest.raises(library.ConnectError):
                super().handle_request(request)
            request.url = right
            return super().handle_request(request)

    with ScriptedLLM("yes") as llm, ravi_otel.run("r", limits=["requests=1"]) as run:
        ask("openai", llm, max_retries=0, http_client=library.Client(transport=Stubborn()))
        assert run.limits[0].used == run.stats().requests == len(llm.requests) == 1
