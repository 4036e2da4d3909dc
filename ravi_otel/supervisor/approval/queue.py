"""Ask by a queue in a file or a Redis, which survives a restart and is answered from elsewhere."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final, TypeVar, cast

from ravi_otel._flow import Flow
from ravi_otel.errors import ConfigurationError, RaviError
from ravi_otel.hooks._listeners import swallow
from ravi_otel.policy import _checks as checks
from ravi_otel.policy._contracts import Coloured
from ravi_otel.supervisor.approval import rows
from ravi_otel.supervisor.approval.asking import Patience, coloured, wall_clock
from ravi_otel.supervisor.approval.contract import CHANGED, ApprovalAnswer, ApprovalRequest
from ravi_otel.supervisor.approval.opening import open_store
from ravi_otel.supervisor.approval.place import VARIABLE, place, read_place
from ravi_otel.supervisor.approval.rows import WAITS_EVERY_S, StoredRequest
from ravi_otel.supervisor.approval.store import OUT, Busy

T = TypeVar("T")

_LOOK_AT_LEAST_EVERY_S: Final = 1.0
_PATIENCE_S: Final = 10.0
_SHORT_PATIENCE_S: Final = 2.0
_LONG_PATIENCE_S: Final = 300.0
"""How long a person who has been asked is waited for while the queue cannot be looked into, as when its server is started again."""


class ApprovalQueue:
    """Be an Approver over a queue that a person answers with `ravi-otel approvals`, or on the page of `ravi-otel ui`.

    `path` is a file, or a Redis that many machines reach, such as "redis://HOST:6379/0"; None is RAVI_APPROVALS, else `approvals.db` in
    RAVI_STORE, else in `.ravi` of the working directory. A file is made with mode 0600 and refused when others may use it. `clock` gives
    UTC epoch seconds, and is there for tests.

    Safe in threads, processes and forks: nothing is kept open, locked or in a transaction while it waits. An approval is given to one
    caller, once. See docs/approvals.md for what survives which crash.
    """

    def __init__(self, path: str | Path | None = None, *, clock: Callable[[], float] = wall_clock) -> None:
        if path is not None and not isinstance(cast("object", path), (str, os.PathLike)):
            given = checks.show(cast("object", path))
            raise ConfigurationError(
                f"ApprovalQueue(path={given}) must be the path of a file, the URL of a Redis, or None for the default."
            )
        self.path = place() if path is None else read_place(path)
        out = OUT if path is None else "give ApprovalQueue(path=...) a file in a directory of your own"
        named = VARIABLE if path is None else "ApprovalQueue(path)"
        own = None if clock is wall_clock and not isinstance(self.path, Path) else clock
        self._store = open_store(self.path, clock=own, create=True, out=out, named=named)
        self._clock = clock

    def __repr__(self) -> str:
        return f"<ApprovalQueue {self._store.shown!r}>"

    def ask(self, request: ApprovalRequest) -> Coloured[ApprovalAnswer]:
        """Find the request, or put it into the queue, and wait for the answer; where an event loop runs, await what this gives.

        The answer is "expired" past `expires_at`, "arguments_changed" when they were changed meanwhile, and "already_answered" when this
        very request (its id and fingerprint) has taken an approval before. Raises what ends the scope: cancelled, closed, or its time is
        up; the request stays in the queue then. Raises QueueError when the queue cannot be used.
        """
        return coloured(partial(self._asking, request))

    def executed(self, request: ApprovalRequest, status: str) -> Coloured[None]:
        """Write down how it ended; one that never ran ("refused") is approved still, as long as it has not expired and nobody rejects it.

        Never raises: the call is over. What could not be written stays "taken", which gives out nothing.
        """
        if isinstance(self.path, Path):
            self._end(request, status)
            return None
        return coloured(partial(self._ending, request, status))

    def _ending(self, request: ApprovalRequest, status: str) -> Flow[None]:
        yield from self._store.step(partial(self._end, request, status))

    def _end(self, request: ApprovalRequest, status: str) -> None:
        try:
            self._store.patiently(partial(self._store.end, request, status), _SHORT_PATIENCE_S)
        except RaviError as error:
            swallow("ApprovalQueue.executed", error)

    def _asking(self, request: ApprovalRequest) -> Flow[ApprovalAnswer]:
        seal = rows.seal_of(request)
        if rows.flaw_of(request) is not None:
            return _CHANGED
        with Patience() as patience:
            while True:
                if not _is_as(request, seal):
                    return _CHANGED
                found = yield from self._insist(patience, partial(self._store.enter, request, seal))
                if isinstance(found, ApprovalAnswer):
                    return found
                refused = yield from self._until_answered(found, request, patience)
                if refused is not None:
                    return refused

    def _until_answered(self, waited: StoredRequest, request: ApprovalRequest, patience: Patience) -> Flow[ApprovalAnswer | None]:
        """Wait until somebody answers; gives a refusal, or None when there may be an approval to be taken."""
        mark, looked = (yield from self._mark()), time.monotonic()
        told = looked
        while True:
            left_s = None if request.expires_at is None else request.expires_at - self._clock()
            if left_s is not None and left_s <= 0:
                return rows.EXPIRED
            yield from patience.rest(left_s)
            if time.monotonic() - told >= WAITS_EVERY_S:
                told = time.monotonic()
                yield from self._insist(patience, partial(self._store.wait, waited.id), _LONG_PATIENCE_S)
            now = yield from self._mark()
            if now == mark and time.monotonic() - looked < _LOOK_AT_LEAST_EVERY_S:
                continue
            mark, looked = now, time.monotonic()
            stored = yield from self._insist(patience, partial(self._store.look, waited.id), _LONG_PATIENCE_S)
            if stored is None or stored.flaw is not None or stored.state in ("approved", "taken", "expired"):
                return None
            if stored.state == "rejected":
                yield from self._insist(patience, partial(self._store.tell_refusal, stored.id))
                return stored.answer()

    def _mark(self) -> Flow[Sequence[object]]:
        return self._store.step(self._store.changed)

    def _insist(self, patience: Patience, act: Callable[[], T], longest_s: float = _PATIENCE_S) -> Flow[T]:
        """Do a step of the queue as soon as it can be done."""
        until = time.monotonic() + longest_s
        while True:
            try:
                return (yield from self._store.step(act))
            except Busy:
                if time.monotonic() >= until:
                    raise self._store.locked() from None
            yield from patience.rest()


_CHANGED: Final = ApprovalAnswer(approved=False, comment=CHANGED)


def _is_as(request: ApprovalRequest, seal: str) -> bool:
    """Tell that nobody has changed the arguments since they were frozen."""
    try:
        return rows.seal_of(request) == seal
    except RaviError:
        return False
