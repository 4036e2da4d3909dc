"""Read what is set by the environment."""

from __future__ import annotations

import logging
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_log = logging.getLogger("ravi_otel")

SPOOL: Final = "RAVI_EXPORT_SPOOL"
SPOOL_BYTES: Final = "RAVI_EXPORT_SPOOL_BYTES"
SPOOL_AGE_S: Final = "RAVI_EXPORT_SPOOL_AGE_S"

_MIB: Final = 1024 * 1024
_PREFIXES: Final = {"traces": ("OTEL_BSP", 5_000.0), "logs": ("OTEL_BLRP", 1_000.0)}


@dataclass(frozen=True, slots=True)
class Batching:
    """Say how items become batches: at most `most_items` wait, `batch_items` go at once, after `delay_s` at the latest."""

    delay_s: float
    most_items: int
    batch_items: int


@dataclass(frozen=True, slots=True)
class Spooling:
    """Say where batches wait on disk, how many bytes of them, and how long."""

    path: Path
    most_bytes: int
    age_s: float


def batching(signal: str) -> Batching:
    """Read OTEL_BSP_* for spans, OTEL_BLRP_* for log records; what makes no sense is said, and the default holds."""
    prefix, delay_ms = _PREFIXES[signal]
    most = int(_number(f"{prefix}_MAX_QUEUE_SIZE", 2_048))
    batch = int(_number(f"{prefix}_MAX_EXPORT_BATCH_SIZE", 512))
    return Batching(_number(f"{prefix}_SCHEDULE_DELAY", delay_ms) / 1_000, most, min(batch, most))


def spooling() -> Spooling | None:
    """Read RAVI_EXPORT_SPOOL, a directory, and its bounds; None where it is not set."""
    named = os.environ.get(SPOOL, "").strip()
    if not named:
        return None
    try:
        path = Path(named).expanduser().absolute()
    except (RuntimeError, OSError, ValueError):
        _log.error("ravi-otel: %s=%.64r cannot be found, nothing is kept on disk. Set it to a directory you can write.", SPOOL, named)
        return None
    return Spooling(path, int(_number(SPOOL_BYTES, 256 * _MIB)), _number(SPOOL_AGE_S, 86_400))


def _number(name: str, default: float) -> float:
    said = os.environ.get(name, "").strip()
    if not said:
        return default
    try:
        number = float(said)
    except ValueError:
        number = math.nan
    if not 1 <= number <= 2**53:
        used = f"{default / _MIB:g} MiB" if name == SPOOL_BYTES else f"{default:g}"
        _log.warning("ravi-otel: %s=%.64r is no number from 1 up; %s is used", name, said, used)
        return default
    return number
