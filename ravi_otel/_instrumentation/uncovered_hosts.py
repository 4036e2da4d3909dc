"""Describe what went to a host that no limit covers, for the process that counts it and for the launcher, which wraps nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from ravi_otel.policy._checks import switch

ALLOW: Final = "RAVI_ALLOW_UNSEEN"
"""The environment variable that accepts such calls."""


@dataclass(frozen=True, slots=True)
class Uncovered:
    """What went to one host: how many requests, and how many clients were made for it; `library` is "" for plain HTTP."""

    library: str
    host: str
    requests: int = 0
    clients: int = 0

    def __str__(self) -> str:
        """Put it as part of a sentence."""
        if not self.library:
            return f"{_number(self.requests, 'request')} to {self.host}"
        if not self.requests:
            return f"{_number(self.clients, 'client')} of {self.library} for {self.host}"
        return f"{_number(self.requests, 'request')} of {self.library} to {self.host}"


def read_uncovered(text: str) -> Uncovered | None:
    """Read what another process wrote as JSON of its fields; None for what is none."""
    try:
        given: Any = json.loads(text)
        return Uncovered(str(given["library"]), str(given["host"]), int(given["requests"]), int(given["clients"]))
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return None


def is_allowed(environ: Mapping[str, str]) -> bool:
    """Whether calls that no limit covers are accepted."""
    return switch(environ, ALLOW, default=False, safe=False)


def _number(count: int, what: str) -> str:
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"
