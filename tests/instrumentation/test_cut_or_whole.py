"""A stream is whole once each of its choices has finished: before that it is cut, from then on it ends well, whatever stops it."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import openai
import pytest

import ravi_otel
from ravi_otel import BudgetExhaustedError
from ravi_otel._instrumentation import http_library, streams
from ravi_otel._runtime.state import STATE
from ravi_otel.testing import Capture, Raw, ScriptedLLM

CHAT: dict[str, Any] = {"model": "gpt-4o-mini", "messages": [{"role": "user", "content": "hi"}], "stream": True}
COMPLETION: dict[str, Any] = {"model": "gpt-3.5-turbo-instruct", "prompt": ["a", "b"], "stream": True}
LIMIT = 60


def piece(text: str = "", *, index: int = 0, finish: str | None = None) -> dict[str, Any]:
    """Give one chunk of a chat, which is one of a completion as well."""
    choice = {"index": index, "delta": {"content": text} if text else {}, "text": text, "finish_reason": finish}
    return {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "gpt-4o-mini", "choices": [choice]}


def usage() -> dict[str, Any]:
    return {**piece(), "choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}}


def words(*indexes: int, count: int = 200) -> list[dict[str, Any]]:
    return [piece("word ", index=index) for _ in range(count) for index in indexes]


def sent(*events: dict[str, Any]) -> bytes:
    return b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events)


def answer(*events: dict[str, Any]) -> Raw:
    return Raw(sent(*events) + b"data: [DONE]\n\n", content_type="text/event-stream")


def delayed(*events: dict[str, Any], pause_s: float = 30) -> Raw:
    """Send the last of them so much later than the others."""
    early, late = sent(*events[:-1]), sent(events[-1]) + b"data: [DONE]\n\n"
    assert len(late) <= len(early)
    return Raw(early + late.rjust(len(early), b"\n"), content_type="text/event-stream", chunks=2, chunk_s=pause_s)


class Stage:
    """Answer with what is set here, and read it in one colour."""

    def __init__(self) -> None:
        self.answer = answer()
        self.texts: list[str] = []
        self.server = ScriptedLLM(lambda _: self.answer)

    def read(self, colour: str, saw: Callable[[Any, Any], object] | None = None, **more: Any) -> str:
        """Give the text of a stream that is read to its end; `saw` is told the stream and each of its events."""
        self.texts = []
        program = self._read(colour, saw, more)
        if colour == "async":
            asyncio.run(program)
        else:
            with suppress(StopIteration):
                program.send(None)
        return "".join(self.texts)

    async def _read(self, colour: str, saw: Callable[[Any, Any], object] | None, more: dict[str, Any]) -> None:
        kind: Any = openai.OpenAI if colour == "sync" else openai.AsyncOpenAI
        client = kind(api_key="k", base_url=self.server.base_url, max_retries=0)
        try:
            opened = client.completions.create(**more) if "prompt" in more else client.chat.completions.create(**CHAT, **more)
            events = await opened if inspect.isawaitable(opened) else opened
            if colour == "sync":
                for event in events:
                    self._take(events, event, saw)
            else:
                async for event in events:
                    self._take(events, event, saw)
        finally:
            closing = client.close()
            if inspect.isawaitable(closing):
                await closing

    def _take(self, events: Any, event: Any, saw: Callable[[Any, Any], object] | None) -> None:
        self.texts.extend(choice.text for choice in event.choices if choice.text)
        if saw is not None:
            saw(events, event)


@pytest.fixture(scope="module")
def one_stage() -> Iterator[Stage]:
    stage = Stage()
    with stage.server:
        yield stage


@pytest.fixture
def stage(one_stage: Stage, instrumented: Capture) -> Iterator[Stage]:
    yield one_stage
    assert len(STATE.engine.ledger) == 0  # type: ignore[arg-type]  # the ledger of one process knows its length


UNFINISHED: dict[str, tuple[Raw, dict[str, Any]]] = {
    "one of two choices has finished": (answer(piece("a"), piece(finish="stop"), *words(1)), {"n": 2}),
    "one of two prompts is answered": (answer(piece("a"), piece(finish="stop"), *words(1)), COMPLETION),
    "the server goes on after the end": (answer(piece("a"), piece(finish="stop"), *words(0)), {}),
    "the server tells an end with each piece": (answer(*[piece("word ", finish="stop")] * 200), {}),
    "the server tells an end that is none": (answer(*[piece("word ", finish="")] * 200), {}),
}


@pytest.mark.parametrize("how", UNFINISHED)
def test_a_stream_is_cut_while_one_of_its_choices_goes_on(how: str, stage: Stage, colour: str) -> None:
    stage.answer, more = UNFINISHED[how]
    with ravi_otel.run("r", limits=[f"tokens={LIMIT}"]) as run, pytest.raises(BudgetExhaustedError):
        stage.read(colour, **more)
    assert (run.limits[0].held, run.limits[0].used <= LIMIT + 2) == (0, True)


def finished(event: Any) -> int | None:
    """Give the index of the choice that an event says has finished."""
    return next((choice.index for choice in event.choices if choice.finish_reason), None)


STOPS: dict[str, Callable[[Any], object]] = {"cancel": lambda run: run.cancel("enough"), "close": lambda run: run.close()}


@pytest.mark.parametrize("stop", STOPS)
def test_a_whole_answer_ends_well_at_a_stop_while_what_it_used_is_not_told(stop: str, stage: Stage, colour: str, capture: Capture) -> None:
    stage.answer = delayed(piece("hello "), piece("world"), piece(finish="stop"), usage())
    with ravi_otel.run("r", limits=["tokens=100000"]) as run:
        said = stage.read(colour, saw=lambda _, event: STOPS[stop](run) if finished(event) == 0 else None)
    assert (said, run.limits[0].held) == ("hello world", 0)
    assert [span.attributes.get("error.type") for span in capture.spans() if "gen_ai.request.model" in (span.attributes or {})] == [None]


def test_a_stop_cuts_an_answer_with_a_choice_that_has_not_finished(stage: Stage, colour: str) -> None:
    stage.answer = delayed(piece("first"), piece("second", index=1), piece(finish="stop"), piece(index=1, finish="stop"))
    with ravi_otel.run("r", limits=["tokens=100000"]) as run, pytest.raises(BudgetExhaustedError) as cut:
        stage.read(colour, saw=lambda _, event: run.close() if finished(event) == 0 else None, n=2)
    assert (cut.value.partial, run.limits[0].held) == ("first", 0)


def test_the_partial_text_of_several_choices_is_that_of_the_first(stage: Stage, colour: str) -> None:
    for order in ((0, 1), (1, 0)):
        stage.answer = answer(*[piece("first " if index == 0 else "second ", index=index) for _ in range(100) for index in order])
        with ravi_otel.run("r", limits=[f"tokens={LIMIT}"]), pytest.raises(BudgetExhaustedError) as cut:
            stage.read(colour, n=2)
        assert set((cut.value.partial or "").split()) == {"first"}


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, asyncio.CancelledError])
def test_what_ends_the_program_while_a_cut_stream_is_closed_passes(kind: type[BaseException], stage: Stage, colour: str) -> None:
    stage.answer = answer(*words(0))

    def interrupt_closing(events: Any, _: Any) -> None:
        body = events.response.stream

        def close() -> None:
            raise kind

        async def aclose() -> None:
            raise kind

        body.close, body.aclose = close, aclose

    with ravi_otel.run("r", limits=[f"tokens={LIMIT}"]) as run:
        with pytest.raises(kind):
            stage.read(colour, saw=interrupt_closing)
        assert (run.limits[0].held, run.limits[0].used) == (0, LIMIT + 1)


FAULTS: list[tuple[Any, str]] = [
    *((streams.FollowedStream, name) for name in ("_response", "_end", "_settle", "_reply", "_cut_with", "dropped", "closed")),
    *((streams, name) for name in ("blame", "why_over", "shut_down_response", "restore_methods", "is_running")),
    *((streams, name) for name in ("wait_for_shutdown", "close_all", "close_all_async")),
    (http_library, "_is_ours"),
]


@pytest.mark.parametrize(("where", "name"), FAULTS, ids=[name for _, name in FAULTS])
def test_a_fault_of_ours_ends_no_stream(
    where: Any, name: str, stage: Stage, colour: str, http: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fault(*_: Any) -> None:
        raise ValueError("a fault of ours")

    monkeypatch.delenv("RAVI_RAISE_BUGS")
    monkeypatch.setattr(where, name, fault)
    stage.answer = answer(*words(0, count=3), piece(finish="stop"), usage())
    with ravi_otel.run("r", limits=["tokens=100000"]) as run:
        assert stage.read(colour) == "word word word "
        assert run.limits[0].held == 0
    stage.answer = answer(*words(0))
    with ravi_otel.run("r", limits=[f"tokens={LIMIT}"]) as run:
        with suppress(BudgetExhaustedError):
            stage.read(colour)
        assert run.limits[0].held == 0
    stage.answer = delayed(*words(0, count=3), piece(finish="stop"), pause_s=0.01)
    with ravi_otel.run("r", limits=["tokens=100000"]) as run:
        # What the client raises of a connection that is shut down; before 3.x that is its HTTP library's own error.
        with suppress(BudgetExhaustedError, openai.APIConnectionError, http.RemoteProtocolError, http.ReadError):
            stage.read(colour, saw=lambda *_: run.close() if len(stage.texts) == 3 else None)
        assert run.limits[0].held == 0
