"""Count what came from other processes and was not believed, and what did not fit on its way to them; say each once in the log."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final, Literal

from ravi_otel._runtime.state import STATE
from ravi_otel.hooks._events import CountEvent

Reason = Literal[
    "missing",
    "duplicate",
    "oversized",
    "malformed",
    "version",
    "forged",
    "unsigned",
    "expired",
    "audience",
    "replayed",
    "too_many",
    "unknown_loan",
    "too_long",
    "no_keys",
]
"""Why; `docs/carriers.md` says what each of them means."""

_DOUBTED: Final = "the limits that came with a request, a task or the environment are not in force here"
_SAID: Final[Mapping[Reason, str]] = {
    "duplicate": f"{_DOUBTED}: there are two of them. Something on the way adds a baggage header to another: have it replace it.",
    "oversized": f"{_DOUBTED}: the baggage is longer than 8,192 bytes. Put less into it.",
    "malformed": f"{_DOUBTED}: they cannot be read. Something on the way changed them.",
    "version": f"{_DOUBTED}: another version of ravi-otel wrote them in a way that this one cannot read. Run the same on both sides.",
    "forged": f"{_DOUBTED}: no key of RAVI_CARRY_KEYS here signed them. Give both sides the same key.",
    "unsigned": f"{_DOUBTED}: nobody signed them, and RAVI_CARRY_TRUST does not list their peer. Set RAVI_CARRY_KEYS on both sides.",
    "expired": f"{_DOUBTED}: they are too old. Compare the clocks of both machines, and how long a task waits with expires_s=.",
    "audience": f"{_DOUBTED}: they are for a host that RAVI_CARRY_AS does not name. Add the name by which callers call this service.",
    "replayed": f"{_DOUBTED}: the loan that came along was here before. Send each request with a lend() of its own.",
    "too_long": "a run is not carried on: what it takes along does not fit into 8,192 bytes of baggage. Put less into the baggage.",
    "no_keys": f"{_DOUBTED}: RAVI_CARRY_KEYS is not set in this process. Give it the key that the others have.",
}
"""What to say once of each; nothing of what anybody from outside may do at will and harms nobody: to send no limits at all."""

_log = logging.getLogger("ravi_otel")
_told: set[str] = set()


def rejected(reason: Reason) -> None:
    """Count one such thing, and say the first of each kind in the log."""
    STATE.engine.listeners.counted(CountEvent("carrier_rejected", 1, reason=reason))
    sentence = _SAID.get(reason)
    if sentence is not None:
        say_once(reason, sentence)


def say_once(what: str, sentence: str) -> None:
    """Warn, once a process, of what would otherwise be noticed by nobody."""
    if what not in _told:
        _told.add(what)
        _log.warning("ravi-otel: %s", sentence)
