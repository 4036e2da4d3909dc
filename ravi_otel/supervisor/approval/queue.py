"""Ask by a queue in a file, which survives a restart and is answered from anywhere on the machine."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
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
from ravi_otel.supervisor.approval.place import place
from ravi_otel.supervisor.approval.rows import StoredRequest
from ravi_otel.supervisor.approval.store import OUT, Busy, QueueFile

T = TypeVar("T")

_LOOK_AT_LEAST_EVERY_S: Final = 1.0
_PATIENCE_S: Final = 10.0
_SHORT_PATIENCE_S: Final = 2.0


class ApprovalQueue:
    """Be an Approver over a SQLite file; a person answers with `ravi-otel approvals`.

    `path` is the file; None is RAVI_APPROVALS, else `approvals.db` in RAVI_STORE, else in `.ravi` of the working directory. It is made
    with mode 0600 and refused when others may use it. `clock` gives UTC epoch seconds, and is there for tests.

    Safe in threads, processes and forks: nothing is kept open, locked or in a transaction while it waits. An approval is given to one
    caller, once. See docs/approvals.md for what survives which crash.
    """

    def __init__(self, path: str | Path | None = None, *, clock: Callable[[], float] = wall_clock) -> None:
        if path is not None and not isinstance(cast("object", path), (str, os.PathLike)):
            raise ConfigurationError(f"ApprovalQueue(path={checks.show(path)}) must be the path of a file, or None for the default.")
        self.path = place() if path is None else Path(path).expanduser().absolute()
        out = OUT if path is None else "give ApprovalQueue(path=...) a file in a directory of your own"
        self._file = QueueFile(self.path, clock, out=out)
        self._clock = clock

    def __repr__(self) -> str:
        return f"<ApprovalQueue {str(self.path)!r}>"

    def ask(self, request: ApprovalRequest) -> Coloured[ApprovalAnswer]:
        """Find the request, or put it into the queue, and wait for the answer; where an event loop runs, await what this gives.

        The answer is "expired" past `expires_at`, "arguments_changed" when they were changed meanwhile, and "already_answered" when this
        very request (its id and fingerprint) has taken an approval before. Raises what ends the scope: cancelled, closed, or its time is
        up; the request stays in the queue then. Raises QueueError when the file cannot be used.
        """
        return coloured(partial(self._asking, request))

    def executed(self, request: ApprovalRequest, status: str) -> None:
        """Write down how it ended; one that never ran ("refused") is approved still, as long as it has not expired and nobody rejects it.

        Never raises: the call is over. What could not be written stays "taken", which gives out nothing.
        """
        try:
            self._file.patiently(partial(self._file.end, request, status), _SHORT_PATIENCE_S)
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
                found = yield from self._insist(patience, partial(self._file.enter, request, seal))
                if isinstance(found, ApprovalAnswer):
                    return found
                refused = yield from self._until_answered(found, request, patience)
                if refused is not None:
                    return refused

    def _until_answered(self, waited: StoredRequest, request: ApprovalRequest, patience: Patience) -> Flow[ApprovalAnswer | None]:
        """Wait until somebody answers; gives a refusal, or None when there may be an approval to be taken."""
        mark, looked = self._file.changed(), time.monotonic()
        while True:
            left_s = None if request.expires_at is None else request.expires_at - self._clock()
            if left_s is not None and left_s <= 0:
                return rows.EXPIRED
            yield from patience.rest(left_s)
            now = self._file.changed()
            if now == mark and time.monotonic() - looked < _LOOK_AT_LEAST_EVERY_S:
                continue
            mark, looked = now, time.monotonic()
            stored = yield from self._insist(patience, partial(self._file.look, waited.id))
            if stored is None or stored.flaw is not None or stored.state in ("approved", "taken", "expired"):
                return None
            if stored.state == "rejected":
                yield from self._insist(patience, partial(self._file.tell_refusal, stored.id))
                return stored.answer()

    def _insist(self, patience: Patience, act: Callable[[], T]) -> Flow[T]:
        """Do a step of the file as soon as others let it."""
        until = time.monotonic() + _PATIENCE_S
        while True:
            try:
                return act()
            except Busy:
                if time.monotonic() >= until:
                    raise self._file.locked() from None
            yield from patience.rest()


_CHANGED: Final = ApprovalAnswer(approved=False, comment=CHANGED)


def _is_as(request: ApprovalRequest, seal: str) -> bool:
    """Tell that nobody has changed the arguments since they were frozen."""
    try:
        return rows.seal_of(request) == seal
    except RaviError:
        return False
