"""Write a policy file from what past runs used."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click

from ravi_otel._cli.frame import between_options, open_queries, print_note, store_option
from ravi_otel._local.answers import Worked, quantile, rounded_up
from ravi_otel._local.wording import amount, clean
from ravi_otel.errors import ConfigurationError, RaviError
from ravi_otel.policy._grammar import parse_limit
from ravi_otel.policy._limits import NANO, Kind, Limit, ScopeKind, format_limit, public_amount

LEAST: Final = 5
"""How many times something must have been seen before a limit is suggested for it."""

_RUN_KINDS: Final = (Kind.TOKENS, Kind.COST, Kind.REQUESTS, Kind.TIME)
_AGENT_KINDS: Final = (Kind.TOKENS, Kind.COST, Kind.TURNS, Kind.TIME)
_NO_RUN: Final = "There is no finished run to learn from. Run the program with `ravi-otel run -- ...` first, or widen --since."
_UNENDED: Final = frozenset({"running", "lost"})
_CUT: Final = frozenset({"stopped", "paused"})


@dataclass(frozen=True, slots=True)
class Seen:
    """One run or one agent's turn: what it used in inner units, None where that is not known; `cut` when a limit ended it."""

    used: dict[str, int | None]
    cut: bool


@click.command(short_help="Write a policy file from what past runs used.")
@between_options
@click.option("--agent", metavar="NAME", help="Limits of this agent only.")
@click.option("--name", metavar="NAME", help="Runs of this name only.")
@click.option("--headroom", type=click.IntRange(0, 1_000), default=25, show_default=True, metavar="PERCENT", help="Added to the p95.")
@store_option
def suggest(*, since: int | None, until: int | None, agent: str | None, name: str | None, headroom: int, place: Path | None) -> None:
    """Print a policy file (TOML) with limits from what past runs used: the p95 of each, plus head-room, rounded up.

    Each line says p50, p95, max, and of how many; the latest 2,000 runs are looked at. Redirect it into a file, check it with
    `ravi-otel limits --policy FILE`, and use it with `ravi-otel run --policy FILE`.
    """
    with open_queries(place) as queries:
        all_runs, all_agents = queries.worked(since=since, until=until)
    runs = [each for each in all_runs if each.status not in _UNENDED and name in (None, each.name)]
    if name is not None and not any(each.name == name for each in all_runs):
        raise ConfigurationError(
            f"--name {clean(name, 60)!r} is the name of no run. `ravi-otel runs` lists them; leave it out to learn from all."
        )
    if not runs:
        raise ConfigurationError(_NO_RUN)
    wanted = {each.run for each in runs}
    agents = [each for each in all_agents if each.run in wanted and agent in (None, each.name)]
    if agent is not None and not agents:
        raise ConfigurationError(f"--agent {clean(agent, 60)} names no agent of these runs. Leave it out to see all.")
    lines = list(_limits(runs if agent is None else [], agents, headroom))
    found_any = any(line.startswith('"') for line in lines)
    body = ["limits = [", *(f"  {line}" for line in lines), "]"] if found_any else lines
    click.echo("\n".join([*_heading(runs, headroom), *body]).encode())
    if not found_any:
        print_note(f"No limit is suggested: each needs {LEAST} times to learn from, of which all that was used is known.")


def _heading(runs: Sequence[Worked], headroom: int) -> Iterator[str]:
    days = [time.strftime("%Y-%m-%d", time.gmtime(min(max(each.began // NANO, 0), 2**33))) for each in (runs[-1], runs[0])]
    number = "1 run" if len(runs) == 1 else f"{len(runs):,} runs"
    yield f"# Suggested by ravi-otel from {number}, {days[0]} to {days[1]} (UTC)."
    yield f"# A limit is the p95 of what was used plus {headroom} % head-room, rounded up to two figures; n is of how many."


def _limits(runs: Sequence[Worked], agents: Sequence[Worked], headroom: int) -> Iterator[str]:
    if runs:
        seen = [_seen(each, _RUN_KINDS) for each in runs if each.sums.requests]
        yield from _section("the whole run", seen, _RUN_KINDS, None, headroom)
    by_name: dict[str | None, list[Seen]] = {}
    for each in agents:
        by_name.setdefault(each.name, []).append(_seen(each, _AGENT_KINDS))
    for name, seen in sorted(by_name.items(), key=lambda pair: (-len(pair[1]), pair[0] or "")):
        if name is not None:
            yield from _section(f"agent {clean(name, 60)}, each time it works", seen, _AGENT_KINDS, name, headroom)


def _seen(each: Worked, kinds: Iterable[Kind]) -> Seen:
    sums = each.sums
    used: dict[str, int | None] = {
        Kind.TOKENS: None if sums.unknown_total else sums.total_tokens,
        Kind.COST: None if sums.uncosted_calls else sums.cost_nano,
        Kind.REQUESTS: sums.requests,
        Kind.TURNS: sums.turns,
        Kind.TIME: each.duration,
    }
    return Seen({kind: used[kind] for kind in kinds}, each.status in _CUT or each.outcome in _CUT)


def _section(title: str, seen: list[Seen], kinds: Iterable[Kind], name: str | None, headroom: int) -> Iterator[str]:
    cut = sum(each.cut for each in seen)
    yield f"# {title}"
    if cut:
        yield f"# {cut:,} of {len(seen):,} ended at a limit, so that they may need more than is seen here"
    for kind in kinds:
        yield _line(kind, [each.used[kind] for each in seen], name, headroom)


def _line(kind: Kind, used: list[int | None], name: str | None, headroom: int) -> str:
    known = sorted(value for value in used if value is not None)
    unknown = len(used) - len(known)
    left = f", {unknown:,} more not fully known" if unknown else ""
    if len(known) < LEAST:
        return f"# {kind}: too little data, n={len(known)}{left}; {LEAST} are needed"
    p50, p95, most = (quantile(known, share) for share in (0.5, 0.95, 1.0))
    figures = f"p50 {_shown(kind, p50)}, p95 {_shown(kind, p95)}, max {_shown(kind, most)}, n={len(known)}{left}"
    value = rounded_up(p95 * (100 + headroom), 100)
    written = _written(kind, value, name)
    if not value or written is None:
        return f"# {kind}: {'nothing was used' if not value else 'the name cannot be written as a limit'}; {figures}"
    past = sum(each > value for each in known)
    over = f"; {past:,} went past this" if past else ""
    return f"{_quoted(written)},  # {figures}{over}"


def _shown(kind: Kind, value: int) -> str:
    return amount(kind, public_amount(kind, value))


def _written(kind: Kind, value: int, name: str | None) -> str | None:
    """Spell the limit; None for a name that no limit can have."""
    scope = None if name is None else ScopeKind.AGENT
    try:
        text = format_limit(Limit(kind=kind, value=value, scope=scope, scope_name=name))
        return text if parse_limit(text).value == value else None
    except RaviError:
        return None


def _quoted(text: str) -> str:
    """Write a TOML basic string; what no eye can see, or what turns the line around, is written as its number."""
    return "".join(char if char.isprintable() else _numbered(char) for char in json.dumps(text, ensure_ascii=False))


def _numbered(char: str) -> str:
    return f"\\u{ord(char):04x}" if ord(char) < 0x10000 else f"\\U{ord(char):08x}"  # noqa: PLR2004 - what four digits can say
