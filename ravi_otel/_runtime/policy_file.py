"""Read a policy file: its document, bounded, and what stands in it, each with the place that an error names."""

from __future__ import annotations

import math
import os
import re
import stat
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, TypeAlias, cast

from ravi_otel import _extras
from ravi_otel._pricing.book import Overrides, PriceMap
from ravi_otel.errors import ConfigurationError, LimitSyntaxError
from ravi_otel.policy import _checks as checks
from ravi_otel.policy._grammar import MAX_SPEC, parse_limit, read_kind
from ravi_otel.policy._limits import (
    CLOCKS,
    OPTIONS,
    SPENDS,
    WRITTEN_AS_OPTION,
    WRITTEN_AS_VARIABLE,
    Admission,
    Kind,
    Limit,
    ScopeKind,
    format_limit,
    make_limit,
)

MOST_BYTES: Final = 1 << 20
MOST_LINE: Final = 8_192
MOST_DOTS: Final = 256
"""Most dots in a line: reading a dotted key takes time that grows with their square."""
MOST_DEPTH: Final = 16
MOST_VALUES: Final = 20_000

_MOST_SAID: Final = 200
_LARGEST: Final = 2**63
_FORMATS: Final = {".toml": "toml", ".yaml": "yaml", ".yml": "yaml"}
_YAML: Final = "tag:yaml.org,2002:"
_TEXTS: Final = frozenset({f"{_YAML}str", f"{_YAML}timestamp"})
_PLAIN: Final = frozenset({f"{_YAML}int", f"{_YAML}float", f"{_YAML}bool", f"{_YAML}null"})


Spot: TypeAlias = tuple[str | int, ...]
"""Where in a document: `("profiles", "ci", "limits", 0)`."""


def dotted(spot: Spot) -> str:
    """Write a spot as people do: `profiles.ci.limits[0]`."""
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in spot).removeprefix(".")
    return text if text.isprintable() else ascii(text)


@dataclass(frozen=True, slots=True)
class Document:
    """A file's content as plain values.

    `shown` is the file as the user named it. `lines` says on which lines of a YAML file things stand.
    """

    shown: str
    content: dict[str, Any]
    lines: Mapping[Spot, int] = field(default_factory=dict[Spot, int])

    @property
    def is_toml(self) -> bool:
        """Tell in which language it is written."""
        return self.shown.lower().endswith(".toml")

    def at(self, spot: Spot) -> str:
        """Return where an error's sentence begins that names the key itself: `policy.yaml:7`, or the file alone."""
        line = self.lines.get(spot)
        return self.shown if line is None else f"{self.shown}:{line}"

    def place(self, spot: Spot) -> str:
        """Return where something stands: `policy.yaml:7`, or `policy.toml limits[2]`."""
        return self.at(spot) if spot in self.lines else f"{self.shown} {_short(dotted(spot))}"


def load_document(path: Path) -> Document:
    """Read a file by its ending; raises ConfigurationError, one sentence, for anything that cannot be used."""
    shown = str(path) if str(path).isprintable() else ascii(str(path))
    form = _FORMATS.get(path.suffix.lower())
    if form is None:
        raise ConfigurationError(f"policy file {shown} has the ending {checks.show(path.suffix)}: name it .toml, .yaml or .yml.")
    text = _text(path, shown)
    document = _toml(shown, text) if form == "toml" else _yaml(shown, text)
    _Values(shown).look("", document.content)
    return document


# -- bytes --------------------------------------------------------------------------------------------------------


def _text(path: Path, shown: str) -> str:
    try:
        raw = _bytes(path)
    except (OSError, ValueError) as error:
        said = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise ConfigurationError(f"policy file {shown} cannot be read: {said}. Name a file of limits, such as policy.toml.") from None
    if len(raw) > MOST_BYTES:
        raise ConfigurationError(f"policy file {shown} is larger than {MOST_BYTES} bytes; split it, or name another one.")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"policy file {shown} is not UTF-8 text (at byte {error.start}): save it as UTF-8.") from None
    for number, line in enumerate(text.split("\n"), 1):
        if len(line) > MOST_LINE or line.count(".") > MOST_DOTS:
            raise ConfigurationError(
                f"{shown}:{number} is longer than {MOST_LINE} characters or has more than {MOST_DOTS} dots; write one limit a line."
            )
    return text


def _bytes(path: Path) -> bytes:
    """Return the bytes of a regular file; one that is none, such as a pipe nobody writes to, is not waited for."""
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(0, "it is no regular file")
        with os.fdopen(handle, "rb", closefd=False) as file:
            return file.read(MOST_BYTES + 1)
    finally:
        os.close(handle)


# -- TOML ---------------------------------------------------------------------------------------------------------


def _toml(shown: str, text: str) -> Document:
    try:
        content = _extras.load("tomllib").loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"policy file {shown} is no TOML that can be read: {_parser_words(error)}.") from None
    return Document(shown, content)


# -- YAML ---------------------------------------------------------------------------------------------------------


def _yaml(shown: str, text: str) -> Document:
    yaml = _extras.load("yaml")
    try:
        flaw = next(_yaml_bombs(yaml, text), None)
        if flaw is not None:
            raise ConfigurationError(f"{shown}:{flaw}.")
        loader = yaml.SafeLoader(text)
        root = loader.get_single_node()
        builder = _Builder(yaml, loader, shown)
        content: Any = {} if root is None else builder.value(root, ())
    except yaml.YAMLError as error:
        raise ConfigurationError(f"policy file {shown} is no YAML that can be read: {_parser_words(error)}.") from None
    if not isinstance(content, dict):
        raise ConfigurationError(f"policy file {shown} holds {checks.show(content)}, not keys such as limits; write `limits:` and a list.")
    return Document(shown, cast("dict[str, Any]", content), builder.lines)


def _yaml_bombs(yaml: Any, text: str) -> Iterator[str]:
    """Look over the events, which are made one at a time, for what would take for ever to build."""
    depth = 0
    for count, event in enumerate(yaml.parse(text, Loader=yaml.SafeLoader)):
        line = event.start_mark.line + 1
        if isinstance(event, yaml.AliasEvent):
            yield f"{line} has the alias *{event.anchor}: write the value itself"
        elif isinstance(event, yaml.ScalarEvent) and len(event.value) > MAX_SPEC:
            yield f"{line} has a text longer than {MAX_SPEC} characters: shorten it"
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MOST_DEPTH:
            yield f"{line} is nested deeper than {MOST_DEPTH} levels: write it flat"
        if count > MOST_VALUES:
            yield f"{line} is where the file has more than {MOST_VALUES} values: split it"


class _Builder:
    """Build plain values, and note their lines; keys are the text that stands there, and none may stand there twice."""

    def __init__(self, yaml: Any, loader: Any, shown: str) -> None:
        self._yaml = yaml
        self._loader = loader
        self._shown = shown
        self.lines: dict[Spot, int] = {}

    def value(self, node: Any, spot: Spot) -> Any:
        """Build what stands at `spot`."""
        yaml = self._yaml
        line = self.lines.setdefault(spot, node.start_mark.line + 1)
        if isinstance(node, yaml.SequenceNode) and node.tag == f"{_YAML}seq":
            return [self.value(each, (*spot, index)) for index, each in enumerate(node.value)]
        if isinstance(node, yaml.MappingNode) and node.tag == f"{_YAML}map":
            return self._table(node, spot)
        if isinstance(node, yaml.ScalarNode) and node.tag in _TEXTS:
            return node.value
        if isinstance(node, yaml.ScalarNode) and node.tag in _PLAIN:
            try:
                return self._loader.construct_object(node)
            except (ValueError, LookupError):
                pass  # a number or a truth value by its tag only, or one of too many digits
        raise ConfigurationError(
            f"{self._shown}:{line} holds a {checks.show(node.tag.removeprefix(_YAML))} that is no plain value: write text or a number."
        )

    def _table(self, node: Any, spot: Spot) -> dict[str, Any]:
        made: dict[str, Any] = {}
        for key, each in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, self._yaml.ScalarNode) or key.value in made:
                what = (
                    f"the key {checks.show(key.value)} twice: keep one"
                    if isinstance(key, self._yaml.ScalarNode)
                    else "a key that is no text"
                )
                raise ConfigurationError(f"{self._shown}:{line} has {what}.")
            self.lines[*spot, key.value] = line
            made[key.value] = self.value(each, (*spot, key.value))
        return made


# -- values -------------------------------------------------------------------------------------------------------


def _parser_words(error: Exception) -> str:
    """Return what a parser says as one short line, and for what is not its own words ours."""
    if isinstance(error, RecursionError):
        return "it is nested too deep"
    if type(error) is ValueError:
        return "a number in it has too many digits"
    mark = getattr(error, "problem_mark", None)
    words = [getattr(error, "context", None), getattr(error, "problem", None)]
    said = str(error) if mark is None else f"{' '.join(filter(None, words))} (at line {mark.line + 1}, column {mark.column + 1})"
    text = "".join(char if char.isprintable() else "?" for char in " ".join(said.split())).rstrip(".")
    return text if len(text) <= _MOST_SAID else f"{text[: _MOST_SAID - 1]}…"


class _Values:
    """Go through a document's values, each with its place, and refuse the first that no key of ours can take, and too many."""

    def __init__(self, shown: str) -> None:
        self._shown = shown
        self._seen = 0

    def look(self, at: str, value: object, depth: int = 0) -> None:
        """Look at a value, and at what is in it."""
        self._seen += 1
        if self._seen > MOST_VALUES:
            raise ConfigurationError(f"{self._shown}: the file has more than {MOST_VALUES} values: split it.")
        flaw = f"is nested deeper than {MOST_DEPTH} levels: write it flat" if depth > MOST_DEPTH else _flaw(value)
        if flaw is not None:
            raise ConfigurationError(f"{self._shown}: {_short(at)} {flaw}.")
        at = at[:_MOST_SAID]
        if isinstance(value, dict):
            for key, each in cast("dict[str, object]", value).items():
                self.look(f"{at}.{key}" if at else key, each, depth + 1)
        elif isinstance(value, list):
            for index, each in enumerate(cast("list[object]", value)):
                self.look(f"{at}[{index}]", each, depth + 1)


def _flaw(value: object) -> str | None:
    if value is None or isinstance(value, bool | dict | list):
        return None
    if isinstance(value, str):
        return f"is longer than {MAX_SPEC} characters: shorten it" if len(value) > MAX_SPEC else None
    if isinstance(value, int):
        return "is too large a number: leave the limit out to allow as much as that" if abs(value) > _LARGEST else None
    if isinstance(value, float):
        return None if math.isfinite(value) else f"is {value}, which is no amount: give a number"
    return f"is {checks.show(str(value))}, a date or time: write it as text in quotes"


def _short(at: str) -> str:
    kept = at if at.isprintable() else checks.show(at)
    return kept if len(kept) <= _MOST_SAID else f"{kept[: _MOST_SAID - 1]}…"


SCHEMA: Final = Path(__file__).with_name("policy.schema.json")
"""The schema of a policy file, for editors; `ravi-otel limits --schema` prints it. It refuses nothing that can be read."""

CODE: Final = "code"
FLAG: Final = WRITTEN_AS_OPTION
VARIABLES: Final = WRITTEN_AS_VARIABLE
MODES: Final = ("enforce", "observe")
MOST_LIMITS: Final = 1_000

LIMIT_KEYS: Final = ("kind", "value", "tool", "agent", *OPTIONS)
GENERAL: Final = ("admission", "warn_at")
"""Options that a file, or its part of an agent, can state for all limits there that say nothing themselves."""
AGENT_KEYS: Final = ("limits", *GENERAL)
_TOKENS: Final = 'kind = "tokens"'
GATE_KEYS: Final = ("default", "rules", "approvers", "requester_may_approve")


# -- where a limit was written -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Sourced:
    """Be a limit, and say where it came from.

    `spec` is the limit as the grammar writes it. `source` is `code`, `--limit`, the variable's name, or the file and
    the key, `policy.toml limits[2]`, counted from 0; of a YAML file the line, `policy.yaml:3`. `instead_of` are the
    limits of weaker sources it replaced, the strongest first.
    """

    limit: Limit
    spec: str
    source: str
    instead_of: tuple[Sourced, ...] = ()

    @property
    def key(self) -> Hashable:
        """Return what two limits must share for one to replace the other."""
        return self.limit.target

    @property
    def origin(self) -> str:
        """Return for the sentence of a refusal what its reader has to change: `--limit requests=3`, `RAVI_LIMIT_COST=2.5usd`."""
        if self.source == CODE:
            return self.spec
        if self.source == FLAG:
            return f"{FLAG} {self.spec}"
        if self.source.startswith(VARIABLES):
            return f"{self.source}={self.spec.partition('=')[2]}"
        return f"{self.spec} in {self.source}"


def parsed(place: str, spec: Any) -> Limit:
    """Read one limit in words; the error begins with where it is written."""
    try:
        return parse_limit(spec)
    except LimitSyntaxError as error:
        raise LimitSyntaxError(f"{place}: {error}", spec=error.spec) from None


def once(limits: Iterable[Sourced]) -> dict[Hashable, Sourced]:
    """Arrange the limits of one source by what they limit; two for the same thing are an error that names both."""
    kept: dict[Hashable, Sourced] = {}
    for each in limits:
        other = kept.setdefault(each.key, each)
        if other is not each:
            raise ConfigurationError(f"{_written(each)} is there twice: {_written(other)} sets the same limit. Keep one of them.")
    return kept


def _written(each: Sourced) -> str:
    if each.source in (CODE, FLAG):
        return f"{each.source} {checks.show(each.spec)}"
    if each.source.startswith(VARIABLES):
        return f"{each.source}={checks.show(each.spec.partition('=')[2])}"
    return f"{checks.show(each.spec)} at {each.source}"


# -- parts of a file ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FilePart:
    """The file, or one of its profiles: the table at `spot`, and what is said behind the place of each of its limits."""

    document: Document
    spot: Spot = ()

    def line(self, toml: str) -> str:
        """Write a line of advice, given in TOML, as the file's own language has it."""
        return toml if self.document.is_toml else re.sub(r"(?<=\w) = ", ": ", toml)

    def named(self, *steps: str | int) -> str:
        """Write a key of this part as the file's reader knows it: `profiles.ci.name`."""
        return dotted((*self.spot, *steps))

    def at(self, *steps: str | int) -> str:
        """Return where a sentence begins that names the key itself."""
        return self.document.at((*self.spot, *steps))

    def place(self, *steps: str | int) -> str:
        """Return where something in this part stands."""
        return self.document.place((*self.spot, *steps))

    def source(self, *steps: str | int) -> str:
        """Return where a limit came from: `policy.yaml:7 (profile ci)`."""
        behind = f" (profile {self.spot[-1]})" if self.spot else ""
        return f"{self.place(*steps)}{behind}"

    def listed(self, given: object, way_out: str, *steps: str | int) -> list[object]:
        """Accept a list; the way out is in TOML."""
        if not isinstance(given, list):
            raise ConfigurationError(
                f"{self.at(*steps)}: {self.named(*steps)} is {checks.show(given)}, which is no list: write {self.line(way_out)}."
            )
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
            self.checked(checks.name, name, *steps, name, parameter=f"the name in {self.named(*steps)}")
        return table

    def checked(self, check: Any, value: object, *steps: str | int, parameter: str | None = None) -> Any:
        """Check a value; the error begins with where it stands, and calls it by its key, or by `parameter`."""
        try:
            return check(parameter or self.named(*steps), value)
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


def read_limits(part: FilePart, given: object, *steps: str | int) -> tuple[Sourced, ...]:
    """Read a list of limits, texts and tables."""
    return tuple(_limit(part, each, *steps, index) for index, each in enumerate(part.listed(given, 'limits = ["tokens=500k"]', *steps)))


def _limit(part: FilePart, given: object, *steps: str | int) -> Sourced:
    place = part.place(*steps)
    if isinstance(given, str):
        return Sourced(parsed(place, given), given.strip(), part.source(*steps))
    if not isinstance(given, dict):
        raise ConfigurationError(
            f"{part.at(*steps)}: {part.named(*steps)} is {checks.show(given)}: "
            'write text such as "tokens=500k", or a table with kind and value.'
        )
    limit = _from_table(part, place, cast("dict[str, Any]", given))
    return Sourced(limit, format_limit(limit), part.source(*steps))


def read_agents(part: FilePart, given: object) -> Iterator[Sourced]:
    """Read limits by agent: each is a template for every agent of that name."""
    for name, said in part.table(given, '{researcher: ["tokens=50k"]}', "agents").items():
        steps: tuple[str, ...] = ("agents", name)
        options: dict[str, Any] = {}
        limits = said
        if isinstance(said, dict):
            table = cast("dict[str, object]", said)
            part.only(table, AGENT_KEYS, "an agent", *steps)
            for key in GENERAL:
                if table.get(key) is not None:
                    options[key] = part.checked(OPTIONS[key].check, table[key], *steps, key)
            limits, steps = table.get("limits", []), (*steps, "limits")
        for index, each in enumerate(read_limits(part, limits, *steps)):
            limit = _for_agent(part, name, each, options, *steps, index)
            yield replace(each, limit=limit, spec=format_limit(limit))


def _for_agent(part: FilePart, name: str, each: Sourced, options: Mapping[str, Any], *steps: str | int) -> Limit:
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
    return parsed(place, format_limit(replace(limit, **changes)))


def read_tools(part: FilePart, given: object) -> Iterator[Sourced]:
    """Read how often each tool may be started: a number, or text with options behind it, `"5:on=stop"`."""
    for name, value in part.table(given, "{search: 5}", "tools").items():
        place = part.place("tools", name)
        if "*" in name:
            raise ConfigurationError(f"{place}: tools has {checks.show(name)}, and no patterns are known: name each tool in full.")
        if isinstance(value, str):
            limit = _of_tool(part, place, name, value)
        else:
            limit = Limit(kind=Kind.TOOL_CALLS, value=part.checked(checks.count, value, "tools", name))
        spec = format_limit(replace(limit, detail=name))
        yield Sourced(parsed(place, spec), spec, part.source("tools", name))


def _of_tool(part: FilePart, place: str, name: str, value: str) -> Limit:
    try:
        return parse_limit(f"{Kind.TOOL_CALLS}={value}")
    except LimitSyntaxError as error:
        what = str(error).partition(": ")[2].rpartition(". For example: ")[0]
        key = part.named("tools", name)
        raise LimitSyntaxError(f'{place}: {key}={checks.show(value)}: {what}. For example: 5, or "5:on=stop".', spec=value) from None


# -- tables -------------------------------------------------------------------------------------------------------


def _from_table(part: FilePart, place: str, table: dict[str, Any]) -> Limit:
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


def _made(part: FilePart, table: dict[str, Any]) -> Limit:
    shape = _kind(part, table["kind"])
    tool = checks.optional_name("tool", table.get("tool"))
    if tool is not None and (shape.kind != Kind.TOOL_CALLS or shape.detail is not None):
        kind = part.line('kind = "tool_calls"')
        raise ConfigurationError(f"tool={checks.show(tool)} goes with {kind}, not with {checks.show(table['kind'])}.")
    agent = checks.optional_name("agent", table.get("agent"))
    options = {key: table[key] for key in OPTIONS if key in table}
    return make_limit(shape.kind, _amount(part, shape, table["value"]), options, detail=tool or shape.detail, agent=agent)


def _kind(part: FilePart, word: object) -> Limit:
    """Read `tokens`, `tool.search` or `charge.sql_rows`, as a limit of 1."""
    if not isinstance(word, str):
        raise ConfigurationError(f"kind={checks.show(word)} is no kind of limit; the kinds are {', '.join(Kind)}.")
    named = read_kind("kind", word)
    for beside, given in (("scope", named.scope), ("agent", named.agent)):
        if given is not None:
            way_out = part.line(f'{beside} = "{given}"')
            raise ConfigurationError(f"kind={checks.show(word)} has the {beside} in it; write {way_out} beside it.")
    return Limit(kind=named.kind, value=1, detail=named.detail)


def _amount(part: FilePart, shape: Limit, value: object) -> int:
    """Read a number in the kind's public unit (USD, seconds, a count), or text with a unit: `"500k"`, `"90s"`."""
    if isinstance(value, str):
        if ":" in value:
            raise ConfigurationError(
                f"value={checks.show(value)} has an option behind it; write it as a key of its own, such as {part.line('warn_at = 0.5')}."
            )
        spelled = format_limit(shape).rpartition("=")[0]
        return parse_limit(f"{spelled}={value}").value
    if shape.kind == Kind.COST:
        return checks.nano_usd("value", value)
    if shape.kind in CLOCKS:
        return checks.nanoseconds("value", value)
    return checks.count("value", value)


# -- the gate ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class GateSection:
    """What a policy file says of the gate; `default` is "approve" where it says nothing.

    `approvers` are names as they were written, None where nothing was; who reads the rules reads them.
    """

    part: FilePart
    default: str
    rules: tuple[Mapping[str, Any], ...]
    approvers: object = None
    requester_may_approve: bool = True


def read_gate(part: FilePart, given: object) -> GateSection:
    """Read the section as any reader of the file does: a default in words, and tables, each with the word of its rule."""
    table = part.table(given, '{default: "escalate", rules: []}', "gate")
    part.only(table, GATE_KEYS, "the gate", "gate")
    gate = FilePart(part.document, (*part.spot, "gate"))
    said, rules = table.get("default"), table.get("rules")
    default = gate.checked(_word, "approve" if said is None else said, "default")
    listed = [] if rules is None else gate.listed(rules, 'rules = [{ rule = "allow", tool = "search" }]', "rules")
    flag = table.get("requester_may_approve")
    return GateSection(
        gate,
        default,
        tuple(_rule(gate, index, each) for index, each in enumerate(listed)),
        table.get("approvers"),
        gate.checked(checks.flag, True if flag is None else flag, "requester_may_approve"),
    )


def _rule(gate: FilePart, index: int, given: object) -> Mapping[str, Any]:
    table = gate.table(given, '{rule: "allow", tool: "search"}', "rules", index)
    word = table.get("rule")
    if not isinstance(word, str):
        what = "has no rule" if word is None else f"has the rule {checks.show(word)}"
        way_out = gate.line('rule = "allow"')
        raise ConfigurationError(f"{gate.place('rules', index)}: {what}; write a word such as {way_out}.")
    return table


def _word(parameter: str, value: object) -> str:
    return checks.choice(parameter, value, ("approve", "block", "escalate"))


# -- the file ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PolicyFile:
    """What a policy file, or one of its profiles, says; None is what it does not say."""

    shown: str
    limits: tuple[Sourced, ...] = ()
    name: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict[str, str])
    prices: PriceMap | None = None
    enforcement: str | None = None
    admission: Admission | None = None
    warn_at: float | None = None
    gate: GateSection | None = None
    profiles: Mapping[str, PolicyFile] = field(default_factory=dict[str, "PolicyFile"])

    def profile(self, name: str, asked_by: str) -> PolicyFile:
        """Return one of its profiles; ConfigurationError lists those there are, and names who asked."""
        found = self.profiles.get(name)
        if found is None:
            close = checks.nearest(name, self.profiles)
            hint = f", did you mean {close!r}" if close else ""
            there = ", ".join(map(checks.show, self.profiles)) or "none"
            raise ConfigurationError(f"{asked_by}={checks.show(name)} is no profile of {self.shown}{hint}; its profiles are {there}.")
        return found


def read_file(path: Path) -> PolicyFile:
    """Read a policy file with all its profiles; raises ConfigurationError naming the file, the key, the value and the way out."""
    return read_document(load_document(path))


def read_document(document: Document) -> PolicyFile:
    """Read what is in a policy file."""
    only(document.shown, document.content, FILE_KEYS, "a policy file")
    return _read(FilePart(document), document.content, document.shown)


def _read(part: FilePart, content: Mapping[str, object], shown: str) -> PolicyFile:
    fields = {key: _READERS[key](part, value) for key, value in content.items() if value is not None}
    limits = tuple(each for key in _LISTS for each in fields.pop(key, ()))
    once(limits)  # two for the same thing are an error in a profile that is not chosen, too
    return PolicyFile(shown, limits, **fields)


def _profiles(part: FilePart, given: object) -> dict[str, PolicyFile]:
    found: dict[str, PolicyFile] = {}
    for name, content in part.table(given, '{ci: {limits: ["tokens=50k"]}}', "profiles").items():
        table = part.table(content, "{} for one that changes nothing", "profiles", name)
        part.only(table, PROFILE_KEYS, "a profile", "profiles", name)
        found[name] = _read(FilePart(part.document, ("profiles", name)), table, f"{part.document.shown} (profile {name})")
    return found


Reader: TypeAlias = Callable[[FilePart, Any], Any]


def _checked(key: str, check: Callable[[str, Any], Any]) -> Reader:
    return lambda part, given: part.checked(check, given, key)


def check_mode(parameter: str, value: object) -> str:
    """Accept "enforce" or "observe"."""
    return checks.choice(parameter, value, MODES)


def _mode(parameter: str, value: object) -> str:
    if isinstance(value, bool):  # what YAML makes of on, off, yes and no
        raise ConfigurationError(
            f"{parameter} is {'on' if value else 'off'}, a switch: give 'observe', which refuses nothing, or 'enforce'."
        )
    return check_mode(parameter, value)


def _run_name(parameter: str, value: object) -> str:
    return checks.name(parameter, value, "nightly")


def _prices(_: str, value: Any) -> Any:
    Overrides(value)
    return value


_LISTS: Final = ("limits", "agents", "tools")
_READERS: Final[dict[str, Reader]] = {
    "limits": lambda part, given: read_limits(part, given, "limits"),
    "name": _checked("name", _run_name),
    "tags": _checked("tags", checks.tags),
    "prices": _checked("prices", _prices),
    "enforcement": _checked("enforcement", _mode),
    "admission": _checked("admission", OPTIONS["admission"].check),
    "warn_at": _checked("warn_at", OPTIONS["warn_at"].check),
    "agents": read_agents,
    "tools": read_tools,
    "gate": read_gate,
    "profiles": _profiles,
}
FILE_KEYS: Final = tuple(_READERS)
PROFILE_KEYS: Final = tuple(key for key in FILE_KEYS if key not in ("gate", "profiles"))
