"""Show which limits count, and who said so."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from ravi_otel._enforcement.ledger.account import DEFAULT_WARN_AT
from ravi_otel._extras import load
from ravi_otel._launch.limits import check_for_run
from ravi_otel._local.wording import clean
from ravi_otel._runtime.config import Policy, effective, read_tags, with_ledger
from ravi_otel._runtime.policy_file import SCHEMA, Sourced
from ravi_otel.policy import _checks as checks
from ravi_otel.policy._limits import SPENDS, Admission, Outcome

_NONE = "No limit is set. Give one with --limit tokens=500k, in RAVI_LIMIT_TOKENS=500k, or in a policy file with --policy FILE."
_HEADS = ("limit", "from", "admission", "past it", "warns at", "instead of")
_ALWAYS = ("limit", "from", "instead of")
_WIDEST = 60


@click.command(short_help="Show the limits that count, and where each comes from.")
@click.option("--limit", "flags", multiple=True, metavar="LIMIT", help="A limit such as tokens=500k or cost=2.50usd; may be repeated.")
@click.option("--policy", "file", type=click.Path(path_type=Path), metavar="FILE", help="A policy file, TOML or YAML.")
@click.option("--profile", metavar="NAME", help="A profile of the policy file.")
@click.option("--name", help="What to call the run.")
@click.option("--tag", "tags", multiple=True, metavar="KEY=VALUE", help="Put on every span of the run; may be repeated.")
@click.option("--observe", is_flag=True, help="Refuse nothing, only tell what the limits would have refused.")
@click.option("--admission", metavar="MODE", help="How spend is held before it is known: estimate, strict or after.")
@click.option("--ledger", metavar="URL", help="Where to count: sqlite:PATH or redis://HOST.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--schema", is_flag=True, help="Print the JSON schema of policy files, for an editor, and nothing else.")
def limits(  # noqa: PLR0913 - one parameter an option
    *,
    flags: tuple[str, ...],
    file: Path | None,
    profile: str | None,
    name: str | None,
    tags: tuple[str, ...],
    observe: bool,
    admission: str | None,
    ledger: str | None,
    as_json: bool,
    schema: bool,
) -> None:
    """Print the policy that `ravi-otel run` would hold a program to with the same options, here and now.

    A limit on the command line goes before one in a RAVI_LIMIT_... variable, and that before one in the policy file, where a
    profile goes before the rest.
    """
    if schema:
        click.echo(SCHEMA.read_text(encoding="utf-8"), nl=False)
        return
    asked = effective(flags=flags, file=file, profile=profile, observe=observe, admission=admission)
    policy = with_ledger(_with_options(asked, name, read_tags(tags)), ledger)
    if policy.gate is not None:
        load("ravi_otel.supervisor.rules._kinds").read_rules(policy.gate)
    check_for_run(policy)
    if as_json:
        click.echo(json.dumps(_as_json(policy), indent=2, allow_nan=False))
        return
    for line in _lines(policy, _width()):
        click.echo(line)


def _with_options(policy: Policy, name: str | None, tags: dict[str, str]) -> Policy:
    """Put in what `run` takes besides limits, as it does."""
    given = {"name": "--name"} if name is not None else {}
    if tags:
        given["tags"] = ", ".join(filter(None, ("--tag", policy.sources.get("tags"))))
    return replace(
        policy,
        name=policy.name if name is None else checks.name("--name", name),
        tags={**policy.tags, **tags},
        sources={**policy.sources, **given},
    )


# -- what comes of a limit ----------------------------------------------------------------------------------------


def _admission(policy: Policy, each: Sourced) -> Admission | None:
    """Say how its spend is held before it is known; None for a kind that is known beforehand."""
    return each.limit.admission or policy.admission if each.limit.kind in SPENDS else None


def _warn_at(policy: Policy, each: Sourced) -> float:
    return next((stated for stated in (each.limit.warn_at, policy.warn_at) if stated is not None), DEFAULT_WARN_AT)


# -- for people ---------------------------------------------------------------------------------------------------


def _width() -> int | None:
    """Return the columns there are; None where nobody says, such as in a pipe."""
    stated = os.environ.get("COLUMNS", "")
    if stated.isascii() and stated.isdigit() and int(stated):
        return int(stated)
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def _lines(policy: Policy, width: int | None) -> Iterator[str]:
    if policy.limits:
        rows = [_row(policy, each) for each in policy.limits]
        kept = [at for at, head in enumerate(_HEADS) if head in _ALWAYS or any(row[at] for row in rows)]
        table = [tuple(row[at] for at in kept) for row in (_HEADS, *rows)]
        laid = list(_table(table))
        fits = width is None or max(map(len, laid)) <= width
        yield from laid if fits else _stacked(table)
    else:
        yield _NONE
    yield ""
    yield from _table([(name, value, source) for name, value, source in _settings(policy)])


def _row(policy: Policy, each: Sourced) -> tuple[str, ...]:
    """Write a limit; what is as it is without a word is left empty."""
    replaced = ", ".join(f"{_shown(weaker.spec)} from {_shown(weaker.source)}" for weaker in each.instead_of)
    admission = _admission(policy, each)
    held = "" if admission in (None, Admission.ESTIMATE) else str(admission)
    past = "" if each.limit.on_exceed is Outcome.RAISE else str(each.limit.on_exceed)
    near = _warn_at(policy, each)
    return _shown(each.spec), _shown(each.source), held, past, "" if near == DEFAULT_WARN_AT else f"{near:.4g}", replaced


def _shown(text: str) -> str:
    return clean(text, 200)


def _settings(policy: Policy) -> Iterator[tuple[str, str, str]]:
    yield "enforcement", "observe" if policy.observe else "enforce", _source(policy, "enforcement")
    yield "admission", str(policy.admission), _source(policy, "admission")
    if policy.warn_at is not None:
        yield "warn_at", f"{policy.warn_at:.4g}", _source(policy, "warn_at")
    if policy.ledger is not None:
        yield "ledger", _shown(policy.ledger.shown), _source(policy, "ledger")
    if policy.profile is not None:
        yield "profile", _shown(policy.profile), _source(policy, "profile")
    if policy.name is not None:
        yield "name", _shown(policy.name), _source(policy, "name")
    if policy.tags:
        yield "tags", ", ".join(f"{key}={_shown(value)}" for key, value in policy.tags.items()), _source(policy, "tags")
    if policy.prices:
        yield "prices", ", ".join(_shown(model) for model in policy.prices), _source(policy, "prices")


def _source(policy: Policy, key: str) -> str:
    return _shown(policy.sources.get(key, "default"))


def _table(rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    """Lay rows out in columns; one that is very long pushes its own row, not all of them."""
    widths = [min(_WIDEST, max(len(row[at]) for row in rows)) for at in range(len(rows[0]))]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def _stacked(rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    """Write each limit with what is said of it below, where columns have no room."""
    heads, *limits = rows
    for first, *rest in limits:
        yield first
        yield from (f"  {head} {cell}" for head, cell in zip(heads[1:], rest, strict=True) if cell)


# -- for programs -------------------------------------------------------------------------------------------------


def _as_json(policy: Policy) -> dict[str, Any]:
    return {
        "limits": [_limit_as_json(policy, each) for each in policy.limits],
        "enforcement": "observe" if policy.observe else "enforce",
        "admission": str(policy.admission),
        "warn_at": DEFAULT_WARN_AT if policy.warn_at is None else policy.warn_at,
        "ledger": None if policy.ledger is None else policy.ledger.shown,
        "profile": policy.profile,
        "name": policy.name,
        "tags": dict(policy.tags),
        "prices": policy.prices or {},
        "sources": dict(policy.sources),
    }


def _limit_as_json(policy: Policy, each: Sourced) -> dict[str, Any]:
    limit = each.limit
    admission = _admission(policy, each)
    return {
        "limit": each.spec,
        "source": each.source,
        "kind": str(limit.kind),
        "value": limit.amount,
        "scope": None if limit.scope is None else str(limit.scope),
        "scope_name": limit.scope_name,
        "tool": limit.detail,
        "agent": limit.agent,
        "admission": None if admission is None else str(admission),
        "on_exceed": str(limit.on_exceed),
        "warn_at": _warn_at(policy, each),
        "instead_of": [{"limit": weaker.spec, "source": weaker.source} for weaker in each.instead_of],
    }
