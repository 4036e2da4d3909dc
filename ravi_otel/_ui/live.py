"""Look at the running processes of a store, and at the budgets that programs share, while a page is open, and say what changed."""

from __future__ import annotations

import asyncio
import hashlib
import threading
import time
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Final

from anyio import to_thread

from ravi_otel._flow import run_sync
from ravi_otel._local import wording
from ravi_otel._local.live.client import Row, Watch, Watched, rows
from ravi_otel._local.live.protocol import MOST_REFUSALS, LimitState, LiveError, LiveEvent, ProcessState, RunState, ScopeState
from ravi_otel._local.shared_budgets import Shown, opened
from ravi_otel._local.wording import clean, count, many
from ravi_otel._ui import api
from ravi_otel._ui.decisions import Inbox
from ravi_otel.errors import ConfigurationError, RaviError
from ravi_otel.policy._grammar import parse_limit
from ravi_otel.policy._limits import ScopeKind
from ravi_otel.supervisor import AuditLog, QueueError

_LEAST_S: Final = 0.1
_EVERY_S: Final = 0.25
_SECOND_S: Final = 1.0
_QUEUE_PATIENCE_S: Final = 0.5
_ALIVE_S: Final = 5.0
"""How soon a page that has nothing new to hear is told that somebody is there."""

_PATIENCE_S: Final = 1.0
_MOST_ROWS: Final = 2_000
_MOST_BARS: Final = 8
_MOST_REFUSALS: Final = 20
_MOST_NAME: Final = 120
_MOST_TEXT: Final = 300
_LEAST_APART: Final = 8
_TIMES: Final = {1: "once", 2: "twice"}
_PAUSED: Final = ("paused", "paused above", "closed", "cancelled")


class Feed:
    """Know what is open: followed while a page listens, and asked for when one question comes alone."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.is_over = False
        self._lock = threading.Lock()
        self._watch: Watch | None = None
        self._listening: set[Callable[[], object]] = set()
        self._news = 0
        self._telling = threading.Lock()
        self._told_of: tuple[object, ...] = ()
        self._told = ""

    def end(self) -> None:
        """Let every page that listens go: the server ends."""
        self.is_over = True
        self._changed()

    def look(self) -> list[Watched]:
        """Return what the processes said last; one that was not heard yet is waited for."""
        watch = self._watch
        if watch is not None:
            return watch.look(_PATIENCE_S)
        with closing(Watch(self.root)) as alone:
            return alone.look(_PATIENCE_S)

    @contextmanager
    def listen(self, wake: Callable[[], object]) -> Generator[None]:
        """Have `wake` called, in any thread, when there is something new; the processes are told nothing where nobody listens."""
        with self._lock:
            self._listening.add(wake)
            if self._watch is None:
                self._watch = Watch(self.root, self._changed)
        try:
            yield
        finally:
            self._leave(wake)

    def _leave(self, wake: Callable[[], object]) -> None:
        with self._lock:
            self._listening.discard(wake)
            watch = self._watch
            if self._listening or watch is None:
                return
            self._watch = None
        watch.close()

    def _changed(self) -> None:
        with self._lock:
            self._news += 1
            listening = list(self._listening)
        for wake in listening:
            wake()

    def now(self, inbox: Inbox) -> api.Now:
        """Return what is open, as rows; a queue of approvals that cannot be read takes nothing else away."""
        try:
            return _now(self.look(), inbox.waiting(_QUEUE_PATIENCE_S), [])
        except QueueError:
            return _now(self.look(), [], [("error", "approvals cannot be read")])

    def told(self, inbox: Inbox) -> str:
        """Return `now` as it is written, once for all pages that ask for the same."""
        with self._telling:
            of = (self._news, inbox.mark(), int(time.monotonic() / _SECOND_S))
            if of != self._told_of:
                self._told, self._told_of = self.now(inbox).model_dump_json(), of
            return self._told

    def limits(self) -> api.Limits:
        """Return every limit that counts now, the fullest first."""
        found: list[tuple[float, api.Limit]] = []
        seen = self.look()
        apart_by = _apart([run for watched in seen for run in (() if watched.process is None else watched.process.runs)])
        for row in rows(seen):
            if row.scope is None or row.run is None:
                continue
            of = "" if row.scope.kind == "run" else clean(row.run.name, _MOST_NAME)
            apart = apart_by[row.run.run_id]
            can = ["set_limit"] if row.watched.trouble is None else []
            for each in row.scope.limits:
                key = f"{_key(row.watched, row.key)}/{each.kind}"
                name = clean(row.scope.name, _MOST_NAME)
                whose = f"{row.scope.kind} {name}{'' if of else apart}"
                known = api.Limit(
                    key=key,
                    process=_key(row.watched, row.watched.key),
                    scope=row.scope.scope_id,
                    whose=whose,
                    of=of and of + apart,
                    run=row.run.run_id,
                    bar=api.Bar.of(each),
                    can=can,
                    written=None if each.source is None else place(each.source),
                )
                found.append((each.urgency, known))
        found.sort(key=lambda each: -each[0])
        listed = [limit for _, limit in found]
        counted: tuple[api.Tone, str] = ("run", f"{many(len(listed), 'limit')} {'counts' if len(listed) == 1 else 'count'} now")
        return api.Limits(says=[counted, *_tell_bars([each.bar for each in listed])], limits=listed)

    def do(self, command: api.Command, by: str) -> api.Done:
        """Have a process do it; LiveError or ConfigurationError says why it was not done."""
        row, scope = self._found(command)
        name = f"{scope.kind} {clean(scope.name, _MOST_NAME)}"
        details: Mapping[str, object] = {}
        said = f"{name}: {command.op} is done."
        if command.op == "set_limit":
            limit = _limit_of(scope, command.kind)
            value = limit.read_amount(command.value or "")
            details, said = {"kind": limit.kind, "value": value}, f"{limit.title} of {name} is {limit.amount(value)} now."
        elif command.op == "reprioritize":
            details, said = {"priority": command.value or ""}, f"{name} has priority {clean(command.value, 20)} now."
        elif command.op == "cancel":
            details, said = {"reason": command.reason}, f"{name} is told to end."
        row.watched.session.command(command.op, scope.scope_id, by=by, **details)
        return api.Done(said=said)

    def tried(self, asked: api.Command) -> api.Tried:
        """Return what another value of a limit would do; LiveError or ConfigurationError where it is not there any more."""
        _, scope = self._found(asked)
        return api.Tried.of(_limit_of(scope, asked.kind), asked.value or "")

    def _found(self, asked: api.Command) -> tuple[Row, ScopeState]:
        for row in rows(self.look()):
            if row.scope is not None and row.scope.scope_id == asked.scope and _key(row.watched, row.watched.key) == asked.process:
                return row, row.scope
        raise LiveError("That is not open any more.")


def _limit_of(scope: ScopeState, kind: str | None) -> LimitState:
    limit = next((each for each in scope.limits if each.kind == kind), None)
    if limit is None:
        raise ConfigurationError(f"{scope.kind} {clean(scope.name, _MOST_NAME)} has no limit {clean(kind, 40)!r}.")
    return limit


def _apart(runs: list[RunState]) -> dict[str | None, str]:
    """Return for each run what tells it apart from others of its name: as much of its id as does, "" where nothing has to."""
    found: dict[str | None, str] = {}
    for run in runs:
        others = [str(each.run_id) for each in runs if each.name == run.name and each.run_id != run.run_id]
        own = str(run.run_id)
        length = next((at for at in range(_LEAST_APART, len(own)) if not any(each[:at] == own[:at] for each in others)), len(own))
        found[run.run_id] = f" ({clean(own[:length], _MOST_NAME)})" if others else ""
    return found


async def events(feed: Feed, inbox: Inbox) -> AsyncGenerator[str]:
    """Yield what is open whenever it changed, as server-sent events, for one page, for as long as it listens."""
    loop, woken = asyncio.get_running_loop(), asyncio.Event()
    last, mark, sent_at = "", await to_thread.run_sync(inbox.mark), 0.0
    with feed.listen(partial(loop.call_soon_threadsafe, woken.set)):
        while not feed.is_over:
            text, looked_at = await to_thread.run_sync(feed.told, inbox), time.monotonic()
            if text != last:
                last, sent_at = text, looked_at
                yield f"event: now\ndata: {text}\n\n"
            elif looked_at - sent_at >= _ALIVE_S:
                sent_at = looked_at
                yield "event: alive\ndata: -\n\n"
            await asyncio.sleep(_LEAST_S)
            while not woken.is_set() and await to_thread.run_sync(inbox.mark) == mark and time.monotonic() - looked_at < _SECOND_S:
                with suppress(TimeoutError):
                    await asyncio.wait_for(woken.wait(), _EVERY_S)
            woken.clear()
            mark = await to_thread.run_sync(inbox.mark)


# -- rows ---------------------------------------------------------------------------------------------------------


def _now(seen: list[Watched], asks: list[api.Ask], trouble: list[tuple[api.Tone, str]]) -> api.Now:
    found = rows(seen)
    told = [_row(row, asks) for row in found[:_MOST_ROWS]]
    runs = sum(row.scope is not None and row.scope.kind == "run" for row in found)
    agents = sum(row.scope is not None and row.scope.kind == "agent" for row in found)
    says: list[tuple[api.Tone, str]] = [("run", f"{many(runs, 'run')} of {many(len(seen), 'program')}, {many(agents, 'agent')}")]
    if asks:
        says.append(("wait", f"{len(asks):,} {'waits' if len(asks) == 1 else 'wait'} for you"))
    says += [*_tell_bars([bar for row in told for bar in row.bars]), *trouble]
    refusals = [(each[0].at_unix_s, _refusal(each, watched)) for watched in seen for each in _alike(watched)]
    refusals.sort(key=lambda each: -each[0])
    newest = [refusal for _, refusal in refusals[:_MOST_REFUSALS]]
    return api.Now(says=says, rows=told, refusals=newest, refused=_refused(seen), waiting=len(asks))


def _refused(seen: list[Watched]) -> str:
    """Count what programs that still run refused: what one keeps of it are the last calls, so that there may be more."""
    number, least = 0, ""
    for watched in seen:
        process = watched.process
        if process is None:
            continue
        if _is_cut(process):
            of_open = sum(scope.refused for run in process.runs for scope in run.scopes if scope.parent_id is None)
            number, least = number + max(len(process.refusals), of_open), "≥"
        else:
            number += len(process.refusals)
    return f"{least}{many(number, 'call')} of programs that still run"


def _is_cut(process: ProcessState) -> bool:
    """Whether a process may have refused more than it keeps."""
    return len(process.refusals) >= MOST_REFUSALS


def _alike(watched: Watched) -> list[list[LiveEvent]]:
    """Gather what a process refused of one agent by one limit in a run, the newest first."""
    found: dict[tuple[str | None, ...], list[LiveEvent]] = {}
    for each in reversed(() if watched.process is None else watched.process.refusals):
        found.setdefault((each.run_id, each.agent, each.limit_kind), []).append(each)
    return list(found.values())


def _before(number: int, *, cut: bool) -> str:
    """Say how often the same was refused before."""
    if number == 0:
        return ""
    times = _TIMES.get(number, f"{number:,} times")
    return f"and {'at least ' if cut else ''}{times} before"


def _refusal(alike: list[LiveEvent], watched: Watched) -> api.Refusal:
    """Tell the newest of these, and how many there were before it."""
    refused = alike[0]
    process = watched.process
    runs = () if process is None else process.runs
    run = next((run for run in runs if run.run_id == refused.run_id), None)
    return api.Refusal(
        at=_clock(refused.at_unix_s),
        agent=clean(refused.agent, _MOST_NAME),
        call=clean(refused.call, _MOST_NAME),
        limit=clean(refused.limit_kind, _MOST_NAME),
        sentence=clean(refused.sentence or refused.limit_kind, _MOST_TEXT),
        run=refused.run_id,
        run_name=clean(refused.run_id if run is None else run.name, _MOST_NAME),
        call_id=refused.call_id,
        before=_before(len(alike) - 1, cut=process is not None and _is_cut(process)),
    )


def _row(row: Row, asks: list[api.Ask]) -> api.NowRow:
    watched, scope, run = row.watched, row.scope, row.run
    process = watched.process
    program = f"{'?' if process is None else clean(process.program, _MOST_NAME)}, pid {watched.session.pid}"
    key = _key(watched, watched.key)
    if scope is None or run is None:
        return api.NowRow(
            key=key, parent=None, guide=[], kind="process", name=program, of="", process=key, scope=None, run=None,
            tone="run" if row.trouble is None else "unknown", word=_listening(row), priority="", calls="", rate="", cost="",
            bars=[], more_bars=0, can=[], facts=[], note=None,
        )  # fmt: skip
    who = "" if scope.kind == "run" else scope.name
    waits = next((each for each in asks if each.agent == who and each.run == run.run_id), None)
    tone, word = _state(row, scope, waits)
    limits = sorted(scope.limits, key=lambda each: -each.urgency)
    bars = [api.Bar.of(each) for each in limits[:_MOST_BARS]]
    facts = [f"{name} {clean(value, 80)}" for name, value in (("tenant", run.tenant), ("user", run.user), ("trace", run.trace_id)) if value]
    return api.NowRow(
        key=_key(row.watched, row.key),
        parent=None if row.parent is None else _key(row.watched, row.parent),
        guide=list(row.guide),
        kind=scope.kind,
        name=clean(scope.name, _MOST_NAME) or scope.kind,
        of=program if scope.kind == "run" else "",
        process=key,
        scope=scope.scope_id,
        run=run.run_id,
        tone=tone,
        word=word,
        priority=scope.priority or "",
        calls=count(scope.requests),
        rate=wording.rate(scope.tokens_per_s),
        cost=wording.short_usd(scope.cost_usd, estimated=scope.is_cost_rough, partly=scope.is_cost_partial),
        bars=bars,
        more_bars=len(limits) - len(bars) + scope.limits_left_out,
        can=_can(row, scope),
        facts=facts if scope.kind == "run" else [],
        note=_note(row, scope, waits),
    )


def _listening(row: Row) -> str:
    if row.trouble is not None:
        return row.trouble
    process = row.watched.process
    return "nothing is open" if process is not None and not process.runs else ""


def _state(row: Row, scope: ScopeState, waits: api.Ask | None) -> tuple[api.Tone, str]:
    """Return the shape of a row's state and its word."""
    if row.trouble is not None:
        return "unknown", row.trouble
    if row.state in _PAUSED:
        return "paused", row.state
    if waits is not None or scope.waits_for == "approval":
        return "wait", "waits for approval"
    if scope.last_refusal is not None and scope.kind != "run":
        return ("near", "limit raised, not tried yet") if scope.is_raised else ("refused", f"refused {many(scope.refused, 'call')}")
    if scope.kind == "run":
        return "run", f"running {wording.age(scope.age_s)}"
    return "run", "waits" if row.state == "waiting" else clean(scope.last_event, 60) or "open"


def _can(row: Row, scope: ScopeState) -> list[str]:
    """Return what may be done to it: an agent whose pause ends it can be stopped, which is another word."""
    if row.trouble is not None or row.state in ("closed", "cancelled", "ended"):
        return []
    can = ["cancel"] if scope.kind in ("run", "agent") else ["close"]
    if scope.limits:
        can.append("set_limit")
    if scope.status == "paused":
        can.append("resume")
    elif scope.pauses is not None:
        can.append("pause" if scope.pauses else "stop")
    if scope.priority is not None and scope.pauses is not None:
        can.append("reprioritize")
    return can


def _note(row: Row, scope: ScopeState, waits: api.Ask | None) -> api.Note | None:
    process = row.watched.process
    if waits is not None:
        return api.Note(tone="wait", at="", text=waits.call, ask=waits.id, asked_at=waits.asked_at, expires_at=waits.expires_at)
    if process is None or scope.kind == "run" or scope.last_refusal is None:
        return None
    last = next((each for each in reversed(process.refusals) if each.scope_id == scope.scope_id), None)
    at, call = ("", None) if last is None else (_clock(last.at_unix_s), last.call_id)
    return api.Note(tone="near" if scope.is_raised else "refused", at=at, text=clean(scope.last_refusal, _MOST_TEXT), call=call)


def _clock(unix_s: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(unix_s))


# -- limits -------------------------------------------------------------------------------------------------------


def place(written: str) -> tuple[str, str]:
    """Shorten where a limit was written to the file's own name; return it with the whole."""
    whole = clean(written, _MOST_TEXT)
    return whole.rpartition("/")[2], whole


def _tell_bars(bars: list[api.Bar]) -> list[tuple[api.Tone, str]]:
    """Count the limits that are spent, and those that are near."""
    spent = sum(bar.tone == "refused" for bar in bars)
    near = sum(bar.tone == "near" for bar in bars)
    told: list[tuple[api.Tone, str]] = []
    if spent:
        told.append(("refused", f"{many(spent, 'limit')} spent"))
    if near:
        told.append(("near", f"{near:,} nearing"))
    return told


def _key(watched: Watched, key: str) -> str:
    """Return the name of a process or of a row in it, which says nothing of where its socket is."""
    digest = hashlib.sha256(watched.key.encode()).hexdigest()[:12]
    return digest + key.removeprefix(watched.key)


# -- budgets that programs share ------------------------------------------------------------------------------------

_FRESH_S: Final = 1.0
_MOST_BUDGETS: Final = 50
_SHARED: Final = (ScopeKind.TENANT, ScopeKind.SESSION, ScopeKind.PROCESS)
_NONE: Final = api.Budgets(where=None, error=None, budgets=[], more=0)


@dataclass(slots=True)
class SharedBudgets:
    """Be the shared ledger at `url`, None for none; what is changed in it is written down in the audit log at `audit`."""

    url: str | None
    audit: Path
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)
    _known: tuple[float, api.Budgets] | None = field(default=None, init=False)

    def all(self) -> api.Budgets:
        """Return the fullest budgets, not older than a second; a ledger that does not answer is said to be one, and hides nothing else."""
        if self.url is None:
            return _NONE
        with self._lock:
            if self._known is None or time.monotonic() - self._known[0] > _FRESH_S:
                self._known = (time.monotonic(), self._look(self.url))
            return self._known[1]

    def _look(self, url: str) -> api.Budgets:
        try:
            with opened(url) as (store, where):
                listing = run_sync(store.list_accounts())
        except RaviError as error:
            return api.Budgets(where=None, error=clean(str(error), 400), budgets=[], more=0)
        shown = [each for each in map(Shown, listing.counters) if each.named is not None and each.named.scope in _SHARED]
        shown.sort(key=lambda each: (-each.counter.ratio, each.where, each.label))
        budgets = [_budget(each) for each in shown[:_MOST_BUDGETS]]
        return api.Budgets(where=clean(where, 200), error=None, budgets=budgets, more=len(shown) - len(budgets))

    def tried(self, asked: api.BudgetChange) -> api.Tried:
        """Return what another value of a budget would do; ConfigurationError for one that is gone."""
        with opened(self.url) as (store, _):
            return api.Tried.of(_found(map(Shown, run_sync(store.list_accounts()).counters), asked.id).limit, asked.value or "")

    def set(self, asked: api.BudgetChange, by: str) -> api.Done:
        """Set another limit on a budget that is there, or close it; ConfigurationError for one that is gone, or a value that is none."""
        with opened(self.url) as (store, _):
            shown = _found(map(Shown, run_sync(store.list_accounts()).counters), asked.id)
            limit = shown.limit
            if asked.value is None:
                done, value = bool(run_sync(store.close_scope([shown.counter]))), 0.0
            else:
                value = limit.read_amount(asked.value)
                inner = parse_limit(f"{shown.kind}={replace(limit, limit=value).value}").value
                done = run_sync(store.set_limit(shown.counter, inner)) is not None
        self._known = None
        if not done:
            raise ConfigurationError("That budget is gone: nobody has used it for long, or the ledger was emptied.")
        shown.note(AuditLog(self.audit), limit.limit, value, by)
        closed = asked.value is None
        return api.Done(said=f"{shown.label} of {shown.where} is {'closed' if closed else f'{limit.amount(value)} now'}.")


def _found(listed: Iterable[Shown], budget: str) -> Shown:
    for shown in listed:
        if shown.counter.id == budget and shown.named is not None:
            return shown
    raise ConfigurationError("That budget is not in the ledger any more.")


def _budget(shown: Shown) -> api.Budget:
    return api.Budget(id=shown.counter.id, state=shown.state, bar=api.Bar.of(shown.limit))
