"""Read pictures: made from words, changed, and varied."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from ravi_otel.instrumentation.formats.fields import count, get, items, text, tokens_in
from ravi_otel.instrumentation.formats.format import Collector, Request, WireFormat
from ravi_otel.instrumentation.openai.endpoints.attachments import attached, part_of
from ravi_otel.policy.content import Asked, Message, Part
from ravi_otel.policy.usage import Call, Reply, Usage, added

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


class Images(WireFormat):
    """Read `/images/generations`, `/images/edits` or `/images/variations`, by its path's shape.

    A picture is expected at the tokens the vendor's guide tells for its size and quality: at 1024x1024 272 (low), 1,056
    (medium) and 4,160 (high), half as much again for an oblong one, other sizes by their area; "auto" is held as high,
    the newer xhigh and max as twice and four times that; 100 more for each partial picture. One that is sent is 500, or
    5,000 at high fidelity. Models that are sold by the picture tell no tokens and have no price here.
    """

    def __init__(self, shape: str) -> None:
        self._shape = shape

    def call(self, request: Request) -> Call:
        """See `WireFormat.call`."""
        body, host = request.body, request.host
        pictures = min(max(1, count(body.get("n")) or 1), _MOST_PICTURES)
        expected = _expected(body, request.files, pictures)
        return Call(
            operation=self._shape,
            endpoint=self._shape,
            provider=host.provider,
            provider_assumed=host.assumed,
            model=text(body, "model"),
            turn=False,
            stream=request.stream,
            input_estimate=expected.input_tokens,
            choices=max(1, count(body.get("n")) or 1),
            server_address=host.address,
            server_port=host.port,
            parameters={"output_type": "image"},
            expected=expected,
        )

    def reply(self, result: Any) -> Reply:
        """See `WireFormat.reply`."""
        return Reply(model=text(result, "model"), usage=usage(get(result, "usage")), answers=len(items(result, "data")))

    def collector(self, call: Call) -> ImagesCollector:
        """See `WireFormat.collector`."""
        return ImagesCollector(call)

    def asked(self, request: Request) -> Asked | None:
        """See `WireFormat.asked`."""
        prompt = text(request.body, "prompt")
        parts: list[Part] = [] if prompt is None else [{"type": "text", "content": prompt}]
        parts.extend(part_of(file, "image") for name, file in attached(request.files) if name in _DRAWN)
        return Asked(messages=[{"role": "user", "parts": parts}])

    def answered(self, result: Any) -> Sequence[Message]:
        """See `WireFormat.answered`."""
        mime = _mime(result)
        parts = [part for picture in items(result, "data") for part in _parts(picture, mime)]
        return [_message(parts)]


def usage(found: Any) -> Usage | None:
    """Read a picture's usage; what is made is taken for pictures where nobody tells it apart."""
    given, made = count(get(found, "input_tokens")), count(get(found, "output_tokens"))
    if found is None or given is None or made is None:
        return None
    of_input, of_output = get(found, "input_tokens_details"), get(found, "output_tokens_details")
    drawn = None if of_output is None else count(get(of_output, "image_tokens"))
    cached = _at_most(of_input, "cached_tokens", given)
    pictures = _at_most(of_input, "image_tokens", given)
    return Usage(
        input_tokens=given,
        output_tokens=made,
        cached_input_tokens=cached,
        image_input_tokens=pictures,
        cached_image_tokens=_at_most(get(of_input, "cached_tokens_details"), "image_tokens", min(cached, pictures)),
        image_output_tokens=made if drawn is None else min(drawn, made),
    )


def _at_most(details: Any, name: str, most: int) -> int:
    return 0 if details is None else min(count(get(details, name)) or 0, most)


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
            self._usage = _sum(self._usage, usage(get(event, "usage")))
            if self._call.content is not None:
                self._parts.extend(_parts(event, _mime(event)))

    def reply(self) -> Reply:
        """See `Collector.reply`."""
        output = None if self._call.content is None else [_message(self._parts)]
        return Reply(usage=self._usage or self._cut_off(), answers=self._made, output=output)

    def _cut_off(self) -> Usage | None:
        """Estimate a picture that was begun: the vendor draws it to its end whoever still looks."""
        expected = self._call.expected
        if expected is None or not self.spoke or self._made:
            return None
        return Usage(
            input_tokens=expected.input_tokens,
            output_tokens=expected.output_tokens,
            image_input_tokens=expected.image_input_tokens,
            image_output_tokens=expected.image_output_tokens,
            source="estimated",
        )


def _sum(one: Usage | None, other: Usage | None) -> Usage | None:
    if one is None or other is None:
        return one or other
    return added((one, other))


def _expected(body: Mapping[str, Any], files: Any, pictures: int) -> Usage:
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


def _message(parts: list[Part]) -> Message:
    return {"role": "assistant", "parts": parts, "finish_reason": "stop"}


def _parts(picture: Any, mime: str | None) -> list[Part]:
    parts: list[Part] = []
    revised, inline, address = (text(picture, name) for name in ("revised_prompt", "b64_json", "url"))
    if revised:
        parts.append({"type": "text", "content": revised})
    if inline is not None:
        parts.append({"type": "blob", "modality": "image", "mime_type": mime, "content": inline})
    if address is not None:
        parts.append({"type": "uri", "modality": "image", "mime_type": mime, "uri": address})
    return parts


def _mime(result: Any) -> str | None:
    named = text(result, "output_format")
    return None if named is None else f"image/{'svg+xml' if named == 'svg' else named}"
