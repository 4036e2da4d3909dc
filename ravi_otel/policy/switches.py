"""Read switches from the environment: on, off, or a warning and the safe one."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

from ravi_otel.policy.checks import show

_log = logging.getLogger("ravi_otel")
_ON: Final = frozenset({"1", "true", "yes", "on"})
_OFF: Final = frozenset({"0", "false", "no", "off"})
_told: set[tuple[str, str]] = set()


def choice(environ: Mapping[str, str], name: str, words: tuple[str, ...]) -> str:
    """Give the one of `words` that `name` says: the first when it is not set, or says another, which is warned of once."""
    stated = environ.get(name, "").strip()
    word = stated.lower() or words[0]
    if word in words:
        return word
    if (name, stated) not in _told:
        _told.add((name, stated))
        _log.warning("ravi-otel: %s=%s is none of %s, and is taken for %s.", name, show(stated), ", ".join(words), words[0])
    return words[0]


def switch(environ: Mapping[str, str], name: str, *, default: bool, safe: bool) -> bool:
    """Tell whether `name` is switched on: `default` when it is not set, `safe` when it says neither on nor off, warned of once."""
    stated = environ.get(name, "").strip()
    word = stated.lower()
    if not word:
        return default
    if word in _ON or word in _OFF:
        return word in _ON
    if (name, stated) not in _told:
        _told.add((name, stated))
        _log.warning("ravi-otel: %s=%s is neither on nor off, and is taken for %s.", name, show(stated), "on" if safe else "off")
    return safe
