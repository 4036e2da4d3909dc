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
    """What went to one host: how many requests."""

    host: str
    requests: int = 0

    def __str__(self) -> str:
        """Put it as part of a sentence."""
        return f"{self.requests:,} request{'' if self.requests == 1 else 's'} to {self.host}"


def read_uncovered(text: str) -> Uncovered | None:
    """Read what another process wrote as JSON of its fields; None for what is none."""
    try:
        given: Any = json.loads(text)
        return Uncovered(str(given["host"]), int(given["requests"]))
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return None


def is_allowed(environ: Mapping[str, str]) -> bool:
    """Whether calls that no limit covers are accepted."""
    return switch(environ, ALLOW, default=False, safe=False)
