"""Cut what stands left of a limit's equals sign into words; names in double quotes may hold anything."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from ravi_otel.errors import LimitSyntaxError

Flaw: TypeAlias = Callable[[str], LimitSyntaxError]
"""Make the error for what is wrong."""


class Word(NamedTuple):
    """Hold one piece of a dotted path; a quoted one is never a keyword."""

    text: str
    quoted: bool


def scan(spec: str, flaw: Flaw) -> tuple[list[Word | None], int]:
    """Cut the path left of the first unquoted `=` into words; give them and where the value begins."""
    path: list[Word | None] = []
    at = 0
    while True:
        word, at = _word(spec, at, flaw)
        path.append(word)
        mark = spec[at : at + 1]
        at += 1
        if mark == "=":
            return path, at
        if mark == "@":
            if None in path:
                what = "@ is there twice"
                raise flaw(what)
            path.append(None)
        elif mark != ".":
            raise flaw("'=' and a value are missing" if not mark else f"{mark!r} stands before the value")


def _word(spec: str, at: int, flaw: Flaw) -> tuple[Word, int]:
    while spec[at : at + 1].isspace():
        at += 1
    if spec[at : at + 1] == '"':
        text, at = _quoted(spec, at + 1, flaw)
        while spec[at : at + 1].isspace():
            at += 1
        return Word(text, quoted=True), at
    start = at
    while at < len(spec) and spec[at] not in ".@=:":
        at += 1
    return Word(spec[start:at].rstrip(), quoted=False), at


def _quoted(spec: str, at: int, flaw: Flaw) -> tuple[str, int]:
    text: list[str] = []
    while at < len(spec) and spec[at] != '"':
        at += spec[at] == "\\"
        text.append(spec[at : at + 1])
        at += 1
    if at >= len(spec):
        what = "a closing quote is missing"
        raise flaw(what)
    return "".join(text), at + 1
