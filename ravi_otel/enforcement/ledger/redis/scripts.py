"""Read the Lua scripts, each with what it needs of the others' words in front."""

from __future__ import annotations

from importlib import resources
from typing import Final

from ravi_otel.enforcement.ledger.redis.link import Script

_NEEDS: Final = {
    "reserve": ("account",),
    "settle": ("account", "operation"),
    "release": ("account", "operation"),
    "extend": ("account",),
    "retune": ("account",),
    "clock": ("account",),
    "leave": ("account",),
    "reap": ("account",),
    "operate": ("account",),
    "list": (),
    "beat": (),
    "look": ("account",),
}


def _read(name: str) -> Script:
    folder = resources.files("ravi_otel.enforcement.ledger.redis").joinpath("lua")
    return Script.of(name, b"\n".join(folder.joinpath(f"{part}.lua").read_bytes() for part in (*_NEEDS[name], name)))


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
