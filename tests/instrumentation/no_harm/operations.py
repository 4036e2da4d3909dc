"""Say what programs ask of each endpoint, and what it ordinarily answers."""

# ruff: noqa: E501 - one entry a line, however long

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import openai
import pydantic
from ordinary import (
    CHAT,
    CHAT_EVENTS,
    COMPLETION,
    COMPLETION_EVENTS,
    IMAGE_EVENTS,
    IMAGES,
    NOTHING_SPECIAL,
    PAGE,
    RESPONSE,
    RESPONSE_EVENTS,
    RUN_EVENTS,
    SPEECH_EVENTS,
    TRANSCRIPT_EVENTS,
    VECTORS,
)

MODEL = "gpt-4o-mini"
MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Say hello."}]
TOOL = {"type": "function", "function": {"name": "lookup", "parameters": {"type": "object", "properties": {}}}}


class Greeting(pydantic.BaseModel):
    word: str


@dataclass(frozen=True)
class Operation:
    """Be one method of the client with arguments; `words` names the one that holds what is asked.

    `body` is answered whole, bytes as they are; `events`, where the call opens a stream, are (name, data).
    """

    path: str
    given: Callable[[], dict[str, Any]]
    words: str
    body: Any = field(default_factory=lambda: NOTHING_SPECIAL)
    events: list[tuple[str | None, Any]] | None = None
    positional: tuple[Any, ...] = ()
    helper: bool = False


def _chat(**more: Any) -> Callable[[], dict[str, Any]]:
    return lambda: {"model": MODEL, "messages": [dict(each) for each in MESSAGES], **more}


def _responses(**more: Any) -> Callable[[], dict[str, Any]]:
    return lambda: {"model": MODEL, "input": "Say hello.", **more}


def _given(**arguments: Any) -> Callable[[], dict[str, Any]]:
    return lambda: dict(arguments)


_AUDIO = ("a.mp3", b"ID3 not really sound")
_PICTURE = ("a.png", b"\x89PNG not really a picture")

ALL: dict[str, Operation] = {
    "chat": Operation("chat.completions.create", _chat(temperature=0.5, max_tokens=50), "messages", CHAT),
    "chat with tools": Operation("chat.completions.create", _chat(tools=[TOOL], n=2, seed=1), "messages", CHAT),
    "chat stream": Operation("chat.completions.create", _chat(stream=True), "messages", CHAT, CHAT_EVENTS),
    "chat stream told": Operation(
        "chat.completions.create", _chat(stream=True, n=2, stream_options={"include_usage": True}), "messages", CHAT, CHAT_EVENTS
    ),
    "chat parse": Operation("chat.completions.parse", _chat(response_format=Greeting), "messages", CHAT),
    "chat helper": Operation("chat.completions.stream", _chat(), "messages", CHAT, CHAT_EVENTS, helper=True),
    "beta chat parse": Operation("beta.chat.completions.parse", _chat(response_format=Greeting), "messages", CHAT),
    "beta chat helper": Operation("beta.chat.completions.stream", _chat(), "messages", CHAT, CHAT_EVENTS, helper=True),
    "stored chat": Operation("chat.completions.retrieve", _given(completion_id="chatcmpl-1"), "completion_id", CHAT),
    "completions": Operation("completions.create", _given(model="gpt-3.5-turbo-instruct", prompt="Say"), "prompt", COMPLETION),
    "completions stream": Operation(
        "completions.create", _given(model="gpt-3.5-turbo-instruct", prompt=["a", "b"], stream=True), "prompt", COMPLETION, COMPLETION_EVENTS
    ),
    "embeddings": Operation("embeddings.create", _given(model="text-embedding-3-small", input=["one", "two"]), "input", VECTORS),
    "embeddings of tokens": Operation(
        "embeddings.create", _given(model="text-embedding-3-small", input=[[1, 2], [3]], encoding_format="float", dimensions=2), "input", VECTORS
    ),
    "responses": Operation("responses.create", _responses(instructions="Be brief.", max_output_tokens=16), "input", RESPONSE),
    "responses stream": Operation("responses.create", _responses(stream=True), "input", RESPONSE, RESPONSE_EVENTS),
    "responses in background": Operation("responses.create", _responses(background=True), "input", {**RESPONSE, "status": "queued", "usage": None}),
    "responses parse": Operation("responses.parse", _responses(text_format=Greeting), "input", RESPONSE),
    "responses helper": Operation("responses.stream", _responses(), "input", RESPONSE, RESPONSE_EVENTS, helper=True),
    "responses retrieve": Operation("responses.retrieve", _given(response_id="resp_1"), "response_id", RESPONSE),
    "responses follow": Operation("responses.retrieve", _given(response_id="resp_1", stream=True), "response_id", RESPONSE, RESPONSE_EVENTS),
    "responses cancel": Operation("responses.cancel", _given(response_id="resp_1"), "response_id", {**RESPONSE, "status": "cancelled"}),
    "responses compact": Operation("responses.compact", _responses(), "input", {**RESPONSE, "object": "response.compaction"}),
    "responses input items": Operation("responses.input_items.list", _given(response_id="resp_1"), "response_id", PAGE),
    "responses count": Operation("responses.input_tokens.count", _responses(), "input", {"object": "response.input_tokens", "input_tokens": 9}),
    "responses delete": Operation("responses.delete", _given(response_id="resp_1"), "response_id", b""),
    "images": Operation("images.generate", _given(model="gpt-image-1", prompt="A cat", n=2, size="1024x1024"), "prompt", IMAGES),
    "images stream": Operation(
        "images.generate", _given(model="gpt-image-1", prompt="A cat", stream=True, partial_images=1), "prompt", IMAGES, IMAGE_EVENTS
    ),
    "images edit": Operation("images.edit", _given(model="gpt-image-1", prompt="A dog", image=_PICTURE), "prompt", IMAGES),
    "images variation": Operation("images.create_variation", _given(image=_PICTURE, n=1), "image", IMAGES),
    "speech": Operation("audio.speech.create", _given(model="tts-1", voice="alloy", input="Hello"), "input", b"\xff\xf3 sound \x00" * 9),
    "speech of events": Operation(
        "audio.speech.create",
        _given(model="gpt-4o-mini-tts", voice="alloy", input="Hello", stream_format="sse"),
        "input",
        "".join(f"data: {json.dumps(each[1])}\n\n" for each in SPEECH_EVENTS).encode(),
    ),
    "transcription": Operation(
        "audio.transcriptions.create",
        _given(model="gpt-4o-transcribe", file=_AUDIO),
        "file",
        {"text": "Hello", "usage": {"type": "tokens", "input_tokens": 14, "output_tokens": 5, "total_tokens": 19}},
    ),
    "transcription as text": Operation("audio.transcriptions.create", _given(model="whisper-1", file=_AUDIO, response_format="text"), "file", b"Hello\n"),
    "transcription at length": Operation(
        "audio.transcriptions.create",
        _given(model="whisper-1", file=_AUDIO, response_format="verbose_json"),
        "file",
        {"text": "Hello", "duration": 1.5, "language": "en", "segments": [], "usage": {"type": "duration", "seconds": 2}},
    ),
    "transcription stream": Operation(
        "audio.transcriptions.create", _given(model="gpt-4o-transcribe", file=_AUDIO, stream=True), "file", NOTHING_SPECIAL, TRANSCRIPT_EVENTS
    ),
    "translation": Operation("audio.translations.create", _given(model="whisper-1", file=_AUDIO), "file", {"text": "Hello"}),
    "moderations": Operation("moderations.create", _given(input=["Hello", "there"]), "input", {"id": "modr-1", "model": "omni", "results": []}),
    "batches create": Operation(
        "batches.create", _given(input_file_id="file-1", endpoint="/v1/chat/completions", completion_window="24h"), "input_file_id"
    ),
    "batches retrieve": Operation("batches.retrieve", _given(batch_id="batch_1"), "batch_id"),
    "batches list": Operation("batches.list", _given(limit=2), "after", PAGE),
    "files create": Operation("files.create", _given(file=("a.jsonl", b'{"a": 1}\n'), purpose="batch"), "file"),
    "files content": Operation(
        "files.content",
        _given(file_id="file-1"),
        "file_id",
        b'{"id": "batch_req_1", "custom_id": "a", "response": {"status_code": 200, "body": {"model": "gpt-4o-mini", "usage": {"prompt_tokens": 3}}}}\n',
    ),
    "models": Operation("models.list", dict, "extra_query", {"object": "list", "data": [{"id": "m", "object": "model", "created": 1}]}),
    "model": Operation("models.retrieve", _given(model=MODEL), "model"),
    "assistants create": Operation("beta.assistants.create", _given(model=MODEL, name="A", instructions="Be brief."), "instructions"),
    "threads create": Operation("beta.threads.create", _given(messages=[{"role": "user", "content": "Hi"}]), "messages"),
    "run": Operation("beta.threads.runs.create", _given(thread_id="thread_1", assistant_id="asst_1"), "assistant_id"),
    "run stream": Operation(
        "beta.threads.runs.create", _given(thread_id="thread_1", assistant_id="asst_1", stream=True), "assistant_id", NOTHING_SPECIAL, RUN_EVENTS
    ),
    "run helper": Operation(
        "beta.threads.runs.stream", _given(thread_id="thread_1", assistant_id="asst_1"), "instructions", NOTHING_SPECIAL, RUN_EVENTS, helper=True
    ),
    "videos create": Operation("videos.create", _given(prompt="A cat", model="sora-2", seconds="4"), "prompt"),
    "videos content": Operation("videos.download_content", _given(video_id="video_1"), "video_id", b"\x00\x00 film"),
    "vector search": Operation("vector_stores.search", _given(vector_store_id="vs_1", query="cat"), "query", PAGE),
    "post": Operation("post", lambda: {"body": _chat()(), "cast_to": dict}, "body", CHAT, positional=("/chat/completions",)),
    "post for text": Operation("post", lambda: {"body": _chat()(), "cast_to": str}, "body", CHAT, positional=("/proxy/x1/chat/completions?key=1",)),
    "post for nothing": Operation("post", lambda: {"body": [1], "cast_to": type(None)}, "body", CHAT, positional=("/responses",)),
    "post for a stream": Operation(
        "post", lambda: {"body": _chat(stream=True)(), "cast_to": dict, "stream": True, "stream_cls": "Stream"}, "body", CHAT, CHAT_EVENTS, ("/chat/completions",)
    ),
    "get": Operation("get", _given(cast_to=object), "cast_to", PAGE, positional=("/models",)),
    "request": Operation("request", dict, "cast_to", PAGE, positional=(dict,)),
}  # fmt: skip


PLAIN = frozenset(
    {
        *("beta chat parse", "beta chat helper", "stored chat", "responses input items", "responses count", "responses delete"),
        *("batches list", "files create", "models", "model", "assistants create", "threads create", "vector search", "get", "request"),
        *("images variation", "transcription as text", "post for text", "post for nothing"),
    }
)
"""What has no reader of its own, or the same as another: it meets every fourth input, and all of them on demand."""


def find(client: Any, path: str) -> Any:
    """Give a method of the client by its path; AttributeError when this version has none such."""
    for name in path.split("."):
        client = getattr(client, name)
    return client


def accepted(operation: Operation, client: Any) -> bool:
    """Tell whether the installed client has the method with all these arguments."""
    try:
        method = find(client, operation.path)
    except AttributeError:
        return False
    known = inspect.signature(method).parameters
    return set(operation.given()) <= set(known) or any(each.kind is each.VAR_KEYWORD for each in known.values())


def present() -> dict[str, Operation]:
    """Give the operations that the installed client has."""
    client = openai.OpenAI(api_key="k")
    return {name: operation for name, operation in ALL.items() if accepted(operation, client)}
