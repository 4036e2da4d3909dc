"""Ways around a limit that somebody found: each stays shut."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import openai
import pydantic
import pytest

from ravi_otel import BudgetExhaustedError, request_limit, run, token_limit, turn_limit
from ravi_otel._instrumentation.formats.chat import ChatCompletions, Completions
from ravi_otel._instrumentation.formats.fields import body_of
from ravi_otel._instrumentation.formats.format import Host, Request
from ravi_otel._instrumentation.formats.openai import Other, format_for
from ravi_otel._instrumentation.formats.responses import Responses
from ravi_otel._runtime.stopping import drain
from ravi_otel.policy._usage import Call, Usage
from ravi_otel.testing import Text

HOST = Host("openai", assumed=False, address=None, port=None)
MESSAGES = [{"role": "user", "content": "hi"}]
CHAT = {"model": "gpt-4o-mini", "messages": MESSAGES}


def read(path: str, body: dict[str, Any] | None = None, method: str = "POST") -> Call:
    return format_for(method, path).call(Request(method, path, body or {}, HOST, stream=False))


@pytest.fixture
def made(http: Any, instrumented: Any) -> Any:
    """Give a client whose server is a function, and how many requests reached it."""
    clients: list[openai.OpenAI] = []

    def make(answer: Callable[[Any], Any], kind: type[openai.OpenAI] = openai.OpenAI, **settings: Any) -> tuple[Any, list[str]]:
        seen: list[str] = []

        def handle(request: Any) -> Any:
            seen.append(request.url.path)
            return answer(request)

        transport = openai.DefaultHttpxClient(transport=http.MockTransport(handle))
        settings = {"base_url": "http://server/v1", "max_retries": 0} | settings
        clients.append(kind(api_key="sk-test", http_client=transport, **settings))
        return clients[-1], seen

    yield make
    for client in clients:
        client.close()


# -- what asks a model ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [
        *("/images/generations", "/images/edits", "/images/variations", "/videos", "/videos/v1/remix", "/audio/speech"),
        *("/threads/runs", "/threads/t/runs", "/threads/t/runs/r/submit_tool_outputs", "/moderations", "/responses/compact"),
        *("/fine_tuning/alpha/graders/run", "/never/heard/of", "", "/files/../images/generations", "/files/..%2Fimages/edits"),
        *("//files/images/generations", "http://elsewhere/v1/images/generations", "/x/files"),
    ],
)
def test_a_post_asks_a_model_although_its_body_names_none(path):
    call = read(path)
    assert (call.generative, call.turn) == (True, False)


@pytest.mark.parametrize(
    "path",
    [
        *("/files", "/Files", "/uploads/u/parts", "/vector_stores/v/search", "/containers", "/fine_tuning/jobs/j/pause"),
        *("/assistants", "/threads", "/threads/t/messages", "/threads/t/runs/r/cancel", "/responses/r/cancel", "/evals/e/runs/r/cancel"),
        *(
            "/batches/b/cancel",
            "/conversations/c/items",
            "/organization/projects",
            "/responses/input_tokens?beta=true",
            "http://server/v1/files",
        ),
        *("/chat/completions/chatcmpl-1", "/realtime/client_secrets"),
    ],
)
def test_what_asks_no_model_is_free_whatever_its_body_names(path):
    assert not read(path, {"model": "gpt-4o"}).generative


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH"])
@pytest.mark.parametrize(
    "path",
    [
        *("/agents/X/run", "/agents/x/chat", "/agents/run", "/assistants/x/generate", "/skills/x/run", "/conversations/x/completion"),
        *("/projects/p/locations/l/publishers/g/models/x:generateContent", "/projects/p/locations/l/endpoints/openapi/generateContent"),
        *("/chat/completions/cancel", "/chat/completions/chatcmpl-1/run", "/chat/completions/other-1", "/chat/completions"),
        *("/organization/o/rerank", "/files/x/ask", "/vector_stores/x/answer", "/batches/run", "/threads/generate", "/anything/cancel"),
    ],
)
def test_a_tail_nobody_knows_may_ask_a_model_below_whatever_name(path, method):
    assert read(path, method=method).generative


@pytest.mark.parametrize("path", ["/conversations", "/agents", "/skills", "/threads", "/containers", "/assistants"])
def test_what_is_free_at_openai_may_ask_a_model_elsewhere(path):
    found = {who: format_for("POST", path, "/v1", who) for who in ("", "openai", "azure.ai.openai", "mistral_ai", "groq")}
    assert {who for who, endpoint in found.items() if isinstance(endpoint, Other)} == {"mistral_ai", "groq"}


@pytest.mark.parametrize("path", ["/files", "/uploads/u/parts", "/batches/b/cancel", "/fine_tuning/jobs/j/cancel"])
def test_a_file_is_sent_to_nobodys_model(path):
    assert not isinstance(format_for("POST", path, "/v1", "mistral_ai"), Other)


@pytest.mark.parametrize("path", ["/batches", "/v1/Batches?x=1", "/fine_tuning/jobs", "/evals/eval_1/runs"])
def test_a_batch_and_a_training_are_a_request_each_that_needs_no_price(path):
    call = read(path, {"model": "gpt-4o", "input_file_id": "file-1"})
    assert (call.generative, call.turn, call.unread, call.input_estimate) == (True, False, True, 0)
    assert not read(path, {}, "GET").generative


@pytest.mark.parametrize("limit", ["requests=1", "cost=$0.0001", "tokens=1"])
def test_no_batch_is_begun_when_a_limit_is_used_up(made, http, limit):
    client, seen = made(lambda _: http.Response(200, json={"id": "batch_1", "object": "batch", "status": "validating"}))
    with run("r", limits=[limit]) as work:
        work.scope.absorb({"requests": 1, "tokens": 10, "cost": 1_000_000_000})
        with pytest.raises(BudgetExhaustedError):
            client.batches.create(completion_window="24h", endpoint="/v1/chat/completions", input_file_id="file-1")
        client.batches.list()
    assert len(seen) == 1


@pytest.mark.parametrize("method", ["GET", "DELETE", "HEAD", "OPTIONS"])
def test_what_only_reads_asks_no_model(method):
    assert not read("/images/generations", {"model": "gpt-image-1"}, method).generative


def test_a_moderation_is_a_request_of_no_tokens_that_needs_no_price():
    call = read("/moderations", {"input": "a long text " * 100})
    assert (call.generative, call.input_estimate, call.unread) == (True, 0, True)


def test_a_limit_holds_images_without_a_model(made, http):
    client, seen = made(lambda _: http.Response(200, json={"created": 1, "data": []}))
    with run("r", limits=[request_limit(1)]):
        client.images.generate(prompt="a cat")
        with pytest.raises(BudgetExhaustedError):
            client.images.generate(prompt="a cat")
    assert len(seen) == 1


@pytest.mark.parametrize(("given", "made_"), [("input_tokens", "output_tokens"), ("prompt_tokens", "completion_tokens")])
def test_usage_is_read_in_either_spelling_wherever_it_is_told(given, made_):
    told = {"model": "gpt-image-1", "usage": {given: 5, made_: 4160}}
    assert Other().reply(told).usage == Usage(5, 4160)
    collector = Other().collector(Call("images", "images"))
    collector.add({"type": "image_generation.partial_image"})
    collector.add({"type": "image_generation.completed", **told})
    assert (collector.complete, collector.reply().usage) == (True, Usage(5, 4160))


def test_a_body_given_as_text_or_bytes_is_read():
    for content in ('{"model": "m"}', b'{"model": "m"}'):
        assert body_of(None, None, content) == {"model": "m"}
        assert body_of(content, {"n": 2}, None) == {"model": "m", "n": 2}
    assert body_of(None, None, "[" * 100_000) == {}


# -- legacy completions -----------------------------------------------------------------------------------------------


def test_a_completion_is_read_like_a_chat():
    call = read("/completions", {"model": "gpt-3.5-turbo-instruct", "prompt": ["one", "two"], "max_tokens": 40, "n": 2, "best_of": 3})
    assert (call.operation, call.endpoint, call.turn) == ("text_completion", "completions", True)
    assert (call.output_cap, call.choices, call.parameters["max_tokens"]) == (40, 6, 40)
    assert call.input_estimate >= 2
    assert read("/completions", {"prompt": [1, 2, 3]}).choices == 1


def test_a_completion_stream_counts_its_text_until_the_usage_comes():
    collector = Completions().collector(Call("text_completion", "completions", size=7))
    collector.add({"id": "cmpl-1", "model": "m", "choices": [{"index": 0, "text": "x" * 80}]})
    assert collector.reply().usage == Usage(7, 20, source="estimated")
    collector.add({"id": "cmpl-1", "model": "m", "choices": [{"index": 0, "text": "", "finish_reason": "stop"}]})
    collector.add({"id": "cmpl-1", "model": "m", "choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 21}})
    reply = collector.reply()
    assert (reply.id, reply.usage, reply.finish_reasons, collector.complete) == ("cmpl-1", Usage(3, 21), ("stop",), True)


# -- paths ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [
        *("/chat/completions", "chat/completions/", "/chat/completions?x=1", "/chat/completions#x", "/chat/x/../completions"),
        *("/chat/./completions", "/chat//completions", "/Chat/Completions", "/chat/%63ompletions", "/chat/completions;a"),
        *("http://server/v1/chat/completions", "http://server/v1/chat/./completions?a=b", "/deployments/d/chat/completions"),
    ],
)
def test_a_path_is_known_however_it_is_spelled(path):
    assert isinstance(format_for("POST", path), ChatCompletions)


def test_the_base_url_is_part_of_the_path(made, http):
    client, seen = made(lambda _: http.Response(200, json={}), base_url="http://server/v1/chat")
    assert isinstance(format_for("POST", "/completions", "/v1/chat/"), ChatCompletions)
    with run("r", limits=[turn_limit(0)]), pytest.raises(BudgetExhaustedError):
        client.post("/completions", body=CHAT, cast_to=object)
    assert seen == []


def test_a_path_that_is_no_url_is_left_to_the_client():
    assert isinstance(format_for("POST", "//[/chat/completions"), ChatCompletions)
    assert isinstance(format_for("POST", "//["), Other)


# -- failures ---------------------------------------------------------------------------------------------------------


def test_a_redirected_request_that_never_left_is_given_back_and_the_one_before_it_is_not(made, http):
    def answer(request: Any) -> Any:
        if request.url.host == "dead":
            raise http.ConnectError("refused")
        return http.Response(307, headers={"location": "http://dead/v1/chat/completions"})

    client, _ = made(answer)
    with run("r", limits=[request_limit(5)]) as scope:
        with pytest.raises(openai.APIConnectionError):
            client.chat.completions.create(**CHAT)
        assert (scope.limits[0].used, scope.stats().requests) == (1, 1)


def test_a_retry_after_a_redirect_that_led_nowhere_is_paid_for_once(made, http):
    sent: list[str] = []

    def answer(request: Any) -> Any:
        if request.url.host == "dead":
            raise http.ConnectError("refused")
        sent.append(request.url.host)
        return http.Response(307, headers={"location": "http://dead/v1/chat/completions"})

    client, _ = made(answer, max_retries=2)
    with run("r", limits=[request_limit(50)]) as scope, pytest.raises(openai.APIConnectionError):
        client.chat.completions.create(**CHAT)
    assert (scope.limits[0].used, scope.stats().requests, len(sent)) == (3, 3, 3)


def test_a_connection_that_was_never_had_is_no_request(made, http):
    def answer(_: Any) -> Any:
        raise http.ConnectError("refused")

    client, _ = made(answer)
    with run("r", limits=[request_limit(5)]) as scope:
        with pytest.raises(openai.APIConnectionError):
            client.chat.completions.create(**CHAT)
        assert scope.limits[0].used == 0


class _RefusalError(Exception):
    status_code = 422


class _Picky(pydantic.BaseModel):
    @pydantic.model_validator(mode="before")
    @classmethod
    def refuse(cls, _: Any) -> Any:
        raise _RefusalError("unfit")


def parse_of(client):
    """The oldest client has it under `beta` only."""
    return getattr(client.chat.completions, "parse", None) or client.beta.chat.completions.parse


def test_an_answer_a_parser_refused_was_billed_whatever_its_error_says(stage, clients, instrumented):
    client = clients.make("sync", stage.play(Text("{}", usage=(500, 5000))), max_retries=0)
    with run("r", limits=[token_limit(10**6)]) as scope:
        with pytest.raises(_RefusalError):
            parse_of(client)(**CHAT, response_format=_Picky)
        assert scope.limits[0].used == 5500


class _Forgetful(openai.OpenAI):
    def _build_request(self, options: Any, **_: Any) -> Any:
        return super()._build_request(options)


def test_retries_are_counted_although_a_subclass_does_not_tell_them(made, http):
    client, seen = made(lambda _: http.Response(500, headers={"retry-after-ms": "1"}), _Forgetful, max_retries=9)
    with run("r", limits=[request_limit(3)]), pytest.raises((BudgetExhaustedError, openai.APIError)):
        client.chat.completions.create(**CHAT)
    assert len(seen) == 3


# -- closing ----------------------------------------------------------------------------------------------------------


class _Box:
    def __init__(self, stream: Any) -> None:
        self.stream = stream

    def __del__(self) -> None:
        self.stream.close()


def _opened(stage: Any, clients: Any) -> Any:
    stream = clients.make("sync", stage.play(Text("a b c d", usage=(1, 1)))).chat.completions.create(**CHAT, stream=True)
    next(iter(stream))
    return stream


def test_a_stream_closed_by_a_finaliser_is_settled_by_the_next_who_comes(stage, clients, instrumented):
    with run("r", limits=[token_limit(10**6)]) as scope:
        box = _Box(_opened(stage, clients))
        del box
        gc.collect()
        drain()
        assert scope.limits[0].held == 0


def test_a_stream_closed_by_its_user_is_settled_at_once(stage, clients, instrumented):
    with run("r", limits=[token_limit(10**6)]) as scope:
        _opened(stage, clients).close()
        assert scope.limits[0].held == 0


# -- text that is not ASCII -------------------------------------------------------------------------------------------


def test_streamed_text_is_weighed_by_its_bytes():
    chat = ChatCompletions().collector(Call("chat", "chat.completions"))
    chat.add({"id": "c", "choices": [{"index": 0, "delta": {"content": "漢字" * 2000}}]})
    responses = Responses().collector(Call("chat", "responses"))
    responses.add({"type": "response.created", "response": {"id": "r"}})
    responses.add({"type": "response.output_text.delta", "delta": "漢字" * 2000})
    for collector in (chat, responses):
        usage = collector.reply().usage
        assert usage is not None
        assert usage.output_tokens == 4000
