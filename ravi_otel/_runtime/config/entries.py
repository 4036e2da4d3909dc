"""Read the limits of a policy file: in words, as tables, under the name of an agent or of a tool."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, cast

from ravi_otel._runtime.config.document import Document, Spot, dotted
from ravi_otel._runtime.config.sources import Sourced, located
from ravi_otel.errors import ConfigurationError, LimitSyntaxError
from ravi_otel.policy import checks
from ravi_otel.policy.grammar import parse_limit, read_kind
from ravi_otel.policy.limits import CLOCKS, SPENDS, Admission, Kind, Limit, LimitOptions, ScopeKind, format_limit, make_limit

MOST_LIMITS: Final = 1_000

OPTIONS: Final = (*LimitOptions.__annotations__, "count")
LIMIT_KEYS: Final = ("kind", "value", "tool", "agent", *OPTIONS)
AGENT_KEYS: Final = ("limits", "admission", "warn_at")
_TOKENS: Final = 'kind = "tokens"'


@dataclass(frozen=True, slots=True)
class Part:
    """Be the file, or one of its profiles: the table at `spot`, and what is said behind the place of each of its limits."""

    document: Document
    spot: Spot = ()

    def line(self, toml: str) -> str:
        """Write a line of advice, given in TOML, as the file's own language has it."""
        return toml if self.document.is_toml else re.sub(r"(?<=\w) = ", ": ", toml)

    def named(self, *steps: str | int) -> str:
        """Write a key of this part as the file's reader knows it: `profiles.ci.name`."""
        return dotted((*self.spot, *steps))

    def at(self, *steps: str | int) -> str:
        """Say where a sentence begins that names the key itself."""
        return self.document.at((*self.spot, *steps))

    def place(self, *steps: str | int) -> str:
        """Say where something in this part stands."""
        return self.document.place((*self.spot, *steps))

    def source(self, *steps: str | int) -> str:
        """Say where a limit came from: `policy.yaml:7 (profile ci)`."""
        behind = f" (profile {self.spot[-1]})" if self.spot else ""
        return f"{self.place(*steps)}{behind}"

    def listed(self, given: object, *steps: str | int) -> list[object]:
        """Accept a list of limits."""
        if not isinstance(given, list):
            way_out = self.line('limits = ["tokens=500k"]')
            raise ConfigurationError(f"{self.at(*steps)}: {self.named(*steps)} is {checks.show(given)}, which is no list: write {way_out}.")
        listed = cast("list[object]", given)
        if len(listed) > MOST_LIMITS:
            raise ConfigurationError(
                f"{self.at(*steps)}: {self.named(*steps)} has {len(listed)} entries, and at most {MOST_LIMITS} are taken."
            )
        return listed

    def table(self, given: object, way_out: str, *steps: str | int) -> Mapping[str, object]:
        """Accept a table of names; each is checked."""
        if not isinstance(given, dict):
            raise ConfigurationError(
                f"{self.at(*steps)}: {self.named(*steps)} is {checks.show(given)}, which is no table: write {self.line(way_out)}."
            )
        table = cast("dict[str, object]", given)
        for name in table:
            self.checked(checks.name, f"the name in {self.named(*steps)}", name, *steps, name)
        return table

    def checked(self, check: Any, parameter: str, value: object, *steps: str | int) -> Any:
        """Check a value; the error begins with where it stands."""
        try:
            return check(parameter, value)
        except ConfigurationError as error:
            raise ConfigurationError(f"{self.at(*steps)}: {error}") from None

    def only(self, given: Mapping[str, object], known: tuple[str, ...], whose: str, *steps: str | int) -> None:
        """Refuse a key that is none of the known ones."""
        only(self.place(*steps) if steps or self.spot else self.document.shown, given, known, whose)


def only(place: str, given: Mapping[str, object], known: tuple[str, ...], whose: str) -> None:
    """Refuse a key that is none of the known ones, and name the one that is meant."""
    for key in given:
        if key not in known:
            close = checks.nearest(key, known)
            hint = f", did you mean {close!r}" if close else ""
            raise ConfigurationError(f"{place}: {checks.show(key)} is no key of {whose}{hint}; the keys are {', '.join(known)}.")


# -- lists --------------------------------------------------------------------------------------------------------


def read_limits(part: Part, given: object, *steps: str | int) -> tuple[Sourced, ...]:
    """Read a list of limits, texts and tables."""
    return tuple(_limit(part, each, *steps, index) for index, each in enumerate(part.listed(given, *steps)))


def _limit(part: Part, given: object, *steps: str | int) -> Sourced:
    place = part.place(*steps)
    if isinstance(given, str):
        return Sourced(located(place, given), given.strip(), part.source(*steps))
    if not isinstance(given, dict):
        raise ConfigurationError(
            f"{part.at(*steps)}: {part.named(*steps)} is {checks.show(given)}: "
            'write text such as "tokens=500k", or a table with kind and value.'
        )
    limit = _from_table(part, place, cast("dict[str, Any]", given))
    return Sourced(limit, format_limit(limit), part.source(*steps))


def read_agents(part: Part, given: object) -> Iterator[Sourced]:
    """Read limits by agent: each is a template for every agent of that name."""
    for name, said in part.table(given, '{researcher: ["tokens=50k"]}', "agents").items():
        steps: tuple[str, ...] = ("agents", name)
        options: dict[str, Any] = {}
        limits = said
        if isinstance(said, dict):
            table = cast("dict[str, object]", said)
            part.only(table, AGENT_KEYS, "an agent", *steps)
            options = {key: table[key] for key in ("admission", "warn_at") if table.get(key) is not None}
            for key, check in (("admission", check_admission), ("warn_at", checks.share)):
                if key in options:
                    options[key] = part.checked(check, part.named(*steps, key), options[key], *steps, key)
            limits, steps = table.get("limits", []), (*steps, "limits")
        for index, each in enumerate(read_limits(part, limits, *steps)):
            limit = _for_agent(part, name, each, options, *steps, index)
            yield replace(each, limit=limit, spec=format_limit(limit))


def _for_agent(part: Part, name: str, each: Sourced, options: Mapping[str, Any], *steps: str | int) -> Limit:
    limit = each.limit
    place = part.place(*steps)
    if limit.scope is not None or limit.agent is not None:
        raise ConfigurationError(
            f"{place}: {checks.show(each.spec)} says itself where it belongs: leave that out under agents.{name}, or write it under limits."
        )
    changes: dict[str, Any] = {"scope": ScopeKind.AGENT, "scope_name": name}
    if limit.warn_at is None and "warn_at" in options:
        changes["warn_at"] = options["warn_at"]
    if limit.admission is None and limit.kind in SPENDS and "admission" in options:
        changes["admission"] = options["admission"]
    return located(place, format_limit(replace(limit, **changes)))


def read_tools(part: Part, given: object) -> Iterator[Sourced]:
    """Read how often each tool may be started: a number, or text with options behind it, `"5:on=stop"`."""
    for name, value in part.table(given, "{search: 5}", "tools").items():
        place = part.place("tools", name)
        if "*" in name:
            raise ConfigurationError(f"{place}: tools has {checks.show(name)}, and no patterns are known: name each tool in full.")
        if isinstance(value, str):
            limit = _of_tool(part, place, name, value)
        else:
            limit = Limit(kind=Kind.TOOL_CALLS, value=part.checked(checks.count, part.named("tools", name), value, "tools", name))
        spec = format_limit(replace(limit, detail=name))
        yield Sourced(located(place, spec), spec, part.source("tools", name))


def _of_tool(part: Part, place: str, name: str, value: str) -> Limit:
    try:
        return parse_limit(f"{Kind.TOOL_CALLS}={value}")
    except LimitSyntaxError as error:
        what = str(error).partition(": ")[2].rpartition(". For example: ")[0]
        key = part.named("tools", name)
        raise LimitSyntaxError(f'{place}: {key}={checks.show(value)}: {what}. For example: 5, or "5:on=stop".', spec=value) from None


def check_admission(parameter: str, value: object) -> Admission:
    """Accept "estimate", "strict" or "after"."""
    return checks.member(parameter, value, Admission)


# -- tables -------------------------------------------------------------------------------------------------------


def _from_table(part: Part, place: str, table: dict[str, Any]) -> Limit:
    only(place, table, LIMIT_KEYS, "a limit")
    for needed in ("kind", "value"):
        if needed not in table:
            way_out = f"{part.line(_TOKENS)} and {part.line('value = 500_000')}"
            raise ConfigurationError(f"{place}: the limit has no {needed}; a table says at least {way_out}.")
    try:
        return parse_limit(format_limit(_made(part, table)))  # what the grammar refuses, a table cannot say either
    except ConfigurationError as error:
        spec = error.spec if isinstance(error, LimitSyntaxError) else checks.show(table)
        raise LimitSyntaxError(f"{place}: {error}", spec=spec) from None


def _made(part: Part, table: dict[str, Any]) -> Limit:
    shape = _kind(part, table["kind"])
    tool = checks.optional_name("tool", table.get("tool"))
    if tool is not None and (shape.kind != Kind.TOOL_CALLS or shape.detail is not None):
        kind = part.line('kind = "tool_calls"')
        raise ConfigurationError(f"tool={checks.show(tool)} goes with {kind}, not with {checks.show(table['kind'])}.")
    agent = checks.optional_name("agent", table.get("agent"))
    options = {key: table[key] for key in OPTIONS if key in table}
    return make_limit(shape.kind, _amount(part, shape, table["value"]), options, detail=tool or shape.detail, agent=agent)


def _kind(part: Part, word: object) -> Limit:
    """Read `tokens`, `tool.search` or `charge.sql_rows`, as a limit of 1."""
    if not isinstance(word, str):
        raise ConfigurationError(f"kind={checks.show(word)} is no kind of limit; the kinds are {', '.join(Kind)}.")
    named = read_kind("kind", word)
    for beside, given in (("scope", named.scope), ("agent", named.agent)):
        if given is not None:
            raise ConfigurationError(
                f"kind={checks.show(word)} has the {beside} in it; write {part.line(f'{beside} = {_quoted(given)}')} beside it."
            )
    return Limit(kind=named.kind, value=1, detail=named.detail)


def _quoted(text: str) -> str:
    return f'"{text}"'


def _amount(part: Part, shape: Limit, value: object) -> int:
    """Read a number in the kind's public unit (USD, seconds, a count), or text with a unit: `"500k"`, `"90s"`."""
    if isinstance(value, str):
        if ":" in value:
            raise ConfigurationError(
                f"value={checks.show(value)} has an option behind it; write it as a key of its own, such as {part.line('warn_at = 0.5')}."
            )
        return parse_limit(f"{_spelled(shape)}={value}").value
    if shape.kind == Kind.COST:
        return checks.nano_usd("value", value)
    if shape.kind in CLOCKS:
        return checks.nanoseconds("value", value)
    return checks.count("value", value)


def _spelled(shape: Limit) -> str:
    return format_limit(shape).rpartition("=")[0]
