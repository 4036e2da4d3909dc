"""Hold what one transaction works on: rows read into accounts, the line, operations; written back or forgotten as one."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, Final

from ravi_otel.enforcement.ledger import judging
from ravi_otel.enforcement.ledger.contract import Account, Denied, Grant, Line, Nature, Reservation
from ravi_otel.enforcement.ledger.judging import Operation
from ravi_otel.enforcement.ledger.line import Waiter
from ravi_otel.enforcement.ledger.sqlite_store import Store, StoreError, from_sql, to_sql

LIVE, PROVISIONAL, OVER = 0, 1, 2
_MOST_EVENTS: Final = 10_000
_EVENTS: Final = frozenset({"limit_nearing", "limit_exceeded"})
_COLUMNS: Final = "key, value, used, held, denied, near, exceeded, draining, events"
_SELECT: Final = f"SELECT {_COLUMNS} FROM accounts WHERE id = ?"  # noqa: S608 - constants alone
LOOK: Final = f"SELECT {_COLUMNS} FROM accounts WHERE key = ?"  # noqa: S608 - constants alone
_UPDATE: Final = "UPDATE accounts SET value=?, used=?, held=?, denied=?, near=?, exceeded=?, draining=?, events=? WHERE id=?"
_STAND: Final = "INSERT INTO line (process, account) VALUES (?, ?)"


class Row:
    """Know where an account is kept; `used` is what this process last saw there."""

    __slots__ = ("id", "used")

    def __init__(self, number: int, used: int) -> None:
        self.id = number
        self.used = used


LOCAL: Final = Row(0, 0)
"""The row of an account that this process keeps to itself."""


class Stander(Waiter):
    """Stand in line in this process, with a ticket that the others see; `failure` ends the wait when the store is gone."""

    __slots__ = ("blocked_by", "failure", "place", "ticket")

    def __init__(self, request: Reservation) -> None:
        super().__init__(request)
        self.ticket: int | None = None
        self.place = 0
        self.blocked_by: Account | None = None
        self.failure: StoreError | None = None


class Page:
    """Be one transaction. What it changes is everybody's after `close`, nobody's after `undo`.

    `operations` and `waiters` are this process's own. The first account object that stands for a row is the one that
    counts in here; others of the same row are shown the result.
    """

    def __init__(
        self, store: Store, shares: Callable[[Account], bool], operations: dict[str, Operation], waiters: dict[Stander, None]
    ) -> None:
        self.operations = operations
        self.waiters = waiters
        self.woken: list[Waiter] = []
        self.store = store
        self._shares = shares
        self._at_hand: dict[int, Account] = {}
        self._read: dict[int, tuple[Any, ...]] = {}
        self._before: dict[Account, tuple[Any, ...]] = {}
        self._twins: list[tuple[Account, Account]] = []
        self._ended: list[tuple[str, Operation, int]] = []
        self._begun: list[str] = []
        self._tickets: list[tuple[int, int]] = []
        self._stood: list[tuple[Stander, int | None, int]] = []
        self._joined: list[Stander] = []
        self._gone: list[Stander] = []
        self._known: frozenset[str] | None = None

    def see_line(self) -> None:
        """See who stands in line; before any account is at hand."""
        self._tickets = self.store.all("SELECT ticket, account FROM line ORDER BY ticket")

    # -- accounts -------------------------------------------------------------------------------------------------

    def at_hand(self, account: Account) -> Account:
        """Give the account with what its row says now, or another one that stands for the same row."""
        row = account.row
        if row is None:
            row = self._first_sight(account)
        if row is LOCAL:
            if account not in self._before:
                self._before[account] = (None, *_photograph(account))
            return account
        assert isinstance(row, Row)
        known = self._at_hand.get(row.id)
        if known is not None:
            if known is not account:
                self._twins.append((account, known))
            return known
        self._before.setdefault(account, (row.used, *_photograph(account)))
        found = self.store.all(_SELECT, (row.id,))
        if not found or found[0][0] != account.key:
            raise StoreError("what was counted in it is gone", "store_lost")
        values = self._read[row.id] = found[0][1:]
        by_hand = account.used - row.used  # written by the program's own hand, while no call was made
        _show(account, values)
        if by_hand > 0 and account.nature is not Nature.CLOCK:
            account.used += by_hand
        if self._tickets or account.line:
            account.line = [self._stander(ticket) for ticket, place in self._tickets if place == row.id]
        self._at_hand[row.id] = account
        return account

    def _stander(self, ticket: int) -> object:
        return next((waiter for waiter in self.waiters if waiter.ticket == ticket), ticket)

    def _first_sight(self, account: Account) -> Row:
        """Find or make the row; a limit declared again takes the smaller value, and arms nothing."""
        if not self._shares(account):
            account.row = LOCAL
            return LOCAL
        self._before[account] = (None, *_photograph(account))
        found = self.store.all("SELECT id, declared, value FROM accounts WHERE key = ?", (account.key,))
        if not found:
            statement = (
                "INSERT INTO accounts (key, declared, value, used, held, denied, near, exceeded, draining, events)"
                " VALUES (?, ?, ?, ?, 0, 0, 0, 0, 0, '')"
            )
            value = to_sql(account.value)
            number = self.store.run(statement, (account.key, value, value, to_sql(account.used))).lastrowid
        else:
            number, declared, value = found[0]
            if account.value < from_sql(declared):
                least = min(account.value, from_sql(value))
                self.store.run("UPDATE accounts SET declared = ?, value = ? WHERE id = ?", (to_sql(account.value), to_sql(least), number))
                if number in self._at_hand:
                    judging.revalue(self._at_hand[number], least)
        assert number is not None
        account.row = row = Row(number, account.used)
        return row

    def request_at_hand(self, request: Reservation) -> Reservation:
        """Give the request on the accounts that count in here; a limit that was declared twice is asked once."""
        accounts = [self.at_hand(line.account) for line in request.lines]
        if all(account is line.account for account, line in zip(accounts, request.lines, strict=True)):
            return request
        lines: dict[int, Line] = {}
        for account, line in zip(accounts, request.lines, strict=True):
            known = lines.get(id(account))
            want, minimum = (0, 0) if known is None else (known.want, known.minimum)
            lines[id(account)] = Line(account, max(line.want, want), max(line.minimum, minimum))
        return replace(request, lines=tuple(lines.values()))

    # -- operations -----------------------------------------------------------------------------------------------

    def judge(self, request: Reservation, *, newcomer: bool) -> Grant | Denied:
        """Judge a request, and write what it was granted."""
        request = self.request_at_hand(request)
        told = self.store.all("SELECT granted FROM operations WHERE op = ?", (request.op_id,))
        known = self.operations.get(request.op_id)
        if told and known is None:  # made in another process, or over: the same answer, nothing twice
            return Grant(request.op_id, None if told[0][0] is None else from_sql(told[0][0]))
        if known is None:
            self._begun.append(request.op_id)
        return judging.judge(request, self.operations, newcomer=newcomer)

    def end(self, op_id: str) -> Operation | None:
        """Take an operation out, with its accounts as they are now, ready to be settled or released; None when it is over."""
        operation = self.operations.get(op_id)
        if operation is None:
            return None
        holds = [(self.at_hand(line.account), line, hold) for line, hold in operation.holds]
        if any(account is not line.account for account, line, _ in holds):
            operation.holds = [(line if account is line.account else replace(line, account=account), hold) for account, line, hold in holds]
        self._ended.append((op_id, operation, operation.ended))
        del self.operations[op_id]
        if self.store.run("UPDATE operations SET state = 2 WHERE op = ? AND state = 0", (op_id,)).rowcount != 1:
            self._take_up_again(op_id, operation)
        return operation

    def _take_up_again(self, op_id: str, operation: Operation) -> None:
        """Undo the provisional end of an operation whose process had gone silent, so that the real one can follow."""
        found = self.store.all("SELECT state FROM operations WHERE op = ?", (op_id,))
        over = bool(found) and found[0][0] == OVER
        for line, hold in operation.holds[operation.ended : operation.taken]:
            account = line.account
            if account.row is not LOCAL and not over and account.nature is Nature.HELD:
                account.held, account.used = account.held + hold, account.used - hold
        if over:
            operation.ended = operation.taken
        self.store.run("UPDATE operations SET state = 2 WHERE op = ?", (op_id,))

    # -- the line -------------------------------------------------------------------------------------------------

    def serve(self) -> None:
        """Answer our own who stand in line, where it is their turn."""
        if not self.waiters:
            return
        known = {ticket for ticket, _ in self._tickets}
        for waiter in self.waiters:
            waiter.request = self.request_at_hand(waiter.request)
            if waiter.ticket is not None and waiter.ticket not in known and waiter.blocked_by is not None:
                # Thought dead: its place is gone, and it stands behind all others now.
                self._stood.append((waiter, waiter.ticket, waiter.place))
                waiter.ticket, waiter.place = None, 0
                self.at_hand(waiter.blocked_by).line.append(waiter)
        self._known = frozenset(self.operations) if self._known is None else self._known
        for account in (*self._at_hand.values(), *(account for account in self._before if account.row is LOCAL)):
            if account.line:
                judging.rejudge(account, self.operations, self.woken)
        self._begun.extend(waiter.request.op_id for waiter in self.woken if waiter.request.op_id not in self._begun)

    def stand(self, waiter: Stander, account: Account) -> None:
        """Put somebody of ours at the end of an account's line."""
        self._joined.append(waiter)
        account.line.append(waiter)
        self.waiters[waiter] = None

    def leave(self, waiter: Stander) -> None:
        """Take somebody of ours out of line."""
        for account in (*self._at_hand.values(), *self._before):
            if waiter in account.line:
                account.line.remove(waiter)
        self._tear(waiter)
        self._gone.append(waiter)
        self.waiters.pop(waiter, None)

    def _tear(self, waiter: Stander) -> None:
        if waiter.ticket is not None:
            self.store.run("DELETE FROM line WHERE ticket = ?", (waiter.ticket,))

    # -- its end --------------------------------------------------------------------------------------------------

    def holds_something(self) -> bool:
        """Tell that something granted in here is held, or that somebody stands in line: others must know if we die."""
        begun = [self.operations[op_id] for op_id in self._begun if op_id in self.operations]
        return bool(self.waiters) or any(hold for operation in begun for _, hold in operation.holds)

    def close(self, process: int) -> None:
        """Write everything, under the number of this process; what is raised leaves everything to `undo`."""
        for number, account in self._at_hand.items():
            values = _written(account)
            if values != self._read[number]:
                self.store.run(_UPDATE, (*values, number))
        for op_id in self._begun:
            if op_id in self.operations:
                self._write_operation(op_id, process)
        if self.waiters or self.woken:
            self._write_line(process)
        for account in self._at_hand.values():
            assert isinstance(account.row, Row)
            account.row.used = account.used
        for twin, account in self._twins:
            _mirror(twin, account)
        self.store.commit()
        for waiter in self.woken:
            assert isinstance(waiter, Stander)
            self.waiters.pop(waiter, None)

    def _write_operation(self, op_id: str, process: int) -> None:
        operation = self.operations[op_id]
        shared = [(line.account, hold) for line, hold in operation.holds if line.account.row is not LOCAL]
        if not shared or operation.grant is None:
            return
        held = [(account.row.id, hold) for account, hold in shared if hold and isinstance(account.row, Row)]
        granted = operation.grant.granted
        self.store.run(
            "INSERT INTO operations (op, process, state, granted, holds) VALUES (?, ?, 0, ?, ?)",
            (op_id, process, None if granted is None else to_sql(granted), json.dumps(held) if held else "[]"),
        )

    def _write_line(self, process: int) -> None:
        for answered in self.woken:
            assert isinstance(answered, Stander)
            self._tear(answered)
        standing = [(waiter, number) for number, account in self._at_hand.items() for waiter in account.line]
        standing += [(waiter, 0) for account in self._before if account.row is LOCAL for waiter in account.line]
        for waiter, number in standing:
            if isinstance(waiter, Stander) and waiter.place != number:
                self._stood.append((waiter, waiter.ticket, waiter.place))
                self._tear(waiter)
                ticket = self.store.run(_STAND, (process, number)).lastrowid if number else None
                waiter.place, waiter.ticket = number, ticket

    def undo(self) -> None:
        """Forget everything: the file, our accounts and our operations are as they were before."""
        self.store.rollback()
        for account, (used, *photograph) in self._before.items():
            _restore(account, photograph)
            if used is not None and isinstance(account.row, Row):
                account.row.used = used
            elif account.row is not LOCAL:
                account.row = None  # the row was made in here
        begun = set(self._begun)
        if self._known is not None:
            begun |= self.operations.keys() - self._known
        for op_id in begun:
            self.operations.pop(op_id, None)
        for op_id, operation, ended in self._ended:
            operation.ended = ended
            self.operations[op_id] = operation
        for waiter in self.woken:
            waiter.answer = None
        for stander, ticket, place in reversed(self._stood):
            stander.ticket, stander.place = ticket, place
        for stander in self._joined:
            self.waiters.pop(stander, None)
        self.waiters.update(dict.fromkeys(self._gone))


def shown(account: Account, found: Sequence[Any]) -> None:
    """Write what a row says, with its key in front, into an account."""
    _show(account, tuple(found[1:]))
    if isinstance(account.row, Row) and account.row is not LOCAL:
        account.row.used = account.used


def _show(account: Account, values: tuple[Any, ...]) -> None:
    value, used, held, denied, near, exceeded, draining, events = values
    value, used, held, denied = from_sql(value), from_sql(used), from_sql(held), from_sql(denied)
    if value != account.value:
        judging.revalue(account, value)
    account.events = _told(events) if events else ()
    account.used, account.held, account.denied = used, held, denied
    account.near, account.exceeded, account.draining = near == 1, exceeded == 1, draining == 1


def _told(events: object) -> tuple[str, ...]:
    told = tuple(events.split(",")) if isinstance(events, str) and events else ()
    if not isinstance(events, str) or len(told) > _MOST_EVENTS or not _EVENTS.issuperset(told):
        raise StoreError("what it says of events is nothing it can say")
    return told


def _written(account: Account) -> tuple[Any, ...]:
    return (
        to_sql(account.value),
        to_sql(account.used),
        to_sql(account.held),
        to_sql(account.denied),
        int(account.near),
        int(account.exceeded),
        int(account.draining),
        ",".join(account.events[-_MOST_EVENTS:]),
    )


def _photograph(account: Account) -> tuple[Any, ...]:
    return (
        account.value,
        account.used,
        account.held,
        account.denied,
        account.near,
        account.exceeded,
        account.draining,
        account.events,
        list(account.line) if account.line else [],
    )


def _restore(account: Account, photograph: Sequence[Any]) -> None:
    value, account.used, account.held, account.denied, account.near, account.exceeded, account.draining, account.events, line = photograph
    account.line = line
    judging.revalue(account, value)


def _mirror(twin: Account, account: Account) -> None:
    _restore(twin, (*_photograph(account)[:-1], twin.line))
    if isinstance(twin.row, Row):
        twin.row.used = twin.used


def held_by(holds: object) -> Iterable[tuple[int, int]]:
    """Read which rows an operation holds how much of; StoreError for what cannot be read."""
    pairs: list[tuple[Any, Any]] = [(None, None)]
    with contextlib.suppress(TypeError, ValueError, RecursionError):
        found: Any = json.loads(holds) if isinstance(holds, str) else None
        if isinstance(found, list):
            pairs = [(number, hold) for number, hold in found]  # pyright: ignore[reportUnknownVariableType]  # JSON may hold anything
    if not all(type(number) is int and type(hold) is int and hold >= 0 for number, hold in pairs):
        raise StoreError("what it says of an operation cannot be read")
    return pairs
