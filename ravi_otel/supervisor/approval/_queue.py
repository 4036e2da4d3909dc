"""A queue of approval requests in a SQLite file or in Redis, which survives restarts and is answered from other processes.

Each operation of a store is one short transaction on a connection of its own. Anybody who can write to the store may have forged a row, so
every row is verified when it is read.
"""

from __future__ import annotations

import os
import pwd
import re
import secrets
import sqlite3
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Final, Literal, TypeVar, cast

from ravi_otel._extras import load
from ravi_otel._files import database_flaw, make_file
from ravi_otel._flow import Flow, Step
from ravi_otel._sqlite import ForeignError, Schema, connect, is_busy, read_text, transaction
from ravi_otel.errors import ConfigurationError, RaviError
from ravi_otel.policy import _checks as checks
from ravi_otel.policy._contracts import JsonObject
from ravi_otel.supervisor._json import canonical, fingerprint
from ravi_otel.supervisor.approval._request import (
    LINK,
    LINK_HOLDER,
    MOST_SHOWN_CHARS,
    ApprovalAnswer,
    ApprovalRequest,
    answer_refusal,
    check_words,
    freeze,
    list_names,
    login_identity,
    read_arguments,
    read_value,
    readable,
    sha256_of,
)

QUEUE_VARIABLE: Final = "RAVI_APPROVALS"
_FILE_NAME: Final = "approvals.db"
_STORE_VARIABLE: Final = "RAVI_STORE"
_URL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


def is_queue_url(named: str) -> bool:
    """Whether it is the URL of a server, and not a path."""
    return _URL.match(named) is not None


def read_queue_place(named: str | Path) -> str | Path:
    """Return a URL as it is, and a path as an absolute one; raise OSError or RuntimeError for an unknown home directory."""
    if isinstance(named, str) and is_queue_url(named):
        return named
    return Path(named).expanduser().absolute()


def queue_place(environ: Mapping[str, str] = os.environ) -> str | Path:
    """Return RAVI_APPROVALS, else `approvals.db` in RAVI_STORE, else in `.ravi` here, or raise ConfigurationError."""
    named, store = environ.get(QUEUE_VARIABLE, "").strip(), environ.get(_STORE_VARIABLE, "").strip()
    try:
        if named:
            return read_queue_place(named)
        return (Path(store).expanduser().absolute() if store else Path.cwd() / ".ravi") / _FILE_NAME
    except (RuntimeError, OSError) as error:  # an unknown home directory, or a working directory that was deleted
        what = f"{QUEUE_VARIABLE}={checks.show(named)}" if named else "the queue of approvals"
        raise ConfigurationError(
            f"{what} cannot be placed: {error}. Set {QUEUE_VARIABLE} to a file in a directory you can write."
        ) from error


RequestState = Literal["pending", "approved", "rejected", "expired", "taken"]
"""The states of a request: `taken` is an approval that was issued, for one execution."""

ASKED_COLUMNS: Final = (
    "id",
    "tool",
    "arguments",
    "fingerprint",
    "scope",
    "policy_version",
    "reason",
    "requested_at",
    "expires_at",
    "agent_name",
    "run_id",
    "session_id",
    "tenant_id",
    "risk_score",
    "user_id",
    "approvers",
    "requester_may_approve",
    "schema",
    "op_id",
    "seal",
)
ANSWERED_COLUMNS: Final = (
    "state",
    "who",
    "login",
    "comment",
    "answered_at",
    "edited",
    "seen",
    "taken_for",
    "taken_by",
    "taken_at",
    "outcome",
    "ended_at",
    "identity",
    "waiting_at",
)
ALL_COLUMNS: Final = (*ASKED_COLUMNS, *ANSWERED_COLUMNS)
WAITS_EVERY_S: Final = 5.0
"""How often a program that waits for an answer renews `waiting_at`."""

SILENT_S: Final = 30.0
"""How old `waiting_at` is when its program counts as no longer waiting."""

_STATES: Final = frozenset({"pending", "approved", "rejected", "expired", "taken"})
_NUMBER_COLUMNS: Final = frozenset(
    {
        *("requested_at", "expires_at", "risk_score", "requester_may_approve"),
        *("answered_at", "taken_by", "taken_at", "ended_at", "waiting_at"),
    }
)
_NEEDED_COLUMNS: Final = frozenset({"id", "tool", "arguments", "fingerprint", "scope", "reason", "requested_at", "seal", "state"})
_LONGEST: Final = 4_096
_LONGEST_OF: Final[Mapping[str, int]] = dict.fromkeys(("arguments", "edited", "schema", "approvers"), MOST_SHOWN_CHARS)
_MOST_TIME: Final = 253_402_300_799.0  # the end of the year 9999, the last that Python's calendar has


@dataclass(frozen=True, slots=True)
class StoredRequest:
    """A request as the queue stores it.

    `flaw` says why the row cannot be trusted, None if it is as it was written; the request's `arguments` are {} if they cannot be read.
    `edited` are the arguments that a person put in their place. `who` is the name that was given with the answer, `login` the operating
    system's name for who gave it, and `identity` how they were verified (see `approvers`). `outcome` is how the call ended that took the
    approval, None if unknown. `waiting_at` is when its program last reported that it waits.
    """

    request: ApprovalRequest
    state: RequestState
    seal: str
    flaw: str | None = None
    who: str | None = None
    login: str | None = None
    comment: str = ""
    answered_at: float | None = None
    edited: JsonObject | None = None
    seen: str | None = None
    taken_by: int | None = None
    taken_at: float | None = None
    outcome: str | None = None
    ended_at: float | None = None
    identity: str | None = None
    waiting_at: float | None = None

    @property
    def id(self) -> str:
        """Return the id by which it is answered."""
        return self.request.id

    def answer(self) -> ApprovalAnswer:
        """Return what the person answered."""
        if self.state == "expired":
            return EXPIRED
        approved = self.state in ("approved", "taken")
        until = self.request.expires_at if approved else None
        identity = self.identity or login_identity(self.login or "?")
        return ApprovalAnswer(approved, self.comment, self.who, self.edited, until, identity)

    def answered_by(self) -> str:
        """Return who answered: the name that was given, with the login if that is another one.

        The holder of a link is no user of this system: the login would be that of the page which took the answer.
        """
        if self.identity == LINK:
            return LINK_HOLDER
        who, login = readable(self.who or "", 60), readable(self.login or "", 60)
        if not who:
            return login or "somebody"
        return who if login in ("", who) else f"{who} (login {login})"

    def abandoned_note(self, now: float) -> str:
        """Return a note that the program no longer waits for the answer, "" if it waits or that is unknown."""
        if self.state != "pending" or self.waiting_at is None or now - self.waiting_at < SILENT_S:
            return ""
        since = format_time(self.waiting_at)
        return f"Its program does not wait any more, since {since}: an answer counts if it asks the same again in this run."

    def why_not_pending(self) -> str:
        """Return why the request cannot be answered."""
        name = f"request {readable(self.id, 64)}"
        if self.flaw is not None:
            return f"{name} cannot be answered, {self.flaw}: somebody wrote to the queue. Let its program ask again."
        if self.state == "expired":
            until = format_time(self.request.expires_at)
            return f"{name} expired at {until}, which counts as rejected: let its program ask again."
        if self.state == "rejected":
            return f"{name} was rejected by {self.answered_by()} at {format_time(self.answered_at)}: one answer is all it takes."
        said = f"{name} was approved by {self.answered_by()} at {format_time(self.answered_at)}"
        if self.state == "approved":
            return f"{said}, and waits to be used: only `ravi-otel approvals reject` takes it back."
        return f"{said}, and {self._how_used()}."

    def _how_used(self) -> str:
        if self.outcome is None:
            return f"was used by process {self.taken_by or '?'} at {format_time(self.taken_at)}, which did not say yet how it ended"
        if self.outcome == "spent":
            return f"is over since {format_time(self.ended_at)}: nothing ran by it, for its edit did not fit or something else ran"
        return f"was used: the call ended with {readable(self.outcome, 60)} at {format_time(self.ended_at)}"


class QueueError(RaviError):
    """A queue that cannot be used, or a request in it that can no longer be answered."""


class NotAnApproverError(QueueError):
    """An answer of somebody who may not decide about the request."""


EXPIRED: Final = ApprovalAnswer(approved=False, comment="expired")


def seal_of(request: ApprovalRequest) -> str:
    """Return the SHA-256 of what an approval is bound to: tool, exact arguments, fingerprint, scope, policy version and approvers."""
    exact = freeze(request.arguments)
    return _seal_of_parts(request.tool, exact, request.fingerprint, request.scope, request.policy_version, _write_approvers(request))


def fingerprint_flaw(request: ApprovalRequest) -> str | None:
    """Return why a request's fingerprint is wrong, None if it is right or cannot be computed."""
    if request.policy_version is None:
        return None
    if fingerprint(request.tool, request.arguments, request.scope, request.policy_version) != request.fingerprint:
        return "its fingerprint is not that of its arguments"
    return None


def new_row(request: ApprovalRequest, row_id: str, seal: str) -> dict[str, Any]:
    """Return the values of a new row, by column."""
    values = (
        row_id,
        request.tool,
        freeze(request.arguments),
        request.fingerprint,
        request.scope,
        request.policy_version,
        _storable(request.reason),
        request.requested_at,
        request.expires_at,
        _storable(request.agent_name),
        _storable(request.run_id),
        _storable(request.session_id),
        _storable(request.tenant_id),
        request.risk_score,
        request.user_id,
        None if request.approvers is None else canonical(list(request.approvers)),
        int(request.requester_may_approve),
        _write_schema(request.schema),
        request.op_id,
        seal,
    )
    return dict(zip(ASKED_COLUMNS, values, strict=True))


def can_be_answered(stored: StoredRequest, shown: StoredRequest, answer: ApprovalAnswer, *, takes_back: bool) -> bool:
    """Whether the request as it was `shown` can get this answer; a rejection can also revoke an approval that was not taken."""
    open_to = ("pending", "approved") if takes_back and not answer.approved else ("pending",)
    return stored.state in open_to and stored.flaw is None and stored.seal == shown.seal


def answer_columns(stored: StoredRequest, answer: ApprovalAnswer, *, login: str, now: float) -> dict[str, Any]:
    """Return the values that an answer changes, by column; raise NotAnApproverError if who answered may not decide."""
    answer = replace(answer, identity=answer.identity or login_identity(login))
    refused = answer_refusal(stored.request, answer)
    if refused is not None:
        raise NotAnApproverError(refused)
    return {
        "state": "approved" if answer.approved else "rejected",
        "who": answer.who,
        "login": login,
        "identity": answer.identity,
        "comment": check_words("comment", answer.comment),
        "answered_at": now,
        "edited": None if answer.arguments is None else freeze(answer.arguments),
        "seen": stored.seal,
    }


def read_row(row: Mapping[str, Any]) -> StoredRequest:
    """Return a row as a request; a value of the wrong type or size is left out, and is its flaw."""
    strange = [name for name in ALL_COLUMNS if not _is_valid(name, row.get(name))]
    known = {name: row.get(name) if name not in strange else None for name in ALL_COLUMNS}
    flaw = f"its {strange[0]} cannot be read" if strange else None
    arguments, worse = _read_object(known["arguments"])
    edited, bad = (None, None) if known["edited"] is None else _read_object(known["edited"])
    request = ApprovalRequest(
        id=known["id"] or "?",
        tool=known["tool"] or "?",
        arguments=arguments,
        fingerprint=known["fingerprint"] or "",
        scope=known["scope"] or "",
        reason=known["reason"] or "",
        requested_at=known["requested_at"] or 0.0,
        expires_at=known["expires_at"],
        agent_name=known["agent_name"],
        run_id=known["run_id"],
        session_id=known["session_id"],
        tenant_id=known["tenant_id"],
        risk_score=known["risk_score"],
        policy_version=known["policy_version"],
        user_id=known["user_id"],
        approvers=_read_approvers(known["approvers"]),
        requester_may_approve=known["requester_may_approve"] != 0,
        schema=None if known["schema"] is None else _read_object(known["schema"])[0],
        op_id=known["op_id"],
    )
    return StoredRequest(
        request,
        cast("RequestState", known["state"] or "expired"),
        known["seal"] or "",
        flaw or worse or bad or _forgery(request, known),
        known["who"],
        known["login"],
        known["comment"] or "",
        known["answered_at"],
        edited,
        known["seen"],
        known["taken_by"],
        known["taken_at"],
        known["outcome"],
        known["ended_at"],
        known["identity"],
        known["waiting_at"],
    )


def _forgery(request: ApprovalRequest, known: dict[str, Any]) -> str | None:
    """Return what was changed in a row since it was written, None if nothing was."""
    parts = (known["tool"], known["arguments"], known["fingerprint"], known["scope"], known["policy_version"])
    if _seal_of_parts(*parts, _write_approvers(request)) != known["seal"] or freeze(request.arguments) != known["arguments"]:
        return "what it asks for was changed after it was asked"
    if known["state"] in ("approved", "rejected", "taken") and known["seen"] != known["seal"]:
        return "its answer was given to something else"
    return fingerprint_flaw(request)


def _seal_of_parts(tool: str, arguments: str, fingerprint: str, scope: str, policy_version: str | None, who_may: str | None) -> str:
    more = [] if who_may is None else [who_may]
    return sha256_of("ravi-approvals-1", tool, arguments, fingerprint, scope, policy_version, *more)


def _write_approvers(request: ApprovalRequest) -> str | None:
    """Return who may decide a request as text, None if anybody may."""
    if request.approvers is None and request.requester_may_approve:
        return None
    names = None if request.approvers is None else list(request.approvers)
    return canonical([names, request.requester_may_approve, request.user_id])


def _read_approvers(text: str | None) -> tuple[str, ...] | None:
    """Return who may decide, None for anybody; nobody may if the text cannot be read."""
    if text is None:
        return None
    try:
        found = read_value(text)
    except RaviError:
        return ()
    return tuple(str(each) for each in found) if isinstance(found, list) else ()


def _write_schema(schema: JsonObject | None) -> str | None:
    """Return a schema as text for the page's form, None if it cannot be written or is too long."""
    try:
        return None if schema is None else freeze(schema)
    except RaviError:
        return None


def _read_object(text: str | None) -> tuple[JsonObject, str | None]:
    if text is None:
        return {}, "its arguments cannot be read"
    try:
        return read_arguments(text), None
    except RaviError:
        return {}, "its arguments cannot be read"


def _storable(text: str | None) -> str | None:
    """Return a descriptive text, cut and encoded so that any store accepts it."""
    return None if text is None else text[:_LONGEST].encode("utf-8", "replace").decode("utf-8")


def is_time(value: object) -> bool:
    """Whether it is a number in the range of times, and of the other numbers of a request."""
    return isinstance(value, (int, float)) and 0 <= value <= _MOST_TIME


def _is_valid(name: str, value: object) -> bool:
    if value is None:
        return name not in _NEEDED_COLUMNS
    if name in _NUMBER_COLUMNS:
        return is_time(value)
    if name == "state":
        return value in _STATES
    return isinstance(value, str) and len(value) <= _LONGEST_OF.get(name, _LONGEST)


def format_time(at: float | None) -> str:
    """Return a time in UTC as text, `?` for none."""
    return "?" if at is None else time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(at))


def who_may_decide(request: ApprovalRequest) -> str:
    """Return who may approve a request, "" if anybody may."""
    names = "" if request.approvers is None else list_names(request.approvers)
    if request.requester_may_approve:
        return names
    return f"{names or 'anybody'}, but not who requested it"


def current_login() -> str:
    """Return the name of this process's user from the operating system, whatever the environment's variables are."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:  # a user without a name, as in a container
        return f"uid {os.geteuid()}"


T = TypeVar("T")

QUEUE_FORMAT: Final = 2
_QUEUE_SCHEMA: Final = Schema(
    0x52415141,
    QUEUE_FORMAT,
    (
        """CREATE TABLE requests (id TEXT PRIMARY KEY, tool TEXT NOT NULL, arguments TEXT NOT NULL, fingerprint TEXT NOT NULL,
       scope TEXT NOT NULL, policy_version TEXT, reason TEXT NOT NULL, requested_at REAL NOT NULL, expires_at REAL, agent_name TEXT,
       run_id TEXT, session_id TEXT, tenant_id TEXT, risk_score REAL, user_id TEXT, approvers TEXT, requester_may_approve INTEGER,
       schema TEXT, op_id TEXT, seal TEXT NOT NULL, state TEXT NOT NULL DEFAULT 'pending', who TEXT,
       login TEXT, comment TEXT, answered_at REAL, edited TEXT, seen TEXT, taken_for TEXT, taken_by INTEGER, taken_at REAL, outcome TEXT,
       ended_at REAL, identity TEXT, waiting_at REAL)""",
        "CREATE INDEX asked_again ON requests (fingerprint, state)",
        "CREATE INDEX open_ones ON requests (state, expires_at)",
    ),
)
_FORMER_FORMAT: Final = 1
_ADDED_COLUMNS: Final = (
    *("user_id TEXT", "approvers TEXT", "requester_may_approve INTEGER", "schema TEXT", "op_id TEXT"),
    *("identity TEXT", "waiting_at REAL"),
)
"""The columns that a file of the former format lacks."""

_SELECT: Final = f"SELECT {', '.join(ALL_COLUMNS)} FROM requests"  # noqa: S608 - names of ours
_INSERT: Final = f"INSERT INTO requests ({', '.join(ASKED_COLUMNS)}) VALUES ({', '.join('?' * len(ASKED_COLUMNS))})"  # noqa: S608 - names of ours
_EXPIRE: Final = "UPDATE requests SET state = 'expired' WHERE state IN ('pending', 'approved') AND expires_at <= ?"
_MARK_WAITING: Final = "UPDATE requests SET waiting_at = ? WHERE id = ? AND state = 'pending'"
_TO_BE_TAKEN: Final = " WHERE fingerprint = ? AND (state IN ('pending', 'approved') OR (state = 'rejected' AND taken_at IS NULL))"
_ROW_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{3,63}")
_BUSY_TIMEOUT_S: Final = 0.02
RETRY_S: Final = 10.0
_MOST_ALIKE: Final = 100
WAY_OUT: Final = f"set {QUEUE_VARIABLE} to a file in a directory of your own"
"""The advice in errors about a file that only the environment named."""


class QueueBusy(Exception):  # noqa: N818 - a state, passed from one layer of ours to the next
    """A queue to which another process is writing just now."""


class RequestStore(ABC):
    """A store of requests; each method is one operation, which raises QueueError, or QueueBusy if it must be tried again."""

    shown: str
    """Where it is, for people, without secrets."""
    pause_s: ClassVar[float] = 0.0
    """How long `retry` sleeps between two tries."""

    @abstractmethod
    def exists(self) -> bool:
        """Whether the queue exists."""

    @abstractmethod
    def enter(self, request: ApprovalRequest, seal: str) -> ApprovalAnswer | StoredRequest:
        """Return an answer that exists for exactly this request, and take it; else return the request, added if it is new."""

    @abstractmethod
    def look(self, row_id: str) -> StoredRequest | None:
        """Return one request, without writing; None if it is gone."""

    @abstractmethod
    def wait(self, row_id: str) -> None:
        """Record that the program still waits for the answer."""

    @abstractmethod
    def mark_refusal_read(self, row_id: str) -> None:
        """Record that a rejection reached the program that waited for it."""

    @abstractmethod
    def end(self, request: ApprovalRequest, status: str) -> None:
        """Record how the call ended that took an approval; if it never ran, the approval can be taken again."""

    @abstractmethod
    def answer(self, shown: StoredRequest, answer: ApprovalAnswer, *, login: str, takes_back: bool = True) -> StoredRequest:
        """Record an answer to the request that was shown; raise QueueError if it was answered, has expired or was changed meanwhile."""

    @abstractmethod
    def find(self, wanted: str) -> StoredRequest:
        """Return the one request whose id is `wanted` or begins so; raise ConfigurationError for none or several."""

    @abstractmethod
    def all(self, *, pending: bool, most: int) -> list[StoredRequest]:
        """Return requests: pending ones oldest first, else all of them newest first."""

    @abstractmethod
    def earlier(self, stored: StoredRequest, most: int = 5) -> list[StoredRequest]:
        """Return earlier requests for the same call."""

    @abstractmethod
    def prune(self, older_than_s: float, *, dry_run: bool = False) -> int:
        """Delete requests that were over that many seconds ago, and return their number."""

    @abstractmethod
    def erase(self, ids: Mapping[str, Sequence[str]], *, dry_run: bool = False) -> int:
        """Delete requests with one of these values in one of these columns, and return their number."""

    @abstractmethod
    def changed(self) -> Sequence[object]:
        """Return a mark that changes with each write."""

    def retry(self, act: Callable[[], T], within_s: float = RETRY_S) -> T:
        """Run an operation as soon as it is possible, blocking the thread; raise QueueError after `within_s` seconds."""
        until = time.monotonic() + within_s
        while True:
            try:
                return act()
            except QueueBusy:
                if time.monotonic() >= until:
                    raise self.locked() from None
            time.sleep(self.pause_s)

    @abstractmethod
    def step(self, act: Callable[[], T]) -> Flow[T]:
        """Return an operation as a flow, which does not block an event loop."""

    @abstractmethod
    def locked(self) -> QueueError:
        """Return the error for an operation that stays impossible."""


class QueueFile(RequestStore):
    """The queue in one SQLite file. Every method is one transaction and raises QueueError, or QueueBusy while another one writes.

    A program that asks may `create` the file. One that only answers may not; as root it may answer the requests of another user's program.
    `out` is the advice in errors.
    """

    def __init__(self, path: Path, clock: Callable[[], float] = time.time, *, create: bool = True, out: str = WAY_OUT) -> None:
        self.path = path
        self.shown = str(path)
        self.clock = clock
        self._create = create
        self._out = out

    def exists(self) -> bool:
        """Whether the queue exists."""
        return self.path.exists()

    # -- asking ---------------------------------------------------------------------------------------------------

    def enter(self, request: ApprovalRequest, seal: str) -> ApprovalAnswer | StoredRequest:
        """Return an answer that exists for exactly this request, and take it; else return the request, added if it is new.

        An approval is issued to one caller, once; a rejection is returned once to a program that did not wait for it.
        """
        now = self.clock()
        with self._transaction() as connection:
            connection.execute(_EXPIRE, (now,))
            taken = "SELECT 1 FROM requests WHERE taken_for = ? AND fingerprint = ?"
            if connection.execute(taken, (request.id, request.fingerprint)).fetchone() is not None:
                return ApprovalAnswer(approved=False, comment="already_answered")
            if request.expires_at is not None and request.expires_at <= now:
                return EXPIRED
            for stored in self._alike(connection, request, seal):
                if stored.state == "pending":
                    return stored
                self._take(connection, stored, request, now)
                return stored.answer()
            row_id = self._free_id(connection, request.id)
            connection.execute(_INSERT, tuple(new_row(request, row_id, seal).values()))
            connection.execute(_MARK_WAITING, (now, row_id))
            stored = _read_found(connection.execute(f"{_SELECT} WHERE id = ?", (row_id,)).fetchone())
            if stored.flaw is not None:
                raise QueueError(f"the call of {checks.show(request.tool)} cannot be put to a person: {stored.flaw}.")
            return stored

    def look(self, row_id: str) -> StoredRequest | None:
        """Return one request, without writing; None if it is gone."""
        with self._connection() as connection:
            found = connection.execute(f"{_SELECT} WHERE id = ?", (row_id,)).fetchone()
        return None if found is None else _read_found(found)

    def wait(self, row_id: str) -> None:
        """Record that the program still waits for the answer."""
        with self._transaction() as connection:
            connection.execute(_MARK_WAITING, (self.clock(), row_id))

    def mark_refusal_read(self, row_id: str) -> None:
        """Record that a rejection reached the program that waited for it."""
        with self._transaction() as connection:
            connection.execute("UPDATE requests SET taken_at = ? WHERE id = ? AND state = 'rejected'", (self.clock(), row_id))

    def end(self, request: ApprovalRequest, status: str) -> None:
        """Record how the call ended that took an approval; if it never ran, the approval can be taken again."""
        values: tuple[Any, ...] = (request.id, request.fingerprint)
        with self._transaction() as connection:
            if status == "refused":
                connection.execute(
                    "UPDATE requests SET state = 'approved', taken_for = NULL, taken_by = NULL, taken_at = NULL "
                    "WHERE taken_for = ? AND fingerprint = ? AND state = 'taken' AND outcome IS NULL",
                    values,
                )
            else:
                connection.execute(
                    "UPDATE requests SET outcome = ?, ended_at = ? WHERE taken_for = ? AND fingerprint = ? AND outcome IS NULL",
                    (status[:60], self.clock(), *values),
                )

    def _alike(self, connection: sqlite3.Connection, request: ApprovalRequest, seal: str) -> Iterator[StoredRequest]:
        """Yield the open and answered requests for exactly this call, answered ones first; skip forged rows."""
        order = " ORDER BY state = 'pending', requested_at, id LIMIT ?"
        for found in connection.execute(_SELECT + _TO_BE_TAKEN + order, (request.fingerprint, _MOST_ALIKE)).fetchall():
            stored = _read_found(found)
            if stored.flaw is None and stored.seal == seal:
                yield stored

    def _take(self, connection: sqlite3.Connection, stored: StoredRequest, request: ApprovalRequest, now: float) -> None:
        state = "taken" if stored.state == "approved" else stored.state
        changed = connection.execute(
            "UPDATE requests SET state = ?, taken_for = ?, taken_by = ?, taken_at = ? WHERE id = ? AND state = ?",
            (state, request.id if state == "taken" else None, os.getpid(), now, stored.id, stored.state),
        )
        if changed.rowcount != 1:  # impossible inside a transaction; issue nothing
            raise QueueError(f"the queue of approvals {checks.show(str(self.path))} did not take what it was told: it may be damaged.")

    def _free_id(self, connection: sqlite3.Connection, wanted: str) -> str:
        row_id = wanted if _ROW_ID.fullmatch(wanted) else secrets.token_hex(4)
        while connection.execute("SELECT 1 FROM requests WHERE id = ?", (row_id,)).fetchone() is not None:
            row_id = secrets.token_hex(4)
        return row_id

    # -- answering ------------------------------------------------------------------------------------------------

    def answer(self, shown: StoredRequest, answer: ApprovalAnswer, *, login: str, takes_back: bool = True) -> StoredRequest:
        """Record an answer to the request that was shown; raise QueueError if it was answered, has expired or was changed meanwhile.

        A rejection also `takes_back` an approval that was not taken; nothing takes back a rejection.
        """
        now = self.clock()
        with self._transaction() as connection:
            connection.execute(_EXPIRE, (now,))
            found = connection.execute(f"{_SELECT} WHERE id = ?", (shown.id,)).fetchone()
            stored = None if found is None else _read_found(found)
            if stored is not None and can_be_answered(stored, shown, answer, takes_back=takes_back):
                changes = answer_columns(stored, answer, login=login, now=now)
                columns = ", ".join(f"{name} = ?" for name in changes)
                connection.execute(f"UPDATE requests SET {columns} WHERE id = ?", (*changes.values(), shown.id))  # noqa: S608 - names of ours
                return _read_found(connection.execute(f"{_SELECT} WHERE id = ?", (shown.id,)).fetchone())
        if stored is None:
            raise QueueError(no_such_request(shown))
        raise QueueError(stored.why_not_pending())

    def find(self, wanted: str) -> StoredRequest:
        """Return the one request whose id is `wanted` or begins so; raise ConfigurationError for none or several."""
        with self._transaction() as connection:
            connection.execute(_EXPIRE, (self.clock(),))
            found = connection.execute(f"{_SELECT} WHERE id = ?", (wanted,)).fetchall()
            if not found and wanted:
                found = connection.execute(f"{_SELECT} WHERE substr(id, 1, ?) = ? LIMIT 2", (len(wanted), wanted)).fetchall()
        if len(found) != 1:
            what = "no request" if not found else "several requests"
            raise ConfigurationError(f"ID={checks.show(wanted)} names {what} of the queue. `ravi-otel approvals list --all` lists them.")
        return _read_found(found[0])

    def all(self, *, pending: bool, most: int) -> list[StoredRequest]:
        """Return requests: pending ones oldest first, else all of them newest first."""
        where = " WHERE state = 'pending' ORDER BY requested_at, id" if pending else " ORDER BY requested_at DESC, id"
        with self._transaction() as connection:
            connection.execute(_EXPIRE, (self.clock(),))
            return [_read_found(found) for found in connection.execute(f"{_SELECT}{where} LIMIT ?", (most,)).fetchall()]

    def earlier(self, stored: StoredRequest, most: int = 5) -> list[StoredRequest]:
        """Return earlier requests for the same call, to show to whoever approves it again."""
        wanted = f"{_SELECT} WHERE fingerprint = ? AND id <> ? AND requested_at <= ? ORDER BY requested_at DESC LIMIT ?"
        known = stored.request
        with self._connection() as connection:
            found = connection.execute(wanted, (known.fingerprint, known.id, known.requested_at, most)).fetchall()
        return [_read_found(each) for each in found]

    def prune(self, older_than_s: float, *, dry_run: bool = False) -> int:
        """Delete requests that were over that many seconds ago, but no pending or approved one, and return their number."""
        over = "state NOT IN ('pending', 'approved') AND max(coalesce(ended_at, 0), coalesce(taken_at, 0), coalesce(answered_at, 0), "
        over += "coalesce(expires_at, 0), requested_at) < ?"
        values = (self.clock() - older_than_s,)
        with self._transaction() as connection:
            connection.execute(_EXPIRE, (self.clock(),))
            if dry_run:
                return int(connection.execute(f"SELECT count(*) FROM requests WHERE {over}", values).fetchone()[0])  # noqa: S608 - a text of ours
            return connection.execute(f"DELETE FROM requests WHERE {over}", values).rowcount  # noqa: S608 - a text of ours

    def erase(self, ids: Mapping[str, Sequence[str]], *, dry_run: bool = False) -> int:
        """Delete requests with one of these values in one of these columns, from the disk too, and return their number."""
        erased = 0
        with self._connection() as connection:
            connection.execute("PRAGMA secure_delete=ON")
            connection.execute("BEGIN IMMEDIATE")
            for column, values in ids.items():
                for each in values:
                    erased += connection.execute(f"DELETE FROM requests WHERE {column} = ?", (each,)).rowcount  # noqa: S608 - names of ours
            connection.execute("ROLLBACK" if dry_run else "COMMIT")
            if not dry_run:
                connection.execute("VACUUM")  # else deleted data may remain in unused parts of the file
        return erased

    # -- the file -------------------------------------------------------------------------------------------------

    def changed(self) -> tuple[int, ...]:
        """Return a mark that changes with each write; () while there is no file."""
        try:
            found = self.path.stat()
        except OSError:
            return ()
        return (found.st_ino, found.st_size, found.st_mtime_ns)

    def step(self, act: Callable[[], T]) -> Flow[T]:
        """Return an operation as a flow, which runs it at once, because it is short."""
        done: T = yield Step(act)
        return done

    def locked(self) -> QueueError:
        """Return the error for a file that another process keeps locked."""
        return QueueError(f"the queue of approvals {checks.show(str(self.path))} is kept locked by another process: end that one.")

    @contextmanager
    def _transaction(self) -> Generator[sqlite3.Connection, None, None]:
        with self._connection() as connection, transaction(connection):
            yield connection

    @contextmanager
    def _connection(self) -> Generator[sqlite3.Connection, None, None]:
        try:
            connection = self._open()
            try:
                yield connection
            finally:
                connection.close()
        except sqlite3.Error as error:
            if is_busy(error):
                raise QueueBusy from error
            raise self._failed(str(error)) from error
        except ForeignError as error:
            raise self._failed(str(error)) from None
        except OSError as error:
            raise self._failed(error.strerror or str(error)) from error

    def _open(self) -> sqlite3.Connection:
        if self._create:
            make_file(self.path)
        flaw = database_flaw(self.path, root_too=not self._create)
        if flaw is not None:
            raise self._failed(flaw)
        connection = connect(self.path, timeout_s=_BUSY_TIMEOUT_S)
        connection.text_factory = read_text
        try:
            connection.execute("PRAGMA synchronous=FULL")
            _migrate(connection)
            if _QUEUE_SCHEMA.format_in(connection.execute) is None:
                _QUEUE_SCHEMA.make_in(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _failed(self, why: str) -> QueueError:
        return QueueError(
            f"the queue of approvals {checks.show(str(self.path))} cannot be used: {why}. Nothing is approved without it; {self._out}."
        )


def no_such_request(shown: StoredRequest) -> str:
    """Return the sentence for a request that was shown and is gone."""
    return f"there is no request {readable(shown.id)} any more: its program can ask again."


def _read_found(found: tuple[Any, ...]) -> StoredRequest:
    return read_row(dict(zip(ALL_COLUMNS, found, strict=True)))


def _migrate(connection: sqlite3.Connection) -> None:
    """Add the missing columns to a file of the former format."""
    if not _has_former_format(connection):
        return
    with transaction(connection):
        if not _has_former_format(connection):  # another process did it meanwhile
            return
        for column in _ADDED_COLUMNS:
            connection.execute(f"ALTER TABLE requests ADD COLUMN {column}")
        connection.execute(f"PRAGMA user_version={QUEUE_FORMAT}")


def _has_former_format(connection: sqlite3.Connection) -> bool:
    if connection.execute("PRAGMA application_id").fetchone()[0] != _QUEUE_SCHEMA.application:
        return False
    return bool(connection.execute("PRAGMA user_version").fetchone()[0] == _FORMER_FORMAT)


def open_queue(
    where: str | Path, *, clock: Callable[[], float] | None = None, create: bool = False, out: str = WAY_OUT, named: str = QUEUE_VARIABLE
) -> RequestStore:
    """Open the queue at a path or a URL; raise ConfigurationError for a URL that names no queue.

    `named` is the setting that `where` comes from, and `out` the advice in errors about a file.
    """
    if isinstance(where, Path) or not is_queue_url(where):
        return QueueFile(Path(where), create=create, out=out) if clock is None else QueueFile(Path(where), clock, create=create, out=out)
    return cast("RequestStore", load("ravi_otel.supervisor.approval._redis_store").RedisStore(where, clock, named=named))
