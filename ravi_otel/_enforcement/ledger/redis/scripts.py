"""Read the Lua scripts, each with what it needs of the others' words in front."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from importlib import resources
from typing import Final


@dataclass(frozen=True, slots=True)
class Script:
    """Be one Lua script, which the server keeps by its hash."""

    name: str
    source: bytes
    sha: str

    @classmethod
    def of(cls, name: str, source: bytes) -> Script:
        """Return the script of a text."""
        return cls(name, source, hashlib.sha1(source, usedforsecurity=False).hexdigest())


_NEEDS: Final = {
    "reserve": ("account", "record"),
    "settle": ("account", "record", "operation"),
    "release": ("account", "record", "operation"),
    "extend": ("account", "record"),
    "retune": ("account",),
    "clock": ("account",),
    "leave": ("account",),
    "reap": ("account", "record"),
    "operate": ("account",),
    "list": (),
    "beat": (),
    "look": ("account",),
    "accept": (),
}


_CONSTANTS: Final = re.compile(r"^local ([A-Z_]+(?:, [A-Z_]+)*) = (\d+(?:, \d+)*)$", re.MULTILINE)


def _read(name: str) -> Script:
    folder = resources.files("ravi_otel._enforcement.ledger.redis").joinpath("lua")
    source = "\n".join(folder.joinpath(f"{part}.lua").read_text("ascii") for part in (*_NEEDS[name], name))
    return Script.of(name, _with_numbers(source).encode("ascii"))


def _with_numbers(source: str) -> str:
    """Put numbers where constants stand: Lua would look each of them up, and carry it into each function that knows it."""
    numbers: dict[str, str] = {}
    for names, values in _CONSTANTS.findall(source):
        numbers.update(zip(names.split(", "), values.split(", "), strict=True))
    return re.sub(r"(?<!')\b[A-Z][A-Z_]*\b(?!')", lambda word: numbers.get(word[0], word[0]), _CONSTANTS.sub("", source))


RESERVE: Final = _read("reserve")
SETTLE: Final = _read("settle")
RELEASE: Final = _read("release")
EXTEND: Final = _read("extend")
RETUNE: Final = _read("retune")
CLOCK: Final = _read("clock")
LEAVE: Final = _read("leave")
REAP: Final = _read("reap")
BEAT: Final = _read("beat")
LOOK: Final = _read("look")
LIST: Final = _read("list")
OPERATE: Final = _read("operate")
ACCEPT: Final = _read("accept")
