"""Know the variables that we read, so that a name written wrong is seen."""

from __future__ import annotations

import difflib
from collections.abc import Collection
from typing import Final

from ravi_otel.policy._limits import Kind

OURS: Final = frozenset(
    {
        *(f"RAVI_LIMIT_{kind.upper()}" for kind in Kind),
        "RAVI_ADMISSION",
        "RAVI_ALLOW_UNSEEN",
        "RAVI_APPROVALS",
        "RAVI_CARRY_AS",
        "RAVI_CARRY_BAGGAGE",
        "RAVI_CARRY_KEYS",
        "RAVI_CARRY_TO",
        "RAVI_CARRY_TRUST",
        "RAVI_CONTENT_BYTES",
        "RAVI_CONTENT_TEXT_BYTES",
        "RAVI_DETAIL",
        "RAVI_ENFORCEMENT",
        "RAVI_EXPORT_SPOOL",
        "RAVI_EXPORT_SPOOL_AGE_S",
        "RAVI_EXPORT_SPOOL_BYTES",
        "RAVI_FOOTERS",
        "RAVI_FRAMEWORKS",
        "RAVI_INCLUDE_USAGE",
        "RAVI_JAEGER_URL",
        "RAVI_LAUNCH",
        "RAVI_LAUNCH_FD",
        "RAVI_LAUNCH_SITE",
        "RAVI_LEASE_S",
        "RAVI_LEDGER",
        "RAVI_LIMIT_LOG",
        "RAVI_LIVE",
        "RAVI_POLICY",
        "RAVI_PROFILE",
        "RAVI_FORMATS",
        "RAVI_PROVIDERS",
        "RAVI_RAISE_BUGS",
        "RAVI_REDACT",
        "RAVI_SHORTEN_TIMEOUTS",
        "RAVI_SIGTERM",
        "RAVI_STEP_SPANS",
        "RAVI_STORE",
        "RAVI_TIME_PER_OUTPUT_CHUNK",
        "RAVI_USAGE_HOSTS",
        "RAVI_WARN_AT",
    }
)
"""Every variable of ours that a program reads; those of the stack's servers are in its `.env`."""

_PREFIX: Final = "RAVI_"
_LIMITING: Final = frozenset({"RAVI_LEDGER", "RAVI_POLICY"})
_NEAR_OURS: Final = 0.75
_LONGEST: Final = 80


def meant(name: str, known: Collection[str]) -> str | None:
    """Give the variable that a name of ours was meant to be; None when none is near."""
    stems = {each.removeprefix(_PREFIX): each for each in known}
    stem = name.upper().removeprefix(_PREFIX)
    ending = [each for each in stems if each.endswith(f"_{stem}")]
    close = ending[0] if len(ending) == 1 else _near(stem, stems, _NEAR_OURS)  # RAVI_SPOOL is RAVI_EXPORT_SPOOL
    return stems[close] if close else None


def is_weighty(name: str) -> bool:
    """Tell whether a limit would not be kept where this variable is written wrong and so not read."""
    return name in _LIMITING


def _near(name: str, known: Collection[str], cutoff: float) -> str | None:
    if len(name) > _LONGEST:
        return None
    close = difflib.get_close_matches(name.upper(), sorted(known), n=1, cutoff=cutoff)
    return close[0] if close else None
