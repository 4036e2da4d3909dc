"""Read and write the `baggage` header (W3C): others' entries as they came, ours one entry among them."""

from __future__ import annotations

from typing import Final
from urllib.parse import unquote_plus

from ravi_otel._telemetry import names

KEY: Final = names.CARRIED_ENTRY
"""What our one entry is called."""

PREFIX: Final = "ravi."
"""What all entries begin with that are ours, and leave for nobody who is not listed."""

MOST_BYTES: Final = 8_192
"""How long the whole header is at most: many readers drop all of a longer one."""

MOST_ENTRIES: Final = 180
MOST_ENTRY_BYTES: Final = 4_096
"""How long one entry is at most: OpenTelemetry drops a longer one."""


def is_ours(entry: str) -> bool:
    """Tell whose entry it is; also where somebody wrote the key in another case or with percent signs, which readers undo."""
    key = entry.partition("=")[0].strip()
    if "%" in key or "+" in key:
        key = unquote_plus(key).strip()
    return key.lower().startswith(PREFIX)


def without_ours(existing: str | None) -> str | None:
    """Take every entry of ours out of a header, and out of others' entries each property that is called as one of ours.

    None where nothing is left, and the very same text where there is none of ours.
    """
    if not existing:
        return existing
    entries = existing.split(",")
    kept = [entry if ";" not in entry else _bare(entry) for entry in entries if not is_ours(entry)]
    if kept == entries:
        return existing
    return ",".join(kept).strip() or None


def _bare(entry: str) -> str:
    value, *properties = entry.split(";")
    return ";".join((value, *(each for each in properties if not is_ours(each))))


def with_ours(existing: str | None, token: str) -> str | None:
    """Put our entry in the place of those of ours; where the whole would be too long, others' entries stay and ours does not."""
    others = without_ours(existing)
    entry = f"{KEY}={token}"
    if len(entry) > MOST_ENTRY_BYTES:
        return others
    if not others:
        return entry
    whole = f"{others},{entry}"
    if len(whole.encode("utf-8", "surrogatepass")) > MOST_BYTES or whole.count(",") >= MOST_ENTRIES:
        return others
    return whole


def tokens_of(header: str) -> list[str]:
    """List the tokens in a header, each without its properties; more than one is one too many."""
    found: list[str] = []
    for entry in header.split(","):
        key, equals, value = entry.partition("=")
        if equals and is_ours(entry) and unquote_plus(key).strip().lower() == KEY:
            found.append(value.partition(";")[0].strip())
    return found
