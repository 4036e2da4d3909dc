"""Decide whether what was said is told, where, and how much of it; off unless it is asked for.

`OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT` is `NO_CONTENT`, `SPAN_ONLY`, `EVENT_ONLY` or `SPAN_AND_EVENT`.
`RAVI_CONTENT_TEXT_BYTES` (4096) bounds one text, `RAVI_CONTENT_BYTES` (65536) one attribute.

Whatever was said is copied into plain JSON values within a bound: texts cut, media hashed, secrets out, and never an error.

What is left out says so where it stood: a text ends with `[truncated from N characters]`, a list with `[N more]`, messages
and parts with one of type `omitted`. What is a secret is replaced by `[redacted:KIND]`, whose brackets and colon belong to no shape
looked for here: so nothing is found in it again, and redacting twice is redacting once. Every pattern either takes what it has read or
gives up within a bounded number of characters, which keeps the time linear in the text.
"""

from __future__ import annotations

import binascii
import dataclasses
import datetime as dt
import decimal
import enum
import logging
import math
import os
import pathlib
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import accumulate
from json import dumps  # as it is now: the program may make tools of that module's functions
from typing import Any, Final, cast
from urllib.parse import unquote_to_bytes

from ravi_otel._telemetry import names
from ravi_otel.policy._checks import show
from ravi_otel.policy._usage import Asked, Message, Part

_log = logging.getLogger("ravi_otel")

_MOST_HASHED: Final = 64 * 1024 * 1024
_MOST_MIME: Final = 100
_FEWEST_ENCODED: Final = 512
_ENCODED: Final = re.compile(r"[A-Za-z0-9+/_\-\r\n]{512,}={0,2}\s{0,2}")
_INLINE: Final = re.compile(
    r"data:[A-Za-z0-9.+\-]{0,64}/?[A-Za-z0-9.+\-]{0,128}(?:;[A-Za-z0-9=.+\-]{1,64}){0,4};base64,[A-Za-z0-9+/=_\-%]{16,}"
)
_ADDRESS: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]{1,30}://\S+")
_URL_SAFE: Final = str.maketrans("-_", "+/")

Digest = dict[str, Any]


def digest(content: str | bytes | bytearray | memoryview) -> Digest:
    """Return `sha256` and `size` of bytes, or of what a base64 text stands for; beyond 64 MiB the size alone."""
    if isinstance(content, str):
        if len(content) > _MOST_HASHED:
            return {"size": len(content) * 3 // 4}
        content = _decoded(content)
    size = len(content) if not isinstance(content, memoryview) else content.nbytes
    return {"size": size} if size > _MOST_HASHED else {"sha256": sha256(content).hexdigest(), "size": size}


def _decoded(content: str) -> bytes:
    if "-" in content or "_" in content:
        content = content.translate(_URL_SAFE)
    try:
        return binascii.a2b_base64(content + "=" * (-len(content) % 4))
    except ValueError:  # no base64: the text itself is all there is
        return content.encode("utf-8", "replace")


def is_data_url(text: str) -> bool:
    """Tell a URL that holds what it names."""
    return text[:5].lower() == "data:" and "," in text


def data_url(url: str) -> Digest:
    """Return the media type, hash and size of what a `data:` URL holds."""
    head, _, body = url.partition(",")
    kind, *options = head[5:].split(";")
    encoded = any(option.strip().lower() == "base64" for option in options)
    if "%" in body and len(body) <= _MOST_HASHED:
        plain = unquote_to_bytes(body)
        held: str | bytes = plain.decode("ascii", "replace") if encoded else plain
    else:
        held = body if encoded else body.encode("utf-8", "replace")
    told = digest(held)
    return {"mime_type": kind[:_MOST_MIME], **told} if kind else told


def is_encoded(text: str) -> bool:
    """Tell a text that can only be bytes in base64: long, in no other characters, and of all their kinds."""
    if len(text) < _FEWEST_ENCODED or " " in text[:_FEWEST_ENCODED] or _ENCODED.fullmatch(text) is None:
        return False
    begins = text[:_FEWEST_ENCODED]
    return (
        any("A" <= char <= "Z" for char in begins)
        and any("a" <= char <= "z" for char in begins)
        and any("0" <= char <= "9" for char in begins)
    )


def written(told: Digest) -> str:
    """Write a digest where only a text can stand."""
    kind, found = told.get("mime_type", "media"), told.get("sha256")
    return f"[{kind}, {told['size']} bytes{'' if found is None else f', sha256 {found}'}]"


def without_media(text: str) -> str:
    """Write each `data:` URL inside a text as its digest."""
    if ";base64," not in text:
        return text
    return _INLINE.sub(lambda found: written(data_url(found.group())), text)


def is_address(text: str) -> bool:
    """Tell a text that is one URL and nothing else."""
    return "://" in text[:40] and _ADDRESS.fullmatch(text) is not None


def plain_address(url: str) -> str:
    """Return a URL without what may hold a key: its query, its fragment, and the user before its host."""
    bare = url.partition("#")[0].partition("?")[0]
    scheme, separator, rest = bare.partition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme}{separator}{host.rpartition('@')[2]}{slash}{path}"


OMITTED: Final = "[omitted]"
UNREADABLE: Final = "[unreadable]"

_DEEPEST: Final = 32
_MARGIN: Final = 1024
"""What a key may be long that the end of what is redacted cuts in two."""
_SPARE: Final = 64
_MOST_INT: Final = 2**63 - 1
_MOST_BITS: Final = 4_096
_FEWEST_TOLD: Final = 10**6
_TRIES: Final = 6
_WORDS: Final = frozenset(
    {"assistant", "blob", "custom", "developer", "document", "error", "file", "function", "image", "audio", "length", "reasoning", "stop"}
    | {"system", "text", "tool", "tool_call", "tool_call_response", "uri", "user", "video", "content_filter", "refusal", "omitted"}
)
"""Words of the convention, which hold no secret."""
_WRITTEN: Final = (dt.date, dt.time, dt.timedelta, decimal.Decimal, uuid.UUID, pathlib.PurePath)
_MODEL: Final = ("__pydantic_fields_set__", "__fields_set__")
_class_of: Callable[[object], type[object]] = type


def as_json(copied: Any) -> str:
    """Write what was copied."""
    return dumps(copied, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _bounded(write: Callable[[_Writer], Any], content: Content, nothing: Any) -> Any:
    room = content.whole_bytes
    for _ in range(_TRIES):
        try:
            found = write(_Writer(content, room))
            if len(as_json(found).encode()) <= content.whole_bytes:
                return found
        except Exception:  # noqa: BLE001 - what was said may be any object, and raise anything
            return nothing
        room //= 2
    return nothing


class _Writer:
    """Copy values while there is room; everything written takes at least two bytes of it, so every walk ends."""

    __slots__ = ("_most", "_redact", "_room")

    def __init__(self, content: Content, room: int) -> None:
        self._most = content.text_bytes
        self._redact = content.guarded
        self._room = room - _SPARE

    # -- messages -------------------------------------------------------------------------------------------------

    def messages(self, given: Sequence[Message], ended: str | None) -> list[Message]:
        """Copy messages, the newest first in line for the room there is; each has a `finish_reason` where `ended` is one."""
        copied = self._list(
            given[::-1],
            lambda message: self._message(message, ended),
            lambda more: {"role": "omitted", "parts": [{"type": "omitted", "messages": more}]},
        )
        return copied[::-1]

    def _message(self, message: Message, ended: str | None) -> Message:
        self._room -= 2
        given = message if ended is None or message.get("finish_reason") is not None else {**message, "finish_reason": ended}
        return {
            name: self.parts(cast("Sequence[Part]", found)) if name == "parts" else self._field(name, found, 1)
            for name, found in given.items()
            if found is not None
        }

    def parts(self, given: Sequence[Part]) -> list[Part]:
        """Copy parts while there is room."""
        return self._list(given, self._part, lambda more: {"type": "omitted", "count": more})

    def _part(self, part: Part) -> Part:
        self._room -= 2
        copied = _media_of(part) or part
        return {name: self._field(name, found, 2) for name, found in copied.items() if found is not None}

    def _field(self, name: str, found: Any, depth: int) -> Any:
        self._room -= len(name) + 4
        return self.value(found, depth)

    def _list(self, given: Sequence[Any], copy: Callable[[Any], Any], omitted: Callable[[int], Any]) -> list[Any]:
        kept: list[Any] = []
        for item in given:
            if self._room <= 0:
                self._room -= _SPARE
                kept.append(omitted(len(given) - len(kept)))
                break
            kept.append(copy(item))
        return kept

    # -- any value ------------------------------------------------------------------------------------------------

    def value(self, given: Any, depth: int = 0) -> Any:
        """Copy any value; one that cannot be read is said to be so."""
        try:
            return self._value(given, depth)
        except Exception:  # noqa: BLE001 - the value's own methods may raise anything
            return self._literal(UNREADABLE)

    def _value(self, given: Any, depth: int) -> Any:
        if given is None or given is True or given is False:
            self._room -= 7
            return given
        if isinstance(given, str):
            return self._text(str.__str__(given))
        if isinstance(given, (int, float)):
            return self._number(given)
        if isinstance(given, (bytes, bytearray, memoryview)):
            return self._digest(digest(cast("bytes", given)))
        if isinstance(given, _WRITTEN):
            return self._text(str(given))
        return self.value(given.value, depth + 1) if isinstance(given, enum.Enum) and depth <= _DEEPEST else self._structure(given, depth)

    def _structure(self, given: Any, depth: int) -> Any:
        kind = _class_of(given)
        fields = _fields_of(given, kind)
        if fields is None and not isinstance(given, (list, tuple, set, frozenset)):
            return self._literal(f"[{kind.__name__[:100]}]")  # an iterator, an open file, …: the program's to read
        if depth > _DEEPEST:
            return self._literal("[nested too deep]")
        self._room -= 4
        if fields is None:
            items: Sequence[Any] = list(cast("Iterable[Any]", given))
            return self._list(items, lambda item: self.value(item, depth + 1), lambda more: self._literal(f"[{more} more]"))
        return self._mapping(_media_of(fields) or fields, depth)

    def _mapping(self, given: Mapping[Any, Any], depth: int) -> dict[str, Any]:
        kept: dict[str, Any] = {}
        for key, inner in given.items():
            if self._room <= 0:
                kept[f"[{len(given) - len(kept)} more]"] = self._literal(OMITTED)
                self._room -= 20
                break
            kept[self._key(key, kept)] = self.value(inner, depth + 1)
        return kept

    def _key(self, key: Any, taken: Mapping[str, Any]) -> str:
        name = (
            self._text(str.__str__(key)) if isinstance(key, str) else self._text(str(key) if isinstance(key, (int, float)) else UNREADABLE)
        )
        if name not in taken:
            return name
        number = len(taken) + 1  # two keys that are one without their secret; as many as there are names cannot be taken
        while f"{name} {number}" in taken:
            number += 1
        self._room -= 8
        return f"{name} {number}"

    def _number(self, given: float) -> Any:
        if isinstance(given, float):
            self._room -= 26
            number = float(given)
            return number if math.isfinite(number) else str(number)
        if given.bit_length() > _MOST_BITS:
            return self._literal("[number]")
        number = int(given)
        if abs(number) < _FEWEST_TOLD:
            self._room -= 9
            return number
        redact, plain = self._redact, str(number)  # a card's number may be given as one
        if abs(number) > _MOST_INT or (redact is not None and redact(plain) != plain):
            return self._text(plain)
        self._room -= 22
        return number

    def _digest(self, told: Mapping[str, Any]) -> dict[str, Any]:
        self._room -= 110
        return dict(told)

    def _literal(self, given: str) -> str:
        self._room -= len(given.encode("utf-8", "replace")) * 2 + 4
        return given.encode("utf-8", "replace").decode()

    # -- texts ----------------------------------------------------------------------------------------------------

    def _text(self, given: str) -> str:
        if given in _WORDS:
            self._room -= len(given) + 4
            return given
        size = len(given)
        if is_data_url(given):
            return self._literal(written(data_url(given)))
        if is_encoded(given):
            return self._literal(written(digest(given)))
        given = without_media(given)
        if is_address(given):
            given = plain_address(given)
        return self._spend(self._cut(self._clean(given), size), size)

    def _clean(self, given: str) -> str:
        redact = self._redact
        if redact is None:
            given = given[: self._most + 1]
        window = 2 * self._most + _MARGIN  # redacting may make it shorter
        whole = len(given) <= window
        if not whole:
            given = given[:window]
        if not given.isascii():
            given = given.encode("utf-8", "replace").decode()
        if redact is None:
            return given
        given = redact(given)
        if not given.isascii():
            given = given.encode("utf-8", "replace").decode()
        return given if whole else given[: max(0, len(given) - _MARGIN)]

    def _cut(self, given: str, size: int, most: int | None = None) -> str:
        most = self._most if most is None else most
        if len(given) * 4 <= most:
            return given
        encoded = given.encode()
        if len(encoded) <= most and (len(given) == size or size <= most):
            return given
        mark = f" [truncated from {size} characters]"
        return encoded[: max(0, most - len(mark))].decode("utf-8", "ignore") + mark

    def _spend(self, given: str, size: int) -> str:
        cost = len(as_json(given).encode()) + 2
        if cost > self._room:
            if self._room < 2 * _SPARE:
                return self._literal(OMITTED)
            room, self._room = self._room, 0  # the last that is told
            return self._cut(given, size, room // 6)  # what one byte becomes at most: \u0000
        self._room -= cost
        return given


def _fields_of(given: Any, kind: type[object]) -> Mapping[Any, Any] | None:
    if isinstance(given, Mapping):
        return cast("dict[Any, Any]", given)
    if dataclasses.is_dataclass(kind):
        return {field.name: getattr(given, field.name, None) for field in dataclasses.fields(kind)}
    if any(hasattr(kind, mark) for mark in _MODEL):
        return cast("dict[str, Any]", vars(given))
    return None


def _media_of(part: Mapping[Any, Any]) -> dict[str, Any] | None:
    """Return a part that holds a picture, a sound or a file as what tells it; None for every other."""
    kind = part.get("type")
    if kind == "blob" and isinstance(part.get("content"), (str, bytes, bytearray, memoryview)):
        return {**{key: inner for key, inner in part.items() if key != "content"}, **digest(part["content"])}
    if kind == "uri" and isinstance(part.get("uri"), str) and is_data_url(part["uri"]):
        return {**{key: inner for key, inner in part.items() if key != "uri"}, "type": "blob", **data_url(part["uri"])}
    return None


CAPTURE: Final = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
TEXT_BYTES: Final = "RAVI_CONTENT_TEXT_BYTES"
WHOLE_BYTES: Final = "RAVI_CONTENT_BYTES"
_SDK_LIMITS: Final = ("OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT", "OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT")

_DEFAULT_TEXT: Final = 4 * 1024
_DEFAULT_WHOLE: Final = 64 * 1024
_FEWEST: Final = 256
_MODES: Final = {
    **dict.fromkeys(("no_content", "false", "0", "no", "off", ""), (False, False)),
    **dict.fromkeys(("span_only", "true", "1", "yes", "on"), (True, False)),
    "event_only": (False, True),
    "span_and_event": (True, True),
}

Structured = dict[str, Any]
"""Attributes of a log record, whose values may be lists and mappings."""


@dataclass(frozen=True, slots=True)
class Content:
    """Where content goes and within which bounds; none of these places is no capture at all.

    A text is at most `text_bytes` and an attribute at most `whole_bytes` of UTF-8; `redact` sees a text
    before it is cut, of a long one the first 2 * `text_bytes` + 1,024 characters.
    """

    on_spans: bool = False
    on_events: bool = False
    text_bytes: int = _DEFAULT_TEXT
    whole_bytes: int = _DEFAULT_WHOLE
    redact: Redact | None = None
    in_store: bool = False
    guarded: Redact | None = field(init=False)
    """`redact` as every text goes through it: it never raises."""

    def __post_init__(self) -> None:
        """Make ready what every text goes through."""
        object.__setattr__(self, "guarded", None if self.redact is None else guarded(self.redact))

    @property
    def captured(self) -> bool:
        """Whether requests and answers are to be written down at all."""
        return self.on_spans or self.on_events or self.in_store

    def asked(self, asked: Asked) -> Structured:
        """Copy what a request says, cut, hashed and redacted, by attribute; what it does not say is left out."""
        found: Structured = {}
        if asked.messages:
            found[names.INPUT_MESSAGES] = _bounded(lambda writer: writer.messages(asked.messages, None), self, [])
        if asked.system:
            found[names.SYSTEM_INSTRUCTIONS] = _bounded(lambda writer: writer.parts(asked.system), self, [])
        if asked.tools:
            found[names.TOOL_DEFINITIONS] = _bounded(lambda writer: writer.parts(asked.tools), self, [])
        return found

    def answered(self, output: Sequence[Message] | None, *, ended: str) -> Structured:
        """Copy what an answer says likewise; `ended` is the finish reason of a message that tells none."""
        if not output:
            return {}
        return {names.OUTPUT_MESSAGES: _bounded(lambda writer: writer.messages(output, ended), self, [])}

    def argument(self, given: Any) -> str:
        """Write a tool's arguments or its result as JSON."""
        return as_json(_bounded(lambda writer: writer.value(given), self, OMITTED))


NO_CONTENT: Final = Content()
"""What is told unless content was asked for: nothing that was said."""


def as_text(structured: Structured) -> dict[str, str]:
    """Write structured attributes as JSON, since a span's attributes hold no structure."""
    return {name: as_json(found) for name, found in structured.items()}


def read_content(redact: Redact | None = None, environ: Mapping[str, str] = os.environ) -> Content:
    """Read the mode and the bounds; what cannot be read is warned of, and captures nothing or keeps the default."""
    stated = environ.get(CAPTURE, "").strip()
    mode = _MODES.get(stated.lower())
    if mode is None:
        _log.warning(
            "ravi-otel: %s=%s is unknown, no content is captured. Use NO_CONTENT, SPAN_ONLY, EVENT_ONLY or SPAN_AND_EVENT.",
            CAPTURE,
            show(stated),
        )
        mode = (False, False)
    whole = _bytes(environ, WHOLE_BYTES, _DEFAULT_WHOLE)
    for name in _SDK_LIMITS:  # the SDK would cut the text in the middle of its JSON
        limit = environ.get(name, "").strip()
        if limit.isdecimal() and int(limit) < whole:
            whole = int(limit)
    return Content(*mode, min(_bytes(environ, TEXT_BYTES, _DEFAULT_TEXT), whole), whole, redact)


def _bytes(environ: Mapping[str, str], name: str, default: int) -> int:
    stated = environ.get(name, "").strip()
    if not stated:
        return default
    if stated.isdecimal() and stated.isascii() and len(stated) < 10 and int(stated) >= _FEWEST:  # noqa: PLR2004 - below 1 GB
        return int(stated)
    _log.warning("ravi-otel: %s=%s is no number of bytes from %d up, %d is used.", name, show(stated), _FEWEST, default)
    return default


# What takes secrets out.

Redact = Callable[[str], str]
"""Take a text and give it without its secrets.

It is called for every text that is told, keys and names that are the program's own among them, in whatever thread or task makes
the call. Of a long text it is given the beginning: twice the bytes that are told of it, and 1 KiB; the last 1 KiB of what it
gives back is left out then, lest half a secret show.
"""

FAILED: Final = "[redaction failed]"
"""What stands for a text whose hook raised, or gave no text."""

_TAIL: Final = r"[A-Za-z0-9_\-]"
_KEYS: Final = re.compile(
    r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----"
    r"(?:[\s\S]*?-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----|[\s\S]*)"  # one that is cut off has no end
    rf"|[Bb]earer[ \t]{{1,8}}[A-Za-z0-9._~+/\-]{{8,}}=*{_TAIL}*"
    rf"|eyJ{_TAIL}{{8,}}(?:\.{_TAIL}+){{0,4}}"
    rf"|(?<![A-Za-z])(?:sk|pk|rk)[\-_](?={_TAIL}{{0,100}}[0-9]){_TAIL}{{12,}}"
    rf"|(?<![A-Za-z])(?:gsk_|xai-|hf_|r8_|npm_|pypi-|glpat-|github_pat_|gh[opsur]_|xox[abeoprs]-){_TAIL}{{12,}}"
    rf"|(?<![A-Za-z])(?:AKIA|ASIA)[0-9A-Z]{{16}}{_TAIL}*"
    rf"|(?<![A-Za-z])AIza{_TAIL}{{30,}}"
)
_MAIL_HOST: Final = re.compile(r"@[\w\-]+(?:\.[\w\-]+)+")
_MAIL_NAME: Final = re.compile(r"[\w.%+\-]{1,64}")
_MOST_NAME: Final = 64
_RUN: Final = re.compile(r"[0-9+(][0-9+(). \-]{6,}")
_GROUP: Final = re.compile(r"[0-9]+")
_SEPARATORS: Final = frozenset({" ", "-", ".", ") ", ")", ")-", " (", "-(", ". ", " - "})
_CARD_SEPARATORS: Final = frozenset({" ", "-"})

_FEWEST_CARD: Final = 13
_MOST_CARD: Final = 19
_MOST_GROUPS: Final = 8
_FEWEST_ABROAD: Final = 7
_MOST_PHONE: Final = 15
_FEWEST_NATIONAL: Final = 9
_MOST_NATIONAL: Final = 12
_AMERICAN: Final = ((3, 3, 4), (1, 3, 3, 4))
_MOST_AMERICAN: Final = 4
_VALUES: Final = str.maketrans({str(digit): digit for digit in range(10)})
_DOUBLED: Final = bytes(sum(divmod(2 * value, 10)) if value < 10 else value for value in range(256))  # noqa: PLR2004 - digits


_redacting: ContextVar[bool] = ContextVar("ravi-otel-redacting", default=False)


def is_redacting() -> bool:
    """Whether the hook is running: of the calls and tools it begins itself, nothing that is said is captured."""
    return _redacting.get()


def guarded(redact: Redact) -> Redact:
    """Return a hook that never raises, and is never run inside itself: `[redaction failed]` stands for what it could not do."""
    told: list[str] = []

    def run(text: str) -> str:
        if _redacting.get():
            return FAILED  # a hook that caused what it should redact would never end
        inside = _redacting.set(True)
        try:
            found = redact(text)
        except Exception as error:  # noqa: BLE001 - the program's own hook may raise anything
            if not told:
                told.append(type(error).__name__)  # not the error itself, whose sentence may quote the text
                _log.warning("ravi-otel: the redaction hook raised %s; such texts are told as %s.", told[0], FAILED)
            return FAILED
        finally:
            _redacting.reset(inside)
        return found if isinstance(found, str) else FAILED  # pyright: ignore[reportUnnecessaryIsInstance]  # a hook without types may give anything

    return run


def redact_secrets(text: str) -> str:
    """Replace e-mail addresses, telephone and card numbers, and keys of known shapes.

    Cards are told by their length and check digit; telephone numbers by a plus sign, American grouping, or a leading zero
    with separators. Keys are private-key blocks, bearer tokens, signed web tokens, and those with a known beginning
    (`sk-`, `gsk_`, `AKIA`, `ghp_` and their kind).
    """
    text = _KEYS.sub("[redacted:key]", text)
    if "@" in text:
        text = _without_addresses(text)
    return _RUN.sub(_without_numbers, text)


def _without_addresses(text: str) -> str:
    """Look at what stands before each host: looking for names first would read every word 64 times."""
    kept: list[str] = []
    done = 0
    for host in _MAIL_HOST.finditer(text):
        at = host.start()
        name = _MAIL_NAME.match(text[max(done, at - _MOST_NAME) : at][::-1])
        if name is not None:
            kept.append(text[done : at - name.end()])
            kept.append("[redacted:email]")
            done = host.end()
    return "".join((*kept, text[done:])) if kept else text


def _without_numbers(match: re.Match[str]) -> str:
    run, whole, at = match.group(), match.string, match.start()
    groups = [found.span() for found in _GROUP.finditer(run)]
    sums = list(accumulate((end - begin for begin, end in groups), initial=0))
    kept: list[str] = []
    done = first = 0
    while first < len(groups):
        most = sums[min(first + _MOST_GROUPS, len(groups))] - sums[first]  # digits of the widest window from here
        window = _card(run, groups, first) if most >= _FEWEST_CARD else None
        if window is None and most >= _FEWEST_ABROAD and _may_be_phone(run, groups, first):
            window = _phone(run, groups, first, whole, at)
        if window is None:
            first += 1
            continue
        kind, last, begin = window
        kept.append(run[done:begin])
        kept.append(f"[redacted:{kind}]")
        done, first = groups[last][1], last + 1
    return "".join((*kept, run[done:])) if kept else run


def _may_be_phone(run: str, groups: list[tuple[int, int]], first: int) -> bool:
    """Tell groups that can begin no telephone number, in a glance."""
    begin = groups[first][0]
    if run[begin] == "0" or begin == 0 or "+" in run[max(0, begin - 2) : begin]:
        return True
    sizes = tuple([end - start for start, end in groups[first : first + _MOST_AMERICAN]])
    return sizes in _AMERICAN or sizes[:-1] in _AMERICAN


def _windows(run: str, groups: list[tuple[int, int]], first: int, most: int, between: frozenset[str]) -> Iterator[tuple[int, str]]:
    """Yield the digits of each window of groups that begins at `first`, with its last group, while separators allow."""
    digits = ""
    for last in range(first, min(first + _MOST_GROUPS, len(groups))):
        begin, end = groups[last]
        if last > first and run[groups[last - 1][1] : begin] not in between:
            return
        if len(digits) + end - begin > most:
            return
        digits += run[begin:end]
        yield last, digits


def _card(run: str, groups: list[tuple[int, int]], first: int) -> tuple[str, int, int] | None:
    found: int | None = None
    for last, digits in _windows(run, groups, first, _MOST_CARD, _CARD_SEPARATORS):
        if len(digits) >= _FEWEST_CARD and _checks(digits):
            found = last
    return None if found is None else ("card", found, groups[first][0])


def _checks(digits: str) -> bool:
    """Whether the last digit is the check digit of the others (Luhn)."""
    values = digits.translate(_VALUES).encode("latin-1")
    return (sum(values[-1::-2]) + sum(values[-2::-2].translate(_DOUBLED))) % 10 == 0


def _phone(run: str, groups: list[tuple[int, int]], first: int, whole: str, at: int) -> tuple[str, int, int] | None:
    start = groups[first][0]
    before = run[start - 1] if start else whole[at - 1 : at]
    plus = before == "+" or run[max(0, start - 2) : start] == "+("
    if not plus and (before.isalpha() or before == "_"):
        return None
    found: int | None = None
    for last, digits in _windows(run, groups, first, _MOST_PHONE, _SEPARATORS):
        sizes = tuple(end - begin for begin, end in groups[first : last + 1])
        if (plus and len(digits) >= _FEWEST_ABROAD) or (not _runs_on(whole, at + groups[last][1]) and _is_national(digits, sizes)):
            found = last
    if found is None:
        return None
    while start and run[start - 1] in "+(":
        start -= 1
    return "phone", found, start


def _runs_on(whole: str, end: int) -> bool:
    after = whole[end : end + 1]
    return after.isalpha() or after == "_"


def _is_national(digits: str, sizes: tuple[int, ...]) -> bool:
    if sizes in _AMERICAN:
        return True
    return digits[0] == "0" and len(sizes) > 1 and _FEWEST_NATIONAL <= len(digits) <= _MOST_NATIONAL
