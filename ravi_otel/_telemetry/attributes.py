"""Bound what names from a model, a provider or a caller can do to a metric and an exporter, and say on a span whose it is."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from opentelemetry.util.types import AttributeValue

from ravi_otel._forksafe import ForkLock
from ravi_otel._telemetry import names
from ravi_otel.policy.facts import ScopeFacts

MOST_SERIES: Final = 2_000
MOST_CHARS: Final = 256
OTHER: Final = "_other"
_MOST_ITEMS: Final = 16
_MOST_INT: Final = 2**63 - 1


class CardinalityLimit:
    """Admit the first 2,000 combinations of names a metric sees; every later one is `_other` in each of its names.

    One for each metric: combinations are counted, not single names, so two hostile names do not multiply.
    """

    __slots__ = ("_limit", "_lock", "_seen")

    def __init__(self, limit: int = MOST_SERIES) -> None:
        self._limit = limit
        self._seen: set[tuple[str | None, ...]] = set()
        self._lock = ForkLock()

    def admit(self, *names: str | None) -> tuple[str | None, ...]:
        """Return `names`, or `_other` in place of each that is not None."""
        if names in self._seen or self._enter(names):
            return names
        return tuple(None if name is None else OTHER for name in names)

    def _enter(self, names: tuple[str | None, ...]) -> bool:
        with self._lock.own:
            if names not in self._seen:
                if len(self._seen) >= self._limit:
                    return False
                self._seen.add(names)
            return True


def text(value: object) -> str:
    """Write any value as at most 256 characters that every exporter can encode."""
    if type(value) is not str:
        value = _written(value)
    elif len(value) <= MOST_CHARS and value.isascii():
        return value
    if len(value) > MOST_CHARS:
        value = value[:MOST_CHARS]
    return value if value.isascii() else value.encode("utf-8", "replace").decode()


def optional_text(value: object) -> str | None:
    """Write any value, None stays None."""
    return None if value is None else text(value)


def short(value: str | None) -> str | None:
    """Return a string as it is while it is short, for use as a key that must not hold much memory."""
    return value if value is None or len(value) <= MOST_CHARS else text(value)


def _written(value: object) -> str:
    try:
        return str.__str__(value) if isinstance(value, str) else str(value)
    except Exception:  # noqa: BLE001 - a name whose __str__ raises is still a name, its type's
        return type(value).__name__


def integer(value: object) -> int | None:
    """Return a whole number that fits 64 bits, None for anything else."""
    if type(value) is int:  # as nearly always
        return value if -_MOST_INT <= value <= _MOST_INT else None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not -_MOST_INT <= value <= _MOST_INT:
        return None
    return int(value)


def finite(value: object) -> float | None:
    """Return a finite number, None for anything else."""
    if type(value) is float:  # as nearly always
        return value if math.isfinite(value) else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def figure(value: float) -> float | None:
    """Keep counts whole, turn what neither JSON nor an exporter can carry into None."""
    known = finite(value)
    return value if known is not None and isinstance(value, int) and abs(value) <= _MOST_INT else known


def word(value: object) -> str | None:
    """Return a string, None for anything else or an empty one."""
    return text(value) if isinstance(value, str) and value else None


def words(value: object) -> tuple[str, ...] | None:
    """Return a string or a list of strings as a tuple of at most 16, None for anything else."""
    if isinstance(value, str):
        return (text(value),)
    if not isinstance(value, list | tuple) or not value:
        return None
    items = tuple(text(item) for item in cast("Sequence[Any]", value)[:_MOST_ITEMS] if isinstance(item, str))
    return items or None


def present(attributes: Mapping[str, AttributeValue | None]) -> dict[str, AttributeValue]:
    """Return the attributes that have a value."""
    found = dict[str, AttributeValue]()
    for name, value in attributes.items():  # no comprehension: before Python 3.12 that is one more function
        if value is not None:
            found[name] = value
    return found


_MOST_KEPT: Final = 1_024
_kept: dict[str, tuple[ScopeFacts, Mapping[str, AttributeValue]]] = {}


def identity(facts: ScopeFacts) -> Mapping[str, AttributeValue]:
    """Return the attributes every span of a run carries, to read only, made once per scope; what is unknown is left out."""
    found = _kept.get(facts.scope_id)
    if found is not None and found[0] is facts:
        return found[1]
    session, agent_id, agent_name = facts.session_id, facts.agent_id, facts.agent_name
    session = session and text(session)  # ours, and the names that backends group by
    attributes = present(
        {
            names.RUN_ID: facts.run_id and text(facts.run_id),
            names.SESSION_ID: session,
            names.GENERAL_SESSION_ID: session,
            names.CONVERSATION_ID: session,
            names.TENANT_ID: facts.tenant_id and text(facts.tenant_id),
            names.USER_ID: facts.user_id and text(facts.user_id),
            names.AGENT_NAME: agent_name and text(agent_name),
            names.AGENT_ID: agent_id and text(agent_id),
        }
    )
    for key, value in facts.tags.items():
        attributes[f"{names.TAG_PREFIX}{key}"] = text(value)
    if len(_kept) >= _MOST_KEPT:
        _kept.clear()
    _kept[facts.scope_id] = (facts, attributes)
    return attributes
