"""A stream ends within one chunk of its limit, its deadline or a cancel: settled, hung up, with its text on the error."""

from __future__ import annotations

import asyncio
import gc
import inspect
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import anthropic
import openai
import pytest

import ravi_otel
from ravi_otel import BudgetError, BudgetExhaustedError, CancellationError, DeadlineExceededError
from ravi_otel._enforcement import plan as admission
from ravi_otel._runtime.charging import LONGEST_STEP
from ravi_otel._runtime.state import STATE
from ravi_otel.testing import Answer, Capture, Failure, Request, ScriptedLLM, Text

MESSAGES = [{"role": "user", "content": "hi"}]
CHAT: dict[str, Any] = {"model": "gpt-4o-mini", "messages": MESSAGES, "stream": True}
RESPONSES: dict[str, Any] = {"model": "gpt-4o-mini", "input": "hi", "stream": True}
ANTHROPIC: dict[str, Any] = {"model": "claude-haiku-4-5", "messages": MESSAGES, "max_tokens": 4_096, "stream": True}
WORDS = [f"w{index % 10} " for index in range(400)]
MANY = 200
LIMIT = 60


def words(count: int = MANY, *, pause_s: float = 0.0) -> Text:
    chunks = (WORDS * (1 + count // len(WORDS)))[:count]
    return Text("".join(chunks), chunks=chunks, chunk_s=pause_s, usage=(10, count))


class Words:
    """Answer what is set here."""

    def __init__(self) -> None:
        self.answer: Answer = words()
        self.server = ScriptedLLM(self._next)

    def _next(self, _: Request) -> Answer:
        return self.answer


@pytest.fixture(scope="module")
def words_stage() -> Iterator[Words]:
    stage = Words()
    with stage.server:
        yield stage


@pytest.fixture
def talk(words_stage: Words, instrumented: Capture) -> Iterator[Words]:
    """Answer 200 words of a token each, over connections of this test's own."""
    words_stage.server.wait_until_idle()
    words_stage.answer = words()
    yield words_stage
    gc.collect()
    assert len(STATE.engine.ledger) == 0  # type: ignore[arg-type]  # the ledger of one process knows its length


def text_of(event: Any) -> str:
    """Give the piece of text in an event of any of the three APIs."""
    kind = getattr(event, "type", None)
    if kind == "response.output_text.delta":
        return str(event.delta)
    if kind == "content_block_delta":
        return str(event.delta.text)
    choices = getattr(event, "choices", None)
    return (choices[0].delta.content or "") if choices else ""


class Reader:
    """Make a client, open a stream and read it, in either colour, until it ends."""

    def __init__(self, api: str, colour: str, server: ScriptedLLM) -> None:
        self.api, self.colour, self.server = api, colour, server
        self.texts: list[str] = []
        self.first = threading.Event()

    def read(self, **more: Any) -> None:
        program = self._read(more)
        if self.colour == "async":
            asyncio.run(program)
            return
        with suppress(StopIteration):
            program.send(None)

    def _client(self) -> Any:
        if self.api == "anthropic":
            made: Any = anthropic.Anthropic if self.colour == "sync" else anthropic.AsyncAnthropic
            return made(api_key="k", base_url=self.server.url, max_retries=0)
        made = openai.OpenAI if self.colour == "sync" else openai.AsyncOpenAI
        return made(api_key="k", base_url=self.server.base_url, max_retries=0)

    def _open(self, client: Any, more: dict[str, Any]) -> Any:
        if self.api == "anthropic":
            return client.messages.create(**{**ANTHROPIC, **more})
        if self.api == "responses":
            return client.responses.create(**{**RESPONSES, **more})
        return client.chat.completions.create(**{**CHAT, **more})

    async def _read(self, more: dict[str, Any]) -> None:
        client = self._client()
        try:
            opened = self._open(client, more)
            stream = await opened if inspect.isawaitable(opened) else opened
            if self.colour == "sync":
                for event in stream:
                    self._saw(event)
            else:
                async for event in stream:
                    self._saw(event)
        finally:
            closing = client.close()
            if inspect.isawaitable(closing):
                await closing

    def _saw(self, event: Any) -> None:
        said = text_of(event)
        if said:
            self.texts.append(said)
        self.first.set()


@pytest.fixture(params=["chat", "responses", "anthropic"])
def reader(request: pytest.FixtureRequest, colour: str, talk: Words) -> Reader:
    return Reader(request.param, colour, talk.server)


def ended(capture: Capture) -> list[Any]:
    """Give the `error.type` of every model call's span."""
    told = [dict(span.attributes or {}) for span in capture.spans()]
    return [one.get("error.type") for one in told if "gen_ai.request.model" in one]


def test_a_stream_is_cut_within_one_chunk_of_its_limit(reader: Reader, talk: Words, capture: Capture) -> None:
    talk.answer = words(pause_s=0.002)  # so that it is still being sent
    before = talk.server.sent.hang_ups
    with ravi_otel.run("r", limits=[f"tokens={LIMIT}"]) as run:
        with pytest.raises(
            BudgetExhaustedError, match=r"^\d+ of 60 tokens used in run 'r', by our count, so the stream was cut \("
        ) as refused:
            reader.read()
        assert len(STATE.engine.ledger) == 0  # type: ignore[arg-type]  # the ledger of one process knows its length
    (reading,) = run.limits
    assert (reading.held, reading.used) == (0, LIMIT + 1)
    assert 0 < len(reader.texts) <= LIMIT
    assert refused.value.partial == "".join(reader.texts)
    assert (refused.value.limit_kind, refused.value.reason, refused.value.scope) == ("tokens", "exhausted", "run")
    assert ended(capture) == ["ravi.limit_exceeded"]
    talk.server.wait_for_hang_ups(before + 1)


def test_the_text_on_the_error_is_in_its_order_where_short_and_long_pieces_alternate(talk: Words, clients: Any) -> None:
    pieces = ["a", "漢", "😀", "é" * 5, "word " * 4] * 20
    talk.answer = Text("".join(pieces), chunks=pieces, usage=(10, 400))
    client = clients.make("sync", talk.server.base_url, max_retries=0)
    for tokens in (40, 70, 100, 140):
        came = list[str]()
        with pytest.raises(BudgetExhaustedError) as refused, ravi_otel.run("r", limits=[ravi_otel.token_limit(tokens)]):
            came.extend(chunk.choices[0].delta.content or "" for chunk in client.chat.completions.create(**CHAT))
        assert came
        assert refused.value.partial == "".join(came)


def test_limits_on_output_cost_and_formulas_cut_as_well(talk: Words, colour: str) -> None:
    for limit, least, most in (("output_tokens=30", 30, 31), ("tokens=40:count=2*output", 20, 21), ("cost=0.00002usd", 20, 40)):
        reader = Reader("chat", colour, talk.server)
        with ravi_otel.run("r", limits=[limit]) as run, pytest.raises(BudgetExhaustedError):
            reader.read()
        assert least <= len(reader.texts) <= most, limit
        assert run.limits[0].held == 0


def test_an_answer_that_fits_exactly_is_not_cut(reader: Reader, talk: Words) -> None:
    talk.answer = words(40)
    with ravi_otel.run("r", limits=["output_tokens=40"]) as run:
        reader.read()
    assert len(reader.texts) == 40
    assert run.limits[0].used == 40


def test_a_stream_goes_on_beyond_what_was_held_for_it(reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "OUTPUT_GUESS", 8)
    with ravi_otel.run("r", limits=["tokens=100000", "cost=1usd"]) as run:
        reader.read(**({"max_tokens": 4_096} if reader.api == "anthropic" else {}))
    assert len(reader.texts) == MANY
    assert [reading.held for reading in run.limits] == [0, 0]


def test_a_stream_whose_whole_cap_is_held_is_never_cut(talk: Words, colour: str) -> None:
    reader = Reader("chat", colour, talk.server)
    talk.answer = words(50)
    with ravi_otel.run("r", limits=["output_tokens=40"]):
        reader.read(max_tokens=40)  # the server does not keep to it; nobody counts
    assert len(reader.texts) == 50


def test_what_only_observes_cuts_nothing(reader: Reader) -> None:
    with ravi_otel.run("r", limits=[f"tokens={LIMIT}:on=observe"]) as run:
        reader.read()
    assert len(reader.texts) == MANY
    assert run.limits[0].events == ("limit_nearing", "limit_exceeded")


def test_a_scope_that_is_to_stop_swallows_the_cut(reader: Reader) -> None:
    with ravi_otel.run("r", limits=[f"tokens={LIMIT}:on=stop"]) as run:
        reader.read()
    assert 0 < len(reader.texts) <= LIMIT
    assert run.status == "stopped"


def test_a_limit_that_counts_afterwards_cuts_once_others_have_passed_it(talk: Words) -> None:
    client = openai.OpenAI(api_key="k", base_url=talk.server.base_url)
    with ravi_otel.run("r", limits=["output_tokens=100:admission=after"]), client:
        stream = client.chat.completions.create(**CHAT)
        next(stream)
        assert len(list(client.chat.completions.create(**CHAT))) > MANY
        with pytest.raises(BudgetExhaustedError):
            list(stream)


@pytest.mark.parametrize("count", [8])
def test_parallel_streams_share_what_is_left(talk: Words, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(admission, "OUTPUT_GUESS", 16)
    limit = 1_000
    talk.answer = words(limit + count)  # which not even one of them can have whole
    readers = [Reader("chat", "sync", talk.server) for _ in range(count)]
    refused: list[BudgetError] = []

    def read(one: Reader) -> None:
        try:
            one.read()
        except BudgetError as error:
            refused.append(error)

    with ravi_otel.run("r", limits=[f"tokens={limit}"]) as run:
        threads = [threading.Thread(target=read, args=[one]) for one in readers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
    used = run.limits[0].used
    assert limit - LONGEST_STEP < used <= limit + count
    assert run.limits[0].held == 0
    assert len(refused) == count


STOPS: dict[str, Callable[[Any], object]] = {"cancel": lambda run: run.cancel("enough"), "close": lambda run: run.close()}


@pytest.mark.parametrize("stop", STOPS)
def test_a_reader_that_waits_for_its_next_chunk_is_woken(stop: str, reader: Reader, talk: Words, capture: Capture) -> None:
    talk.answer = words(3, pause_s=30)
    before = talk.server.sent.hang_ups
    raised: list[BaseException] = []

    def read() -> None:
        try:
            reader.read()
        except (BudgetExhaustedError, CancellationError) as error:
            raised.append(error)

    with ravi_otel.run("r", limits=["tokens=100000"]) as run:
        thread = threading.Thread(target=read)
        thread.start()
        assert reader.first.wait(10)
        STOPS[stop](run)
        thread.join(10)
        assert not thread.is_alive()
        assert run.limits[0].held == 0
    (error,) = raised
    assert isinstance(error, BudgetExhaustedError if stop == "close" else CancellationError)
    assert ended(capture) == ["ravi.limit_exceeded"]
    talk.server.wait_for_hang_ups(before + 1)


def test_a_reader_that_waits_is_woken_by_its_deadline(reader: Reader, talk: Words) -> None:
    talk.answer = words(3, pause_s=30)
    with ravi_otel.run("r", limits=["time=300ms"]) as run, pytest.raises(DeadlineExceededError, match="deadline exceeded") as late:
        reader.read()
    assert run.limits[0].held == 0
    assert late.value.partial in (None, "".join(reader.texts))


def test_a_time_out_that_comes_before_the_clocks_were_looked_at_is_the_deadline(
    reader: Reader, talk: Words, monkeypatch: pytest.MonkeyPatch
) -> None:
    talk.answer = words(3, pause_s=30)
    monkeypatch.setattr(STATE.engine, "when_stopped", None)  # as when its thread has to wait its turn
    with ravi_otel.run("r", limits=["time=300ms"]) as run, pytest.raises(DeadlineExceededError, match="deadline exceeded"):
        reader.read()
    assert run.limits[0].held == 0


@pytest.mark.parametrize("stop", STOPS)
def test_an_open_stream_sees_a_stop_at_its_next_chunk(stop: str, talk: Words) -> None:
    client = openai.OpenAI(api_key="k", base_url=talk.server.base_url)
    with ravi_otel.run("r") as run, client:
        stream = client.chat.completions.create(**CHAT)
        next(stream)
        STOPS[stop](run)
        more: list[Any] = []
        with pytest.raises((BudgetExhaustedError, CancellationError)):
            more.extend(stream)
        assert len(more) <= 1
        assert list(stream) == []


@pytest.mark.parametrize("stop", STOPS)
def test_bytes_that_are_read_raw_see_a_stop_at_their_next_piece(stop: str, talk: Words, capture: Capture) -> None:
    client = openai.OpenAI(api_key="k", base_url=talk.server.base_url)
    with ravi_otel.run("r", limits=["tokens=100000"]) as run, client:
        with client.chat.completions.with_streaming_response.create(**CHAT) as response:
            pieces = response.iter_bytes()
            next(pieces)
            STOPS[stop](run)
            with pytest.raises((BudgetExhaustedError, CancellationError)):
                list(pieces)
        assert run.limits[0].held == 0
    assert len(ended(capture)) == 1


def test_helpers_and_raw_responses_are_cut_like_any_stream(talk: Words) -> None:
    client = openai.OpenAI(api_key="k", base_url=talk.server.base_url)
    chat: Any = client.beta.chat if openai.__version__.startswith("1.") else client.chat

    def helped() -> None:
        with chat.completions.stream(model="gpt-4o-mini", messages=MESSAGES) as stream:
            list(stream)

    def responded() -> None:
        with client.responses.stream(model="gpt-4o-mini", input="hi") as stream:
            list(stream)

    def parsed() -> None:
        list(client.chat.completions.with_raw_response.create(**CHAT).parse())

    with client:
        for way in (helped, responded, parsed):
            with ravi_otel.run("r", limits=[f"tokens={LIMIT}"]) as run:
                with pytest.raises(BudgetExhaustedError) as refused:
                    way()
                assert refused.value.partial
            assert (run.limits[0].held, run.limits[0].used) == (0, LIMIT + 1), way


def test_a_client_goes_on_after_one_of_its_streams_was_cut(talk: Words) -> None:
    client = openai.OpenAI(api_key="k", base_url=talk.server.base_url)
    with client:
        with ravi_otel.run("r", limits=[f"tokens={LIMIT}"]), pytest.raises(BudgetExhaustedError):
            list(client.chat.completions.create(**CHAT))
        talk.answer = words(3)
        assert len(list(client.chat.completions.create(**CHAT))) > 3


def test_nothing_is_cut_by_a_failure_of_the_provider(talk: Words) -> None:
    talk.answer = Failure(400, "no")
    client = openai.OpenAI(api_key="k", base_url=talk.server.base_url)
    with client, ravi_otel.run("r", limits=[f"tokens={LIMIT}"]), pytest.raises(openai.BadRequestError):
        client.chat.completions.create(**CHAT)
