"""Hear what the engine does, and make rows of it, without any span: neither a sampler nor a level of detail changes what is kept.

On the caller's thread a record is taken apart into what it says now, by one call of C; the rest is done by the writer's thread.
"""

from __future__ import annotations

import contextlib
import json
import logging
import sys
import time
import weakref
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from hashlib import blake2b
from operator import add, attrgetter
from pathlib import Path
from typing import Any, Final, TypeVar

from opentelemetry import trace

from ravi_otel._enforcement.ledger.account import Account
from ravi_otel._extras import load
from ravi_otel._forksafe import renew_while_alive
from ravi_otel._local.store import SUMS, TABLES, Store, finite, limit_fields
from ravi_otel._local.writer import Batch, End, Writer, insert
from ravi_otel._telemetry import names, spans
from ravi_otel.errors import BudgetError, ConfigurationError, RaviError
from ravi_otel.hooks._events import (
    CallRecord,
    CountEvent,
    GuardrailEvent,
    HandoffEvent,
    HookEvent,
    LimitEvent,
    LimitReading,
    Notice,
    ReviewEvent,
    ScopeView,
    SpawnEvent,
    StepEvent,
    ToolRecord,
    Totals,
)
from ravi_otel.hooks._listeners import Listener
from ravi_otel.policy import _checks as checks
from ravi_otel.policy._limits import NANO, ScopeKind, place_of, public_amount
from ravi_otel.policy._runs import ScopeFacts
from ravi_otel.policy._usage import Call, Reply, Usage

_log = logging.getLogger("ravi_otel")

_HOUR_NS: Final = 3_600_000_000_000
_IN_FLIGHT_NS: Final = 200_000_000
_SAMPLE_NS: Final = 200_000_000
_SAMPLES_A_LIFE: Final = 300
"""A limit that is counted for long is read less often: a few hundred times in all for each time its life doubles."""

_PRUNING_S: Final = 0.2
_MOST_OPEN: Final = 10_000
_MOST_CACHED: Final = 50_000
_MOST_TEXT: Final = 4_096
_RUNS: Final = (ScopeKind.RUN, ScopeKind.AGENT)
_KEPT_COUNTS: Final = frozenset({"suspended", "restarted", "store_errors", "carrier_rejected", "hook_errors"})
_EACH_0: Final = dict.fromkeys(SUMS, 0)
_NO_SUMS: Final = tuple(_EACH_0.values())
_NOTHING: Final = (0, 0, *_NO_SUMS)

_STAYS: Final = ("call", "run", "began")
_CALL: Final = f"{insert('calls')} ON CONFLICT (call) DO UPDATE SET " + ", ".join(
    f'"{name}" = excluded."{name}"' for name in TABLES["calls"] if name not in _STAYS
)
"""The row of a call; one that was in flight keeps its place, in the table and in each index."""

_SHOWN: Final = (*TABLES["calls"][: TABLES["calls"].index("stream") + 1], "began", "status", "decision", "pending", *SUMS)
_IN_FLIGHT: Final = f"INSERT OR IGNORE INTO calls ({', '.join(_SHOWN)}) VALUES ({', '.join('?' * len(_SHOWN))})"  # noqa: S608 - the names are ours
_TOOL: Final = insert("tools", instead="OR REPLACE")
_SCOPE: Final = insert("scopes", instead="OR IGNORE")
_RUN: Final = insert("runs", instead="OR IGNORE")
_EVENT: Final = insert("events")
_SAMPLE: Final = insert("samples")
_REVIEW: Final = insert("reviews")
_NOTE: Final = insert("notes")
_CONTENT: Final = insert("content", instead="OR REPLACE")
_MESSAGE: Final = insert("messages", instead="OR IGNORE")
_WORDS: Final = "INSERT INTO messages_text (rowid, text) SELECT ?1, ?2 WHERE NOT EXISTS (SELECT 1 FROM messages WHERE id = ?1)"
_SCOPE_END: Final = (
    "UPDATE scopes SET ended = ?, status = ?, stop_reason = ?, error_type = ?, refusal = ?, limits = ?, spend = ? WHERE scope = ?"
)
_SCOPE_LIMITS: Final = """
    UPDATE scopes SET limits = (SELECT json_group_array(json(value)) FROM (
        SELECT value FROM json_each(?)
        UNION ALL SELECT value FROM json_each(scopes.limits) WHERE json_extract(value, '$.scope') != scopes.kind)) WHERE scope = ?"""
"""Those of the scope itself anew; where those around it stood at its end stays."""
_RUN_END: Final = (
    "UPDATE runs SET ended = max(coalesce(ended, 0), ?1), stop_reason = CASE WHEN status IN ('open', 'ok') THEN ?3 ELSE stop_reason END,"
    " error_type = CASE WHEN status IN ('open', 'ok') THEN ?4 ELSE error_type END,"
    " refusal = CASE WHEN status IN ('open', 'ok') THEN ?5 ELSE refusal END,"
    " status = CASE WHEN status IN ('open', 'ok') THEN ?2 ELSE status END WHERE run = ?6"
)
"""Of a run that several processes have part in, the first bad end stays."""

_SUMMED: Final = ", ".join(f"{name} = {name} + ?" for name in SUMS)
_RUN_SUMS: Final = f"UPDATE runs SET agents = agents + ?, {_SUMMED} WHERE run = ?"  # noqa: S608 - the names are ours
_HOURLY: Final = f"{insert('hourly')} ON CONFLICT DO UPDATE SET " + ", ".join(
    f"{name} = {name} + excluded.{name}" for name in ("calls", "duration", *SUMS)
)

_NO_HOUR: Final = (
    "DELETE FROM hourly WHERE hour = ? AND provider = ? AND model = ? AND agent = ? AND tool = ? AND user = ? AND tenant = ? AND "  # noqa: S608 - its own names
    + " AND ".join(f"{name} = 0" for name in ("calls", *SUMS))
)

_CALL_FIELDS: Final = (
    *("op_id", "call", "facts", "status", "error_type", "reply", "usage", "cost_nano", "cost_source", "decision", "limit_kind"),
    *("limit_scope", "limit_reason", "first_chunk_ns", "duration_ns", "request_id", "http_status", "first_content_ns", "price_date"),
    *("retries", "requests", "charged", "charged_nano", "output_cap", "truncated_by_limit", "reservation", "expected", "chain", "span"),
    "said",
)
_READ_CALL: Final = attrgetter(*_CALL_FIELDS)
_OP_ID, _OF_CALL, _DURATION, _SAID = map(_CALL_FIELDS.index, ("op_id", "call", "duration_ns", "said"))
_READ_TOOL: Final = attrgetter(
    *("op_id", "name", "facts", "status", "error_type", "decision", "limit_kind", "limit_scope", "limit_reason", "duration_ns"),
    *("call_id", "inferred", "abandoned", "began_unix_ns", "chain", "span", "said"),
)
_ERROR: Final = (
    *("limit_kind", "threshold", "used", "held", "remaining", "scope", "agent_name", "run_name", "reason", "resets_at", "per"),
    "counted_for",
)
_READ_ERROR: Final = attrgetter(*_ERROR)
_COUNTS: Final = (
    *("input_tokens", "output_tokens", "cached_input_tokens", "total_tokens", "cache_write_tokens", "reasoning_tokens"),
    *("audio_input_tokens", "audio_output_tokens", "cache_write_1h_tokens", "image_input_tokens", "cached_image_tokens"),
    *("image_output_tokens", "rejected_prediction_tokens", "audio_ms", "characters", "searches"),
)
_READ_USAGE: Final = attrgetter(*_COUNTS)
_NO_ANSWER: Final = Reply()

_K = TypeVar("_K")
_V = TypeVar("_V")
_Facts = tuple[Any, ...]
_Sums = tuple[int, ...]
_Refusal = tuple[str, tuple[Any, ...] | None]


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]  # of whatever the program tells
    return value.isoformat() if isinstance(value, datetime) else spans.text(value)


_json: Final = json.JSONEncoder(separators=(",", ":"), default=_plain).encode


def _text(value: Any) -> str | None:
    """Return a text that has bytes, at most so long; None stays None."""
    if value is None:
        return None
    text = value if type(value) is str else str(value)
    if len(text) > _MOST_TEXT:
        text = text[:_MOST_TEXT]
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


class _Cache(dict[_K, _V]):
    """Be a dictionary that forgets its oldest entry where it has too many."""

    def __setitem__(self, key: _K, value: _V) -> None:
        super().__setitem__(key, value)
        if len(self) > _MOST_CACHED:
            del self[next(iter(self))]


class Recorder(Listener):
    """Put what happens into the store by way of `writer`; with `content` also what programs and guardrails say."""

    def __init__(self, writer: Writer) -> None:
        self.writer = writer
        self.content = False
        self._launch = writer.launch
        writer.before_commit.append(self._complete)
        writer.began_anew = self._forget
        self._forget()
        self._renew()
        renew_while_alive(self, Recorder._renew)
        self._parents = _Cache[str, tuple[str | None, str | None]]()  # by scope: the one around it, and its run
        self._around = _Cache[str, tuple[str, ...]]()  # by run: itself, and the runs around it
        self._sampled = _Cache[Account, tuple[int, int]]()  # when first and last
        self._limits = _Cache[Account, str]()
        self._closed: weakref.WeakValueDictionary[str, ScopeView] = weakref.WeakValueDictionary()  # kept by what still flies in them

    def _renew(self) -> None:
        """Begin anew, at the start and in a forked child: what is open, or not written yet, is the parent's."""
        self._open: dict[str, tuple[CallRecord, int]] = {}
        self._facts_of = _Cache[str, tuple[ScopeFacts, _Facts]]()
        self._pending: dict[str, tuple[tuple[Any, ...], _Sums]] = {}  # calls whose usage is still to come, with what they counted for
        self._groups = _counts()
        self._agents = Counter[str]()
        self._touched: dict[Account, None] = {}
        self._ended: set[str] = set()  # scopes of this batch, whose limits are sampled a last time
        self._batched: set[int] = set()  # messages that are in this batch already
        self._shown = _Cache[str, tuple[int, Any]]()
        self._in_flight: defaultdict[Any, int] = defaultdict(int)  # by group, how many calls more than at the last commit, or fewer

    def _forget(self) -> None:
        """Know nothing of what is in the file: it is new."""
        self._runs = _Cache[str, None]()
        self._shown = _Cache[str, tuple[int, Any]]()  # calls in flight that have a row: when they began, and by what they count

    def retire(self) -> None:
        """Write what waits, and let go of the file: the process goes on without it."""
        self.writer.rest()

    def leave(self, outcome: End, status: int | None = None) -> None:
        """Write what waits, because the process is about to end without `atexit`."""
        self.writer.end(outcome, status)
        self.writer.leave()

    # -- on the thread of whoever does it ---------------------------------------------------------------------------

    def scope_opened(self, scope: ScopeView) -> None:
        """Take a scope, and those around it that were not told of: a session, a tenant, the process."""
        now, span = time.time_ns(), trace.get_current_span()
        new = [(scope.facts, scope.parent_id)]
        around = scope.parent
        while around is not None and around.facts.scope_id not in self._parents:
            new.append((around.facts, around.parent_id))
            around = around.parent
        self.writer.put(self._add_scopes, (now, span, new))

    def scope_closed(self, scope: ScopeView, totals: Totals) -> None:
        """Take how it ended, where its limits stand, and what was used in it."""
        self._closed[scope.facts.scope_id] = scope
        error = scope.error
        failed = None if error is None else type(error).__name__
        said = None if error is None else _refusal_of(error)
        self.writer.put(
            self._end_scope,
            (time.time_ns(), scope.facts, scope.status, scope.stop_reason, failed, said, (*totals.readings, *totals.shared), totals.spend),
        )

    def call_started(self, record: CallRecord) -> None:
        """Keep a call that begins, for a row if it takes long."""
        if len(self._open) < _MOST_OPEN:
            self._open[record.op_id] = (record, time.time_ns())
        if not self.writer.awake:
            self.writer.rouse()

    def call_ended(self, record: CallRecord) -> None:
        """Take what a call was, and what it used."""
        self._open.pop(record.op_id, None)
        refusal = None if record.error is None else _refusal_of(record.error)
        self.writer.put(self._add_call, (time.time_ns() - record.late_ns, refusal, _READ_CALL(record)))
        if self._closed:
            self._read_late(record.facts.scope_id)

    def _read_late(self, scope_id: str) -> None:
        """Take where the limits of scopes stand that were closed before a call in them ended."""
        at: ScopeView | None = self._closed.get(scope_id)
        while at is not None:
            if at.status != "open" and (readings := at.readings()):
                self.writer.put(self._add_readings, (at.facts, readings))
            at = at.parent

    def call_updated(self, record: CallRecord) -> None:
        """Take what an answer that was made in the background has used."""
        self.writer.put(self._update_call, _READ_CALL(record))

    def tool_ended(self, record: ToolRecord) -> None:
        """Take what a tool call was."""
        refusal: _Refusal | None = None
        if record.error is not None and (sentence := spans.sentence(record)) is not None:
            refusal = (sentence, _READ_ERROR(record.error) if isinstance(record.error, BudgetError) else None)
        self.writer.put(self._add_tool, (time.time_ns(), refusal, _READ_TOOL(record)))

    def limit_event(self, event: LimitEvent, at: CallRecord | ToolRecord | None) -> None:
        """Take a limit event."""
        self.writer.put(self._add_event, (time.time_ns(), event, None if at is None else (at.op_id, at.facts, at.span)))

    def reviewed(self, event: ReviewEvent) -> None:
        """Take what the gate decided."""
        self.writer.put(self._add_review, (time.time_ns(), event, trace.get_current_span()))

    def spawn_event(self, event: SpawnEvent) -> None:
        """Take what became of a request for a slot."""
        data = event.payload(HookEvent.SPAWN_DENIED) | {"outcome": event.outcome}
        self._note("spawn", (None, event.run_id), event.outcome, data)

    def counted(self, event: CountEvent) -> None:
        """Take what is counted and seldom."""
        if event.what in _KEPT_COUNTS:
            data = {"amount": event.amount, "limit_kind": event.limit_kind, "reason": event.reason, "scope_id": event.scope_id}
            if event.retry is not None:
                data |= {"attempt": event.retry.attempt, "wait_s": event.retry.wait_s, "error_type": event.retry.error_type}
            self._note(event.what, (event.scope_id, None), event.reason, data)

    def told(self, notice: Notice) -> None:
        """Take what an operator did, and what the program reports where content is captured."""
        if notice.what == "command" or self.content:
            self._note(notice.what, notice.facts, notice.text, dict(notice.data))

    def stepped(self, event: StepEvent) -> None:
        """Take the end of an agent's step."""
        if event.what == "end":
            self._note("step", event.facts, event.status, {"step": event.step, "status": event.status})

    def handed_over(self, event: HandoffEvent) -> None:
        """Take that one agent hands work to another."""
        self._note("handoff", event.facts, event.to, {"to": event.to, "mode": event.mode})

    def tripped(self, event: GuardrailEvent) -> None:
        """Take that a guardrail stopped something; its reason may quote what was said, and is content."""
        reason = event.reason if self.content else None
        self._note("guardrail", event.facts, reason, {"guardrail": event.guardrail, "level": event.level, "stage": event.stage})

    def _note(self, kind: str, of: ScopeFacts | tuple[str | None, str | None], text: str | None, data: Mapping[str, Any]) -> None:
        self.writer.put(self._add_note, (time.time_ns(), kind, of, text, data, trace.get_current_span()))

    # -- on the writer's thread: whose something is -------------------------------------------------------------------

    def _facts(self, batch: Batch, facts: ScopeFacts, now: int, span: Any = None) -> _Facts:
        """Return run, process, agent, user, tenant, session and tags of a scope; its run has a row from here on."""
        found = self._facts_of.get(facts.scope_id)
        if found is None or found[0] is not facts:
            run = _text(facts.run_id) or self.writer.process
            agent = (_text(facts.agent_name), _text(facts.agent_id))
            found = self._facts_of[facts.scope_id] = (facts, (run, self.writer.process, *agent, *_whose(facts)))
        known = found[1]
        if known[0] not in self._runs:
            self._add_run(batch, facts, known, now, span)
        return known

    def _add_run(self, batch: Batch, facts: ScopeFacts, known: _Facts, now: int, span: Any) -> None:
        run = known[0]
        self._runs[run] = None
        is_itself = facts.kind is ScopeKind.RUN and facts.run_id is not None
        kind, name = "run", facts.run_name
        if facts.run_id is None:
            kind, name = "process", self.writer.name
        elif run == self._launch:
            kind, name = "launch", facts.name if is_itself else facts.run_name
        around = self._around.get(run, (run,))
        parent = around[1] if len(around) > 1 else None
        whose = known[4:8] if is_itself else (None, None, None, None)
        place = (run, kind, self._launch, parent, self.writer.process, _text(name))
        batch.add(_RUN, (*place, *whose, *_ids(span), now, None, "open", None, None, None, 0, *_NO_SUMS))

    # -- scopes -------------------------------------------------------------------------------------------------------

    def _add_scopes(self, batch: Batch, told: tuple[int, Any, list[tuple[ScopeFacts, str | None]]]) -> None:
        now, span, new = told
        for facts, parent in reversed(new):
            if facts.scope_id not in self._parents:  # else a scope inside was faster to tell of it
                self._add_scope(batch, facts, parent, now, span)

    def _add_scope(self, batch: Batch, facts: ScopeFacts, parent: str | None, now: int, span: Any) -> None:
        self._parents[facts.scope_id] = (parent, facts.run_id)
        if facts.kind is ScopeKind.RUN and facts.run_id is not None and facts.run_id not in self._around:
            self._around[facts.run_id] = (facts.run_id, *self._runs_around(parent, facts.run_id))
        known: _Facts = (None, self.writer.process, None, None, *_whose(facts))
        ids = _ids(None)
        if facts.run_id is not None and facts.kind not in (ScopeKind.PROCESS, ScopeKind.TENANT, ScopeKind.SESSION):
            known, ids = self._facts(batch, facts, now, span if facts.kind is ScopeKind.RUN else None), _ids(span)
        if facts.kind is ScopeKind.AGENT:
            self._agents[known[0]] += 1
        node = facts.supervision
        place = (None, None) if node is None else (node.depth, node.priority.name.lower())
        start = (facts.scope_id, facts.kind.value, _text(facts.name), parent, *known, *ids, *place, facts.attempt)
        batch.add(_SCOPE, (*start, now, None, "open", None, None, None, None, None))

    def _runs_around(self, scope_id: str | None, run: str) -> Iterator[str]:
        found = run
        while scope_id is not None:
            scope_id, around = self._parents.get(scope_id, (None, None))
            if around is not None and around != found:
                found = around
                yield around

    def _end_scope(self, batch: Batch, told: tuple[Any, ...]) -> None:
        now, facts, status, stop_reason, failed, refusal, readings, spend = told
        reason = None if stop_reason is None else _text(str(stop_reason))
        limits = _json([limit_fields(facts, reading) for reading in readings]) if readings else None
        self._ended.add(facts.scope_id)
        used = {"duration_s": spend.duration_s, "waited_s": spend.waited_s}
        if spend.charged:
            used["charged"] = dict(spend.charged)
        if any(spend.consumed):
            used["consumed"] = spend.consumed._asdict()
        said = None if refusal is None else _json(_refused(refusal, ()))
        batch.change(_SCOPE_END, (now, status, reason, failed, said, limits, _json(used), facts.scope_id))
        if facts.kind is ScopeKind.RUN and facts.run_id is not None:
            batch.change(_RUN_END, (now, status, reason, failed, said, facts.run_id))
        if facts.kind in _RUNS and any(spend.consumed):
            tokens, cost_usd, turns = spend.consumed
            sums = _sums(unsplit_tokens=tokens, cost_nano=round(cost_usd * NANO), turns=turns)
            self._count(self._facts(batch, facts, now), now, ("", "", ""), 0, sums, calls=0)

    def _add_readings(self, batch: Batch, told: tuple[ScopeFacts, Sequence[LimitReading]]) -> None:
        facts, readings = told
        batch.change(_SCOPE_LIMITS, (_json([limit_fields(facts, reading) for reading in readings]), facts.scope_id))

    # -- calls --------------------------------------------------------------------------------------------------------

    def _add_call(self, batch: Batch, told: tuple[int, _Refusal | None, tuple[Any, ...]]) -> None:
        now, refusal, fields = told
        began, group = self._shown.pop(fields[_OP_ID], None) or (now - fields[_DURATION], None)
        if group is not None:
            self._in_flight[group] -= 1
        row, sums, known, place = self._call_row(batch, fields, refusal, began)
        batch.add(_CALL, row)
        if any(sums) or fields[_OF_CALL].generative:
            self._count(known, began, place, fields[_DURATION], sums)
        if row[_PENDING]:
            self._pending[fields[_OP_ID]] = (row, sums)
        if fields[_SAID]:
            self._add_said(batch, fields[_OP_ID], known[0], "call", fields[_SAID])

    def _call_row(
        self, batch: Batch, fields: tuple[Any, ...], refusal: _Refusal | None, began: int
    ) -> tuple[tuple[Any, ...], _Sums, _Facts, tuple[str, str, str]]:
        (op_id, call, facts, status, error_type, reply, usage, cost, cost_source, decision, limit_kind, limit_scope, reason, first_chunk,
         duration, request_id, http_status, first_content, price_date, retries, requests, charged, charged_cost, output_cap, truncated,
         reservation, expected, chain, span, _) = fields  # fmt: skip
        known = self._facts(batch, facts, began)
        answer = _NO_ANSWER if reply is None else reply
        pending = answer.pending and usage is None
        sums = contribution(
            call, status, reply, usage, cost, cost_source, decision, reason, requests, charged, charged_cost, pending=pending
        )
        model = _text(answer.model or call.model)
        estimated = None
        if expected is not None:
            worth = "null" if expected.cost is None else expected.cost
            estimated = f'{{"input_tokens":{expected.input_tokens},"output_tokens":{expected.output_tokens},"cost":{worth}}}'
        row = (
            op_id, facts.scope_id, *known, *_ids(span), call.operation, call.endpoint, call.provider, model, _text(call.model),
            int(call.stream), began, duration, status, decision, error_type, http_status,
            limit_kind, None if limit_scope is None else limit_scope.value, reason,
            None if refusal is None else _json(_refused(refusal, chain)),
            usage_json(usage), cost, cost_source, price_date, usage_json(charged), charged_cost, int(pending),
            estimated, None if reservation is None else self._held(reservation), first_chunk, first_content,
            _reasons(answer.finish_reasons), _text(answer.id), _text(request_id),
            _retries(retries) if retries else None, output_cap, int(truncated), *sums,
        )  # fmt: skip
        return row, sums, known, (call.provider, model or "", "")

    def _update_call(self, batch: Batch, fields: tuple[Any, ...]) -> None:
        """Replace a row whose usage was still to come, and count the difference."""
        before = self._pending.pop(fields[_OP_ID], None)
        if before is None:
            return
        old_row, old_sums = before
        began = old_row[_BEGAN]
        row, sums, known, place = self._call_row(batch, fields, None, began)
        batch.add(_CALL, row)
        difference = tuple(new - old for new, old in zip(sums, old_sums, strict=True))
        self._count(known, began, place, 0, difference, calls=0)

    def _held(self, reservation: Any) -> str | None:
        """Write what was held of each limit, and note that these limits are in use."""
        parts: list[str] = []
        for line, held in reservation.holds:
            account = line.account
            self._touched[account] = None
            if held:
                limit = self._limits.get(account)
                if limit is None:  # written once, open for more
                    limit = self._limits[account] = _json(_limit_of(account))[:-1]
                parts.append(f'{limit},"held":{public_amount(account.kind, held)}}}')
        return f"[{','.join(parts)}]" if parts else None

    # -- tools, events and the rest -----------------------------------------------------------------------------------

    def _add_tool(self, batch: Batch, told: tuple[int, _Refusal | None, tuple[Any, ...]]) -> None:
        now, refusal, fields = told
        (op_id, name, facts, status, error_type, decision, limit_kind, limit_scope, reason, duration, call_id, inferred, abandoned,
         began_unix, chain, span, said) = fields  # fmt: skip
        began = now - duration if began_unix is None else began_unix
        known = self._facts(batch, facts, began)
        row = (
            op_id, facts.scope_id, *known, *_ids(span), _text(name), _text(call_id), began, duration, status, decision, error_type,
            limit_kind, None if limit_scope is None else limit_scope.value, reason,
            None if refusal is None else _json(_refused(refusal, chain)), int(inferred), int(abandoned),
        )  # fmt: skip
        batch.add(_TOOL, row)
        ran = status != "refused" and decision is not None  # admitted, only observed, or inferred too late to be refused
        sums = _sums(tool_calls=int(ran), refused=int(status == "refused" and reason != "contended"))
        self._count(known, began, ("", "", _text(name) or ""), duration, sums)
        if said:
            batch.add(_CONTENT, (op_id, known[0], "tool", None, _json(said)))
            self._add_message(batch, known[0], {"role": "tool", "parts": [said]})

    def _add_event(self, batch: Batch, told: tuple[int, LimitEvent, Any]) -> None:
        now, event, at = told
        if at is None:
            call, span = None, None
            agent = (_text(event.agent_name), _text(event.agent_id))
            known: _Facts = (event.run_id, self.writer.process, *agent, None, _text(event.tenant_id), _text(event.session_id), None)
        else:
            call, facts, span = at
            known = self._facts(batch, facts, now)
        resets = None if event.resets_at is None else round(event.resets_at.timestamp() * NANO)
        row = (
            now, event.event, event.scope_id, call, *known, *_ids(span), event.limit_kind, event.scope.value, _text(event.scope_name),
            *map(finite, (event.threshold, event.used, event.held, event.remaining, event.exceeded_by, event.requested, event.ratio)),
            event.phase, event.decision, event.enforcement, event.per, event.window, event.by, _text(event.counted_for),
            resets, event.tracker,
        )  # fmt: skip
        batch.add(_EVENT, row)

    def _add_review(self, batch: Batch, told: tuple[int, ReviewEvent, Any]) -> None:
        now, event, span = told
        human = None if event.human_approved is None else int(event.human_approved)
        arguments = None if event.arguments is None else _json(event.arguments)
        row = (
            now, event.facts.scope_id, event.op_id, *self._facts(batch, event.facts, now), *_ids(span), _text(event.tool), event.decision,
            _text(event.reason), event.args_sha256, int(event.final), event.executed_from, human, event.risk_score, arguments,
        )  # fmt: skip
        batch.add(_REVIEW, row)

    def _add_note(self, batch: Batch, told: tuple[Any, ...]) -> None:
        now, kind, of, text, data, span = told
        if isinstance(of, ScopeFacts):
            scope, known = of.scope_id, self._facts(batch, of, now)
        else:
            scope, run = of
            run = run or self._parents.get(scope or "", (None, None))[1]
            agent = (_text(data.get("agent_name")), _text(data.get("agent_id")))
            known = (run, self.writer.process, *agent, None, None, None, None)
        batch.add(_NOTE, (now, kind, scope, *known, *_ids(span), _text(text), _json(data)))

    # -- what was said ------------------------------------------------------------------------------------------------

    def _add_said(self, batch: Batch, item: str, run: str, kind: str, said: Mapping[str, Any]) -> None:
        asked = [self._add_message(batch, run, message) for message in said.get(names.INPUT_MESSAGES) or ()]
        data: dict[str, Any] = {"output": [self._add_message(batch, run, each) for each in said.get(names.OUTPUT_MESSAGES) or ()]}
        for name, key in (("system", names.SYSTEM_INSTRUCTIONS), ("tools", names.TOOL_DEFINITIONS)):
            if said.get(key):
                data[name] = self._add_message(batch, run, {"role": name, "parts": said[key]})
        batch.add(_CONTENT, (item, run, kind, _json(asked), _json(data)))

    def _add_message(self, batch: Batch, run: str, message: Mapping[str, Any]) -> int:
        """Keep a message once a run, and its words; return its id."""
        data = _json(message)
        number = int.from_bytes(blake2b(f"{run}\n{data}".encode(), digest_size=8).digest(), "big") >> 1
        if number not in self._batched:
            self._batched.add(number)
            batch.add(_WORDS, (number, "\n".join(_words(message.get("parts")))))
            batch.add(_MESSAGE, (number, run, data))
        return number

    # -- sums ---------------------------------------------------------------------------------------------------------

    def _count(self, known: _Facts, at: int, place: tuple[str, str, str], duration: int, sums: _Sums, *, calls: int = 1) -> None:
        key = _group(known, at, place)
        self._groups[key] = tuple(map(add, self._groups[key], (calls, duration, *sums)))

    def _complete(self, batch: Batch) -> bool:
        """Add what a batch sums up, the calls that are in flight, and where the limits in use stand; return whether some are in flight."""
        now = time.time_ns()
        self._batched.clear()
        waiting = False
        for record, began in tuple(self._open.values()):
            if record.op_id in self._shown:
                continue
            if now - began < _IN_FLIGHT_NS:
                waiting = True
            else:
                self._show(batch, record, began)
        self._sum_up(batch)
        self._sample(batch, now)
        return waiting

    def _sum_up(self, batch: Batch) -> None:
        groups, self._groups = self._groups, _counts()
        in_flight, self._in_flight = self._in_flight, defaultdict[Any, int](int)
        for key, number in in_flight.items():
            if number:
                groups[key] = tuple(map(add, groups[key], (0, 0, *(number * each for each in _UNKNOWN_YET))))
        agents, self._agents = self._agents, Counter[str]()
        runs, hours, entered = _counts(), _counts(), Counter[str]()
        for (run, *place), counted in groups.items():
            hours[*place] = tuple(map(add, hours[*place], counted))
            for each in self._around.get(run, (run,)):
                runs[each] = tuple(map(add, runs[each], counted))
        for run, number in agents.items():
            entered.update(dict.fromkeys(self._around.get(run, (run,)), number))
        for (hour, provider, model, tool, agent, user, tenant), counted in hours.items():
            key = (hour, provider, model, agent, tool, user, tenant)
            batch.change(_HOURLY, (*key, *counted))
            if not counted[0]:  # of calls that were in flight it may be all that there was
                batch.change(_NO_HOUR, key)
        for run in dict.fromkeys((*runs, *entered)):
            batch.change(_RUN_SUMS, (entered[run], *runs[run][2:], run))

    def _show(self, batch: Batch, record: CallRecord, began: int) -> None:
        """Add the row of a call that is in flight: what it uses nobody knows yet, and if its process dies nobody ever will."""
        call, model, known = record.call, _text(record.call.model), self._facts(batch, record.facts, began)
        group = _group(known, began, (call.provider, model or "", "")) if call.generative else None
        self._shown[record.op_id] = (began, group)
        if group is not None:
            self._in_flight[group] += 1
        place = (call.operation, call.endpoint, call.provider, model, model, int(call.stream))
        whose, sums = (*known, *_ids(record.span)), _NO_SUMS if group is None else _UNKNOWN_YET
        batch.add(_IN_FLIGHT, (record.op_id, record.facts.scope_id, *whose, *place, began, "open", record.decision, 0, *sums))

    def _sample(self, batch: Batch, now: int) -> None:
        """Add where the limits stand that were in use since the last time."""
        touched, self._touched = self._touched, {}
        ended, self._ended = self._ended, set()
        for account in touched:
            first, last = self._sampled.get(account, (now, 0))
            if account.facts.scope_id not in ended and now - last < max(_SAMPLE_NS, (now - first) // _SAMPLES_A_LIFE):
                self._touched[account] = None  # a moment later
                continue
            self._sampled[account] = (first, now)
            limit, facts, kind = account.limit, account.facts, account.limit.kind
            amounts = *(public_amount(kind, each) for each in (account.used, account.held, account.value)), account.warn_at
            whose = (facts.scope_id, facts.kind.value, _text(facts.name))
            which = (limit.label, str(kind), account.window, _text(account.counted_for))
            batch.add(_SAMPLE, (now, facts.run_id, *whose, *which, *amounts))


_BEGAN: Final = TABLES["calls"].index("began")
_PENDING: Final = TABLES["calls"].index("pending")


def _whose(facts: ScopeFacts) -> tuple[str | None, str | None, str | None, str | None]:
    """Return user, tenant, session and tags of a scope, as columns have them."""
    tags = _json(dict(facts.tags)) if facts.tags else None
    return _text(facts.user_id), _text(facts.tenant_id), _text(facts.session_id), tags


def _group(known: _Facts, at: int, place: tuple[str, str, str]) -> tuple[Any, ...]:
    """Return by what something counts: its run, hour, provider, model and tool, and its agent, user and tenant."""
    return (known[0], at - at % _HOUR_NS, *place, known[2] or "", known[4] or "", known[5] or "")


def _counts() -> defaultdict[Any, _Sums]:
    """Return sums by key, with calls and their duration before them, that are 0 at first."""
    return defaultdict(lambda: _NOTHING)


def _sums(**counted: int) -> _Sums:
    """Return what these counts add to any sum, in the order of `SUMS`."""
    return tuple((_EACH_0 | counted).values())


_UNKNOWN_YET: Final = _sums(untold_calls=1, uncosted_calls=1)
"""What a call in flight adds to any sum: it makes it a lower bound, for ever where its process dies before it ends."""


def _ids(span: Any) -> tuple[str | None, str | None, int | None]:
    """Return trace and span in hexadecimal, and whether a backend has it; nothing without one."""
    context = None if span is None else span.get_span_context()
    if context is None or not context.is_valid:
        return None, None, None
    return f"{context.trace_id:032x}", f"{context.span_id:016x}", int(context.trace_flags.sampled)


def contribution(  # noqa: PLR0913, PLR0917 - what a call is counted by
    call: Call,
    status: str,
    reply: Reply | None,
    usage: Usage | None,
    cost: int | None,
    cost_source: str | None,
    decision: str | None,
    reason: str | None,
    requests: int,
    charged: Usage | None,
    charged_cost: int | None,
    *,
    pending: bool,
) -> _Sums:
    """Return what one call adds to any sum that it belongs to, in the order of `SUMS`: `Sums` says what each of these counts.

    A look that brought what an earlier call had used adds nothing: that call is where it counts.
    """
    if status == "refused":
        return _sums(refused=int(reason != "contended"))
    errors = int(status == "error" and decision is not None)
    if not call.generative:
        return _sums(errors=errors)
    sent = reply is not None
    total_only = usage is not None and usage.total_only
    untold = sent and not pending and (usage is None or usage.source == "reserved" or total_only or usage.is_half_told(call.operation))
    no_price = usage is not None and usage.total_tokens > 0 and cost is None
    uncosted = int((untold and not total_only) or no_price)
    counted, price, assumed = usage, cost, 0
    if usage is None:
        counted, price = charged, charged_cost
    elif total_only or usage.source == "reserved":
        counted = None
    else:
        assumed = int(cost_source == "assumed")
    tokens, cost_nano, estimated, unpriced = (0, 0, 0), 0, 0, 0
    if counted is not None and counted.total_tokens:
        tokens = (counted.input_tokens, counted.output_tokens, counted.cached_input_tokens)
        cost_nano, estimated, unpriced = price or 0, int(counted.source == "estimated"), int(price is None)
    return (
        *(requests, int(call.turn and sent), *tokens, cost_nano, unpriced, estimated, assumed, int(untold), int(total_only)),
        *(usage.total_tokens if usage is not None and total_only else 0, uncosted, 0, 0, errors),
    )


def usage_json(usage: Usage | None) -> str | None:
    """Write a usage, without what is 0; None stays None."""
    if usage is None:
        return None
    given, made, cached, total, *rest = _READ_USAGE(usage)
    if not any(rest) and not cached and total == given + made:
        return f'{{"input_tokens":{given},"output_tokens":{made},"source":"{usage.source}"}}'
    counts = {name: count for name, count in zip(_COUNTS, (given, made, cached, total, *rest), strict=True) if count}
    if total == given + made:
        counts.pop("total_tokens", None)
    return _json({**counts, "source": usage.source})


@lru_cache(64)
def _reasons(reasons: tuple[str, ...]) -> str | None:
    """Write why an answer ended: there are a handful of words for it."""
    return _json(reasons) if reasons else None


def _retries(retries: Sequence[Any]) -> str:
    told = [
        {"attempt": each.attempt, "status": each.status, "wait_s": each.wait_s, "error_type": _text(each.error_type)} for each in retries
    ]
    return _json(told)


def _refusal_of(error: BaseException) -> _Refusal | None:
    """Return our own sentence, and what the limit was; None of an error that is not ours: it may quote a prompt."""
    if not isinstance(error, RaviError):
        return None
    return str(error), _READ_ERROR(error) if isinstance(error, BudgetError) else None


def _refused(refusal: _Refusal, chain: Sequence[tuple[Any, int, int, int]]) -> dict[str, Any]:
    sentence, fields = refusal
    told: dict[str, Any] = {"sentence": _text(sentence)}
    if fields is not None:
        told |= {name: finite(value) if isinstance(value, float) else value for name, value in zip(_ERROR, fields, strict=True)}
    if chain:
        told["chain"] = [_stand(told, *each) for each in chain]
    return told


def _stand(told: Mapping[str, Any], account: Any, used: int, held: int, denied: int) -> dict[str, Any]:
    """Write where one limit stood when a call was refused, and whether it was the one that refused it."""
    limit, kind = account.limit, account.limit.kind
    value = public_amount(kind, account.value)
    itself = kind == told.get("limit_kind") and account.facts.kind.value == told.get("scope") and value == told.get("threshold")
    return {
        **_limit_of(account),
        "value": value,
        "used": public_amount(kind, used),
        "held": public_amount(kind, held),
        "remaining": public_amount(kind, account.value - used - held),
        "denied": denied,
        "per": limit.per,
        "window": account.window,
        "counted_for": account.counted_for,
        "origin": account.origin,
        "written": place_of(account.origin),
        "declared": None if account.value == limit.value else public_amount(kind, limit.value),
        "set_by": _text(account.setter),
        "warn_at": account.warn_at,
        "refused": itself,
    }


def _limit_of(account: Any) -> dict[str, Any]:
    facts, limit = account.facts, account.limit
    return {
        "scope": facts.kind.value,
        "scope_id": facts.scope_id,
        "name": _text(facts.name),
        "limit": limit.label,
        "kind": str(limit.kind),
    }


def _words(parts: Any) -> Iterator[str]:
    """Give the texts in what was said, whatever its shape."""
    waiting = [parts]
    while waiting:
        found = waiting.pop()
        if isinstance(found, str):
            yield found
        elif isinstance(found, Mapping):
            waiting.extend(value for name, value in reversed(tuple(found.items())) if name not in ("type", "id"))  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]  # JSON
        elif isinstance(found, (list, tuple)):
            waiting.extend(reversed(found))  # pyright: ignore[reportUnknownArgumentType]  # the same


_recorders: Final[dict[Path, Recorder]] = {}


def recorders(root: Path | None, launch: str | None, *, content: bool) -> tuple[Recorder, ...]:
    """Return this process's one recorder of the store at `root`, or of the one that the environment names; none, and said, without one."""
    try:
        store = Store.open(root)
    except ConfigurationError as error:
        _log.error("ravi-otel: nothing is kept in the local store: %s", error)
        return ()
    place = store.root.absolute()
    found = _recorders.get(place)
    if found is None:
        name = Path(sys.argv[0]).name if sys.argv and sys.argv[0] not in ("", "-c") else "python"
        writer = Writer(store, name=checks.show(name).strip("'")[:80], launch=launch)
        writer.tidy = _prune
        found = _recorders.setdefault(place, Recorder(writer))
    found.content = content
    return (found,)


def _prune(store: Store) -> bool:
    """Remove what is too old or too much, as far as that can be done now and in a moment; return whether there is more of it."""
    with contextlib.suppress(ConfigurationError, OSError), load("ravi_otel._local.prune").Upkeep(store, most_s=_PRUNING_S) as upkeep:
        return bool(upkeep.prune().unfinished)
    return False
