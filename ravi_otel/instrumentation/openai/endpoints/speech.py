"""Read speech that is made from text."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from ravi_otel.instrumentation.formats.fields import get, text, tokens_in, usage_of
from ravi_otel.instrumentation.formats.format import Collector, Request, WireFormat
from ravi_otel.policy.content import Asked, Message
from ravi_otel.policy.usage import Call, Reply, Usage

_TENTHS_PER_CHARACTER: Final = 15
"""Sound tokens of one character that is spoken, in tenths: 150 words a minute at 1,250 tokens a minute."""

_SLOWEST: Final = 0.25
_EVENTS: Final = "text/event-stream"
_DONE: Final = "speech.audio.done"
_MARK: Final = b'"speech.audio.done"'
_LONGEST_LINE: Final = 65_536


class Speech(WireFormat):
    """Read `/audio/speech`.

    It is expected at its characters, for models that are sold by them, and at 1.5 tokens of sound for each, more when it
    is spoken slowly, for the others. A plain answer is sound and tells no usage; one of events does at its end.
    """

    def call(self, request: Request) -> Call:
        """See `WireFormat.call`."""
        body, host = request.body, request.host
        expected = _expected(body)
        return Call(
            operation="audio.speech",
            endpoint="audio.speech",
            provider=host.provider,
            provider_assumed=host.assumed,
            model=text(body, "model"),
            turn=False,
            stream=request.stream or body.get("stream_format") == "sse",
            input_estimate=expected.input_tokens,
            server_address=host.address,
            server_port=host.port,
            parameters={"output_type": "speech"},
            expected=expected,
        )

    def reply(self, result: Any) -> Reply:
        """See `WireFormat.reply`."""
        found = get(result, "usage")
        return Reply(usage=usage(_last_usage(result) if found is None else found))

    def collector(self, call: Call) -> SpeechCollector:  # noqa: ARG002 - the protocol's
        """See `WireFormat.collector`."""
        return SpeechCollector()

    def asked(self, request: Request) -> Asked | None:
        """See `WireFormat.asked`."""
        told, spoken = text(request.body, "instructions"), text(request.body, "input")
        return Asked(
            system=[] if told is None else [{"type": "text", "content": told}],
            messages=[] if spoken is None else [{"role": "user", "parts": [{"type": "text", "content": spoken}]}],
        )

    def answered(self, result: Any) -> Sequence[Message]:
        """See `WireFormat.answered`."""
        content, mime = _body(result)
        if content is None or mime is None or mime.startswith(_EVENTS):
            return ()
        part = {"type": "blob", "modality": "audio", "mime_type": mime, "content": content}
        return [{"role": "assistant", "parts": [part], "finish_reason": "stop"}]


def usage(found: Any) -> Usage | None:
    """Read what the last event of a speech tells: all that comes out of it is sound."""
    told = usage_of(found, inputs="input_tokens", outputs="output_tokens", input_details="-", output_details="-")
    if told is not None:
        told.audio_output_tokens = told.output_tokens
    return told


class SpeechCollector(Collector):
    """Follow a speech that comes as events."""

    __slots__ = ("_done", "_heard", "_usage")

    def __init__(self) -> None:
        self._usage: Usage | None = None
        self._done = False
        self._heard = False

    @property
    def complete(self) -> bool:
        """See `Collector.complete`."""
        return self._done

    @property
    def spoke(self) -> bool:
        """See `Collector.spoke`."""
        return self._heard

    def add(self, event: Any) -> None:
        """See `Collector.add`."""
        self._heard = self._heard or isinstance(get(event, "audio"), str)
        if get(event, "type") == _DONE:
            self._done = True
            self._usage = usage(get(event, "usage"))

    def reply(self) -> Reply:
        """See `Collector.reply`."""
        return Reply(usage=self._usage)


def _expected(body: Mapping[str, Any]) -> Usage:
    spoken = text(body, "input") or ""
    speed = body.get("speed")
    slow = max(speed, _SLOWEST) if isinstance(speed, (int, float)) and not isinstance(speed, bool) and 0 < speed < 1 else 1
    made = int(-(-len(spoken) * _TENTHS_PER_CHARACTER // 10) / slow)
    return Usage(
        input_tokens=tokens_in(spoken) + tokens_in(body.get("instructions")),
        output_tokens=made,
        audio_output_tokens=made,
        characters=len(spoken),
    )


def _body(result: Any) -> tuple[bytes | None, str | None]:
    """Give the bytes and the type of an answer that was read; asking one that was not raises, which is None."""
    response = get(result, "response")
    headers = get(response, "headers")
    content = get(response, "content")
    mime = None if headers is None else headers.get("content-type")
    return (content if isinstance(content, bytes) else None), (mime if isinstance(mime, str) else None)


def _last_usage(result: Any) -> Any:
    """Find the usage in the last event of an answer whose events the client leaves as bytes."""
    content, mime = _body(result)
    at = -1 if content is None or mime is None or not mime.startswith(_EVENTS) else content.rfind(_MARK)
    if content is None or at < 0:
        return None
    start = content.rfind(b"\n", 0, at) + 1
    line = content[start : start + _LONGEST_LINE].split(b"\n", 1)[0]
    try:
        return get(json.loads(line.removeprefix(b"data:")), "usage")
    except (ValueError, RecursionError):
        return None
