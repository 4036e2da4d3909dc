"""Beside others: silence where it is asked for, one client alone, and calls that come around our wrapper."""

from __future__ import annotations

import contextlib
import gc
import weakref
from typing import Any
from unittest import mock

import openai
import openai._base_client as base_client
import pytest
import wrapt
from opentelemetry import context as otel_context

import ravi_otel
from ravi_otel import BudgetExhaustedError
from ravi_otel._runtime.state import STATE
from ravi_otel._runtime.stopping import drain
from ravi_otel.testing import Capture, Disconnect, Failure, Text

ASK: dict[str, Any] = {"model": "gpt-4o-mini", "messages": [{"role": "user", "content": "Say hello."}]}
USED = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
WRAPPED = [
    (base_client.SyncAPIClient, "request"),
    (base_client.AsyncAPIClient, "request"),
    (base_client.BaseClient, "_build_request"),
    (base_client.BaseClient, "_calculate_retry_timeout"),
    (base_client.SyncAPIClient, "_process_response"),
    (base_client.AsyncAPIClient, "_process_response"),
]


def given(capture: Capture) -> dict[str, Any]:
    return {
        "tracer_provider": capture.tracer_provider,
        "meter_provider": capture.meter_provider,
        "logger_provider": capture.logger_provider,
    }


async def ask(client: Any, **more: Any) -> Any:
    made = client.chat.completions.create(**{**ASK, **more})
    return await made if hasattr(made, "__await__") else made


class Answering:
    async def __call__(self, *_: Any, **__: Any) -> str:
        return "said"


async def read(stream: Any) -> list[Any]:
    return [chunk async for chunk in stream] if hasattr(stream, "__aiter__") else list(stream)


# -- silence --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "key",
    ["suppress_instrumentation", "suppress_language_model_instrumentation", otel_context._SUPPRESS_INSTRUMENTATION_KEY],
    ids=["plain", "model calls", "opentelemetry's own"],
)
def test_a_program_that_asks_for_silence_is_told_nothing_of_and_still_limited(
    key: str, colour: str, stage: Any, clients: Any, capture: Capture
) -> None:
    client = clients.make(colour, stage.play(Text("hi", usage=(9, 4))))

    async def program() -> None:
        token = otel_context.attach(otel_context.set_value(key, True))
        await ask(client)
        with pytest.raises(BudgetExhaustedError):
            await ask(client)
        otel_context.detach(token)

    with ravi_otel.instrument(**given(capture)), ravi_otel.run("r", limits=["requests=1"]) as run:
        clients.run(colour, program())
    assert capture.spans("chat gpt-4o-mini") == []
    assert (run.stats().requests, run.stats().total_tokens) == (1, 13)
    assert capture.metric("gen_ai.client.operation.duration") == []


def test_a_key_that_is_set_to_false_asks_for_nothing(stage: Any, clients: Any, capture: Capture) -> None:
    client = clients.make("sync", stage.play(Text("hi")))
    with ravi_otel.instrument(**given(capture)):
        token = otel_context.attach(otel_context.set_value("suppress_instrumentation", False))
        client.chat.completions.create(**ASK)
        otel_context.detach(token)
    assert len(capture.spans("chat gpt-4o-mini")) == 1


def test_under_the_span_of_another_instrumentation_of_the_client_there_is_none_of_ours(stage: Any, clients: Any, capture: Capture) -> None:
    client = clients.make("sync", stage.play(Text("hi", usage=(9, 4))))
    theirs = capture.tracer_provider.get_tracer("openinference.instrumentation.openai")
    with ravi_otel.instrument(**given(capture)), ravi_otel.run("r") as run:
        with theirs.start_as_current_span("ChatCompletion"):
            client.chat.completions.create(**ASK)
        with theirs.start_as_current_span("outer"), capture.tracer_provider.get_tracer("mine").start_as_current_span("inner"):
            client.chat.completions.create(**ASK)
    assert len(capture.spans("chat gpt-4o-mini")) == 1
    assert run.stats().requests == 2


# -- one client alone -----------------------------------------------------------------------------------------------


def test_one_chosen_client_is_watched_with_its_copies_and_no_other(colour: str, stage: Any, clients: Any, capture: Capture) -> None:
    url = stage.play(Text("hi"))
    pool = openai.DefaultHttpxClient() if colour == "sync" else openai.DefaultAsyncHttpxClient()
    chosen, other = clients.make(colour, url, http_client=pool), clients.make(colour, url)
    with ravi_otel.instrument(client=chosen, **given(capture)), ravi_otel.run("r", limits=["requests=2"]) as run:
        for client in (chosen, chosen.with_options(max_retries=1), other, other):
            clients.run(colour, ask(client))
        with pytest.raises(BudgetExhaustedError):
            clients.run(colour, ask(chosen))
    clients.run(colour, closing(chosen))
    assert run.stats().requests == 2
    assert len(capture.spans("chat gpt-4o-mini")) == 3


async def closing(client: Any) -> None:
    closed = client.close()
    if closed is not None:
        await closed


@pytest.mark.parametrize("given", [openai.OpenAI, "client", 3, [None]])
def test_what_is_no_client_is_refused_with_a_sentence(given: Any) -> None:
    with pytest.raises(ravi_otel.ConfigurationError, match=r"instrument\(client=.*is no client: give one of openai"):
        ravi_otel.instrument(client=given)


# -- around our wrapper ---------------------------------------------------------------------------------------------


@pytest.fixture
def around(colour: str, stage: Any, clients: Any) -> Any:
    """Make a client whose class was wrapped by somebody else before us: they hold the method as it was."""
    base = openai.OpenAI if colour == "sync" else openai.AsyncOpenAI
    before = base.request

    class Wrapped(base):  # type: ignore[misc, valid-type]  # one of two
        request = wrapt.FunctionWrapper(before, lambda wrapped, _, args, kwargs: wrapped(*args, **kwargs))

    def make(*answers: Any, **settings: Any) -> Any:
        pool = clients.blocking if colour == "sync" else clients.awaiting
        return Wrapped(api_key="k", base_url=stage.play(*answers), http_client=pool, **settings)

    return make


@pytest.mark.parametrize("streamed", [False, True])
def test_a_call_that_comes_around_us_is_told_counted_and_settled(
    streamed: bool, around: Any, colour: str, clients: Any, capture: Capture
) -> None:
    client = around(Text("hello there", usage=(9, 4)))

    async def program() -> None:
        answer = await ask(client, stream=streamed, **({"stream_options": {"include_usage": True}} if streamed else {}))
        if streamed:
            await read(answer)

    with ravi_otel.instrument(**given(capture)), ravi_otel.run("r", limits=["tokens=10000"]) as run:
        clients.run(colour, program())
        drain()
        assert [(reading.used, reading.held) for reading in run.limits] == [(13, 0)]
    (span,) = capture.spans("chat gpt-4o-mini")
    assert (span.attributes or {})["gen_ai.usage.output_tokens"] == 4
    assert (run.stats().requests, run.stats().turns) == (1, 1)


def test_a_call_that_comes_around_us_is_refused_past_a_limit(around: Any, colour: str, stage: Any, clients: Any) -> None:
    client = around(Text("hi"))
    with ravi_otel.instrument(), ravi_otel.run("r", limits=["requests=1"]) as run:
        clients.run(colour, ask(client))
        with pytest.raises(BudgetExhaustedError):
            clients.run(colour, ask(client))
        assert len(stage.server.requests) == 1
    assert run.stats().refused == 1


@pytest.mark.parametrize("answers", [(Failure(400, "bad"),), (Disconnect(0),), (Failure(429, headers={"retry-after-ms": "1"}), Text("hi"))])
def test_whatever_becomes_of_a_call_that_comes_around_us_nothing_is_held(
    answers: Any, around: Any, colour: str, stage: Any, clients: Any, capture: Capture
) -> None:
    client = around(*answers, max_retries=1)

    async def program() -> None:
        with contextlib.suppress(openai.APIError):
            await ask(client)

    with ravi_otel.instrument(**given(capture)), ravi_otel.run("r", limits=["tokens=100000"]) as run:
        clients.run(colour, program())
        gc.collect()
        drain()
        assert len(STATE.engine.ledger) == 0  # type: ignore[arg-type]  # the ledger of one process knows its length
        assert [reading.held for reading in run.limits] == [0]
        assert run.stats().requests == len(stage.server.requests)


# -- putting back ---------------------------------------------------------------------------------------------------


def test_everything_wrapped_is_put_back_also_what_a_client_has_cached(stage: Any, clients: Any, capture: Capture) -> None:
    before = [owner.__dict__[name] for owner, name in WRAPPED]
    client = clients.make("sync", stage.play(Text("hi")))
    raw = client.chat.completions.with_raw_response
    with ravi_otel.instrument(**given(capture)):
        streaming = client.chat.completions.with_streaming_response  # cached while we are there
        raw.create(**ASK)
    assert [owner.__dict__[name] for owner, name in WRAPPED] == before
    assert all(owner.__dict__[name] is original for (owner, name), original in zip(WRAPPED, before, strict=True))
    told = len(capture.spans())
    raw.create(**ASK)
    with streaming.create(**ASK) as response:
        response.read()
    assert len(capture.spans()) == told


def test_a_chosen_client_is_let_go_of() -> None:
    client = openai.OpenAI(api_key="k")
    gone = weakref.ref(client)
    with ravi_otel.instrument(client=client):
        pass
    del client
    gc.collect()
    assert gone() is None


def _telling(module: Any, owner: str, name: str) -> None:
    wrapt.wrap_function_wrapper(module, f"{owner}.{name}", lambda wrapped, _, args, kwargs: wrapped(*args, **kwargs))


def _silent(module: Any, owner: str, name: str) -> None:
    beneath = getattr(getattr(module, owner), name)
    setattr(getattr(module, owner), name, lambda self, *args, **kwargs: beneath(self, *args, **kwargs))  # noqa: PLW0108 - it must be another function


@pytest.mark.parametrize("wrap_over", [_telling, _silent], ids=["a wrapper that tells what it wraps", "a plain function"])
def test_wrapped_over_and_left_and_back_again_a_call_is_still_counted_once(
    wrap_over: Any, colour: str, stage: Any, clients: Any, capture: Capture
) -> None:
    owner = base_client.SyncAPIClient if colour == "sync" else base_client.AsyncAPIClient
    original = owner.__dict__["request"]
    client = clients.make(colour, stage.play(Text("hi")))
    try:
        with ravi_otel.instrument(**given(capture)):
            wrap_over(base_client, owner.__name__, "request")
        clients.run(colour, ask(client))
        with ravi_otel.instrument(**given(capture)), ravi_otel.run("r") as run:
            clients.run(colour, ask(client))
        assert run.stats().requests == 1
        assert len(capture.spans("chat gpt-4o-mini")) == 1
    finally:
        owner.request = original  # type: ignore[method-assign]  # as it was


_replaced: Any = None


def _by_a_global(self: Any, *args: Any, **kwargs: Any) -> Any:
    return _replaced(self, *args, **kwargs)


@pytest.mark.parametrize("known_by", ["a closure", "a global", "a default", "an attribute of the class"])
def test_a_request_is_built_and_counted_once_whatever_plain_function_lies_over_ours(
    known_by: str, stage: Any, clients: Any, capture: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, client = base_client.BaseClient, clients.make("sync", stage.play(Text("hi")))
    original = kind.__dict__["_build_request"]
    try:
        with ravi_otel.instrument(**given(capture)):
            ours: Any = kind.__dict__["_build_request"]
            if known_by == "a closure":
                _silent(base_client, "BaseClient", "_build_request")
            elif known_by == "a global":
                monkeypatch.setitem(globals(), "_replaced", ours)
                kind._build_request = _by_a_global  # type: ignore[method-assign]  # as other tools replace it
            elif known_by == "a default":
                kind._build_request = lambda self, *args, _ours=ours, **kwargs: _ours(self, *args, **kwargs)  # type: ignore[misc]  # as other tools replace it
            else:
                kind._formerly = ours  # type: ignore[attr-defined]  # as other tools replace it
                kind._build_request = lambda self, *args, **kwargs: self._formerly(*args, **kwargs)  # type: ignore[method-assign]  # as other tools replace it
        with ravi_otel.instrument(**given(capture)), ravi_otel.run("r", limits=["requests=1"]) as run:
            clients.run("sync", ask(client))
        assert run.stats().requests == 1
    finally:
        kind._build_request = original  # type: ignore[method-assign]  # as other tools replace it
        if "_formerly" in vars(kind):
            del kind._formerly


@pytest.mark.parametrize("stand_in", [mock.AsyncMock(return_value="said"), Answering()], ids=["a mock", "an object that is called"])
def test_what_a_program_has_put_in_the_place_of_a_method_answers_as_without_us(stand_in: Any, stage: Any, clients: Any) -> None:
    client = clients.make("async", stage.play(Text("hi")))
    with mock.patch.object(base_client.AsyncAPIClient, "request", stand_in), ravi_otel.instrument():
        assert clients.run("async", ask(client)) == "said"
