"""Show which limits count, and who said so."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from ravi_otel.local.wording import clean
from ravi_otel.policy import checks
from ravi_otel.policy.limits import Limit
from ravi_otel.runtime.config import Policy, Sourced, check_for_run, effective, read_tags

_NONE = "No limit is set. Give one with --limit tokens=500k, in RAVI_LIMIT_TOKENS=500k, or in a policy file with --policy FILE."
_HEADS = ("limit", "from", "instead of")
_WIDEST = 60


@click.command(short_help="Show the limits that count, and where each comes from.")
@click.option("--limit", "flags", multiple=True, metavar="LIMIT", help="A limit such as tokens=500k or cost=2.50usd; may be repeated.")
@click.option("--policy", "file", type=click.Path(path_type=Path), metavar="FILE", help="A policy file, TOML or YAML.")
@click.option("--name", help="What to call the run.")
@click.option("--tag", "tags", multiple=True, metavar="KEY=VALUE", help="Put on every span of the run; may be repeated.")
@click.option("--observe", is_flag=True, help="Refuse nothing, only tell what the limits would have refused.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def limits(*, flags: tuple[str, ...], file: Path | None, name: str | None, tags: tuple[str, ...], observe: bool, as_json: bool) -> None:
    """Print the policy that `ravi-otel run` would hold a program to with the same options, here and now.

    A limit on the command line goes before one in a RAVI_LIMIT_... variable, and that before one in the policy file.
    """
    policy = _with_options(effective(flags=flags, file=file), name, read_tags(tags), observe=observe)
    check_for_run(policy)
    if as_json:
        click.echo(json.dumps(_as_json(policy), indent=2, allow_nan=False))
        return
    for line in _lines(policy):
        click.echo(line)


def _with_options(policy: Policy, name: str | None, tags: dict[str, str], *, observe: bool) -> Policy:
    """Put in what `run` takes besides limits, as it does."""
    given = {"name": "--name"} if name is not None else {}
    if tags:
        given["tags"] = ", ".join(filter(None, ("--tag", policy.sources.get("tags"))))
    if observe:
        given["enforcement"] = "--observe"
    return replace(
        policy,
        name=policy.name if name is None else checks.name("--name", name),
        tags={**policy.tags, **tags},
        observe=observe or policy.observe,
        sources={**policy.sources, **given},
    )


# -- for people ---------------------------------------------------------------------------------------------------


def _lines(policy: Policy) -> Iterator[str]:
    if policy.limits:
        yield from _table([_HEADS, *map(_row, policy.limits)])
    else:
        yield _NONE
    yield ""
    yield from _table([(name, value, source) for name, value, source in _settings(policy)])


def _row(each: Sourced) -> tuple[str, str, str]:
    replaced = ", ".join(f"{_shown(weaker.spec)} from {_shown(weaker.source)}" for weaker in each.instead_of)
    return _shown(each.spec), _shown(each.source), replaced


def _shown(text: str) -> str:
    return clean(text, 200)


def _settings(policy: Policy) -> Iterator[tuple[str, str, str]]:
    yield "enforcement", "observe" if policy.observe else "enforce", _source(policy, "enforcement")
    yield "admission", str(policy.admission), _source(policy, "admission")
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


# -- for programs -------------------------------------------------------------------------------------------------


def _as_json(policy: Policy) -> dict[str, Any]:
    return {
        "limits": [_limit_as_json(each) for each in policy.limits],
        "enforcement": "observe" if policy.observe else "enforce",
        "admission": str(policy.admission),
        "name": policy.name,
        "tags": dict(policy.tags),
        "prices": policy.prices or {},
        "sources": dict(policy.sources),
    }


def _limit_as_json(each: Sourced) -> dict[str, Any]:
    limit: Limit = each.limit
    return {
        "limit": each.spec,
        "source": each.source,
        "kind": str(limit.kind),
        "value": limit.amount,
        "scope": None if limit.scope is None else str(limit.scope),
        "scope_name": limit.scope_name,
        "tool": limit.detail,
        "agent": limit.agent,
        "instead_of": [{"limit": weaker.spec, "source": weaker.source} for weaker in each.instead_of],
    }
