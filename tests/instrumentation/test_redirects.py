"""A call that follows redirects pays for each request that leaves, and follows none past a limit."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import anthropic
import groq
import openai
import pytest

import ravi_otel
from ravi_otel.testing import Capture, Raw, Request, ScriptedLLM, Text

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
