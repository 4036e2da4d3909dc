"""What is no chat in OpenAI's API: embeddings, moderations, pictures, speech, recordings and videos, by their paths in `MEDIA`.

None of them is a turn of a conversation. What a picture, a speech or a recording is expected to use is held before it is asked for.
"""

from __future__ import annotations

import io
import json
import math
import mimetypes
import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, TypeGuard, cast

from ravi_otel._instrumentation.formats.content import blob, bound, contents, link, message_of, words
from ravi_otel._instrumentation.formats.fields import (
    MOST,
    as_list,
    as_mapping,
    as_text,
    count,
    get,
    items,
    text,
    tokens_in,
    usage_of,
)
from ravi_otel._instrumentation.formats.format import MOST_TEXT, Collector, Request, TextCollector, WireFormat
from ravi_otel.policy._usage import Asked, Call, Message, Part, Reply, Usage, added

# -- embeddings, moderations, videos ------------------------------------------------------------------------------------


class Embeddings(WireFormat):
    """Read `/embeddings`, which make no tokens."""

    def call(self, request: Request) -> Call:
        """See `WireFormat.call`."""
        encoding = as_text(request.body.get("encoding_format"))
        return request.describe(
            "embeddings",
            turn=False,
            size=partial(tokens_in, request.body.get("input")),
            parameters={} if encoding is None else {"encoding_format": encoding},
        )

    def reply(self, result: Any) -> Reply:
        """See `WireFormat.reply`."""
        told = as_mapping(result)
        used = usage_of(told.get("usage"), inputs="prompt_tokens", outputs=None, input_details="-", output_details="-")
        return Reply(model=as_text(told.get("model")), usage=used)

    def bound(self, request: Request, call: Call) -> None:
        """See `WireFormat.bound`; there is no output."""
        call.output_cap = 0
        bound(request, call, None)


class Moderations(WireFormat):
    """Read `/moderations`, which judge and are free: a request of no tokens, never refused for want of a price."""

    def call(self, request: Request) -> Call:
        """See `WireFormat.call`."""
        return request.describe("moderations", turn=False, unread=True)

    def reply(self, result: Any) -> Reply:
        """See `WireFormat.reply`."""
        told = as_mapping(result)
        return Reply(id=as_text(told.get("id")), model=as_text(told.get("model")), answers=len(as_list(told.get("results"))))

    def bound(self, request: Request, call: Call) -> None:  # noqa: ARG002 - the format's
        """See `WireFormat.bound`; nothing is counted."""
        call.output_cap = call.input_bound = 0

    def asked(self, request: Request) -> Asked | None:
        """See `WireFormat.asked`."""
        return _asked([part for part in contents(request.body.get("input")) if len(part) > 1])  # a part that says nothing is none


class _Shaped(WireFormat):
    """Read one of several paths that are alike, and called by their shape."""

    def __init__(self, shape: str) -> None:
        self._shape = shape


class Videos(_Shaped):
    """Read a POST to `/videos`, or one that changes or lengthens a video, by its path's shape.

    Videos are sold by the second and told in no tokens: their usage and their price are unknown, and a cost limit
    refuses them unless it is told to let the unpriced through. Looks at one and its download ask no model.
    """

    def call(self, request: Request) -> Call:
        """See `WireFormat.call`."""
        estimate = tokens_in(request.body.get("prompt"))
        return request.describe(self._shape, turn=False, size=estimate, parameters={"output_type": "video"})

    def reply(self, result: Any) -> Reply:
        """See `WireFormat.reply`."""
        told = as_mapping(result)
        failed = told.get("status") == "failed"
        return Reply(
            id=as_text(told.get("id")),
            model=as_text(told.get("model")),
            answers=1,
            error_type=(text(told.get("error"), "code") or "video_failed") if failed else None,
        )

    def asked(self, request: Request) -> Asked | None:
        """See `WireFormat.asked`."""
        return _asked([*contents(request.body.get("prompt")), *_files(request, "image", _REFERENCE)])


def _asked(parts: list[Part]) -> Asked | None:
    return Asked(messages=[message_of("user", parts)]) if parts else None


def _files(request: Request, modality: str, names: frozenset[str]) -> list[Part]:
    return [part_of(file, modality) for name, file in attached(request.files) if name in names]


# -- pictures -----------------------------------------------------------------------------------------------------------

_SQUARE: Final = 1024 * 1024
_SQUARE_TOKENS: Final = {"low": 272, "medium": 1_056, "high": 4_160, "xhigh": 8_320, "max": 16_640}
_OBLONG_TOKENS: Final = {"low": 408, "medium": 1_584, "high": 6_240, "xhigh": 12_480, "max": 24_960}
"""Tokens of a picture of 1024x1024, and of 1536x1024 or any size nobody stated, by its quality."""

_UNSTATED: Final = "high"
_PARTIAL_TOKENS: Final = 100
_GIVEN_TOKENS: Final = {"low": 500, "high": 5_000}
"""What a picture that is sent is taken for, by `input_fidelity`."""

_SIZE: Final = re.compile(r"(\d{1,5})x(\d{1,5})")
_MOST_PICTURES: Final = 128
_PARTIAL: Final = ".partial_image"
_COMPLETED: Final = ".completed"
_DRAWN: Final = frozenset({"image", "image[]", "mask"})
_REFERENCE: Final = frozenset({"input_reference"})


class Images(_Shaped):
    """Read `/images/generations`, `/images/edits` or `/images/variations`, by its path's shape.

    A picture is expected at the tokens the vendor's guide tells for its size and quality: at 1024x1024 272 (low), 1,056
    (medium) and 4,160 (high), half as much again for an oblong one, other sizes by their area; "auto" is held as high,
    the newer xhigh and max as twice and four times that; 100 more for each partial picture. One that is sent is 500, or
    5,000 at high fidelity. Models that are sold by the picture tell no tokens and have no price here.
    """

    def call(self, request: Request) -> Call:
        """See `WireFormat.call`."""
        choices = max(1, count(request.body.get("n")) or 1)
        expected = _drawn(request.body, request.files, min(choices, _MOST_PICTURES))
        return request.describe(
            self._shape,
            turn=False,
            size=expected.input_tokens,
            choices=choices,
            parameters={"output_type": "image"},
            expected=expected,
        )

    def reply(self, result: Any) -> Reply:
        """See `WireFormat.reply`."""
        told = as_mapping(result)
        return Reply(model=as_text(told.get("model")), usage=image_usage(told.get("usage")), answers=len(as_list(told.get("data"))))

    def collector(self, call: Call) -> ImagesCollector:
        """See `WireFormat.collector`."""
        return ImagesCollector(call)

    def asked(self, request: Request) -> Asked | None:
        """See `WireFormat.asked`."""
        return _asked([*contents(request.body.get("prompt")), *_files(request, "image", _DRAWN)])

    def answered(self, result: Any) -> Sequence[Message]:
        """See `WireFormat.answered`."""
        mime = _picture_mime(result)
        return [message_of("assistant", [part for picture in items(result, "data") for part in _picture_parts(picture, mime)], "stop")]


def image_usage(found: Any) -> Usage | None:
    """Read a picture's usage; what is made is taken for pictures where nobody tells it apart."""
    told = _usage(found, "input_tokens_details", "output_tokens_details")
    if told is None or told.total_only:
        return told
    of_input, of_output = get(found, "input_tokens_details"), get(found, "output_tokens_details")
    if of_output is None or count(get(of_output, "image_tokens")) is None:
        told.image_output_tokens = told.output_tokens
    cached = get(of_input, "cached_tokens_details")
    if cached is not None:
        told.cached_image_tokens = min(count(get(cached, "image_tokens")) or 0, told.cached_input_tokens, told.image_input_tokens)
    return told


def _usage(found: Any, input_details: str = "-", output_details: str = "-") -> Usage | None:
    return usage_of(found, inputs="input_tokens", outputs="output_tokens", input_details=input_details, output_details=output_details)


class ImagesCollector(Collector):
    """Follow a stream of pictures: sketches first, then each whole one, with its own usage."""

    __slots__ = ("_call", "_made", "_partials", "_parts", "_usage")

    def __init__(self, call: Call) -> None:
        self._call = call
        self._usage: Usage | None = None
        self._made = 0
        self._partials = 0
        self._parts: list[Part] = []

    @property
    def complete(self) -> bool:
        """See `Collector.complete`."""
        return self._made >= self._call.choices

    @property
    def spoke(self) -> bool:
        """See `Collector.spoke`."""
        return self._made + self._partials > 0

    def add(self, event: Any) -> None:
        """See `Collector.add`."""
        kind = text(event, "type") or ""
        if kind.endswith(_PARTIAL):
            self._partials += 1
        elif kind.endswith(_COMPLETED):
            self._made += 1
            self._usage = _sum(self._usage, image_usage(get(event, "usage")))
            if self._call.content is not None:
                self._parts.extend(_picture_parts(event, _picture_mime(event)))

    def reply(self) -> Reply:
        """See `Collector.reply`."""
        output = None if self._call.content is None else [message_of("assistant", self._parts, "stop")]
        return Reply(usage=self._usage or self._cut_off(), answers=self._made, output=output)

    def _cut_off(self) -> Usage | None:
        """Estimate a picture that was begun: the vendor draws it to its end whoever still looks."""
        expected = self._call.expected
        return None if expected is None or not self.spoke or self._made else replace(expected, source="estimated")


def _sum(one: Usage | None, other: Usage | None) -> Usage | None:
    if one is None or other is None:
        return one or other
    if one.total_only or other.total_only:  # then the parts of the sum are not told either
        return Usage(total_tokens=min(one.total_tokens + other.total_tokens, MOST))
    return added((one, other))


def _drawn(body: Mapping[str, Any], files: Any, pictures: int) -> Usage:
    sent = sum(name in _DRAWN for name, _ in attached(files))
    drawn = sent * _GIVEN_TOKENS["high" if body.get("input_fidelity") == "high" else "low"]
    made = pictures * (_tokens_of(body.get("size"), body.get("quality")) + _PARTIAL_TOKENS * min(count(body.get("partial_images")) or 0, 3))
    return Usage(
        input_tokens=tokens_in(body.get("prompt")) + drawn,
        output_tokens=made,
        image_input_tokens=drawn,
        image_output_tokens=made,
    )


def _tokens_of(size: Any, quality: Any) -> int:
    known = quality if isinstance(quality, str) and quality in _SQUARE_TOKENS else _UNSTATED
    sides = _SIZE.fullmatch(size) if isinstance(size, str) else None
    if sides is None:
        return _OBLONG_TOKENS[known]
    area = int(sides[1]) * int(sides[2])
    return -(-_SQUARE_TOKENS[known] * area // _SQUARE)


def _picture_parts(picture: Any, mime: str | None) -> list[Part]:
    parts, inline, address = contents(get(picture, "revised_prompt")), text(picture, "b64_json"), text(picture, "url")
    if inline is not None:
        parts.append(blob("image", mime, inline))
    return parts if address is None else [*parts, link("image", mime, address)]


def _picture_mime(result: Any) -> str | None:
    named = text(result, "output_format")
    return None if named is None else f"image/{'svg+xml' if named == 'svg' else named}"


# -- speech -------------------------------------------------------------------------------------------------------------

_TENTHS_PER_CHARACTER: Final = 15
"""Sound tokens of one character that is spoken, in tenths: 150 words a minute at 1,250 tokens a minute."""

_SLOWEST: Final = 0.25
_EVENT_STREAM: Final = "text/event-stream"
_SPEECH_DONE: Final = "speech.audio.done"
_SPEECH_MARK: Final = b'"speech.audio.done"'
_LONGEST_LINE: Final = 65_536


class Speech(WireFormat):
    """Read `/audio/speech`.

    It is expected at its characters, for models that are sold by them, and at 1.5 tokens of sound for each, more when it
    is spoken slowly, for the others. A plain answer is sound and tells no usage; one of events does at its end.
    """

    def call(self, request: Request) -> Call:
        """See `WireFormat.call`."""
        expected = _spoken(request.body)
        return request.describe(
            "audio.speech",
            turn=False,
            stream=request.stream or request.body.get("stream_format") == "sse",
            size=expected.input_tokens,
            parameters={"output_type": "speech"},
            expected=expected,
        )

    def reply(self, result: Any) -> Reply:
        """See `WireFormat.reply`."""
        found = get(result, "usage")
        return Reply(usage=speech_usage(_last_usage(result) if found is None else found))

    def collector(self, call: Call) -> SpeechCollector:  # noqa: ARG002 - the protocol's
        """See `WireFormat.collector`."""
        return SpeechCollector()

    def asked(self, request: Request) -> Asked | None:
        """See `WireFormat.asked`."""
        spoken = contents(request.body.get("input"))
        return Asked(system=contents(request.body.get("instructions")), messages=[message_of("user", spoken)] if spoken else [])

    def answered(self, result: Any) -> Sequence[Message]:
        """See `WireFormat.answered`."""
        content, mime = _sound_of(result)
        if content is None or mime is None or mime.startswith(_EVENT_STREAM):
            return ()
        return [message_of("assistant", [blob("audio", mime, content)], "stop")]


def speech_usage(found: Any) -> Usage | None:
    """Read what the last event of a speech tells: all that comes out of it is sound."""
    told = _usage(found)
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
        if get(event, "type") == _SPEECH_DONE:
            self._done = True
            self._usage = speech_usage(get(event, "usage"))

    def reply(self) -> Reply:
        """See `Collector.reply`."""
        return Reply(usage=self._usage)


def _spoken(body: Mapping[str, Any]) -> Usage:
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


def _sound_of(result: Any) -> tuple[bytes | None, str | None]:
    """Return the bytes and the type of an answer that was read; asking one that was not raises, which is None."""
    response = get(result, "response")
    headers = get(response, "headers")
    content = get(response, "content")
    mime = None if headers is None else headers.get("content-type")
    return (content if isinstance(content, bytes) else None), (mime if isinstance(mime, str) else None)


def _last_usage(result: Any) -> Any:
    """Find the usage in the last event of an answer whose events the client leaves as bytes."""
    content, mime = _sound_of(result)
    at = -1 if content is None or mime is None or not mime.startswith(_EVENT_STREAM) else content.rfind(_SPEECH_MARK)
    if content is None or at < 0:
        return None
    start = content.rfind(b"\n", 0, at) + 1
    line = content[start : start + _LONGEST_LINE].split(b"\n", 1)[0]
    try:
        return get(json.loads(line.removeprefix(b"data:")), "usage")
    except (ValueError, RecursionError):
        return None


# -- recordings ---------------------------------------------------------------------------------------------------------

_BYTES_PER_SECOND: Final = 16_000
_UNKNOWN_S: Final = 60
_LONGEST_S: Final = 86_400
_HEARD_PER_S: Final = 10
_WRITTEN_PER_S: Final = 4
_RECORDING: Final = frozenset({"file"})
_MS: Final = 1_000


class Transcriptions(_Shaped):
    """Read `/audio/transcriptions` or `/audio/translations`, by its path's shape.

    How long a recording is, its request does not say: it is held at a second for 16,000 bytes (128 kbit/s) where its size
    is known without reading it, else at a minute. A second is 10 tokens of sound and 4 of text. An answer that is plain
    text or subtitles tells no usage: it stays unknown.
    """

    def call(self, request: Request) -> Call:
        """See `WireFormat.call`."""
        body = request.body
        expected = _heard(request)
        parameters: dict[str, Any] = {"output_type": "text"}
        if body.get("temperature") is not None:
            parameters["temperature"] = body["temperature"]
        return request.describe(self._shape, turn=False, size=expected.input_tokens, parameters=parameters, expected=expected)

    def reply(self, result: Any) -> Reply:
        """See `WireFormat.reply`."""
        if isinstance(result, str):
            return Reply(answers=1)
        told = as_mapping(result)
        return Reply(
            model=as_text(told.get("model")),
            usage=transcript_usage(told.get("usage"), told.get("duration")),
            answers=int(as_text(told.get("text")) is not None),
        )

    def collector(self, call: Call) -> TranscriptionCollector:
        """See `WireFormat.collector`."""
        return TranscriptionCollector(call)

    def asked(self, request: Request) -> Asked | None:
        """See `WireFormat.asked`."""
        return _asked([*_files(request, "audio", _RECORDING), *contents(request.body.get("prompt"))])

    def answered(self, result: Any) -> Sequence[Message]:
        """See `WireFormat.answered`."""
        said = result if isinstance(result, str) else text(result, "text")
        return () if said is None else [message_of("assistant", [words(said)], "stop")]


def transcript_usage(found: Any, duration: Any = None) -> Usage | None:
    """Read a usage in tokens or in seconds, or what the recording's own length tells; None when neither does."""
    told = _usage(found, "input_token_details", "output_token_details")
    heard_ms = _milliseconds(get(found, "seconds")) or _milliseconds(duration)
    if told is None:
        return None if heard_ms is None else Usage(audio_ms=heard_ms)
    told.audio_ms = heard_ms or 0
    return told


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


class TranscriptionCollector(TextCollector):
    """Follow a transcript as it is written."""

    __slots__ = ("_usage", "_whole")

    def __init__(self, call: Call) -> None:
        super().__init__(call)
        self._usage: Usage | None = None
        self._whole: Any = None  # the event that ends it
        if call.content is not None:
            self.keep_text(MOST_TEXT)

    @property
    def complete(self) -> bool:
        """See `Collector.complete`."""
        return self._whole is not None

    def add(self, event: Any) -> bool | None:
        """See `Collector.add`."""
        delta = get(event, "delta")
        if isinstance(delta, str):
            return self._add_text(delta)
        if get(event, "type") == "transcript.text.done":
            self._whole, self._usage = event, transcript_usage(get(event, "usage"))
        return None

    def reply(self) -> Reply:
        """See `Collector.reply`."""
        said = text(self._whole, "text")
        output = None if self._call.content is None else [message_of("assistant", [words(self.text if said is None else said)], "stop")]
        return Reply(usage=self._usage or self._heard_of(), answers=int(self.complete), output=output)

    def _heard_of(self) -> Usage | None:
        expected, made = self._call.expected, self.produced
        return replace(expected, output_tokens=made, total_tokens=-1, source="estimated") if expected is not None and made else None


def _heard(request: Request) -> Usage:
    size = next((size_of(file) for name, file in attached(request.files) if name in _RECORDING), None)
    seconds = _UNKNOWN_S if size is None else min(max(1, -(-size // _BYTES_PER_SECOND)), _LONGEST_S)
    return Usage(
        input_tokens=seconds * _HEARD_PER_S + tokens_in(request.body.get("prompt")),
        output_tokens=seconds * _WRITTEN_PER_S,
        audio_input_tokens=seconds * _HEARD_PER_S,
        audio_ms=seconds * _MS,
    )


# -- files of a form, looked at from outside: what is sent is never read, moved or consumed -----------------------------

_MOST_FILES: Final = 64
_CONTENT: Final = 1
_MIME: Final = 2


def attached(files: Any) -> Iterator[tuple[str, Any]]:
    """List the form's files, (field, file), where they stand in a list or a mapping; anything else is the caller's to read."""
    entries: Any = files
    if isinstance(files, dict):
        entries = entries.items()
    elif not isinstance(files, (list, tuple)):
        return
    for entry in list[Any](entries)[:_MOST_FILES]:
        if _is_named(entry) and isinstance(entry[0], str):
            yield entry[0], entry[1]


def size_of(file: Any) -> int | None:
    """Return a file's size in bytes where it is known without reading it, else None."""
    content = _content(file)
    if isinstance(content, (bytes, bytearray)):
        return len(content)
    try:
        # These exact classes alone: what somebody else's object does when it is asked, nobody knows.
        if type(content) is io.BytesIO:
            return content.getbuffer().nbytes
        if type(content) in (io.BufferedReader, io.FileIO):
            found = os.fstat(content.fileno())
            return found.st_size if stat.S_ISREG(found.st_mode) else None
    except (OSError, ValueError):  # closed, or no real file
        pass
    return None


def part_of(file: Any, modality: str) -> Part:
    """Write a file down: its bytes where the request holds them, else that there was one, and its size where known."""
    content = _content(file)
    if isinstance(content, (bytes, bytearray)):
        return {"type": "blob", "modality": modality, "mime_type": _mime(file), "content": bytes(content)}
    part: Part = {"type": "upload", "modality": modality, "mime_type": _mime(file)}
    size = size_of(file)
    if size is not None:
        part["size"] = size
    return part


def _content(file: Any) -> Any:
    return file[_CONTENT] if _is_named(file) else file


def _mime(file: Any) -> str | None:
    if not _is_named(file):
        return None
    if len(file) > _MIME and isinstance(file[_MIME], str):
        return file[_MIME]
    return mimetypes.guess_type(file[0])[0] if isinstance(file[0], str) else None


def _is_named(file: object) -> TypeGuard[tuple[Any, ...]]:
    """Tell a tuple whose first two places are a name and what it stands for."""
    return isinstance(file, tuple) and len(cast("Sequence[Any]", file)) > _CONTENT


# -- the table ----------------------------------------------------------------------------------------------------------

MEDIA: Final[Mapping[tuple[str, ...], WireFormat]] = {
    ("embeddings",): Embeddings(),
    ("moderations",): Moderations(),
    **{("images", name): Images(f"images.{name}") for name in ("generations", "edits", "variations")},
    ("audio", "speech"): Speech(),
    **{("audio", name): Transcriptions(f"audio.{name}") for name in ("transcriptions", "translations")},
    ("videos",): Videos("videos"),
    **{("videos", name): Videos(f"videos.{name}") for name in ("edits", "extensions")},
    ("remix",): Videos("videos.remix"),
}
"""The formats by how their paths end."""
