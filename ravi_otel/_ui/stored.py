"""Show what the store keeps: runs, one of them whole, one call, and who spent what; `ravi_otel._local.queries` answers all of it."""

from __future__ import annotations

import json
import re
import shlex
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, Self, cast
from urllib.parse import quote

from ravi_otel._local import answers, queries
from ravi_otel._local.live.protocol import LimitState
from ravi_otel._local.store import Store, Sums
from ravi_otel._local.tree import tone_of
from ravi_otel._local.wording import UNKNOWN, age, amount, clean, count, many, milliseconds, moment, money, percent
from ravi_otel._ui import api
from ravi_otel._ui.live import place
from ravi_otel.errors import ConfigurationError
from ravi_otel.hooks._events import LimitReading
from ravi_otel.policy._grammar import parse_limit
from ravi_otel.policy._limits import NANO, UNITS, Kind, Limit, ScopeKind, format_limit, public_amount
from ravi_otel.supervisor import ApprovalRequest

_MS: Final = 1_000_000
_HEX: Final = re.compile(r"[0-9a-f]{16,32}")
MOST_NODES: Final = 100_000
_FIRST_RUNS: Final = 100
_MORE_RUNS: Final = 500
"""How many runs are shown at once, and how many more when they are scrolled to."""

_MOST_EXPORTED: Final = 2_000
_MOST_SAID: Final = 12
_ELSEWHERE: Final = "Not in this store: its program keeps its runs elsewhere, or nowhere. RAVI_STORE, or `ravi-otel run`, keeps them here."
_MOST_NAME: Final = 200
_MOST_PART: Final = 200_000
_MOST_CURVES: Final = 8
_MOST_SERIES: Final = 4
_MOST_COLUMNS: Final = 400
_BINS: Final = 48
_FAR: Final = 4
"""How many times what runs came to a limit may be, and still be drawn beside them."""

_LEAST_LEARNT: Final = 5
_FILTERED: Final = ("agent", "model", "user", "tenant")
_CHOSEN: Final = ("status", "user", "tenant", "session", "stop_reason", "agent", "model", "text")
_CALLED: Final = {"launch": "program", "refused": "refused call", "said in": "said"}
"""What is found that the list of runs is narrowed down by."""
_RUNS: Final = ("run", "launch", "process")
_LIVE_COUNTS: Final = ("agents", "fan_out", "depth")
"""Kinds of limits that may well be full: what they count is given back."""

_NEVER: Final = {"call": "not sent", "tool": "not run"}
"""What became of a call that was refused."""

_MOST_AGENTS: Final = 50
_SHARES: Final = (("half", 0.5), ("95 %", 0.95), ("99 %", 0.99))
_LONG_NS: Final = 3 * 86_400 * NANO
_TONES: Final[Mapping[str, api.Tone]] = {
    "running": "run",
    "open": "run",
    "ok": "ok",
    "stopped": "refused",
    "refused": "refused",
    "cut": "refused",
    "error": "error",
    "lost": "unknown",
}
_LIMIT_TONES: Final[Mapping[str, api.Tone]] = {"refused": "refused", "warning": "near", "quiet": "ok"}
_KINDS: Final = {"text": "text", "reasoning": "thinks", "tool_call": "calls", "tool_call_response": "answers"}


class Archive:
    """Ask one store, and give what it answers as the page draws it; `jaeger` is where traces can be looked at."""

    def __init__(self, store: Store, jaeger: str | None = None) -> None:
        self._ask = queries.Queries(store)
        self._jaeger = jaeger

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._ask.close()

    def runs(self, asked: api.RunsAsk) -> api.Runs:
        """Return a page of runs that fit."""
        key, _, value = (asked.tag or "").partition("=")
        where = answers.RunFilter(
            since=_moment("since", asked.since),
            until=_moment("until", asked.until),
            tag=(key, value or None) if key else None,
            **{name: getattr(asked, name) or None for name in _CHOSEN},
        )
        page = self._ask.runs(
            where, most=_MORE_RUNS if asked.after else _FIRST_RUNS, after=asked.after or None, order=asked.order, facets=not asked.after
        )
        glances = self._ask.glances(page.rows)
        return api.Runs(
            page=page,
            words=[_ending(row) for row in page.rows],
            glances=[_glance(each, row.spent) for each, row in zip(glances, page.rows, strict=True)],
        )

    def run(self, run_id: str, *, most: int = MOST_NODES) -> api.Run:
        """Return one run with so many lines of its tree at most."""
        tree, curves = self._ask.tree(run_id, most=most), self._ask.curves(run_id)
        head, limits = tree.run, list(zip(tree.limits, tree.limit_sums, strict=True))
        until = time.time_ns() if head.status == "running" else head.began + (head.duration or 0)
        ends = [until, *(node.began + (node.duration or 0) for node in tree.nodes)]
        tone, word = _ending(head)
        rows, depths, refused_by = list[api.TreeRow](), dict[str, int](), dict[str | None, tuple[str | None, str | None]]()
        waits = _waits(tree.notes, head.began)
        for node in tree.nodes:
            depths[node.id] = depth = 0 if node.parent is None else depths.get(node.parent, -1) + 1
            begin, took = (node.began - head.began) / _MS, None if node.duration is None else node.duration / _MS
            remark = clean(node.refusal or node.remark or "; ".join(note for _, note in node.notes), _MOST_NAME)
            title = clean(node.title if node.kind == "call" else node.name or node.title, _MOST_NAME)
            given = node.in_text
            if node.status == "refused" and node.kind in _NEVER:
                limit = (node.limit_kind, node.limit_scope)
                given, remark = given or _NEVER[node.kind], "the same limit" if refused_by.get(node.parent) == limit else remark
                refused_by[node.parent] = limit if node.limit_kind else (None, None)
            shape = tone if node.parent is None and node.kind == "run" else _tone(node)
            figures = (given, node.out_text, node.cost_text)
            rows.append((node.id, depth, node.kind, title, shape, begin, took, *figures, remark, waits.get(node.id, [])))
        drawn = [_curve(each, head.began) for each in curves]
        drawn.sort(key=lambda each: -max((share for _, share in each.points), default=0.0))
        return api.Run(
            run=head,
            tone=tone,
            word=word,
            facts=_facts(head),
            limits=[_bar(each, LimitState.kept(each, sums)) for each, sums in limits[:_MOST_CURVES]],
            rows=rows,
            left_out=tree.left_out,
            length=max(1.0, (max(ends) - head.began) / _MS),
            curves=drawn[:_MOST_CURVES],
            notes=[((note.at - head.began) / _MS, note.kind, clean(note.text, _MOST_NAME)) for note in tree.notes if note.text],
            ids=_ids(run=head.run, trace=head.trace, span=head.span),
            jaeger=_in_jaeger(self._jaeger, head.trace, head.span) if head.sampled else None,
        )

    def export(self, run_id: str, is_open: Sequence[api.NowRow] = ()) -> api.Exported:
        """Return one run whole, with its calls and what of it is open: what a page in one file shows."""
        whole = self.run(run_id)
        ids = [row[0] for row in whole.rows if row[2] in ("call", "tool")][:_MOST_EXPORTED]
        return api.Exported(
            at=time.strftime("%Y-%m-%d %H:%M"),
            open=list(is_open),
            run=whole,
            calls={each: _call(self._ask.call(each), self._jaeger) for each in ids},
        )

    def call(self, call_id: str) -> api.Call:
        """Return one model call or tool call."""
        return _call(self._ask.call(call_id), self._jaeger)

    def so_far(self, asked: ApprovalRequest, *, messages: bool) -> api.SoFar:
        """Return what the run of a request had come to, and with `messages` the end of what was said to the model that asked for it."""
        run = asked.run_id or ""
        try:
            row = self._ask.run(run)
            known = self._ask.last_call(row.run, before=round(asked.requested_at * NANO), agent=asked.agent_name) if messages else None
            view = None if known is None else self._ask.call(known)
        except ConfigurationError:
            name = clean(run, _MOST_NAME)
            return api.SoFar(run=name, name=name, says=_ELSEWHERE, captured=None, messages=[])
        spent = row.spent
        told = _messages(view)[-_MOST_SAID:] if view is not None and view.captured else []
        captured = None if view is None else view.captured
        took_s = asked.requested_at - row.began / NANO if row.duration is None else row.duration / NANO
        says = f"{many(spent.requests, 'call')}, {spent.cost_text}, {age(max(0.0, took_s))}"
        name = clean(row.name or row.run, _MOST_NAME)
        return api.SoFar(run=clean(row.run, _MOST_NAME), name=name, says=says, captured=captured, messages=told)

    def ran(self, call_id: str) -> api.Ran | None:
        """Return how the call that was asked about ended, None where the store does not have it (yet)."""
        try:
            view = self._ask.call(call_id)
        except ConfigurationError:
            return None
        node = view.node
        result = None if view.result is None else _text(view.result)
        took = ", ".join(f"{name} {text}" for name, text in _took(view))
        return api.Ran(tone=_tone(node), says=f"{clean(node.title, _MOST_NAME)}: {node.status}, {took}", call=node.id, result=result)

    def spend(self, asked: api.SpendAsk) -> api.Spend:
        """Return who spent what between two times, by one or two things, and when."""
        since, until = _moment("since", asked.since) or 0, _moment("until", asked.until) or time.time_ns()
        by = [each for each in asked.by.split(",") if each][:2] or ["model"]
        unit, inner = "hour" if until - since <= _LONG_NS else "day", by[-1]
        where = answers.SpendFilter(user=asked.user, tenant=asked.tenant, model=asked.model, agent=asked.agent)
        outer = self._ask.spend(by[:1], since=since, until=until, where=where)
        split = self._ask.spend(by, since=since, until=until, where=where) if len(by) > 1 else None
        series = self._ask.spend([inner], since=since, until=until, where=where)
        times = self._ask.spend([unit, inner], since=since, until=until, where=where)
        before = self._ask.spend(by[:1], since=max(0, 2 * since - until), until=since, where=where).total if since else None
        tags = self._ask.tags()
        dearest = [group for group in series.groups if group.spent.cost_nano or group.spent.unknown_cost][:_MOST_SERIES]
        names = [group.key[0] for group in dearest]
        spanned = (None if not asked.since else since, min(until, time.time_ns()))
        columns, ticks = _columns(times, names, timedelta(hours=1) if unit == "hour" else timedelta(days=1), spanned)
        most = max((group.spent.cost_nano or 0 for group in outer.groups), default=0)
        rows = [_spend_row(group, by, most, outer.total, split, names) for group in outer.groups]
        calls = outer.total.tool_calls if "tool" in by[:1] else outer.total.requests
        days = _days(since, until) if asked.since else ""
        spent = f"{outer.total.cost_text} in {many(calls, 'call')}, {outer.total.tokens_text} tokens"
        return api.Spend(
            says=f"{days}{spent}{_beside(outer.total, before)}",
            by=by,
            series=[(_name(group.key[0]), group.spent.cost_text) for group in dearest],
            columns=columns,
            ticks=ticks,
            rows=rows,
            tags=[(f"tag.{key}", clean(key, _MOST_NAME)) for key in tags],
        )

    def compare(self, a: str, b: str) -> answers.Comparison:
        """Return two runs side by side."""
        return self._ask.compare(a, b)

    def what_if(self, asked: api.WhatIfAsk) -> api.WhatIf:
        """Return which of the runs that are kept, or of the times an agent worked, a limit would have refused."""
        since, agent, kind = _moment("since", asked.since), asked.agent or None, Kind(asked.kind)
        limit = parse_limit(f"{kind}={asked.value}") if asked.value.strip() else None
        runs, agents = self._ask.worked(since=since)
        refused = None if limit is None else self._ask.refused_by(kind, limit.value, since=since, agent=agent)
        counted = self._ask.limits_of(kind, agent=agent)
        worked = runs if agent is None else [each for each in agents if each.name == agent]
        told = [_came_to(each.sums, kind) for each in worked]
        known = sorted(value for value in told if value is not None)
        last = None if counted is None else counted.limit
        reached = known[-1] if known else 0
        shown = [reached, *(each.value for each in (limit, last) if each is not None and (not known or each.value <= _FAR * reached))]
        step = _round_step(max(shown))
        top = max(1, -(-max(shown) // step)) * step
        most = public_amount(kind, top)
        heights = Counter(min(_BINS - 1, value * _BINS // top) for value in known)
        tallest = max(heights.values(), default=1)
        bins = [
            (_percent(heights[place], tallest), limit is not None and (2 * place + 1) * top > 2 * _BINS * limit.value)
            for place in range(_BINS)
        ]
        names = Counter(each.name for each in agents if each.name)
        return api.WhatIf(
            runs=len(known),
            unknown=len(told) - len(known),
            says="" if refused is None else _would(refused, len(told), "runs" if agent is None else "times"),
            bins=bins,
            ticks=[(_percent(each, top), amount(kind, public_amount(kind, each))) for each in range(0, top + 1, step)],
            at=None if limit is None or limit.value > top else _percent(limit.value, top),
            now=None if last is None else (_percent(last.value, top) if last.value <= top else None, amount(kind, last.amount)),
            spec=None if limit is None else _spec(limit, agent),
            suggested=_spec(Limit(kind=kind, value=_suggested(known)), agent)
            if len(known) >= _LEAST_LEARNT and _suggested(known)
            else None,
            typical=[(name, amount(kind, public_amount(kind, answers.quantile(known, share)))) for name, share in _SHARES if known],
            agents=[(name, clean(name, _MOST_NAME)) for name, _ in names.most_common(_MOST_AGENTS)],
            most=most,
            step=most / 400 if kind == Kind.COST else max(1, round(most / 400)),
        )

    def find(self, text: str) -> api.Find:
        """Return where an id, a name or words lead to on the page."""
        found = [(self._called(each), _path(each), clean(each.title, _MOST_NAME)) for each in self._ask.matches(text)]
        return api.Find(found=list(dict.fromkeys(found)))

    def _called(self, found: answers.Found) -> str:
        """Say what was found: of a run when it began and how it ended, since many have one name."""
        called = _CALLED.get(found.kind, found.kind)
        if found.kind not in _RUNS:
            return called
        try:
            row = self._ask.run(found.id)
        except ConfigurationError:  # it was deleted meanwhile
            return called
        return f"{called}, {_briefly(row.began)}, {_ending(row)[1]}"


def names(root: Path, runs: Iterable[str | None]) -> dict[str, str]:
    """Return what runs are called, by their ids; nothing of those that are not kept here, or where no store can be read."""
    with suppress(ConfigurationError):  # the queue and the logs are shown without it
        if Store(root).file.exists():
            with queries.Queries(Store(root)) as ask:
                return ask.names(filter(None, runs))
    return {}


def _ids(**known: str | None) -> list[tuple[str, str]]:
    return [(name, clean(value, _MOST_NAME)) for name, value in known.items() if value]


def _in_jaeger(jaeger: str | None, trace: str | None, span: str | None) -> str | None:
    """Return the address of a span there, or of the trace it is in."""
    if jaeger is None or not trace or not _HEX.fullmatch(trace):
        return None
    return f"{jaeger}/trace/{trace}" + (f"?uiFind={span}" if span and _HEX.fullmatch(span) else "")


def _took(view: answers.CallView) -> list[tuple[str, str]]:
    """Say how long a call took, apart from how long it waited for a person."""
    if view.waited is None or view.node.duration is None:
        return [("took", f"{view.node.ms_text} ms")]
    ran = max(0, view.node.duration - view.waited)
    return [("ran", f"{milliseconds(ran)} ms"), ("waited for a person", f"{amount(Kind.TIME, view.waited / NANO)}")]


def _call(view: answers.CallView, jaeger: str | None) -> api.Call:
    node, refusal = view.node, view.refusal or {}
    facts = [("began", time.strftime("%H:%M:%S", time.localtime(node.began / NANO))), *_took(view)]
    facts += [("in", node.in_text), ("out", node.out_text), ("cost", node.cost_text)]
    attributes = {**view.facts, **{f"usage.{name}": value for name, value in (view.usage or {}).items()}, **dict(view.tags)}
    attributes |= {"trace": view.trace, "span": view.span, "user": view.user, "tenant": view.tenant, "session": view.session}
    return api.Call(
        id=node.id,
        run=view.run,
        title=clean(node.title, _MOST_NAME),
        agent=clean(view.agent, _MOST_NAME),
        tone=_tone(node),
        word=node.status,
        sentence=None if node.refusal is None else clean(node.refusal, 1_000),
        facts=[(name, text) for name, text in facts if text and text.strip("- ms")],
        chain=[_link(each) for each in cast("list[answers.Json]", refusal.get("chain") or [])],
        captured=view.captured,
        messages=_messages(view),
        reservation=_reservation(view),
        attributes=[(clean(name), _text(value)) for name, value in sorted(attributes.items()) if value not in (None, [], {})],
        raw=json.dumps(asdict(view), indent=2, default=str),
        curl=sent_again(view),
        ids=_ids(call=node.id, response=view.facts.get("response_id"), trace=view.trace, span=view.span),
        jaeger=_in_jaeger(jaeger, view.trace, view.span) if view.sampled else None,
    )


def _beside(spent: answers.Spent, before: answers.Spent | None) -> str:
    """Say how much more or less that is than in as long a time before; nothing where one of both is not wholly known."""
    if before is None or not before.cost_nano or spent.cost_nano is None or spent.unknown_cost or before.unknown_cost:
        return ""
    share = spent.cost_nano / before.cost_nano
    return f", {percent(abs(share - 1))} {'more' if share >= 1 else 'less'} than in as long a time before ({before.cost_text})"


def _briefly(at: int) -> str:
    """Write a moment as the page does: of today the time, else the day too."""
    when = datetime.fromtimestamp(at // NANO)  # noqa: DTZ006 - local on purpose
    today = when.date() == datetime.now().date()  # noqa: DTZ005 - the same
    return f"{when:%H:%M:%S}" if today else f"{when.day} {when:%b %H:%M}"


def _days(since: int, until: int) -> str:
    """Say of which days a sum is."""
    first, last = (datetime.fromtimestamp(each // NANO).date() for each in (int(since), until - 1))  # noqa: DTZ006 - local on purpose
    end = f"{last.day} {last:%B}"
    if first == last:
        return f"{end}: "
    return f"{first.day if (first.year, first.month) == (last.year, last.month) else f'{first.day} {first:%B}'} to {end}: "


def _would(refused: answers.Refused, of: int, what: str) -> str:
    share = f", {percent(refused.works / of)}" if of else ""
    saved = ("≥" if refused.unknown_cost else "") + money(refused.cost_nano)
    told = f"{count(refused.works)} of {count(of)} {what} would have been refused{share}"
    return f"{told}, at {count(refused.calls)} calls. {saved} would not have been spent." if refused.calls else f"{told}."


def _spec(limit: Limit, agent: str | None) -> str:
    return format_limit(limit if agent is None else replace(limit, scope=ScopeKind.AGENT, scope_name=agent))


def _suggested(known: Sequence[int]) -> int:
    """Return the limit that `ravi-otel suggest` would write: what nearly all of them came to, and some more."""
    return answers.rounded_up(answers.quantile(known, 0.95) * 125, 100)


def _came_to(sums: Sums, kind: Kind) -> int | None:
    """Return what a run came to, in the kind's inner unit; None where calls are in it that nobody told of."""
    if kind is Kind.COST:
        return None if sums.uncosted_calls else sums.cost_nano
    if kind is Kind.TOKENS:
        return None if sums.unknown_total else sums.total_tokens
    return sums.turns if kind is Kind.TURNS else sums.requests


def _path(found: answers.Found) -> str:
    item = quote(found.id, safe="")
    if found.kind in _FILTERED:
        return f"/runs?{found.kind}={item}"
    run = item if found.run is None else quote(found.run, safe="")
    return f"/runs/{run}" + ("" if item == run else f"?item={item}")


def _moment(name: str, written: str) -> int | None:
    return moment(name, written) if written else None


# -- runs ---------------------------------------------------------------------------------------------------------


def _ending(row: answers.RunRow) -> tuple[api.Tone, str]:
    """Return the shape and the words for how a run ended."""
    tone: api.Tone = _TONES.get(row.status, "paused")
    if row.status == "ok" and row.end_status is not None and row.end_status != "ok":
        tone = _TONES.get(row.end_status, "paused")
        return tone, clean(row.end_status if row.end_reason in (None, row.end_status) else f"{row.end_status}: {row.end_reason}")
    if row.status == "error":
        return tone, clean(f"own error: {row.error_type}" if row.error_type else "own error")
    return tone, clean(f"{row.status}: {row.stop_reason}" if row.status == "stopped" and row.stop_reason else row.status)


def _glance(known: answers.Glance, spent: answers.Spent) -> api.Glance:
    limit, bar = known.limit, None
    if limit is not None:
        state = LimitState.of(limit, unpriced=spent.unknown_cost, estimated=spent.estimated, assumed=spent.assumed > 0)
        bar = _bar(limit, state, f"{limit.title} {amount(limit.limit.kind, limit.limit.amount)}")
    return api.Glance(spent=[round(share * 100, 1) for share in known.spent], limit=bar)


def _facts(row: answers.RunRow) -> list[tuple[str, str]]:
    spent = row.spent
    told: list[tuple[str, str | None]] = [
        ("cost", spent.cost_text),
        ("calls", count(spent.requests)),
        ("tools", count(spent.tool_calls)),
        ("tokens", spent.tokens_text),
        ("refused", count(spent.refused) if spent.refused else None),
        ("took", None if row.duration_text == UNKNOWN else _long(row)),
        ("since", time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(row.began / NANO))),
        ("tenant", row.tenant),
        ("user", row.user),
        ("session", row.session),
        *((f"tag {name}", value) for name, value in row.tags.items()),
    ]
    return [(clean(name), clean(value, _MOST_NAME)) for name, value in told if value]


def _long(row: answers.RunRow) -> str:
    """Say how long a run took, or has, of less than a second in milliseconds."""
    is_short = row.duration is not None and row.duration < NANO
    return f"{milliseconds(row.duration)} ms" if is_short else f"{row.duration_text} s"


def _waits(notes: Iterable[answers.Note], began: int) -> dict[str, list[tuple[float, float]]]:
    """Return when each call waited for a person, and for how long: from each time that one was asked to what the gate decided next."""
    reviews: dict[str, list[answers.Note]] = {}
    for note in notes:
        if note.kind == "review" and isinstance(call := note.data.get("call"), str):
            reviews.setdefault(call, []).append(note)
    return {
        call: [((a.at - began) / _MS, (b.at - a.at) / _MS) for a, b in pairwise(each) if a.data.get("decision") == "escalate"]
        for call, each in reviews.items()
    }


def _tone(node: answers.Node) -> api.Tone:
    return _TONES.get(node.status, "paused")


def _bar(reading: LimitReading, state: LimitState, title: str | None = None) -> api.Bar:
    """Return where a limit stood at the end, in the tone of what it did until then."""
    whose = title or f"{reading.scope_name or reading.scope.value} · {reading.title}"
    return api.Bar.of(state, whose, _LIMIT_TONES.get(tone_of(reading), "ok"))


def _percent(part: float | None, whole: float) -> float:
    return 0.0 if not part else 100.0 if whole <= 0 else round(min(100.0, max(0.0, part / whole * 100)), 2)


def _curve(curve: answers.Curve, began: int) -> api.Curve:
    points = [((at - began) / _MS, used / limit * 100) for at, used, _, limit in curve.points if used is not None and limit]
    last, warn = points[-1][1] if points else 0.0, None if curve.warn_at is None else round(curve.warn_at * 100, 1)
    tone: api.Tone = "refused" if last >= 100 else "ok" if warn is None or last < warn else "near"  # noqa: PLR2004 - percents
    title = clean(f"{curve.limit_label} of {curve.scope_name or curve.scope_kind}", _MOST_NAME)
    return api.Curve(title=title, tone=tone, share=percent(last / 100) if points else UNKNOWN, warn=warn, points=points)


# -- one call -----------------------------------------------------------------------------------------------------


def _link(link: Mapping[str, Any]) -> api.Link:
    kind, refused = str(link.get("kind")), bool(link.get("refused"))
    used, held, value = (link.get(name) or 0 for name in ("used", "held", "value"))
    declared, by, warn = link.get("declared"), link.get("set_by"), link.get("warn_at")
    limit = LimitState(
        str(link.get("limit")),
        used,
        held,
        value,
        used / value if value else None,
        UNITS.get(kind, "1"),
        declared=declared if isinstance(declared, (int, float)) else None,
        set_by=by if isinstance(by, str) else None,
        warn_at=warn if isinstance(warn, float) and kind not in _LIVE_COUNTS else None,
    )
    is_near = limit.warn_at is not None and (limit.ratio or 0.0) >= limit.warn_at
    bar = api.Bar.of(limit, tone="refused" if refused else "near" if is_near else "ok")
    written = link.get("written") or link.get("origin")
    return api.Link(
        id=str(link.get("scope_id")),
        scope=clean(str(link.get("scope"))),
        name=clean(link.get("name") or ""),
        refused=refused,
        bar=bar,
        written=place(written) if isinstance(written, str) else None,
    )


_SOURCES: Final = {
    "response_model": "the table, by the model that answered",
    "request_model": "the table, by the model that was asked for",
    "assumed": "the table, of a provider that is only assumed",
    "override": "the program's own prices",
    "own_machine": "nothing, as it runs on the program's own machine",
    "told": "the answer, in which the provider says what it cost",
}


def _price_from(facts: Mapping[str, Any]) -> str:
    """Say where a price came from, and of when it is."""
    source, date = str(facts.get("cost_source") or ""), str(facts.get("price_date") or "")
    return clean(", ".join(each for each in (_SOURCES.get(source, source), date) if each), _MOST_NAME)


def _reservation(view: answers.CallView) -> list[tuple[str, str]]:
    """Say what was expected, what was held of each limit, and what it came to."""
    told: list[tuple[str, str]] = []
    estimated = view.estimated or {}
    if estimated:
        tokens = f"{count(estimated.get('input_tokens'))} in, {count(estimated.get('output_tokens'))} out"
        told.append(("expected", f"{tokens}, {money(estimated.get('cost'))}"))
    for each in view.held:
        held = each.get("held")
        if isinstance(held, (int, float)):
            told.append(
                (
                    f"held of {clean(str(each.get('limit')))}, {clean(str(each.get('name') or each.get('scope')))}",
                    amount(str(each.get("kind")), held),
                )
            )
    refused = view.node.status == "refused"
    told.append(("settled", "nothing: it was not sent" if refused and not view.facts.get("requests") else _settled(view.node)))
    if _price_from(view.facts):
        told.append(("price from", _price_from(view.facts)))
    return told


def _settled(node: answers.Node) -> str:
    tokens = [f"{text} {name}" for name, text in (("in", node.in_text), ("out", node.out_text)) if text]
    return ", ".join([*tokens, node.cost_text or UNKNOWN])


def _messages(view: answers.CallView) -> list[api.Message]:
    told = [("system", view.system or ())] if view.system else []
    told += [(str(each.get("role")), each.get("parts") or ()) for each in (*(view.messages or ()), *(view.output or ()))]
    if view.arguments is not None:
        told.append(("arguments", ({"type": "text", "content": view.arguments},)))
    if view.result is not None:
        told.append(("result", ({"type": "text", "content": view.result},)))
    return [api.Message(role=clean(role), parts=[_part(part) for part in parts]) for role, parts in told]


def _part(part: object) -> tuple[str, str]:
    if not isinstance(part, Mapping):
        return "other", _text(part)
    part = cast("Mapping[str, Any]", part)
    kind = _KINDS.get(str(part.get("type")), "other")
    if kind == "calls":
        return kind, f"{part.get('name')}({_text(part.get('arguments'))})"[:_MOST_PART]
    content = next((part[name] for name in ("content", "response", "result") if part.get(name) is not None), part)
    return kind, _text(content)


def _text(value: object) -> str:
    return (value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False))[:_MOST_PART]


# -- spend --------------------------------------------------------------------------------------------------------


def _name(key: str | None) -> str:
    return clean(key, _MOST_NAME) or "none named"


def _columns(
    times: answers.SpendTable, names: Sequence[str | None], step: timedelta, spanned: tuple[int | None, int]
) -> tuple[list[api.SpendColumn], list[tuple[float, str]]]:
    """Stack what was spent by time: a part for each of the dearest, and one for the rest."""
    found: dict[str, dict[int, int]] = {at: {} for at in _between([group.key[0] for group in times.groups], step, *spanned)}
    spent: dict[str, list[answers.Spent]] = {}
    for group in times.groups:
        at = group.key[0] or ""
        place = names.index(group.key[1]) if group.key[1] in names else _MOST_SERIES
        column = found.setdefault(at, {})
        column[place] = column.get(place, 0) + (group.spent.cost_nano or 0)
        spent.setdefault(at, []).append(group.spent)
    step_nano = _round_step(max((sum(column.values()) for column in found.values()), default=0))
    top = max((-(-sum(column.values()) // step_nano) * step_nano for column in found.values()), default=0)
    columns = [
        api.SpendColumn(
            at=at,
            parts=[(place, _percent(nano, top)) for place, nano in sorted(column.items()) if nano],
            unknown=any(each.unknown_cost for each in spent.get(at, ())),
            text=_cost_of(spent.get(at, ())),
        )
        for at, column in sorted(found.items())
    ]
    return columns, [(_percent(nano, top), amount(Kind.COST, nano / NANO)) for nano in range(0, top + 1, step_nano)] if top else []


def _cost_of(spent: Sequence[answers.Spent]) -> str:
    """Write what several groups cost together, with the marks that a sum of their calls has."""
    nano = sum(each.cost_nano or 0 for each in spent)
    unknown = any(each.unknown_cost for each in spent)
    if unknown and not nano:
        return UNKNOWN
    return ("≥" if unknown else "") + money(nano, estimated=bool(nano) and any(map(_is_rough, spent)))


def _is_rough(spent: answers.Spent) -> bool:
    """Whether calls are in it that we counted, or priced by a guess."""
    return bool(spent.estimated or spent.assumed)


def _round_step(tallest: int) -> int:
    """Return how far the lines of a chart are apart, a round sum of which five at most make up the tallest."""
    size = 1
    while True:
        for step in (size, 2 * size, 5 * size):
            if tallest <= 5 * step:
                return step
        size *= 10


def _between(names: Sequence[str | None], step: timedelta, since: int | None, until: int) -> list[str]:
    """Name every hour or day of the time that was asked for, so that one in which nothing was spent is seen as such.

    Without a beginning, or where that is too long ago to be drawn, it is that of the first in which something was.
    """
    known = sorted(name for name in names if name)
    if not known:
        return []
    form = "%Y-%m-%d %H:%M" if step < timedelta(days=1) else "%Y-%m-%d"
    end = max(known[-1], _hour_of(until - 1).strftime(form))
    first, last = (datetime.strptime(each, form) for each in (known[0], end))  # noqa: DTZ007 - names of local times, as told
    if since is not None:
        begin = datetime.strptime(_hour_of(since).strftime(form), form)  # noqa: DTZ007 - the same
        if (last - begin) // step < _MOST_COLUMNS:
            first = min(first, begin)
    return [(first + step * at).strftime(form) for at in range(min(_MOST_COLUMNS, (last - first) // step + 1))]


def _hour_of(at: int) -> datetime:
    """Return when the local hour began that a moment is in."""
    return datetime.fromtimestamp(at // NANO).replace(minute=0, second=0, microsecond=0)  # noqa: DTZ006 - local on purpose


def _spend_row(
    group: answers.Group,
    by: Sequence[str],
    most: int,
    total: answers.Spent,
    split: answers.SpendTable | None,
    names: Sequence[str | None],
) -> api.SpendRow:
    spent, key = group.spent, group.key[0]
    inside = [each for each in (split.groups if split is not None else ()) if each.key[0] == key]
    parts = [(each.key[-1], each.spent.cost_nano or 0) for each in inside or [group] if inside or len(by) == 1]
    cached, given, calls = spent.cached_input_tokens, spent.input_tokens, _made(group, by[0])
    return api.SpendRow(
        key=None if key is None else clean(key, _MOST_NAME),
        value=key,
        width=_percent(spent.cost_nano, most),
        unknown=bool(spent.unknown_cost),
        parts=[(names.index(name) if name in names else _MOST_SERIES, _percent(nano, most)) for name, nano in parts if nano],
        cost=spent.cost_text,
        share=_share_of(spent, total),
        calls=count(calls),
        input=spent.input_text,
        cached=percent(cached / given) if cached is not None and given else "-",
        output=spent.output_text,
        each=UNKNOWN if spent.unknown_cost or not calls else money((spent.cost_nano or 0) // calls, estimated=_is_rough(spent)),
        refused=spent.refused,
        inside=[_spend_row(_inner(each), by[1:], most, total, None, names) for each in inside],
    )


def _share_of(spent: answers.Spent, total: answers.Spent) -> str:
    """Write which share of the whole it is: about so much where a part of either is not known for certain."""
    if not total.cost_nano or spent.cost_nano is None:
        return UNKNOWN
    mark = "~" if total.unknown_cost or _is_rough(total) else ""
    return mark + percent(spent.cost_nano / total.cost_nano)


def _made(group: answers.Group, by: str) -> int:
    """Count the calls that were made, as the terminal does: of tools where it is one's or of no model, else of models."""
    return group.spent.tool_calls if by == "tool" or (by == "model" and group.key[0] is None) else group.spent.requests


def _inner(group: answers.Group) -> answers.Group:
    return answers.Group(group.key[1:], group.calls, group.duration, group.spent)


# -- as a terminal sends it -----------------------------------------------------------------------------------------

_URL: Final = '"${OPENAI_BASE_URL:-https://api.openai.com/v1}/chat/completions"'
_ENDPOINT: Final = "chat.completions"


def sent_again(view: answers.CallView) -> str | None:
    """Return the curl command of a call to a chat endpoint, as far as it was captured; None for others, and where nothing was.

    Tools, pictures and sampling options are not in it: what was captured of them is not what was sent.
    """
    if view.facts.get("endpoint") != _ENDPOINT or view.messages is None:
        return None
    messages = [{"role": "system", "content": _texts(view.system)}] if view.system else []
    for each in view.messages:
        parts: list[Any] = [part for part in each.get("parts") or () if isinstance(part, Mapping)]
        messages += _sent_messages(str(each.get("role")), parts)
    body = {"model": view.facts.get("request_model") or view.facts.get("model"), "messages": messages}
    sent = shlex.quote(json.dumps(body, ensure_ascii=False))
    return f"curl {_URL} \\\n  -H \"Authorization: Bearer $OPENAI_API_KEY\" \\\n  -H 'Content-Type: application/json' \\\n  -d {sent}\n"


def _sent_messages(role: str, parts: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Give the messages that the parts of one were: each answer of a tool is one of its own."""
    answers = [part for part in parts if part.get("type") == "tool_call_response"]
    if answers:
        return [{"role": "tool", "tool_call_id": part.get("id"), "content": _as_text(part.get("response"))} for part in answers]
    asked = [
        {"id": part.get("id"), "type": "function", "function": {"name": part.get("name"), "arguments": _as_text(part.get("arguments"))}}
        for part in parts
        if part.get("type") == "tool_call"
    ]
    return [{"role": role, "content": _texts(parts), **({"tool_calls": asked} if asked else {})}]


def _texts(parts: Sequence[Mapping[str, Any]] | None) -> str:
    return "".join(_as_text(part.get("content")) for part in parts or () if part.get("type") == "text")


def _as_text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
