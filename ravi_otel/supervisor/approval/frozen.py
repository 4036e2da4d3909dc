"""Freeze arguments as one text, and show that text so that no two different ones look alike."""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from json import dumps, loads  # as it is now: the program may make tools of that module's functions
from typing import Any, Final, NoReturn, cast

from ravi_otel.errors import ConfigurationError, RaviError
from ravi_otel.policy import _checks as checks
from ravi_otel.policy._contracts import JsonObject, JsonValue
from ravi_otel.supervisor import hashing

MOST_CHARS: Final = 65_536
"""How long arguments may be to be shown to a person."""
_MOST_READING: Final = 200
_MOST_READINGS: Final = 20
_MOST_WORDS: Final = 2_000


def exact(arguments: JsonObject) -> str:
    """Write arguments as one text, the same for the same arguments only; ConfigurationError for what a person cannot be shown whole."""
    text = hashing.canonical(plain(arguments))
    if len(text) > MOST_CHARS:
        raise ConfigurationError(
            f"the arguments are {len(text)} characters long, and a person is asked about at most {MOST_CHARS}: "
            "shorten them, or give the tool a reference to them."
        )
    return text


def read(text: str) -> dict[str, JsonValue]:
    """Read what `exact` or a person wrote: a JSON object without doubled keys; ConfigurationError for anything else."""
    if len(text) > MOST_CHARS:
        raise ConfigurationError(f"arguments are longer than {MOST_CHARS} characters: shorten them.")
    return plain(_loaded(text))


def read_value(text: str) -> JsonValue:
    """Read one JSON value that a person wrote; what is no JSON is taken as the text it is."""
    try:
        return cast("JsonValue", hashing.plain(loads(text, object_pairs_hook=_pairs, parse_constant=_no_constant)))
    except (ValueError, RecursionError) as error:
        if isinstance(error, RaviError):
            raise
        return text


def plain(arguments: object) -> dict[str, JsonValue]:
    """Copy arguments into plain JSON types; ConfigurationError or NotPlainError for what has none."""
    if not isinstance(arguments, Mapping):
        raise ConfigurationError(f'arguments={checks.show(arguments)} must be a JSON object, such as {{"user_id": 42}}.')
    return cast("dict[str, JsonValue]", hashing.plain(cast("object", arguments)))


def digest(*parts: str | None) -> str:
    """Give the SHA-256 of some texts, 64 hex digits."""
    return hashlib.sha256(dumps(parts).encode("ascii")).hexdigest()


def shown(arguments: JsonObject) -> list[str]:
    """Write arguments for a terminal, one line each: JSON in ASCII alone, every other character as its escape.

    Different arguments give different lines, and no character of theirs can move a cursor or pass for another. How text with other
    letters reads is told below in lines of its own, which begin with `reads` and have no say in it.
    """
    known = plain(arguments)
    lines = dumps(known, indent=2, sort_keys=True, allow_nan=False).replace("\x7f", "\\u007f").split("\n")
    readings = [f"reads {escaped(path)}: {reading(text)}" for path, text in _texts("", known) if not text.isascii()]
    more = len(readings) - _MOST_READINGS
    return lines + readings[:_MOST_READINGS] + ([f"reads: and {more} more"] if more > 0 else [])


def line(arguments: JsonObject, most: int) -> str:
    """Write arguments in one line for a list, cut where there is no more room."""
    text = hashing.canonical(plain(arguments)).replace("\x7f", "\\u007f")
    return text if len(text) <= most else f"{text[: most - 3]}..."


def reading(text: str, most: int = _MOST_READING) -> str:
    """Give a text as one line of visible characters, for reading only: different ones may come out equal."""
    kept = "".join(char if char == " " or unicodedata.category(char)[0] in "LNPS" else " " for char in text[: 4 * most])
    known = " ".join(kept.split())
    return known if len(known) <= most else f"{known[: most - 3]}..."


def words(parameter: str, text: object) -> str:
    """Accept a person's own words: text of at most 2,000 characters."""
    if not isinstance(text, str) or len(text) > _MOST_WORDS:
        raise ConfigurationError(f"{parameter}={checks.show(text)} must be text of at most {_MOST_WORDS} characters.")
    return text


def _loaded(text: str) -> object:
    try:
        return cast("object", loads(text, object_pairs_hook=_pairs, parse_constant=_no_constant))
    except (ValueError, RecursionError) as error:
        if isinstance(error, ConfigurationError):
            raise
        raise ConfigurationError(f'arguments={checks.show(text)} is no JSON object; write one such as {{"user_id": 42}}.') from error


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    known = dict(pairs)
    if len(known) != len(pairs):
        raise ConfigurationError("arguments name a key twice: write each once.")
    return known


def _no_constant(name: str) -> NoReturn:
    raise ConfigurationError(f"arguments hold {name}, which is no number of JSON: write a finite one.")


def _texts(path: str, value: JsonValue) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, Mapping):
        for key, each in value.items():
            if not key.isascii():
                yield f"{path} (name)".strip(), key
            yield from _texts(f"{path}.{key}" if path else key, each)
    elif isinstance(value, Sequence):
        for at, each in enumerate(value):
            yield from _texts(f"{path}[{at}]", each)


def escaped(text: str) -> str:
    """Write a name in ASCII alone, cut where it is too long."""
    return dumps(text)[1:-1].replace("\x7f", "\\u007f")[:_MOST_WORDS]
