"""Describe, frozen, what the scripted server answers, and what it was asked."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Literal

from ravi_otel.errors import ConfigurationError
from ravi_otel.policy._usage import Usage

UsageSpec = Usage | tuple[int, int] | Mapping[str, Any] | Literal["missing"] | None
"""What an answer says it used.

None: counted from the request and the answer. `(input, output)` or a `Usage`: rendered in the endpoint's own shape.
A mapping: sent as it is, however hostile. "missing": nothing is said.

The count: input is `ceil(bytes of message text / 4) + 4 for each message + 3`, where the text of a message is its
content, its tool calls' names and arguments and its tool output, and `instructions` is one message; output is
`ceil(bytes of text / 4)` for each choice, tool calls counted by name and arguments. Tool definitions and
`previous_response_id` count nothing; embeddings and legacy completions count `ceil(bytes / 4)` for each input.
"""

Arguments = Mapping[str, Any] | str

FINAL = {"x-should-retry": "false"}
"""The header that keeps the openai client from trying again."""


@dataclass(frozen=True, slots=True)
class Request:
    """Show one request as it arrived.

    `index` counts from 0 in order of arrival, `path` has no query, `headers` have lower-case names, `body` is the JSON
    object that was sent ({} when there was none), `raw` the bytes of it, `arrived_ns` is on the monotonic clock.
    """

    index: int
    method: str
    path: str
    query: str
    headers: Mapping[str, str]
    body: Mapping[str, Any]
    raw: bytes
    arrived_ns: int

    @property
    def model(self) -> str | None:
        """Give the model that was asked for, if it is a name at all."""
        model = self.body.get("model")
        return model if isinstance(model, str) else None

    @property
    def streamed(self) -> bool:
        """Tell whether a stream was asked for."""
        return self.body.get("stream") is True


@dataclass(frozen=True, slots=True)
class Answer:
    """Be what the server does with one request.

    `think_s` passes before the first byte, `chunk_s` between two events of a stream; `headers` are added to the usual
    ones and win over them.
    """

    _: KW_ONLY
    think_s: float = 0.0
    chunk_s: float = 0.0
    headers: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class Generated(Answer):
    """Be an answer a model wrote.

    `usage`: see `UsageSpec`. `model` is the name that answers, the requested one unless given. `finish_reason` goes
    out as it is; on Responses "length" and "content_filter" make the response incomplete, "failed" a failed one.
    `extra` is merged into the top level of the body and of each chunk (`service_tier`, `system_fingerprint`, …).
    """

    _: KW_ONLY
    usage: UsageSpec = None
    model: str | None = None
    finish_reason: str = "stop"
    extra: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True)
class Text(Generated):
    """Answer with text, in every choice that was asked for.

    `chunks` says how a stream is cut: a number of pieces, the pieces themselves, or None for one a word.
    """

    text: str
    _: KW_ONLY
    chunks: int | Sequence[str] | None = None


@dataclass(frozen=True, slots=True)
class ToolCalls(Generated):
    """Answer with parallel tool calls, each `(name, arguments)`, after `text` if there is some.

    Arguments are a mapping, sent as JSON, or a string, sent as it is, which is how to send broken JSON.
    """

    calls: Sequence[tuple[str, Arguments]]
    _: KW_ONLY
    text: str | None = None
    finish_reason: str = "tool_calls"

    def rendered(self) -> tuple[tuple[str, str], ...]:
        """Give each call as name and JSON text."""
        return tuple((name, given if isinstance(given, str) else json.dumps(given)) for name, given in self.calls)


@dataclass(frozen=True, slots=True)
class Refusal(Generated):
    """Answer with a refusal, which has a field of its own in the API."""

    text: str


@dataclass(frozen=True, slots=True)
class Vector(Answer):
    """Answer embeddings with a unit vector of `dim` numbers for each input, the same for the same text.

    `dimensions` in the request wins over `dim`. `usage` as in `UsageSpec`; of a pair only the input counts.
    """

    dim: int = 8
    _: KW_ONLY
    usage: UsageSpec = None
    model: str | None = None


@dataclass(frozen=True, slots=True)
class Picture(Answer):
    """Answer with `data` as a picture for each that was asked for; with `url`, as the older models do, with its address.

    A stream has so many `partials` before the whole. `usage` as in `UsageSpec`: by default the prompt, and 272 for each.
    """

    data: bytes = b"\x89PNG\r\n\x1a\n"
    _: KW_ONLY
    partials: int = 0
    url: str | None = None
    usage: UsageSpec = None


@dataclass(frozen=True, slots=True)
class Sound(Answer):
    """Answer speech with `data`, and events, where they are asked for, with `usage` at their end (by default 50 out)."""

    data: bytes = b"ID3 a very short song"
    _: KW_ONLY
    usage: UsageSpec = None


@dataclass(frozen=True, slots=True)
class Failure(Answer):
    """Answer with an error in OpenAI's shape; `retry_after_s` is sent as the `retry-after` header.

    `type` follows from `status` unless given.
    """

    status: int = 500
    message: str = "The server had an error while processing your request."
    code: str | None = None
    _: KW_ONLY
    type: str | None = None
    param: str | None = None
    retry_after_s: float | None = None

    def __post_init__(self) -> None:
        """Refuse what HTTP cannot carry."""
        _check_status(self.status, "Failure")


@dataclass(frozen=True, slots=True)
class Raw(Answer):
    """Answer with these very bytes; `chunks` pieces of about equal size."""

    body: bytes = b""
    status: int = 200
    _: KW_ONLY
    content_type: str = "application/json"
    chunks: int = 1

    def __post_init__(self) -> None:
        """Refuse what HTTP cannot carry."""
        _check_status(self.status, "Raw")


@dataclass(frozen=True, slots=True)
class Disconnect(Answer):
    """Reset the connection in the middle of `answer`: after so many events of a stream, or before any byte with 0.

    An answer that is no stream is cut in the middle of its body when `after_chunks` is more than 0. `think_s` and
    `chunk_s` are those of this object.
    """

    after_chunks: int = 0
    answer: Answer = field(default_factory=lambda: Text("This sentence is never finished, because the line goes dead."))


@dataclass(frozen=True, slots=True)
class Malformed(Answer):
    """Put `data` into the stream of `answer` as one event, after so many events; a plain answer becomes `data` whole.

    JSON in `data` is an event like any other: `{"error": {"message": "overloaded"}}` is how the API fails mid-stream.
    With `stop`, the stream ends there, without `[DONE]`.
    """

    data: str = '{"choices": [{"delta": '
    after_chunks: int = 1
    answer: Answer = field(default_factory=lambda: Text("This sentence has a hole in it."))
    _: KW_ONLY
    stop: bool = False


Script = Answer | str | Iterable[Answer | str] | Callable[[Request], Answer | str]
"""One answer for ever, answers in order, or a function of the request; a string is `Text`."""


def read(script: Script) -> Callable[[Request], Answer]:
    """Turn a script into one function of the request; a script that is none is a ConfigurationError."""
    if isinstance(script, (Answer, str)):
        return lambda _: _answer(script)
    if callable(script):
        return lambda request: _answer(script(request))
    if isinstance(script, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]  # callers without a type checker
        answers = _numbered(iter(script))
        return lambda _: _answer(next(answers))
    msg = f"ScriptedLLM(script={script!r}) is no script: give an Answer, an iterable of them, or a function of the Request."
    raise ConfigurationError(msg)


def _numbered(answers: Iterator[Answer | str]) -> Iterator[Answer | str]:
    """Give the answers, then for ever a failure that the openai client does not retry."""
    count = 0
    for given in answers:
        count += 1
        yield given
    message = f"The script has {count} answers and one more was asked for: add an answer, or find out who calls again."
    while True:
        yield Failure(500, message, "script_exhausted", headers=FINAL)


def _answer(given: object) -> Answer:
    if isinstance(given, Answer):
        return given
    if isinstance(given, str):
        return Text(given)
    msg = f"A script answered {given!r}, which is no Answer: use Text, ToolCalls, Refusal, Vector, Failure, Raw, Disconnect or Malformed."
    raise ConfigurationError(msg)


def _check_status(status: int, kind: str) -> None:
    if not 200 <= status <= 599:  # noqa: PLR2004 - the range of final statuses in HTTP
        msg = f"{kind}(status={status}) is no final HTTP status: use 200 to 599."
        raise ConfigurationError(msg)
