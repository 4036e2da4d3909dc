"""Turn rows of the local store into answers: frozen dataclasses that can be written as JSON.

Money is nano-USD, times are UTC epoch nanoseconds, None is unknown; a field that ends in `_text` is the same for people, with `~` for an
estimate, `≥` for a lower bound and `?` for what nobody told. Anybody may have written the file: what has another shape is left out.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import accumulate, pairwise
from typing import Any, Final, cast, get_args

from ravi_otel._local.store import SUMS, StoredRow, Sums, read_json
from ravi_otel._local.wording import count, money
from ravi_otel.errors import RaviError
from ravi_otel.hooks._events import LimitEvent, LimitReading, Phase
from ravi_otel.policy._limits import CLOCKS, NANO, Kind, Limit, ScopeKind

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
    def of(cls, sums: Sums, *, beside: bool = True) -> Spent:
        """Return a frozen copy of sums, with their texts; without `beside` tokens that nobody told apart are shown nowhere else."""
        rough, partly = sums.estimated_calls > 0, sums.untold_calls > 0 or (sums.unsplit_tokens > 0 and not beside)
        return cls(
            requests=sums.requests,
            turns=sums.turns,
            input_tokens=_known(sums.input_tokens, partly),
            output_tokens=_known(sums.output_tokens, partly),
            cached_input_tokens=_known(sums.cached_input_tokens, partly),
            unsplit_tokens=sums.unsplit_tokens,
            tool_calls=sums.tool_calls,
            refused=sums.refused,
            errors=sums.errors,
            total_tokens=_known(sums.total_tokens, sums.unknown_total),
            cost_nano=_known(sums.cost_nano, sums.uncosted_calls),
            unknown_usage=sums.untold_calls,
            unknown_cost=sums.uncosted_calls,
            estimated=sums.estimated_calls,
            assumed=sums.assumed_calls,
            input_text=_part_text(sums.input_tokens, rough=rough, partly=partly),
            output_text=_part_text(sums.output_tokens, rough=rough, partly=partly),
            tokens_text=_at_least(count(sums.total_tokens, estimated=rough), partly=sums.unknown_total > 0),
            cost_text=_cost_text(sums),
        )

    def text_of(self, name: str) -> str:
        """Return how the figure `name` is shown."""
        texts = {"input_tokens": self.input_text, "output_tokens": self.output_text, "cost_nano": self.cost_text}
        return texts[name] if name in texts else count(getattr(self, name))


@dataclass(frozen=True, slots=True)
class RunRow:
    """Say what a run was, and what was used in it.

    `kind` is "run", "launch" (a program under `ravi-otel run`) or "process" (what a process did outside of any run). `status` is "running",
    "ended" (it was open when its process ended in order), "lost" (nobody saw it end), or how it ended. `outcome` is that of a launch,
    `exit_status` the program's. `end_status` and `end_reason` are those of the outermost run or agent inside that did not come to its end.
    Of `lost_records` nothing is known, so every figure is at least so much. What is no run itself has the user and the tenant that all
    runs in it have; `user_text` and `tenant_text` say how many, where they have several. `duration_text` of what still runs says how long
    it has.
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
    user_text: str | None
    tenant_text: str | None


@dataclass(frozen=True, slots=True)
class RunsPage:
    """Give a page of runs: `after` asks for the next, None at the end.

    `facets` counts all that fit by what they can be filtered by, and `spent` sums them up, None where nobody asked for it.
    """

    rows: tuple[RunRow, ...]
    total: int
    after: str | None
    spent: Spent | None = None
    facets: Mapping[str, tuple[tuple[str, int], ...]] = field(default_factory=dict[str, tuple[tuple[str, int], ...]])


@dataclass(frozen=True, slots=True)
class Glance:
    """Show a run in a row: the share of its cost that was spent by each of equal parts of its time, and its fullest limit.

    `spent` is empty where no cost is known, or more calls were made than are looked at for a row.
    """

    spent: tuple[float, ...]
    limit: LimitReading | None

    @classmethod
    def of(cls, parts: Sequence[int], written: Any) -> Glance:
        """Return it of what each part of the time cost, and of the fullest limit as JSON."""
        whole = sum(parts)
        return cls(tuple(reached / whole for reached in accumulate(parts)), reading_of(object_in(written) or {}))


@dataclass(frozen=True, slots=True)
class RunFilter:
    """Choose runs; None is any.

    `since` and `until` are when they began. `status` is a word of `RunRow.status`, or "refused": something in it was. `tag` is a key, and
    a value or None. `text` is looked for in names, in the sentences of refusals, and in what was said where that was captured. `inside` is
    a run or launch around.
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

    @property
    def dearest_first(self) -> tuple[int, int, tuple[str, ...]]:
        """Return its place among groups of one time."""
        return (-(self.spent.cost_nano or 0), -self.spent.unknown_cost, tuple(each or "" for each in self.key))


@dataclass(frozen=True, slots=True)
class SpendTable:
    """Say who spent what between two times, the dearest first, or by time from the first on."""

    by: tuple[str, ...]
    since: int | None
    until: int | None
    groups: tuple[Group, ...]
    total: Spent


@dataclass(frozen=True, slots=True, kw_only=True)
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
    stop_reason: str | None = None
    error_type: str | None = None
    decision: str | None = None
    stream: bool = False
    priority: str | None = None
    attempt: int | None = None
    input_tokens: int | None
    output_tokens: int | None
    cost_nano: int | None
    cost_source: str | None = None
    limit_kind: str | None = None
    limit_scope: str | None = None
    refusal: str | None = None
    retries: int = 0
    notes: tuple[tuple[str, str], ...]
    remark: str
    spent: Spent | None = None
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
    """Show one run: its head, its nodes outer ones first, its limits the fullest first.

    `limit_sums` are what was used in the scope of each limit, and `launch` is what was launched, None otherwise.
    """

    run: RunRow
    nodes: tuple[Node, ...]
    limits: tuple[LimitReading, ...]
    limit_sums: tuple[Sums, ...]
    notes: tuple[Note, ...]
    left_out: int
    launch: Json | None


@dataclass(frozen=True, slots=True)
class CallView:
    """Show one model call or tool call whole. Messages, arguments and result are None where they were not captured.

    Of its duration it `waited` so long for a person, None where nobody was asked.
    """

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
    waited: int | None = None
    system: tuple[Json, ...] | None = None
    tools: tuple[Json, ...] | None = None
    messages: tuple[Json, ...] | None = None
    output: tuple[Json, ...] | None = None
    arguments: Any = None
    result: Any = None


@dataclass(frozen=True, slots=True)
class Curve:
    """Say where one limit stood over time: `points` are (time, used, held, limit), in its public unit, and `warn_at` where it warns."""

    scope: str
    scope_kind: str
    scope_name: str | None
    limit_kind: str
    limit_label: str
    window: str | None
    counted_for: str | None
    points: tuple[tuple[int, float | None, float | None, float | None], ...]
    warn_at: float | None

    @classmethod
    def of(cls, whose: Mapping[str, Any], samples: Sequence[StoredRow]) -> Curve:
        """Return that of one limit from its samples, in the order of time."""
        points = tuple((each["at"], each["used"], each["held"], each["value"]) for each in samples)
        return cls(**whose, points=points, warn_at=float_in(samples[-1]["warn_at"]))


@dataclass(frozen=True, slots=True)
class Found:
    """Be something that an id or words lead to, and the run it is in; the title of what they were said in has them between « and »."""

    kind: str
    id: str
    run: str | None
    title: str


@dataclass(frozen=True, slots=True)
class Difference:
    """Compare one figure of two runs; None is unknown, or not there."""

    what: str
    a: int | None
    b: int | None
    a_text: str
    b_text: str

    @classmethod
    def between(cls, name: str, a: Spent | None, b: Spent | None, *, prefix: str = "") -> Difference:
        """Compare the figure `name` of what two runs used, None where one has nothing of it."""
        figures: list[int | None] = [None if each is None else getattr(each, name) for each in (a, b)]
        shown = ["" if each is None else each.text_of(name) for each in (a, b)]
        return cls(prefix + name.removesuffix("_nano"), figures[0], figures[1], shown[0], shown[1])


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


@dataclass(frozen=True, slots=True)
class Refused:
    """Say what a limit would have refused of what was done: how many runs, or times an agent worked, in how many calls, for how much."""

    works: int
    calls: int
    cost_nano: int
    unknown_cost: int


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
    if sums.uncosted_calls and not sums.cost_nano:
        return "?"
    return _at_least(money(sums.cost_nano, estimated=rough and sums.cost_nano > 0), partly=sums.uncosted_calls > 0)


def sums_in(row: StoredRow) -> Sums:
    """Read the sums that are the last columns of a row."""
    return sums_of(row[-len(SUMS) :])


def sums_of(counted: Sequence[Any]) -> Sums:
    """Read sums in the order of `SUMS`, whoever wrote them."""
    if not all(type(each) is int and each >= 0 for each in counted):
        counted = tuple(max(0, int_in(each) or 0) for each in counted)
    return Sums(*counted)


def consumed_in(spend: str | None) -> Sums:
    """Read what a program reported by hand in a run or agent, which says no input and output apart."""
    told = _an_object((object_in(spend) or {}).get("consumed")) or {}
    cost_nano = round((float_in(told.get("cost_usd")) or 0.0) * NANO)
    return Sums(unsplit_tokens=int_in(told.get("tokens")) or 0, cost_nano=cost_nano, turns=int_in(told.get("turns")) or 0)


def quantile(known: Sequence[int], share: float) -> int:
    """Return the least of these figures, sorted, that such a share of them does not pass."""
    return known[max(0, math.ceil(share * len(known)) - 1)]


def rounded_up(value: int, parts: int = 1) -> int:
    """Round `value / parts` up to two figures, in whole numbers."""
    whole = -(-value // parts)
    step: int = 10 ** max(0, len(str(whole)) - 2)
    return -(-whole // step) * step


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
        return read_json(written) if isinstance(written, str) else None
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


def waited_in(reviews: Sequence[StoredRow]) -> int | None:
    """Return how long a call waited for a person: from each time that one was asked to what the gate decided next."""
    waits = [later["at"] - asked["at"] for asked, later in pairwise(reviews) if asked["decision"] == "escalate"]
    return sum(waits) if waits else None


def duration_of(row: StoredRow) -> int | None:
    """Return how long a run or scope took; None while it is open, and for times that cannot be."""
    began, ended = int_in(row["began"]), int_in(row["ended"])
    return ended - began if began is not None and ended is not None and 0 < began <= ended else None


def run_row(row: StoredRow, end: tuple[str, str | None] | None, whose: StoredRow | None = None) -> RunRow:
    """Read a run; `whose` says of which users and tenants the runs in it are, where it is none itself."""
    duration = duration_of(row)
    names = ("run", "kind", "parent", "launch", "process", "name", "session", "trace", "span", "status", "outcome")
    user, user_text = _of_whom("user", row, whose)
    tenant, tenant_text = _of_whom("tenant", row, whose)
    return RunRow(
        user=user,
        user_text=user_text,
        tenant=tenant,
        tenant_text=tenant_text,
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
        duration_text=_duration_text(row, duration),
    )


def _of_whom(name: str, row: StoredRow, whose: StoredRow | None) -> tuple[str | None, str | None]:
    """Return a run's own user or tenant, else the one that all runs in it have, and a text that says how many where there are several."""
    own = row[name]
    if own is not None or whose is None or not whose[f"{name}s"]:
        return own, own
    if whose[f"{name}s"] > 1:
        return None, f"{whose[f'{name}s']:,} {name}s"
    return (None, None) if whose[f"no_{name}"] else (whose[name], whose[name])


def _duration_text(row: StoredRow, duration: int | None) -> str:
    if duration is not None:
        return f"{duration / NANO:,.1f}"
    began = int_in(row["began"])
    if row["status"] != "running" or not began:
        return "?"
    return f"≥{max(0, time.time_ns() - began) / NANO:,.1f}"


def note_of(row: StoredRow) -> Note:
    """Read a note."""
    return Note(row["at"], row["kind"], row["scope"], row["text"], object_in(row["data"]) or {})


# -- limits -------------------------------------------------------------------------------------------------------

_PHASES: Final = frozenset(get_args(Phase))
SCOPE_KINDS: Final = frozenset(ScopeKind)
_MOST_NAMES: Final = 16


def reading_of(stored: Json) -> LimitReading | None:
    """Read where a limit stood, in the shape of `limits` in `as_json`; None when it has another shape."""
    scope, name, label = stored.get("scope"), stored.get("scope_name"), stored.get("limit")
    threshold = float_in(stored.get("threshold"))
    if not isinstance(scope, str) or scope not in SCOPE_KINDS or not isinstance(label, str) or threshold is None:
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
        declared=float_in(stored.get("declared")),
        set_by=_text(stored.get("set_by")),
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


def event_of(row: StoredRow) -> LimitEvent | None:
    """Read a limit event; None for one that this version never wrote."""
    if row["event"] not in ("limit_nearing", "limit_exceeded") or row["limit_scope"] not in SCOPE_KINDS:
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
