"""Count what came from other processes and was not believed, and what did not fit on its way to them."""

from __future__ import annotations

from typing import Literal

from ravi_otel.hooks.records import CountEvent
from ravi_otel.runtime.state import STATE

Reason = Literal[
    "missing",
    "duplicate",
    "oversized",
    "malformed",
    "forged",
    "unsigned",
    "expired",
    "audience",
    "replayed",
    "too_many",
    "unknown_loan",
    "too_long",
]
"""Why; `docs/carriers.md` says what each of them means."""


def rejected(reason: Reason) -> None:
    """Count one such thing."""
    STATE.engine.listeners.counted(CountEvent("carrier_rejected", 1, reason=reason))
