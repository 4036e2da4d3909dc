"""Keep requests in a Redis, for programs and deciders on many machines.

What a request is, who may answer it and how far it is, is decided here, as for the file; the server only sees to it that of two who change
a request one comes too late. Every request has a revision, and a change names the one that it was made from: where there is another by now,
nothing is changed, and who wanted to looks again. A change that is sent twice, since its answer was lost, counts once.

All keys are behind one hash tag, `{ravi-approvals:NAMESPACE}`:

* `:r:ID` a request, each column as JSON, with its revision;
* `:f:FINGERPRINT` the ids of the requests of one fingerprint; `:ids` all of them by name, `:all` by age, `:open` those that wait;
* `:v` a number that is another one when somebody has written; `:o:OPERATION` what was done a moment ago.

Machines have clocks of their own. Times are kept by the server's, and given to each reader by theirs.
"""

from __future__ import annotations

import os
import re
import secrets
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from json import dumps, loads  # as it is now: the program may make tools of that module's functions
from typing import Any, Final, TypeVar, cast

import anyio
import anyio.to_thread
from anyio.lowlevel import RunVar

from ravi_otel._enforcement.ledger.choosing import read_choice
from ravi_otel._enforcement.ledger.redis.client import RedisClient, ServerError
from ravi_otel._enforcement.ledger.redis.messages import Script
from ravi_otel._enforcement.ledger.redis.url import SCHEMES
from ravi_otel._enforcement.ledger.redis.url import read as read_url
from ravi_otel._enforcement.ledger.store_failures import StoreError
from ravi_otel._flow import Flow, Step, run_sync
from ravi_otel.errors import ConfigurationError
from ravi_otel.policy import _checks as checks
from ravi_otel.supervisor.approval._queue import (
    EXPIRED,
    QueueBusy,
    QueueError,
    RequestStore,
    StoredRequest,
    answer_columns,
    can_be_answered,
    is_time,
    new_row,
    no_such_request,
    read_row,
)
from ravi_otel.supervisor.approval._request import ApprovalAnswer, ApprovalRequest

T = TypeVar("T")

_TIMES: Final = ("requested_at", "expires_at", "answered_at", "taken_at", "ended_at", "waiting_at")
_ROW_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{3,63}")
_LEAST_TIMEOUT_S: Final = 1.0
_LEAST_OFFSET_S: Final = 1.0
"""By how much a clock must differ from the server's before times are converted."""

_MOST_AT_ONCE: Final = 40
_MOST_ALIKE: Final = 100
_MOST_TRIES: Final = 50
_MOST_LISTED: Final = 100_000
_MOST_FIELDS: Final = 80
_OVER: Final = ("rejected", "expired", "taken")
_MOST_THREADS: Final = 4

_FIND: Final = Script.of(
    "find",
    b"""
local at, found = redis.call('TIME'), {}
local how, value, most = ARGV[1], ARGV[2], tonumber(ARGV[3])
if how == 'id' then found = {value}
elseif how == 'alike' then found = redis.call('ZREVRANGE', KEYS[1] .. ':f:' .. value, 0, most - 1)
elseif how == 'prefix' then found = redis.call('ZRANGEBYLEX', KEYS[1] .. ':ids', '[' .. value, '[' .. value .. '\\255', 'LIMIT', 0, most)
elseif how == 'open' then found = redis.call('ZRANGE', KEYS[1] .. ':open', 0, most - 1)
elseif how == 'all' then found = redis.call('ZREVRANGE', KEYS[1] .. ':all', 0, most - 1) end
local number = how == 'alike' and redis.call('ZCARD', KEYS[1] .. ':f:' .. value) or 0
return {at[1], at[2], redis.call('GET', KEYS[1] .. ':v') or '0', number, found}
""",
)
_READ: Final = Script.of(
    "read",
    b"""
local found = {}
for at = 1, #ARGV do found[at] = redis.call('HGETALL', KEYS[1] .. ':r:' .. ARGV[at]) end
return found
""",
)
_WRITE: Final = Script.of(
    "write",
    b"""
local id, fingerprint, op, revision, alike, age, is_open = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6], ARGV[7]
local row, same, done = KEYS[1] .. ':r:' .. id, KEYS[1] .. ':f:' .. fingerprint, KEYS[1] .. ':o:' .. op
if redis.call('EXISTS', done) == 1 then return 1 end
if (redis.call('HGET', row, 'revision') or '') ~= revision then return 0 end
if revision == '' and redis.call('ZCARD', same) ~= tonumber(alike) then return 0 end
if #ARGV > 7 then
  redis.call('HSET', row, unpack(ARGV, 8))
  redis.call('HINCRBY', row, 'revision', 1)
  redis.call('ZADD', KEYS[1] .. ':all', age, id)
  redis.call('ZADD', KEYS[1] .. ':ids', 0, id)
  redis.call('ZADD', same, age, id)
  if is_open == '1' then redis.call('ZADD', KEYS[1] .. ':open', age, id) else redis.call('ZREM', KEYS[1] .. ':open', id) end
else
  redis.call('DEL', row)
  redis.call('ZREM', same, id)
  for _, name in ipairs({':all', ':ids', ':open'}) do redis.call('ZREM', KEYS[1] .. name, id) end
end
redis.call('SET', done, '1', 'EX', 60)
redis.call('INCR', KEYS[1] .. ':v')
return 1
""",
)


_threads: Final[RunVar[anyio.CapacityLimiter]] = RunVar("ravi_otel_approvals")
"""How many threads an event loop has ask servers at once: none of those that are the program's."""


class _ChangedMeanwhile(Exception):  # noqa: N818 - a state, told by one function of ours to the next
    """A request that somebody has changed in the meantime."""


@dataclass(frozen=True, slots=True)
class _Row:
    """A request as the server has it: its columns by the server's clock, and its revision."""

    id: str
    columns: Mapping[str, Any]
    revision: str


@dataclass(frozen=True, slots=True)
class _Found:
    """What was found at one moment; `offset_s` is by how much this process's clock is before the server's.

    `number` is how many requests of one fingerprint there are, of which only the newest are read.
    """

    now: float
    offset_s: float
    version: str
    number: int
    rows: tuple[_Row, ...]

    def stored(self, row: _Row) -> StoredRequest:
        """Return a request by this process's clock; one that expired meanwhile is expired."""
        columns = dict(row.columns)
        until = columns.get("expires_at")
        if columns.get("state") in ("pending", "approved") and is_time(until) and cast("float", until) <= self.now:
            columns["state"] = "expired"
        for name in _TIMES:
            if is_time(columns.get(name)):
                columns[name] += self.offset_s
        return read_row(columns)


class RedisStore(RequestStore):
    """The queue in a Redis; every method does one step, and raises QueueError, or QueueBusy while the server cannot be asked.

    `clock` stands in the place of the server's, and is there for tests.
    """

    pause_s = 0.05

    def __init__(self, url: str, clock: Callable[[], float] | None = None, *, named: str = "RAVI_APPROVALS") -> None:
        scheme = url.partition("://")[0]
        if not url.lower().startswith(SCHEMES):  # and nothing else of it is shown: a password may be in it
            raise ConfigurationError(
                f"{named}={checks.show(f'{scheme}://…')} names no queue of approvals: give the path of a file, or redis://HOST:6379/0."
            )
        choice = read_choice(named, url)
        self.shown = choice.shown
        self._clock = clock
        own_s = read_url(choice.url).timeout_s
        self._client = RedisClient(choice.url, timeout_s=max(own_s, _LEAST_TIMEOUT_S))  # a person is waited for, and no call of a model
        weakref.finalize(self, self._client.close)
        self._tag = f"{{ravi-approvals:{choice.namespace}}}"
        self._trouble: StoreError | None = None
        self._unconfirmed: dict[str, str] = {}  # by a request's id that of the row whose answer it was taking when the server went silent

    def __repr__(self) -> str:
        return f"<RedisStore {self.shown}>"

    def exists(self) -> bool:
        """Return True: the next operation reports a server that cannot be reached."""
        return True

    def clock(self) -> float:
        """Return the time in UTC epoch seconds, by this process's clock."""
        return time.time() if self._clock is None else self._clock()

    # -- asking ---------------------------------------------------------------------------------------------------

    def enter(self, request: ApprovalRequest, seal: str) -> ApprovalAnswer | StoredRequest:
        """Return an answer that exists for exactly this request, and take it; else return the request: see `QueueFile.enter`."""
        return self._until_done(partial(self._enter, request, seal))

    def _enter(self, request: ApprovalRequest, seal: str) -> ApprovalAnswer | StoredRequest:
        look = self._look("alike", request.fingerprint, _MOST_ALIKE)
        known = sorted(((look.stored(row), row) for row in look.rows), key=_by_turn)
        unconfirmed = self._unconfirmed.pop(request.id, None)
        for stored, row in known:
            if row.id == unconfirmed and stored.flaw is None and stored.seal == seal and _is_taken(row, request):
                return stored.answer()  # the server did it, and did not say so in time
        if any(row.columns.get("taken_for") == request.id for _, row in known):
            return ApprovalAnswer(approved=False, comment="already_answered")
        if request.expires_at is not None and request.expires_at <= look.now + look.offset_s:
            return EXPIRED
        for stored, row in known:
            if stored.flaw is not None or stored.seal != seal or not _waits(stored):
                continue
            if stored.state == "pending":
                return stored
            taken = stored.state == "approved"
            state = "taken" if taken else stored.state
            changes = {"state": state, "taken_for": request.id if taken else None, "taken_by": os.getpid(), "taken_at": look.now}
            self._unconfirmed[request.id] = row.id
            self._write(row, changes)  # where this raises Busy, nobody knows whether it was done
            self._unconfirmed.pop(request.id, None)
            return stored.answer()
        return self._put(request, seal, look)

    def _put(self, request: ApprovalRequest, seal: str, look: _Found) -> StoredRequest:
        row_id = request.id if _ROW_ID.fullmatch(request.id) else secrets.token_hex(4)
        while self._rows([row_id]):
            row_id = secrets.token_hex(4)
        columns: dict[str, Any] = {**new_row(request, row_id, seal), "state": "pending", "waiting_at": look.now}
        for name in ("requested_at", "expires_at"):
            if columns[name] is not None:
                columns[name] -= look.offset_s
        row = _Row(row_id, columns, "")
        stored = look.stored(row)
        if stored.flaw is not None:
            raise QueueError(f"the call of {checks.show(request.tool)} cannot be put to a person: {stored.flaw}.")
        self._write(row, columns, alike=look.number)
        return stored

    def look(self, row_id: str) -> StoredRequest | None:
        """Return one request, without writing; None if it is gone."""
        look = self._look("id", row_id)
        return look.stored(look.rows[0]) if look.rows else None

    def wait(self, row_id: str) -> None:
        """Record that the program still waits for the answer."""
        self._change(row_id, lambda stored, look: {"waiting_at": look.now} if stored.state == "pending" else None)

    def mark_refusal_read(self, row_id: str) -> None:
        """Record that a rejection reached the program that waited for it."""
        self._change(row_id, lambda stored, look: {"taken_at": look.now} if stored.state == "rejected" else None)

    def end(self, request: ApprovalRequest, status: str) -> None:
        """Record how the call ended that took an approval; if it never ran, the approval can be taken again."""
        self._until_done(partial(self._end, request, status))

    def _end(self, request: ApprovalRequest, status: str) -> None:
        look = self._look("alike", request.fingerprint, _MOST_ALIKE)
        for row in look.rows:
            if row.columns.get("taken_for") != request.id or row.columns.get("outcome") is not None:
                continue
            if status != "refused":
                self._write(row, {"outcome": status[:60], "ended_at": look.now})
            elif row.columns.get("state") == "taken":
                self._write(row, {"state": "approved", "taken_for": None, "taken_by": None, "taken_at": None})

    # -- answering ------------------------------------------------------------------------------------------------

    def answer(self, shown: StoredRequest, answer: ApprovalAnswer, *, login: str, takes_back: bool = True) -> StoredRequest:
        """Record an answer to the request that was shown; raise QueueError if it was answered, has expired or was changed meanwhile."""
        return self._until_done(partial(self._answer, shown, answer, login, takes_back=takes_back))

    def _answer(self, shown: StoredRequest, answer: ApprovalAnswer, login: str, *, takes_back: bool) -> StoredRequest:
        look = self._look("id", shown.id)
        if not look.rows:
            raise QueueError(no_such_request(shown))
        (row,) = look.rows
        stored = look.stored(row)
        if not can_be_answered(stored, shown, answer, takes_back=takes_back):
            raise QueueError(stored.why_not_pending())
        changes = answer_columns(stored, answer, login=login, now=look.now)
        self._write(row, changes)
        return look.stored(replace(row, columns={**row.columns, **changes}))

    def find(self, wanted: str) -> StoredRequest:
        """Return the one request whose id is `wanted` or begins so; raise ConfigurationError for none or several."""
        look = self._look("id", wanted)
        if not look.rows and wanted:
            look = self._look("prefix", wanted, 2)
        if len(look.rows) != 1:
            what = "no request" if not look.rows else "several requests"
            raise ConfigurationError(f"ID={checks.show(wanted)} names {what} of the queue. `ravi-otel approvals list --all` lists them.")
        return look.stored(look.rows[0])

    def all(self, *, pending: bool, most: int) -> list[StoredRequest]:
        """Return requests: pending ones oldest first, else all of them newest first."""
        if not pending:
            look = self._look("all", "", most)
            return [look.stored(row) for row in look.rows]
        look = self._look("open", "", most + _MOST_ALIKE)
        found: list[StoredRequest] = []
        for row in look.rows:
            stored = look.stored(row)
            if stored.state == "pending" and len(found) < most:
                found.append(stored)
            elif stored.state == "expired":
                self._forget(row, {"state": "expired"})
        return found

    def earlier(self, stored: StoredRequest, most: int = 5) -> list[StoredRequest]:
        """Return earlier requests for the same call, to show to whoever approves it again."""
        look = self._look("alike", stored.request.fingerprint, _MOST_ALIKE)
        known = [look.stored(row) for row in look.rows if row.id != stored.id]
        before = [each for each in known if each.request.requested_at <= stored.request.requested_at]
        return sorted(before, key=lambda each: -each.request.requested_at)[:most]

    def prune(self, older_than_s: float, *, dry_run: bool = False) -> int:
        """Delete requests that were over that many seconds ago, but no pending or approved one, and return their number."""
        before = self.clock() - older_than_s

        def is_old(stored: StoredRequest) -> bool:
            last = (stored.ended_at, stored.taken_at, stored.answered_at, stored.request.expires_at, stored.request.requested_at)
            return stored.state in _OVER and max(each or 0.0 for each in last) < before

        return self._delete(is_old, dry_run=dry_run)

    def erase(self, ids: Mapping[str, Sequence[str]], *, dry_run: bool = False) -> int:
        """Delete requests with one of these values in one of these columns, and return their number."""
        wanted = {name: frozenset(values) for name, values in ids.items()}
        return self._delete(lambda stored: any(getattr(stored.request, name) in values for name, values in wanted.items()), dry_run=dry_run)

    def _delete(self, is_wanted: Callable[[StoredRequest], bool], *, dry_run: bool) -> int:
        look = self._look("all", "", _MOST_LISTED)
        gone = [row for row in look.rows if is_wanted(look.stored(row))]
        return len(gone) if dry_run else sum(self._forget(row, {}) for row in gone)

    # -- the server -----------------------------------------------------------------------------------------------

    def changed(self) -> tuple[str, ...]:
        """Return a mark that changes with each write; () while the server does not answer."""
        try:
            return (self._found("none", "", 0)[1],)
        except QueueBusy:
            return ()

    def step(self, act: Callable[[], T]) -> Flow[T]:
        """Return an operation as a flow; from an event loop, it runs in one of a few threads that serve only this."""
        done: T = yield Step(act, partial(self._in_thread, act))
        return done

    async def _in_thread(self, act: Callable[[], T]) -> T:
        try:
            threads = _threads.get()
        except LookupError:
            threads = anyio.CapacityLimiter(_MOST_THREADS)
            _threads.set(threads)
        return await anyio.to_thread.run_sync(act, limiter=threads)

    def locked(self) -> QueueError:
        """Return the error for a server that cannot be reached."""
        return self._failed(self._trouble or StoreError("because it does not answer"))

    def _failed(self, trouble: StoreError) -> QueueError:
        said = self._client.sentence(trouble, "the queue of approvals")
        return QueueError(f"{said} Nothing is approved without it.")

    def _change(self, row_id: str, change: Callable[[StoredRequest, _Found], Mapping[str, Any] | None]) -> None:
        def once() -> None:
            look = self._look("id", row_id)
            changes = change(look.stored(look.rows[0]), look) if look.rows else None
            if changes is not None:
                self._write(look.rows[0], changes)

        self._until_done(once)

    def _until_done(self, act: Callable[[], T]) -> T:
        for _ in range(_MOST_TRIES):
            try:
                return act()
            except _ChangedMeanwhile:
                continue
        raise QueueBusy

    def _look(self, how: str, value: str, most: int = 1) -> _Found:
        now, version, number, ids = self._found(how, value, most)
        mine = self.clock()
        if self._clock is not None or abs(mine - now) < _LEAST_OFFSET_S:
            now = mine
        return _Found(now, mine - now, version, number, tuple(self._rows(ids)))

    def _found(self, how: str, value: str, most: int) -> tuple[float, str, int, list[str]]:
        answer = self._call(_FIND, [how, value, most])
        try:
            seconds, micros, version, number, ids = answer
            return int(seconds) + int(micros) / 1e6, version.decode(), number, [each.decode() for each in ids]
        except (AttributeError, TypeError, ValueError):
            raise self._failed(StoreError("because it answers what no server of ours says")) from None

    def _rows(self, ids: Sequence[str]) -> list[_Row]:
        found: list[_Row] = []
        for at in range(0, len(ids), _MOST_AT_ONCE):
            some = ids[at : at + _MOST_AT_ONCE]
            for row_id, pairs in zip(some, self._call(_READ, some), strict=True):
                if pairs:
                    found.append(_row(row_id, pairs))
        return found

    def _write(self, row: _Row, changes: Mapping[str, Any], *, alike: int = 0) -> None:
        """Change a row, put it in where it has no revision, or take it out where nothing is left of it."""
        columns = {**row.columns, **changes}
        is_open = columns.get("state") == "pending"
        head: list[str | int] = [row.id, str(columns.get("fingerprint") or ""), secrets.token_hex(8), row.revision, alike]
        age = columns.get("requested_at")
        head += [repr(float(cast("float", age))) if is_time(age) else "0", "1" if is_open else "0"]
        fields: list[str | int] = [part for name, value in changes.items() for part in (name, dumps(value))]
        if self._call(_WRITE, [*head, *fields]) != 1:
            raise _ChangedMeanwhile

    def _forget(self, row: _Row, changes: Mapping[str, Any]) -> int:
        """Change or delete what is over, unless somebody changes it at this moment."""
        try:
            self._write(row, changes)
        except _ChangedMeanwhile:
            return 0
        return 1

    def _call(self, script: Script, args: Iterable[str | int]) -> Any:
        try:
            return run_sync(self._client.call(script, [self._tag], list(args)))
        except ServerError as trouble:
            self._trouble = trouble
            if trouble.kind == "refused":
                raise self._failed(trouble) from None
            raise QueueBusy from trouble


def _row(row_id: str, pairs: Sequence[bytes]) -> _Row:
    """Read a row, whatever somebody put there: what is no JSON is left as bytes, which fit no column."""
    columns: dict[str, Any] = {}
    revision = ""
    for at in range(0, min(len(pairs), 2 * _MOST_FIELDS) - 1, 2):
        name, value = pairs[at].decode("utf-8", "replace"), pairs[at + 1]
        if name == "revision":
            revision = value.decode("utf-8", "replace")
            continue
        try:
            columns[name] = loads(value)
        except (ValueError, RecursionError):
            columns[name] = value
    return _Row(row_id, columns, revision)


def _by_turn(found: tuple[StoredRequest, _Row]) -> tuple[bool, float, str]:
    """Put answered ones first, then older ones."""
    stored, row = found
    return stored.state == "pending", stored.request.requested_at, row.id


def _is_taken(row: _Row, request: ApprovalRequest) -> bool:
    """Whether this process took its answer: an approval for exactly this request, a refusal for whoever asked."""
    taken = row.columns.get("taken_by") == os.getpid() and row.columns.get("taken_at") is not None
    return taken and row.columns.get("taken_for") == (request.id if row.columns.get("state") == "taken" else None)


def _waits(stored: StoredRequest) -> bool:
    """Whether it waits for an answer, or its answer waits for who asked."""
    return stored.state in ("pending", "approved") or (stored.state == "rejected" and stored.taken_at is None)
