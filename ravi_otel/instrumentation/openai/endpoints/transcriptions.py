"""Read recordings that become text, in their own language or in English."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

from ravi_otel.instrumentation.formats.fields import MOST, count, get, text, tokens_in, tokens_of_weight, weight_of
from ravi_otel.instrumentation.formats.format import Collector, Request, WireFormat
from ravi_otel.instrumentation.openai.endpoints.attachments import attached, part_of, size_of
from ravi_otel.policy.content import Asked, Message, Part
from ravi_otel.policy.usage import Call, Reply, Usage

_BYTES_PER_SECOND: Final = 16_000
_UNKNOWN_S: Final = 60
_LONGEST_S: Final = 86_400
_HEARD_PER_S: Final = 10
_WRITTEN_PER_S: Final = 4
_FILE: Final = "file"
_MS: Final = 1_000


class Transcriptions(WireFormat):
    """Read `/audio/transcriptions` or `/audio/translations`, by its path's shape.

    How long a recording is, its request does not say: it is held at a second for 16,000 bytes (128 kbit/s) where its size
    is known without reading it, else at a minute. A second is 10 tokens of sound and 4 of text. An answer that is plain
    text or subtitles tells no usage: it stays unknown.
    """

    def __init__(self, shape: str) -> None:
        self._shape = shape

    def call(self, request: Request) -> Call:
        """See `WireFormat.call`."""
        body, host = request.body, request.host
        expected = _expected(request)
        parameters: dict[str, Any] = {"output_type": "text"}
        if body.get("temperature") is not None:
            parameters["temperature"] = body["temperature"]
        return Call(
            operation=self._shape,
            endpoint=self._shape,
            provider=host.provider,
            provider_assumed=host.assumed,
            model=text(body, "model"),
            turn=False,
            stream=request.stream,
            input_estimate=expected.input_tokens,
            server_address=host.address,
            server_port=host.port,
            parameters=parameters,
            expected=expected,
        )

    def reply(self, result: Any) -> Reply:
        """See `WireFormat.reply`."""
        if isinstance(result, str):
            return Reply(answers=1)
        return Reply(
            model=text(result, "model"),
            usage=usage(get(result, "usage"), get(result, "duration")),
            answers=int(text(result, "text") is not None),
        )

    def collector(self, call: Call) -> TranscriptionCollector:
        """See `WireFormat.collector`."""
        return TranscriptionCollector(call)

    def asked(self, request: Request) -> Asked | None:
        """See `WireFormat.asked`."""
        told = text(request.body, "prompt")
        parts: list[Part] = [part_of(file, "audio") for name, file in attached(request.files) if name == _FILE]
        if told is not None:
            parts.append({"type": "text", "content": told})
        return Asked(messages=[{"role": "user", "parts": parts}])

    def answered(self, result: Any) -> Sequence[Message]:
        """See `WireFormat.answered`."""
        said = result if isinstance(result, str) else text(result, "text")
        return () if said is None else [_message(said)]


def usage(found: Any, duration: Any = None) -> Usage | None:
    """Read a usage in tokens or in seconds, or what the recording's own length tells; None when neither does."""
    given, made = count(get(found, "input_tokens")), count(get(found, "output_tokens"))
    heard_ms = _milliseconds(get(found, "seconds")) or _milliseconds(duration)
    if found is None or given is None or made is None:
        return None if heard_ms is None else Usage(audio_ms=heard_ms)
    details = get(found, "input_token_details")
    sound = None if details is None else count(get(details, "audio_tokens"))
    return Usage(input_tokens=given, output_tokens=made, audio_input_tokens=min(sound or 0, given), audio_ms=heard_ms or 0)


def _milliseconds(seconds: Any) -> int | None:
    """Take a positive number of seconds, rounded up to a millisecond; None for every other claim."""
    if isinstance(seconds, str):  # how translations and older servers write it
        try:
            seconds = float(seconds)
        except ValueError:
            return None
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 < seconds <= MOST // _MS:
        return None
    return math.ceil(round(seconds * _MS, 3))


class TranscriptionCollector(Collector):
    """Follow a transcript as it is written."""

    __slots__ = ("_call", "_chunks", "_done", "_pieces", "_usage", "_weight", "_whole")

    def __init__(self, call: Call) -> None:
        self._call = call
        self._usage: Usage | None = None
        self._done = False
        self._weight = 0
        self._chunks = 0
        self._pieces: list[str] = []
        self._whole: str | None = None

    @property
    def complete(self) -> bool:
        """See `Collector.complete`."""
        return self._done

    @property
    def spoke(self) -> bool:
        """See `Collector.spoke`."""
        return self._weight > 0

    def add(self, event: Any) -> None:
        """See `Collector.add`."""
        delta = get(event, "delta")
        if isinstance(delta, str):
            self._chunks += bool(delta)
            self._weight += weight_of(delta)
            if self._call.content is not None:
                self._pieces.append(delta)
        elif get(event, "type") == "transcript.text.done":
            self._done = True
            self._whole = text(event, "text")
            self._usage = usage(get(event, "usage"))

    def reply(self) -> Reply:
        """See `Collector.reply`."""
        said = "".join(self._pieces) if self._whole is None else self._whole
        output = None if self._call.content is None else [_message(said)]
        return Reply(usage=self._usage or self._counted(), answers=int(self._done), output=output)

    def _counted(self) -> Usage | None:
        expected = self._call.expected
        if expected is None or not self._chunks:
            return None
        return Usage(
            input_tokens=expected.input_tokens,
            output_tokens=max(self._chunks, tokens_of_weight(self._weight)),
            audio_input_tokens=expected.audio_input_tokens,
            audio_ms=expected.audio_ms,
            source="estimated",
        )


def _expected(request: Request) -> Usage:
    size = next((size_of(file) for name, file in attached(request.files) if name == _FILE), None)
    seconds = _UNKNOWN_S if size is None else min(max(1, -(-size // _BYTES_PER_SECOND)), _LONGEST_S)
    return Usage(
        input_tokens=seconds * _HEARD_PER_S + tokens_in(request.body.get("prompt")),
        output_tokens=seconds * _WRITTEN_PER_S,
        audio_input_tokens=seconds * _HEARD_PER_S,
        audio_ms=seconds * _MS,
    )


def _message(said: str) -> Message:
    return {"role": "assistant", "parts": [{"type": "text", "content": said}], "finish_reason": "stop"}
