"""Admit and settle what needs no closer look, which is nearly every call, in as few words with the file as there can be.

Where all of a request fits whole, nobody stands in line and nothing is crossed, the answer is what `judge.judge` would give; in all
other cases these give None, have changed nothing, and a whole step follows. Everything in here is inside the ledger's lock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from ravi_otel._enforcement.ledger import judge
from ravi_otel._enforcement.ledger.account import Nature
from ravi_otel._enforcement.ledger.contract import Line, Reservation, Settled
from ravi_otel._enforcement.ledger.failing import StoreError
from ravi_otel._enforcement.ledger.judge import Operation
from ravi_otel._enforcement.ledger.sqlite.page import BEGIN
from ravi_otel._enforcement.ledger.sqlite.past import is_fresh, note
from ravi_otel._enforcement.ledger.sqlite.rows import COLUMNS, LOCAL, STEADY, Row
from ravi_otel._enforcement.ledger.sqlite.store import Store

_HELD: Final = Nature.HELD
_MOST_ROWS: Final = 32
_LARGEST: Final = 1 << 62
_READ: Final = f"SELECT {COLUMNS} FROM accounts WHERE id = ?"  # noqa: S608 - constants alone
_NOBODY: Final = "NOT EXISTS (SELECT 1 FROM line)"
_WRITE: Final = "UPDATE accounts SET used = ?, held = ?, seen = ? WHERE id = ?"
_END: Final = "UPDATE operations SET state = 2, at = ? WHERE op = ? AND state = 0"
_reads: dict[tuple[int, bool], str] = {}


def may_fit(request: Reservation) -> bool:
    """Tell, by what this process saw last, that a request may need no closer look."""
    if request.slot or not is_fresh(request.op_id):
        return False
    for line in request.lines:
        account = line.account
        if account.used + account.held + line.want > account.open_to or account.row is None:
            return False
    return len(request.lines) <= _MOST_ROWS


def holds(request: Reservation) -> bool:
    """Tell that what is granted is held, so that others must know when this process dies."""
    return any(line.account.nature is _HELD or line.carved for line in request.lines)


def reserve(store: Store, operations: dict[str, Operation], request: Reservation, process: int, now_s: int) -> Operation | None:
    """Admit a request of which every line fits whole; None for any other."""
    before = _Before(request.lines)
    operation = Operation(request)
    try:
        store.begin()
        if before.read(store, alone=True) and _take(operation):
            operations[request.op_id] = operation
            note(request.op_id)
            store.run(BEGIN, (request.op_id, process, operation.granted, _held(operation), now_s))
            before.write(store, now_s)
            store.commit()
            store.seen_s = now_s
            return operation
        store.rollback()
    except BaseException as error:
        if isinstance(error, StoreError) or store.in_transaction or not before.is_written:  # a signal's may come when all is written
            store.rollback()
            before.restore()
            operations.pop(request.op_id, None)
        raise
    before.restore()
    return None


def settle(store: Store, operation: Operation, actual: Mapping[str, int], now_s: int, *, guessed: bool) -> Settled | None:
    """Replace the holds by what was used, where that crosses nothing and the file knows the operation as it is here; else None."""
    before = _Before(operation.lines)
    most = max(actual.values(), default=0)
    try:
        store.begin()
        if before.read(store, alone=False) and _is_quiet(operation, most) and store.run(_END, (now_s, operation.op_id)).rowcount == 1:
            settled = judge.settle(operation, actual, guessed=guessed)
            before.write(store, now_s)
            store.commit()
            store.seen_s = now_s
            return settled
        store.rollback()
    except BaseException as error:
        if isinstance(error, StoreError) or store.in_transaction or not before.is_written:  # a signal's may come when all is written
            store.rollback()
            before.restore()
            operation.ended = 0
        raise
    before.restore()
    return None


class _Before:
    """Know how the accounts of some lines were before, and their rows."""

    __slots__ = ("_amounts", "_lines", "_rows", "_shared", "is_written")

    def __init__(self, lines: Sequence[Line]) -> None:
        self._lines = lines
        self._amounts = [(line.account.used, line.account.held) for line in lines]
        self._shared = [line.account for line in lines if line.account.row is not LOCAL]
        self._rows: list[Row] = [account.row for account in self._shared]  # type: ignore[misc]  # `may_fit` has seen that there is one
        self.is_written = False

    def read(self, store: Store, *, alone: bool) -> bool:
        """Read the rows into the accounts; False when one is not as this process knows it, or, with `alone`, somebody stands in line."""
        numbers = [row.id for row in self._rows]
        found = store.all(_reading(len(numbers), alone=alone), numbers)
        if len(found) != len(numbers) or len(set(numbers)) != len(numbers):
            return False
        for account, row, values in zip(self._shared, self._rows, found, strict=True):
            used, held = values[2], values[3]
            if values[0] != row.id or values[1] != account.epoch or values[STEADY:] != row.steady or account.used != row.used:
                return False
            if type(used) is not int or type(held) is not int or not (0 <= used < _LARGEST and 0 <= held < _LARGEST):
                return False
            account.used, row.used, account.held = used, used, held
        return True

    def write(self, store: Store, now_s: int) -> None:
        """Write the accounts into their rows."""
        for account, row in zip(self._shared, self._rows, strict=True):
            row.used, row.seen_s = account.used, now_s
        store.many(_WRITE, [(account.used, account.held, now_s, account.row.id) for account in self._shared])  # type: ignore[attr-defined]  # a Row
        self.is_written = True

    def restore(self) -> None:
        """Put the accounts back to how they were."""
        for line, (used, held) in zip(self._lines, self._amounts, strict=True):
            account = line.account
            account.used, account.held = used, held
        for account, row in zip(self._shared, self._rows, strict=True):
            row.used = account.used


def _reading(count: int, *, alone: bool) -> str:
    known = _reads.get((count, alone))
    if known is None:
        first = f"{_READ} AND {_NOBODY}" if alone else _READ
        known = _reads[count, alone] = " UNION ALL ".join([first, *[_READ] * (count - 1)])
    return known


def _take(operation: Operation) -> bool:
    """Charge every line as `judge.at_once` does, unless one does not fit."""
    for line in operation.lines:
        account, want = line.account, line.want
        if account.used + account.held + want > account.open_to:
            return False
        if account.nature is _HELD or line.carved:
            account.held, operation.taken = account.held + want, operation.taken + 1
        else:
            account.used, operation.taken = account.used + want, operation.taken + 1
    return True


def _is_quiet(operation: Operation, most: int) -> bool:
    """Tell that no account can be crossed, whatever of the amounts is its own."""
    if not operation.whole:
        return False
    for line, hold in operation.holds:
        account = line.account
        if account.roll_ns or account.used + max(most, hold) >= account.quiet_until:
            return False
    return True


def _held(operation: Operation) -> str:
    """Write what `rows.holds_of` would."""
    pairs: list[Any] = [
        f"[{line.account.row.id}, {line.want}]"  # type: ignore[attr-defined]  # a Row
        for line in operation.lines
        if line.want and (line.account.nature is _HELD or line.carved) and line.account.row is not LOCAL
    ]
    return f"[{', '.join(pairs)}]"
