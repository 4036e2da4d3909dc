"""Take ledgers safely through a fork: no thread inside SQLite and no connection open at that moment.

A connection must not be carried into a forked child, not even to be closed there: both processes would believe that they
hold its locks. So it is closed before the fork, under the ledger's lock, and each side opens its own when it needs one.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import Final, Protocol

from ravi_otel._enforcement.ledger.sqlite.store import Store
from ravi_otel._forksafe import around_fork, renew_in_child

_LONGEST_PARK_S: Final = 1.0


class Gate:
    """Let one thread of one process in at a time, by `with gate.lock`, and none over a fork."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self.lock = threading.RLock()
        self._parker: int | None = None

    @property
    def forked(self) -> bool:
        """Tell that this is a child of the process it was made in."""
        return self._pid != os.getpid()

    @property
    def inside(self) -> bool:
        """Tell that this thread is in already: a signal's handler asks in the middle of a step."""
        return self.lock._is_owned()  # type: ignore[attr-defined,no-any-return]  # noqa: SLF001 - what threading.Condition asks, too

    def park(self) -> bool:
        """Keep everybody out before a fork; False when somebody does not come out in time."""
        parked = self.lock.acquire(timeout=_LONGEST_PARK_S)
        if parked:
            self._parker = threading.get_ident()
        return parked

    def unpark(self) -> None:
        """Let them in again, in the parent."""
        if self._parker == threading.get_ident():
            self._parker = None
            self.lock.release()


class Forked(Protocol):
    """Be a ledger, as much of it as a fork knows."""

    gate: Gate

    @property
    def store(self) -> Store:
        """Give its file."""
        ...

    def reset_after_fork(self) -> None:
        """Start anew in the child."""
        ...


_ledgers: dict[int, weakref.ref[Forked]] = {}


def follow(ledger: Forked) -> None:
    """Look after a ledger at every fork, for as long as it lives."""
    key = id(ledger)

    def forget(_: weakref.ref[Forked]) -> None:
        _ledgers.pop(key, None)

    _ledgers[key] = weakref.ref(ledger, forget)


def _living() -> list[Forked]:
    return [ledger for known in tuple(_ledgers.values()) if (ledger := known()) is not None]


def _before() -> None:
    for ledger in _living():
        if ledger.gate.park():
            ledger.store.close()


def _in_parent() -> None:
    for ledger in _living():
        ledger.gate.unpark()


@renew_in_child
def _in_child() -> None:
    for ledger in _living():
        if ledger.gate.forked:
            ledger.reset_after_fork()


around_fork(_before, _in_parent)
