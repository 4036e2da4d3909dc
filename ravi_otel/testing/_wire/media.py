"""Answer /v1/images/*, /v1/audio/speech, /v1/audio/transcriptions and /v1/audio/translations."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from typing import Any

from ravi_otel.policy._usage import Usage
from ravi_otel.testing._script import Picture, Request, Sound, Text
from ravi_otel.testing._wire.counts import output_tokens, prompt_tokens, stated
from ravi_otel.testing._wire.payload import Payload, created, event, pieces, plain, stream

_PICTURE_TOKENS = 272
_HEARD_TOKENS = 100
_SOUND_TOKENS = 50
_MS = 1000
_BY_LENGTH = "whisper-1"


def picture(request: Request, given: Picture) -> Payload:
    """Give `n` pictures, whole, or as a stream of partial ones and then the whole."""
    asked = int(request.body.get("n") or 1)
    usage = stated(given.usage, lambda: (prompt_tokens(request.body.get("prompt")), _PICTURE_TOKENS * asked))
    inline = base64.b64encode(given.data).decode()
    look = {"background": "opaque", "output_format": "png", "quality": "low", "size": "1024x1024"}
    if request.streamed:
        return stream(_picture_events(request, given, look | {"b64_json": inline}, usage))
    entry = {"b64_json": inline} if given.url is None else {"url": given.url, "revised_prompt": "A picture."}
    told = {} if usage is None else {"usage": _as_image(usage)}
    return plain({"created": created(request.index), "data": [entry] * asked} | (look if given.url is None else {}) | told)


def _picture_events(request: Request, given: Picture, whole: Mapping[str, Any], usage: Any) -> Iterator[bytes]:
    kind = "image_edit" if request.path.endswith("/edits") else "image_generation"
    head = {**whole, "created_at": created(request.index)}
    for index in range(given.partials):
        yield _named(f"{kind}.partial_image", head | {"partial_image_index": index})
    yield _named(f"{kind}.completed", head | ({} if usage is None else {"usage": _as_image(usage)}))


def _named(kind: str, data: Mapping[str, Any]) -> bytes:
    return event({"type": kind, **data}, kind)


def _as_image(usage: Usage | Mapping[str, Any]) -> Mapping[str, Any]:
    if not isinstance(usage, Usage):
        return usage
    drawn = usage.image_output_tokens or usage.output_tokens
    return {
        "input_tokens": usage.input_tokens,
        "input_tokens_details": {"image_tokens": usage.image_input_tokens, "text_tokens": usage.input_tokens - usage.image_input_tokens},
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"image_tokens": drawn, "text_tokens": usage.output_tokens - drawn},
        "total_tokens": usage.total_tokens,
    }


def speech(request: Request, given: Sound) -> Payload:
    """Give the sound as it is, or as events when they were asked for."""
    if request.body.get("stream_format") != "sse":
        return Payload((given.data,), content_type="audio/mpeg")
    usage = stated(given.usage, lambda: (prompt_tokens(request.body.get("input")), _SOUND_TOKENS))
    half = -(-len(given.data) // 2) or 1
    parts = [given.data[at : at + half] for at in range(0, len(given.data), half)]
    deltas = [event({"type": "speech.audio.delta", "audio": base64.b64encode(part).decode()}) for part in parts]
    return stream([*deltas, event({"type": "speech.audio.done"} | ({} if usage is None else {"usage": _in_tokens(usage)}))])


def _in_tokens(usage: Usage | Mapping[str, Any]) -> Mapping[str, Any]:
    if not isinstance(usage, Usage):
        return usage
    return {"input_tokens": usage.input_tokens, "output_tokens": usage.output_tokens, "total_tokens": usage.total_tokens}


def transcript(request: Request, given: Text) -> Payload:
    """Give a text in the format that was asked for; whisper-1 tells seconds, the others tokens, plain formats nothing."""
    kind = request.body.get("response_format", "json")
    if kind in ("text", "srt", "vtt"):
        return Payload((_subtitles(str(kind), given.text).encode(),), content_type="text/plain; charset=utf-8")
    usage = _heard(stated(given.usage, lambda: (_HEARD_TOKENS, output_tokens(given))), seconds=request.model == _BY_LENGTH)
    told = {} if usage is None else {"usage": usage}
    if request.streamed:
        deltas = [event({"type": "transcript.text.delta", "delta": piece}) for piece in pieces(given.text, given.chunks)]
        return stream([*deltas, event({"type": "transcript.text.done", "text": given.text} | told)])
    body: dict[str, Any] = {"text": given.text}
    if kind == "verbose_json":
        task = "translate" if request.path.endswith("/translations") else "transcribe"
        body |= {"task": task, "language": "english", "duration": _seconds(given.usage), "segments": []}
    return plain({**body, **told, **given.extra})


def _subtitles(kind: str, text: str) -> str:
    if kind == "text":
        return f"{text}\n"
    head, comma = ("WEBVTT\n\n", ".") if kind == "vtt" else ("1\n", ",")
    return f"{head}00:00:00{comma}000 --> 00:00:05{comma}000\n{text}\n\n"


def _seconds(usage: Any) -> float:
    return usage.audio_ms / _MS if isinstance(usage, Usage) else 5.0


def _heard(usage: Usage | Mapping[str, Any] | None, *, seconds: bool) -> Mapping[str, Any] | None:
    if not isinstance(usage, Usage):
        return usage
    if seconds or usage.tokenless:
        return {"type": "duration", "seconds": _seconds(usage) or 5.0}
    sound = usage.audio_input_tokens or usage.input_tokens
    details = {"audio_tokens": sound, "text_tokens": usage.input_tokens - sound}
    return {"type": "tokens", "input_token_details": details, **_in_tokens(usage)}
