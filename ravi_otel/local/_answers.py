"""Turn rows of the local store into answers: frozen dataclasses that can be written as JSON, and the tree of a run.

Money is nano-USD, times are UTC epoch nanoseconds, None is unknown; a field that ends in `_text` is the same for people, with `~` for an
estimate, `≥` for a lower bound and `?` for what nobody told. Anybody may have written the file: what has another shape is left out.
"""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from typing import Any, Final, cast, get_args

from ravi_otel._runtime.background_calls import FETCHES
from ravi_otel.errors import RaviError
from ravi_otel.hooks._events import LimitEvent, LimitReading, Phase, Spend, Status
from ravi_otel.local import _outline
from ravi_otel.local._record import Branch, Leaf, RunRecord, What
from ravi_otel.local._store import SUMS, Sums
from ravi_otel.local._wording import amount, clean, count, money, percent
from ravi_otel.policy._grammar import parse_limit
from ravi_otel.policy._limits import CLOCKS, NANO, Kind, Limit, ScopeKind
from ravi_otel.policy._runs import Priority, ScopeFacts, StopReason, Supervision
from ravi_otel.policy._usage import Usage, UsageSource

Json = Mapping[str, Any]


# -- answers ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Spent:
    """Sum up what calls and tools used; a figure is None where calls were made and none of them told it.

    `unknown_usage` and `unknown_cost` count the calls that make the sums a lower bound; `estimated` and `assumed` those that were counted
    by us, and priced as some provider that we only guess.
    """

    requests: int
    turns: int
    input_tokens: int | None
    output_tokens: int | None
    cached_input_tokens: int | None
    unsplit_tokens: int
    total_tokens: int | None
    cost_nano: int | None
    tool_calls: int
    refused: int
    errors: int
    unknown_usage: int
    unknown_cost: int
    estimated: int
    assumed: int
    input_text: str
    output_text: str
    tokens_text: str
    cost_text: str

    @classmethod
    def of(cls, sums: Sums) -> Spent:
        """Return a frozen copy of sums, with their texts."""
        rough, partly = sums.estimated_calls > 0, sums.unknown_usage > 0
        return cls(
            requests=sums.requests,
            turns=sums.turns,
            input_tokens=_known(sums.input_tokens, sums.unknown_usage),
            output_tokens=_known(sums.output_tokens, sums.unknown_usage),
            cached_input_tokens=_known(sums.cached_input_tokens, sums.unknown_usage),
            unsplit_tokens=sums.unsplit_tokens,
            total_tokens=_known(sums.total_tokens, sums.unknown_total),
            cost_nano=_known(sums.cost_nano, sums.unknown_cost),
            tool_calls=sums.tool_calls,
            refused=sums.refused,
            errors=sums.errors,
            unknown_usage=sums.unknown_usage,
            unknown_cost=sums.unknown_cost,
            estimated=sums.estimated_calls,
            assumed=sums.assumed_calls,
            input_text=_part_text(sums.input_tokens, rough=rough, partly=partly),
            output_text=_part_text(sums.output_tokens, rough=rough, partly=partly),
            tokens_text=_at_least(count(sums.total_tokens, estimated=rough), partly=sums.unknown_total > 0),
            cost_text=_cost_text(sums),
        )


@dataclass(frozen=True, slots=True)
class RunRow:
    """Say what a run was, and what was used in it.

    `kind` is "run", "launch" (a program under `ravi-otel run`) or "process" (what a process did outside of any run). `status` is "running",
    "ended" (it was open when its process ended in order), "lost" (nobody saw it end), or how it ended. `outcome` is that of a launch,
    `exit_status` the program's. `end_status` and `end_reason` are those of the outermost run or agent inside that did not come to its end.
    Of `lost_records` nothing is known, so every figure is at least so much.
    """

    run: str
    kind: str
    parent: str | None
    launch: str | None
    process: str | None
    name: str | None
    user: str | None
    tenant: str | None
    session: str | None
    tags: Mapping[str, str]
    trace: str | None
    span: str | None
    sampled: bool
    began: int
    ended: int | None
    duration: int | None
    status: str
    outcome: str | None
    exit_status: int | None
    stop_reason: str | None
    error_type: str | None
    refusal: str | None
    end_status: str | None
    end_reason: str | None
    agents: int
    lost_records: int
    spent: Spent
    duration_text: str


@dataclass(frozen=True, slots=True)
class RunsPage:
    """Give a page of runs: `after` asks for the next, None at the end; `facets` counts runs by what they can be filtered by."""

    rows: tuple[RunRow, ...]
    total: int
    after: str | None
    facets: Mapping[str, tuple[tuple[str, int], ...]] = field(default_factory=dict[str, tuple[tuple[str, int], ...]])


@dataclass(frozen=True, slots=True)
class RunFilter:
    """Choose runs; None is any.

    `since` and `until` are when they began. `status` is a word of `RunRow.status`, or "refused": something in it was. `tag` is a key, and
    a value or None. `text` is looked for in names, and in what was said where that was captured. `inside` is a run or launch around.
    """

    since: int | None = None
    until: int | None = None
    status: str | None = None
    user: str | None = None
    tenant: str | None = None
    session: str | None = None
    tag: tuple[str, str | None] | None = None
    stop_reason: str | None = None
    name: str | None = None
    agent: str | None = None
    model: str | None = None
    text: str | None = None
    inside: str | None = None


@dataclass(frozen=True, slots=True)
class SpendFilter:
    """Choose calls and tool calls; None is any, "" is none: calls of no user."""

    user: str | None = None
    tenant: str | None = None
    model: str | None = None
    agent: str | None = None
    tool: str | None = None
    provider: str | None = None


@dataclass(frozen=True, slots=True)
class Group:
    """Be one group of a `SpendTable`: `key` in the order of what it is grouped by, None where there is none."""

    key: tuple[str | None, ...]
    calls: int
    duration: int
    spent: Spent


@dataclass(frozen=True, slots=True)
class SpendTable:
    """Say who spent what between two times, the dearest first, or by time from the first on."""

    by: tuple[str, ...]
    since: int | None
    until: int | None
    groups: tuple[Group, ...]
    total: Spent


@dataclass(frozen=True, slots=True)
class LimitRow:
    """Say where a limit stood at the end of its scope; amounts in its public unit."""

    scope: str
    scope_id: str
    scope_name: str | None
    limit: str
    kind: str
    allowed: float
    used: float | None
    held: float | None
    remaining: float | None
    ratio: float | None
    denied: int | None
    events: tuple[str, ...]
    per: str | None
    window: str | None
    by: str | None
    counted_for: str | None
    title: str
    allowed_text: str
    used_text: str
    held_text: str
    share_text: str
    tone: str


@dataclass(frozen=True, slots=True)
class Node:
    """Be one line of a run's tree: a scope, a model call or a tool call; `notes` are sentences with their tone."""

    id: str
    parent: str | None
    kind: str
    name: str | None
    title: str
    began: int
    duration: int | None
    status: str
    stop_reason: str | None
    error_type: str | None
    decision: str | None
    stream: bool
    priority: str | None
    attempt: int | None
    input_tokens: int | None
    output_tokens: int | None
    cost_nano: int | None
    cost_source: str | None
    limit_kind: str | None
    limit_scope: str | None
    refusal: str | None
    retries: int
    notes: tuple[tuple[str, str], ...]
    remark: str
    spent: Spent | None
    ms_text: str
    in_text: str
    out_text: str
    cost_text: str


@dataclass(frozen=True, slots=True)
class Note:
    """Be something that happened beside calls: a handoff, a step, a guardrail, a slot, a command of an operator, a review."""

    at: int
    kind: str
    scope: str | None
    text: str | None
    data: Json


@dataclass(frozen=True, slots=True)
class RunTree:
    """Show one run: its head, its nodes outer ones first, its limits the fullest first. `launch` is what was launched, None otherwise."""

    run: RunRow
    nodes: tuple[Node, ...]
    limits: tuple[LimitRow, ...]
    notes: tuple[Note, ...]
    left_out: int
    launch: Json | None


@dataclass(frozen=True, slots=True)
class CallView:
    """Show one model call or tool call whole. Messages, arguments and result are None where they were not captured."""

    node: Node
    run: str
    scope: str
    agent: str | None
    user: str | None
    tenant: str | None
    session: str | None
    tags: Mapping[str, str]
    trace: str | None
    span: str | None
    sampled: bool
    facts: Json
    usage: Json | None
    estimated: Json | None
    held: tuple[Json, ...]
    charged: Json | None
    refusal: Json | None
    retries: tuple[Json, ...]
    events: tuple[Json, ...]
    captured: bool
    system: tuple[Json, ...] | None = None
    tools: tuple[Json, ...] | None = None
    messages: tuple[Json, ...] | None = None
    output: tuple[Json, ...] | None = None
    arguments: Any = None
    result: Any = None


@dataclass(frozen=True, slots=True)
class Refusal:
    """Be one refused model call or tool call, and the sentence that the program got."""

    id: str
    kind: str
    at: int
    run: str
    scope: str
    agent: str | None
    user: str | None
    tenant: str | None
    name: str | None
    limit_kind: str | None
    limit_scope: str | None
    reason: str | None
    sentence: str | None


@dataclass(frozen=True, slots=True)
class Curve:
    """Say where one limit stood over time: `points` are (time, used, held, limit), in its public unit."""

    scope: str
    scope_kind: str
    scope_name: str | None
    limit_kind: str
    limit_label: str
    window: str | None
    counted_for: str | None
    points: tuple[tuple[int, float | None, float | None, float | None], ...]


@dataclass(frozen=True, slots=True)
class Found:
    """Be something that an id names, and the run it is in."""

    kind: str
    id: str
    run: str | None
    title: str


@dataclass(frozen=True, slots=True)
class Hit:
    """Be a call in which words were found: `snippet` has them between « and »."""

    item: str | None
    run: str
    snippet: str


@dataclass(frozen=True, slots=True)
class Difference:
    """Compare one figure of two runs; None is unknown, or not there."""

    what: str
    a: int | None
    b: int | None
    a_text: str
    b_text: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """Compare two runs: their heads, their totals, and their spend by agent and model."""

    a: RunRow
    b: RunRow
    rows: tuple[Difference, ...]


@dataclass(frozen=True, slots=True)
class Worked:
    """Be one run, or one time that an agent worked, for what limits can be learnt from: its sums, and how it ended."""

    run: str
    name: str | None
    kind: str
    began: int
    duration: int | None
    status: str
    outcome: str | None
    sums: Sums


# -- figures ------------------------------------------------------------------------------------------------------


def _known(total: int, unknown: int) -> int | None:
    """Return a sum for programs: None when calls are in it that nobody told of, and nothing else."""
    return None if unknown and not total else total


def _at_least(shown: str, *, partly: bool) -> str:
    if not partly or shown == "?":
        return shown
    return "?" if shown.strip("~") == "0" else f"≥{shown}"


def _part_text(number: int, *, rough: bool, partly: bool) -> str:
    if partly and not number:
        return "?"
    return ("≥" if partly else "") + count(number, estimated=rough and number > 0)


def _cost_text(sums: Sums) -> str:
    """Write the cost; ≥ where a call has none that is known, ? where no call has."""
    rough = sums.estimated_calls + sums.assumed_calls > 0
    if sums.unknown_cost and not sums.cost_nano:
        return "?"
    return _at_least(money(sums.cost_nano, estimated=rough and sums.cost_nano > 0), partly=sums.unknown_cost > 0)


def sums_in(row: sqlite3.Row) -> Sums:
    """Read the sums that are the last columns of a row."""
    counted = row[-len(SUMS) :]
    if not all(type(each) is int and each >= 0 for each in counted):  # anybody's
        counted = tuple(max(0, int_in(each) or 0) for each in counted)
    return Sums(*counted)


def add_consumed(sums: Sums, spend: str | None) -> None:
    """Add what a program reported by hand in a run or agent, which says no input and output apart."""
    consumed = (object_in(spend) or {}).get("consumed")
    if isinstance(consumed, dict):
        told = cast("dict[str, Any]", consumed)
        sums.unsplit_tokens += int_in(told.get("tokens")) or 0
        sums.cost_nano += round((float_in(told.get("cost_usd")) or 0.0) * NANO)
        sums.turns += int_in(told.get("turns")) or 0
        sums.priced_calls += 1  # its cost is known


# -- what a column holds ------------------------------------------------------------------------------------------


def int_in(value: Any) -> int | None:
    """Read a whole number; None for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def float_in(value: Any) -> float | None:
    """Read a finite number; None for anything else."""
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) else None


def json_in(written: Any) -> Any:
    """Read JSON; None for what is none."""
    try:
        return json.loads(written) if isinstance(written, str) else None
    except (ValueError, RecursionError):
        return None


def object_in(written: Any) -> dict[str, Any] | None:
    """Read a JSON object; None for anything else."""
    return _an_object(json_in(written))


def list_in(written: Any) -> list[Any]:
    """Read a JSON list; an empty one for anything else."""
    found: object = json_in(written)
    return list(cast("Sequence[Any]", found)) if isinstance(found, list) else []


def objects_in(written: Any) -> tuple[Json, ...]:
    """Read the objects of a JSON list."""
    return objects_of(json_in(written))


def _an_object(found: object) -> dict[str, Any] | None:
    return cast("dict[str, Any]", found) if isinstance(found, dict) else None


def objects_of(found: object) -> tuple[Json, ...]:
    """Return the objects of what may be a list."""
    listed = cast("list[object]", found) if isinstance(found, list) else []
    return tuple(known for each in listed if (known := _an_object(each)) is not None)


def tags_in(written: Any) -> dict[str, str]:
    """Read tags, as far as they are texts."""
    return {key: value for key, value in (object_in(written) or {}).items() if isinstance(value, str)}


def parts_in(messages: tuple[Json, ...]) -> tuple[Json, ...]:
    """Give the parts of messages, one after the other."""
    return tuple(part for message in messages for part in objects_of(message.get("parts")))


def sentence_in(refusal: Any) -> str | None:
    """Read the sentence of a refusal."""
    found = (object_in(refusal) or {}).get("sentence")
    return found if isinstance(found, str) else None


def duration_of(row: sqlite3.Row) -> int | None:
    """Return how long a run or scope took; None while it is open, and for times that cannot be."""
    began, ended = int_in(row["began"]), int_in(row["ended"])
    return ended - began if began is not None and ended is not None and 0 < began <= ended else None


def run_row(row: sqlite3.Row, end: tuple[str, str | None] | None) -> RunRow:
    """Read a run."""
    duration = duration_of(row)
    names = ("run", "kind", "parent", "launch", "process", "name", "user", "tenant", "session", "trace", "span", "status", "outcome")
    return RunRow(
        **{name: row[name] for name in (*names, "stop_reason", "error_type")},
        tags=tags_in(row["tags"]),
        sampled=bool(row["sampled"]),
        began=int_in(row["began"]) or 0,
        ended=int_in(row["ended"]),
        duration=duration,
        exit_status=int_in(row["exit_status"]),
        refusal=sentence_in(row["refusal"]),
        end_status=None if end is None else end[0],
        end_reason=None if end is None else end[1],
        agents=int_in(row["agents"]) or 0,
        lost_records=int_in(row["lost_records"]) or 0,
        spent=Spent.of(sums_in(row)),
        duration_text="?" if duration is None else f"{duration / NANO:,.1f}",
    )


def note_of(row: sqlite3.Row) -> Note:
    """Read a note."""
    return Note(row["at"], row["kind"], row["scope"], row["text"], object_in(row["data"]) or {})


# -- limits -------------------------------------------------------------------------------------------------------

_PHASES: Final = frozenset(get_args(Phase))
_SCOPE_KINDS: Final = frozenset(ScopeKind)
_MOST_NAMES: Final = 16
_MOST_LIMITS: Final = 1_000


def limit_row(scope_id: str, reading: LimitReading) -> LimitRow:
    """Write where a limit of a scope stood, in figures and in words."""
    limit = reading.limit
    exceeded, nearing = "limit_exceeded" in reading.events, "limit_nearing" in reading.events
    unknown = math.isnan(reading.used)
    return LimitRow(
        scope=reading.scope.value,
        scope_id=scope_id,
        scope_name=reading.scope_name,
        limit=limit.label,
        kind=str(limit.kind),
        allowed=limit.amount,
        used=float_in(reading.used),
        held=float_in(reading.held),
        remaining=float_in(reading.remaining),
        ratio=float_in(reading.ratio),
        denied=None if unknown and not reading.denied else reading.denied,
        events=reading.events,
        per=limit.per,
        window=reading.window,
        by=limit.by,
        counted_for=reading.counted_for,
        title=clean(reading.title, 60),
        allowed_text=amount(limit.kind, limit.amount),
        used_text=amount(limit.kind, reading.used),
        held_text=amount(limit.kind, reading.held),
        share_text=percent(reading.ratio),
        tone="refused" if exceeded or reading.denied else "warning" if nearing else "quiet",
    )


def reading_of(stored: Json) -> LimitReading | None:
    """Read where a limit stood, in the shape of `limits` in `as_json`; None when it has another shape."""
    scope, name, label = stored.get("scope"), stored.get("scope_name"), stored.get("limit")
    threshold = float_in(stored.get("threshold"))
    if not isinstance(scope, str) or scope not in _SCOPE_KINDS or not isinstance(label, str) or threshold is None:
        return None
    limit = _limit(label, threshold)
    if limit is None:
        return None
    used, held, ratio = (_not_negative(stored.get(each)) for each in ("used", "held", "ratio"))
    remaining = float_in(stored.get("remaining"))
    events: object = stored.get("events")
    told = cast("list[object]", events) if isinstance(events, list) else []
    found = LimitReading(
        limit=limit,
        scope=ScopeKind(scope),
        scope_name=name if isinstance(name, str) else None,
        used=used,
        held=held,
        remaining=math.nan if remaining is None else remaining,  # below 0 where a limit was passed
        ratio=ratio,
        denied=max(0, int(float_in(stored.get("denied")) or 0)),
        events=tuple(each for each in told[:_MOST_NAMES] if isinstance(each, str)),
    )
    per, window, by, counted_for = (_text(stored.get(key)) for key in ("per", "window", "by", "counted_for"))
    try:
        return replace(found, limit=replace(limit, per=per, by=by), window=window, counted_for=counted_for) if per or by else found
    except RaviError:
        return found


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _not_negative(value: Any) -> float:
    found = float_in(value)
    return math.nan if found is None or found < 0 else found


def _limit(label: str, threshold: float) -> Limit | None:
    """Build the limit a label stands for: `tokens`, `tool.search`, `tokens@researcher`."""
    what, _, agent = label.partition("@")
    detail = what.removeprefix("tool.") if what.startswith("tool.") else None
    kind = str(Kind.TOOL_CALLS) if detail is not None else what
    inner = round(threshold * NANO) if kind == Kind.COST or kind in CLOCKS else round(threshold)
    try:
        return Limit(kind=kind, value=inner, detail=detail, agent=agent or None)
    except RaviError:
        return None


def _unsettled(launch: Json) -> list[LimitReading]:
    """Give the limits of a launch that nobody saw end; how full they are is not known."""
    found: list[LimitReading] = []
    for each in objects_in(launch.get("limits"))[:_MOST_LIMITS] if launch.get("outcome") == "running" else ():
        try:
            limit = parse_limit(str(each.get("limit")))
        except RaviError:
            continue
        if limit.scope in (None, ScopeKind.RUN, ScopeKind.SESSION):
            nobody = math.nan
            found.append(LimitReading(limit, limit.scope or ScopeKind.RUN, launch["name"], nobody, nobody, nobody, nobody, 0, ()))
    return found


def event_of(row: sqlite3.Row) -> LimitEvent | None:
    """Read a limit event; None for one that this version never wrote."""
    if row["event"] not in ("limit_nearing", "limit_exceeded") or row["limit_scope"] not in _SCOPE_KINDS:
        return None
    resets = int_in(row["resets_at"])
    return LimitEvent(
        event=row["event"],
        limit_kind=row["limit_kind"] or "",
        scope=ScopeKind(row["limit_scope"]),
        scope_id=row["scope"] or "",
        scope_name=row["limit_scope_name"],
        agent_name=row["agent"],
        agent_id=row["agent_id"],
        run_id=row["run"],
        session_id=row["session"],
        phase=row["phase"] if row["phase"] in _PHASES else "settle",
        decision=row["decision"] or "",
        enforcement=row["enforcement"] or "",
        requested=float_in(row["requested"]),
        resets_at=None if resets is None or not 0 <= resets < 2**62 else datetime.fromtimestamp(resets / NANO, UTC),
        per=row["per"],
        window=row["window"],
        by=row["by"],
        counted_for=row["counted_for"],
        tracker=row["tracker"],
        threshold=_amount(row["threshold"]),
        used=_amount(row["used"]),
        held=_amount(row["held"]),
        remaining=_amount(row["remaining"]),
        exceeded_by=_amount(row["exceeded_by"]),
        ratio=_amount(row["ratio"]),
    )


def _amount(value: Any) -> float:
    found = float_in(value)
    return math.nan if found is None else found


_AMOUNTS: Final = ("threshold", "used", "held", "remaining", "exceeded_by", "ratio")


def event_fields(event: LimitEvent) -> Json:
    """Write a limit event as an object."""
    names = ("event", "limit_kind", "scope_id", "scope_name", "phase", "decision", "per", "window", "by", "counted_for", "tracker")
    figures = {name: float_in(getattr(event, name)) for name in (*_AMOUNTS, "requested")}
    resets = None if event.resets_at is None else event.resets_at.isoformat()
    return {**{name: getattr(event, name) for name in names}, "scope": event.scope.value, **figures, "resets_at": resets}


# -- the tree of a run --------------------------------------------------------------------------------------------

_ENDINGS: Final[dict[str, tuple[Status, str | None]]] = {
    "running": ("open", None),
    "ok": ("ok", StopReason.SUCCESS),
    "failed": ("error", StopReason.ERROR),
    "limited": ("stopped", None),
    "store_failed": ("error", StopReason.STORE_FAILED),
    "unattached": ("error", "unattached"),
    "uncovered": ("error", "uncovered"),
    "signal": ("cancelled", StopReason.CANCELLED),
    "lost": ("cancelled", "lost"),
}
_KINDS: Final = {"launch": ScopeKind.RUN, "process": ScopeKind.PROCESS}
_STATUS_WORDS: Final = frozenset(get_args(Status))
_SOURCES: Final = frozenset(get_args(UsageSource))
_USAGE: Final = frozenset(each.name for each in fields(Usage)) - {"source"}
_PRIORITIES: Final = {each.name.lower(): each for each in Priority}


@dataclass(slots=True, eq=False)
class StoredScope:
    """Show a scope that was read, as a live one shows itself."""

    facts: ScopeFacts
    parent: StoredScope | None = None
    status: Status = "open"
    stop_reason: str | None = None
    error: BaseException | None = None
    began: int = 0
    ended: int = 0
    own: Sums = field(default_factory=Sums)
    sums: Sums = field(default_factory=Sums)
    limits: list[LimitReading] = field(default_factory=list[LimitReading])
    attempt: int | None = None

    @property
    def parent_id(self) -> str | None:
        """Return the enclosing scope's id, None at the root."""
        return None if self.parent is None else self.parent.facts.scope_id

    def readings(self) -> Sequence[LimitReading]:
        """Return where every limit stood that this scope owned, at its end."""
        return list(self.limits)

    def spend(self) -> Spend:
        """Sum what was used in it."""
        return self.sums.spend(max(0, self.ended - self.began) / NANO if self.began else 0.0)

    def upwards(self) -> Iterator[StoredScope]:
        """Give it and the scopes around it."""
        at: StoredScope | None = self
        while at is not None:
            yield at
            at = at.parent

    def reach(self, began: int, ended: int) -> None:
        """Cover what happened in it, as far as it was not seen to end."""
        for view in self.upwards():
            if view.status == "open":
                view.began = min(view.began or began, began)
                view.ended = max(view.ended, ended)


class Tree:
    """Put the rows of a run into a tree: the caller fills in what it read."""

    def __init__(self, head: RunRow, runs: Sequence[str], most: int, launch: Json | None) -> None:
        self.head = head
        self.runs = runs
        self.launch = None if launch is None else _launch_facts(launch)
        self.parents: Mapping[str, str | None] = {}
        """Each scope's parent, also of those around a run: a session, a tenant."""
        self.run_parents: Mapping[str, str | None] = {}
        self.processes: Mapping[str, int | None] = {}
        """The number of each process."""
        self.scopes: Sequence[sqlite3.Row] = ()
        self.calls: Sequence[sqlite3.Row] = ()
        self.tools: Sequence[sqlite3.Row] = ()
        self.events: Sequence[sqlite3.Row] = ()
        self.summed: list[sqlite3.Row] = []
        """The sums of all calls and tool calls by scope, where they are too many to be added up one by one."""
        self._placed: set[int] = set()
        self._record = RunRecord(most)
        self._most = most
        self._launched = launch
        self._branches: dict[str, Branch] = {}
        self._of_run: dict[str, Branch] = {}
        self._of_process: dict[str, Branch] = {}

    def record(self, scope: str | None) -> RunRecord:
        """Give the record of the whole run, or of one scope in it."""
        record, root = self._record, self._root()
        self._hang_processes(root)
        self._hang_scopes(root)
        leaves = self._hang_leaves(root)
        for row in self.events:
            event = event_of(row)
            if event is not None:
                record.put_event(event, leaves.get(row["call"] or "") or self._branches.get(row["scope"] or "") or self._place(row, root))
        self._add_up()
        self._close(root)
        for branch in record.branches():
            branch.children.sort(key=_began)
        record.observed = bool(self._launched and self._launched.get("observe"))
        if scope is not None and scope in self._branches:
            record.roots[:] = [self._branches[scope]]
        return record

    # -- scopes -----------------------------------------------------------------------------------------------------

    def _root(self) -> Branch:
        head, launch = self.head, self._launched
        row = next((row for row in self.scopes if row["kind"] == "run" and row["run"] == head.run), None)
        kind = _KINDS.get(head.kind, ScopeKind.RUN)
        facts = ScopeFacts(head.run, kind, head.name, head.run, head.name, head.session, head.tenant, head.user, tags=head.tags)
        if row is not None and head.kind == "run":
            facts = _scope_facts(row)
        view = StoredScope(facts, None, began=head.began, ended=head.ended or 0)
        view.limits = [] if row is None else _readings(row)
        if launch is not None:
            settled = [found for each in objects_in(launch.get("budgets")) if (found := reading_of(each)) is not None]
            view.limits = settled or _unsettled(launch) or view.limits
        branch = Branch(facts, view)
        self._record.put_scope(branch, None)
        for key in (head.run, facts.scope_id, *([] if row is None else [row["scope"]])):
            self._branches[key] = self._of_run[key] = branch
        return branch

    def _hang_processes(self, root: Branch) -> None:
        """Tell the processes of a launch apart, where several worked."""
        rows = (*self.scopes, *self.calls, *self.tools) if self.head.kind == "launch" else ()
        found = list(dict.fromkeys(row["process"] for row in rows if row["process"] is not None))
        for process in found if len(found) > 1 else ():
            pid = self.processes.get(process)
            facts = ScopeFacts(f"process:{process}", ScopeKind.PROCESS, name=str(pid or process), run_id=self.head.run)
            ended: Status = "open" if self.head.outcome == "running" else "ok"
            branch = Branch(facts, StoredScope(facts, view_of(root), ended, StopReason.SUCCESS))
            times = [(row["began"], _end_of(row)) for row in rows if row["process"] == process]
            view_of(branch).began = min(began for began, _ in times)
            view_of(branch).ended = max(end for _, end in times)
            self._record.put_scope(branch, root)
            self._of_process[process] = branch

    def _hang_scopes(self, root: Branch) -> None:
        rows = {row["scope"]: row for row in self.scopes if row["scope"] not in self._branches}
        for row in rows.values():
            facts = _scope_facts(row)
            status: Status = row["status"] if row["status"] in _STATUS_WORDS else "open"
            view = StoredScope(facts, None, status, row["stop_reason"], None, int_in(row["began"]) or 0, int_in(row["ended"]) or 0)
            view.limits, view.attempt = _readings(row), int_in(row["attempt"])
            add_consumed(view.own, row["spend"])
            branch = self._branches[row["scope"]] = Branch(facts, view)
            if facts.kind is ScopeKind.RUN:
                self._of_run.setdefault(row["run"], branch)
        hung = {id(root)}
        self._placed = {id(branch) for branch in (root, *self._of_process.values())}
        for scope in rows:
            line: list[str] = []
            at: str | None = scope
            while at is not None and at not in line and id(self._branches.get(at)) not in hung:
                line.append(at)
                at = self._around(at, rows)
            for each in reversed(line):
                self._hang(self._branches[each], rows[each], root if at is None or at in line else self._branches[at], root)
                hung.add(id(self._branches[each]))
                at = each

    def _hang(self, branch: Branch, row: sqlite3.Row, parent: Branch, root: Branch) -> None:
        at = self._of_process.get(row["process"], root) if parent is root else parent
        view_of(branch).parent = view_of(at)
        if len(self._record) < self._most and id(at) in self._placed:
            self._placed.add(id(branch))
            self._record.put_scope(branch, at)
        else:
            self._record.left_out["scopes"] += 1

    def _around(self, scope: str, rows: Mapping[str, sqlite3.Row]) -> str | None:
        """Find the nearest scope around one that is in the tree, up through sessions and tenants; else the run around its run."""
        seen = {scope}
        at = self.parents.get(scope)
        while at is not None and at not in seen:
            if at in self._branches:
                return at
            seen.add(at)
            at = self.parents.get(at)
        row = rows.get(scope)
        run = None if row is None else row["run"] if row["kind"] != "run" else self.run_parents.get(row["run"])
        around = None if run is None else self._of_run.get(run)
        return None if around is None or around.facts.scope_id == scope else around.facts.scope_id

    def _place(self, row: sqlite3.Row, root: Branch) -> Branch:
        """Find the scope that a row belongs to; what names none that is known is its run's, or its process's."""
        found = self._branches.get(row["scope"] or "") or self._of_run.get(row["run"] or "")
        if found is None:
            around = self._around(row["scope"] or "", {})
            found = root if around is None else self._branches[around]
        return self._of_process.get(row["process"], root) if found is root else found

    # -- leaves and sums --------------------------------------------------------------------------------------------

    def _hang_leaves(self, root: Branch) -> dict[str, Leaf]:
        found: dict[str, Leaf] = {}
        number = {"calls": len(self.calls), "tools": len(self.tools)}
        for row in self.summed:
            view_of(self._place(row, root)).own.add(sums_in(row))
        if self.summed:
            number = {what: sum(row["number"] for row in self.summed if row["what"] == what) for what in number}
        kinds: tuple[tuple[What, Sequence[sqlite3.Row], Callable[[sqlite3.Row], Leaf], Callable[[sqlite3.Row], Sums]], ...] = (
            ("calls", self.calls, call_leaf, sums_in),
            ("tools", self.tools, tool_leaf, _tool_sums),
        )
        for what, rows, leaf_of, sums_of in kinds:
            for row in rows:
                branch = self._place(row, root)
                view = view_of(branch)
                if not self.summed:
                    view.own.add(sums_of(row))
                began = int_in(row["began"]) or 0
                view.reach(began, began + (int_in(row["duration"]) or 0))
                if len(self._record) < self._most and id(branch) in self._placed:
                    found[row["call"]] = leaf = leaf_of(row)
                    self._record.put_leaf(leaf, branch)
                    number[what] -= 1
            self._record.left_out[what] += number[what]
        return found

    def _add_up(self) -> None:
        """Charge what was used to the innermost agent, and to every scope around that is no agent's."""
        branches = {id(branch): branch for branch in (*self._branches.values(), *self._of_process.values())}
        for branch in branches.values():
            is_own = True
            for view in view_of(branch).upwards():
                is_agent = view.facts.kind is ScopeKind.AGENT
                if not is_agent or is_own:
                    view.sums.add(view_of(branch).own)
                is_own = is_own and not is_agent

    def _close(self, root: Branch) -> None:
        head, view = self.head, view_of(root)
        if self._launched is None:
            view.status = head.status if head.status in _STATUS_WORDS else "open"  # type: ignore[assignment]  # one of them
            view.stop_reason = head.stop_reason
            if head.status in ("lost", "ended"):
                view.status, view.stop_reason = "cancelled", head.status
            return
        view.status, view.stop_reason = _ENDINGS.get(str(head.outcome), ("error", None))
        if view.status == "stopped":
            worst = max(view.limits, key=lambda each: (each.denied, each.fullness), default=None)
            view.stop_reason = "limit" if worst is None else StopReason.for_kind(worst.limit.kind)
        if head.stop_reason is not None and head.outcome in ("ok", "limited"):  # the program's end is one thing, its run's another
            told = next((row["status"] for row in self.scopes if row["kind"] == "run" and row["run"] == head.run), None)
            if told in _STATUS_WORDS and told != "open":
                view.status, view.stop_reason = cast("Status", told), head.stop_reason


def view_of(branch: Branch) -> StoredScope:
    """Return how a stored scope shows itself."""
    assert isinstance(branch.view, StoredScope)
    return branch.view


def _launch_facts(launch: Json) -> Json:
    listed = {name: list_in(launch.get(name)) for name in ("argv", "limits", "uncovered", "notes")}
    known = {name: launch.get(name) for name in ("launch", "name", "outcome", "status", "version", "began", "ended")}
    return {**known, **listed, "observe": bool(launch.get("observe")), "tags": tags_in(launch.get("tags"))}


def _scope_facts(row: sqlite3.Row) -> ScopeFacts:
    kind = ScopeKind(row["kind"]) if row["kind"] in _SCOPE_KINDS else ScopeKind.BLOCK
    priority = _PRIORITIES.get(row["priority"] or "", Priority.NORMAL)
    return ScopeFacts(
        scope_id=row["scope"],
        kind=kind,
        name=row["name"],
        run_id=row["run"],
        session_id=row["session"],
        tenant_id=row["tenant"],
        user_id=row["user"],
        agent_name=row["agent"],
        agent_id=row["agent_id"],
        supervision=None if priority is Priority.NORMAL else Supervision(run_id="stored", priority=priority),
        tags=tags_in(row["tags"]),
        attempt=int_in(row["attempt"]),
    )


def _readings(row: sqlite3.Row) -> list[LimitReading]:
    return [found for each in objects_in(row["limits"]) if (found := reading_of(each)) is not None]


def _end_of(row: sqlite3.Row) -> int:
    began = int_in(row["began"]) or 0
    return began + (int_in(row["duration"]) or 0) if "duration" in row.keys() else int_in(row["ended"]) or began  # noqa: SIM118 - of a row


def _began(node: Branch | Leaf) -> int:
    return node.started_ns if isinstance(node, Leaf) else view_of(node).began


def call_leaf(row: sqlite3.Row) -> Leaf:
    """Read a model call."""
    leaf = _leaf(row, Leaf("call", row["model"], row["operation"] or "", int_in(row["began"]) or 0))
    leaf.stream = bool(row["stream"])
    leaf.usage = _usage(row["usage"])
    leaf.generative = leaf.usage is not None or (leaf.operation != FETCHES and " " not in leaf.operation)
    leaf.pending = bool(row["pending"])
    leaf.cost_nano, leaf.cost_source = int_in(row["cost"]), row["cost_source"]
    leaf.retries = len(list_in(row["retries"]))
    if leaf.sent and leaf.generative and leaf.status != "open":
        leaf.sent = leaf.usage is not None or bool(row["requests"])
    return leaf


def tool_leaf(row: sqlite3.Row) -> Leaf:
    """Read a tool call."""
    return _leaf(row, Leaf("tool", row["name"], "tool", int_in(row["began"]) or 0))


def _leaf(row: sqlite3.Row, leaf: Leaf) -> Leaf:
    leaf.id = row["call"]
    leaf.status = row["status"] if row["status"] in _STATUS_WORDS else "open"
    leaf.duration_ns = int_in(row["duration"])
    leaf.sent = leaf.status != "refused"
    leaf.decision, leaf.error_type = row["decision"], row["error_type"]
    leaf.limit_kind, leaf.limit_scope, leaf.reason = row["limit_kind"], row["limit_scope"], row["limit_reason"]
    leaf.refusal = sentence_in(row["refusal"]) if leaf.status == "refused" else None
    return leaf


def _usage(written: Any) -> Usage | None:
    known = object_in(written)
    if known is None:
        return None
    counts = {name: value for name in _USAGE if (value := int_in(known.get(name))) is not None and 0 <= value < 2**63}
    source = known.get("source")
    return Usage(**counts, source=cast("UsageSource", source) if source in _SOURCES else "estimated")


def _tool_sums(row: sqlite3.Row) -> Sums:
    if row["status"] == "refused":
        return Sums(refused=int(row["limit_reason"] != "contended"))
    ran = row["decision"] is not None  # admitted, only observed, or inferred too late to be refused
    return Sums(tool_calls=int(ran))


# -- its lines ------------------------------------------------------------------------------------------------------


def nodes_of(record: RunRecord) -> Iterator[Node]:
    """Give every node of a record, outer ones first and in the order of time."""
    waiting: list[tuple[Branch | Leaf, str | None]] = [(root, None) for root in reversed(record.roots)]
    while waiting:
        node, parent = waiting.pop()
        if isinstance(node, Leaf):
            yield leaf_node(node, parent)
            continue
        yield _scope_node(node, parent)
        waiting.extend((child, node.facts.scope_id) for child in reversed(node.children))


def leaf_node(leaf: Leaf, parent: str | None) -> Node:
    """Write a call or tool call as a line."""
    line = _outline.leaf_line(leaf)
    usage = None if leaf.usage is None or leaf.usage.tokenless or leaf.usage.total_only else leaf.usage
    return Node(
        id=leaf.id or "",
        parent=parent,
        kind=leaf.what,
        name=leaf.name,
        title=line.title,
        began=leaf.started_ns,
        duration=leaf.duration_ns,
        status=leaf.status,
        stop_reason=None,
        error_type=leaf.error_type,
        decision=leaf.decision,
        stream=leaf.stream,
        priority=None,
        attempt=None,
        input_tokens=None if usage is None else usage.input_tokens,
        output_tokens=None if usage is None or leaf.half_told else usage.output_tokens,
        cost_nano=leaf.cost_nano,
        cost_source=leaf.cost_source,
        limit_kind=leaf.limit_kind,
        limit_scope=leaf.limit_scope,
        refusal=leaf.refusal,
        retries=leaf.retries,
        notes=line.notes,
        remark=line.remark,
        spent=None,
        ms_text=line.figures.ms,
        in_text=line.figures.tokens_in,
        out_text=line.figures.tokens_out,
        cost_text=line.figures.cost,
    )


def _scope_node(branch: Branch, parent: str | None) -> Node:
    facts, view = branch.facts, view_of(branch)
    line = _outline.scope_line(branch)
    spent = Spent.of(view.sums)
    return Node(
        id=facts.scope_id,
        parent=parent,
        kind=facts.kind.value,
        name=facts.name,
        title=line.title,
        began=view.began,
        duration=view.ended - view.began if view.ended and view.status != "open" else None,
        status=view.status,
        stop_reason=view.stop_reason,
        error_type=None,
        decision=None,
        stream=False,
        priority=None if facts.supervision is None else facts.supervision.priority.name.lower(),
        attempt=view.attempt,
        input_tokens=spent.input_tokens,
        output_tokens=spent.output_tokens,
        cost_nano=spent.cost_nano,
        cost_source=None,
        limit_kind=None,
        limit_scope=None,
        refusal=None,
        retries=0,
        notes=line.notes,
        remark=line.remark,
        spent=spent,
        ms_text=line.figures.ms,
        in_text=line.figures.tokens_in,
        out_text=line.figures.tokens_out,
        cost_text=line.figures.cost,
    )
