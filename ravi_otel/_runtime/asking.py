"""Check what users hand to `run()`, `agent()` and the other scopes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import cast

from ravi_otel._enforcement.tracker import ExecutionTracker
from ravi_otel.errors import ConfigurationError
from ravi_otel.policy import checks
from ravi_otel.policy.budgets import ExecutionBudget, SpawnBudget
from ravi_otel.policy.grammar import parse_limit, read_kind
from ravi_otel.policy.limits import CLOCKS, EVERY_KIND, Limit, format_limit

Limits = Iterable[Limit | str]


def scope_name(parameter: str, value: str | None, *, required: bool = False) -> str | None:
    """Accept a name or None; a function means that a decorator lacks its parentheses."""
    if callable(value):
        raise ConfigurationError(f"{parameter} is a function: as a decorator it needs parentheses, like @ravi_otel.run().")
    if value is None and not required:
        return None
    return checks.name(parameter, value)


def read_kinds(parameter: str, kinds: Iterable[str] | None) -> frozenset[str]:
    """Read which kinds to set aside; None is all of them."""
    if kinds is None:
        return frozenset({EVERY_KIND})
    if isinstance(kinds, (str, Mapping)) or not isinstance(kinds, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]  # the caller may not type-check
        raise ConfigurationError(f'{parameter}={checks.show(cast("object", kinds))} must be a list of kinds, such as ["tokens"].')
    named = frozenset(_suspended(parameter, kind) for kind in kinds)
    clocks = sorted(named & {str(kind) for kind in CLOCKS})
    if clocks or not named:
        what = f"names {clocks[0]}, and time does not stop" if clocks else "is empty"
        raise ConfigurationError(f'{parameter} {what}: name others, such as ["tokens"], or leave it out for all that allow it.')
    return named


def _suspended(parameter: str, kind: object) -> str:
    asked = read_kind(parameter, kind)
    if asked.scope is not None:
        raise ConfigurationError(f"{parameter}={checks.show(kind)} has a scope in front: name the kind alone, which is {asked.name!r}.")
    return asked.name if asked.agent is None else f"{asked.name}@{asked.agent}"


def read_limits(parameter: str, limits: Limits) -> tuple[Limit, ...]:
    """Read limits and spellings of limits; ConfigurationError or LimitSyntaxError names what cannot be used."""
    if isinstance(limits, (str, Limit, Mapping)) or not isinstance(limits, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]  # the caller may not type-check
        raise ConfigurationError(
            f'{parameter}={checks.show(cast("object", limits))} must be a list, such as [token_limit(50_000)] or ["tokens=50k"].'
        )
    read: list[Limit] = []
    for each in limits:
        limit = parse_limit(each) if isinstance(each, str) else each
        if not isinstance(limit, Limit):  # pyright: ignore[reportUnnecessaryIsInstance]  # the caller may not type-check
            raise ConfigurationError(
                f'{parameter} holds {checks.show(limit)}, which is no limit. Write token_limit(50_000) or "tokens=50k".'
            )
        read.append(limit)
    seen: dict[object, Limit] = {}
    for limit in read:
        other = seen.setdefault(limit.target, limit)
        if other is not limit:
            raise ConfigurationError(
                f"{parameter} has {format_limit(limit)!r} twice: {format_limit(other)!r} sets the same limit. Keep one of them."
            )
    return tuple(read)


def tab(parameter: str, budget: ExecutionBudget | ExecutionTracker | None) -> ExecutionBudget | ExecutionTracker | None:
    """Accept a budget, or a tracker that becomes the tab."""
    if budget is None or isinstance(budget, (ExecutionBudget, ExecutionTracker)):  # pyright: ignore[reportUnnecessaryIsInstance]  # the caller may not type-check
        return budget
    raise ConfigurationError(
        f"{parameter}={checks.show(budget)} must be an ExecutionBudget or an ExecutionTracker, such as ExecutionBudget(max_tokens=50_000)."
    )


def slots(budget: SpawnBudget | None, parameter: str = "run(spawn_budget)") -> SpawnBudget | None:
    """Accept a spawn budget or None."""
    if budget is None or isinstance(budget, SpawnBudget):  # pyright: ignore[reportUnnecessaryIsInstance]  # the caller may not type-check
        return budget
    raise ConfigurationError(f"{parameter}={checks.show(budget)} must be a SpawnBudget, such as SpawnBudget(max_agents=10).")
