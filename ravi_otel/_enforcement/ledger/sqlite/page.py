"""Hold what one transaction works on: rows read into accounts, the line, operations; written back or forgotten as one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from secrets import token_hex
from typing import Any, Final

from ravi_otel._enforcement.ledger import judge, wait_queue
from ravi_otel._enforcement.ledger.account import Account, Nature
from ravi_otel._enforcement.ledger.contract import Denied, Extended, Grant, Line, Reservation, Told, asked_once
from ravi_otel._enforcement.ledger.failing import FORGOTTEN, StoreError, warn_uncounted
from ravi_otel._enforcement.ledger.judge import Operation
from ravi_otel._enforcement.ledger.losses import forget, kept_s, may_begin_anew, tell
from ravi_otel._enforcement.ledger.refreshing import Copy
from ravi_otel._enforcement.ledger.sqlite.past import is_fresh, is_over, note
from ravi_otel._enforcement.ledger.sqlite.rows import (
    COLUMNS,
    LOCAL,
    STEADY,
    Row,
    charged_at_once,
    holds_of,
    mirror,
    photograph,
    restore,
    show,
    shown,
    written,
)
from ravi_otel._enforcement.ledger.sqlite.store import Store, from_sql, to_sql
from ravi_otel._enforcement.ledger.wait_queue import Waiter
from ravi_otel._enforcement.ledger.windows import expire

LIVE, PROVISIONAL, OVER, GIVEN_BACK = 0, 1, 2, 3
_SELECT: Final = f"SELECT {COLUMNS} FROM accounts WHERE id = ?"  # noqa: S608 - constants alone
_LOOK: Final = f"SELECT {COLUMNS} FROM accounts WHERE id = (SELECT id FROM names WHERE key = ?)"  # noqa: S608 - constants alone
_COPY: Final = f"SELECT names.key, accounts.{COLUMNS} FROM names JOIN accounts ON accounts.id = names.id WHERE names.key IN "  # noqa: S608 - constants alone
_MOST_AT_ONCE: Final = 500
UPDATE: Final = (
    "UPDATE accounts SET used=?, held=?, value=?, denied=?, near=?, exceeded=?, draining=?, events=?, rolling=?, seen=? WHERE id=?"
)
_MAKE: Final = (
    "INSERT INTO accounts (epoch, value, used, held, denied, near, exceeded, draining, events, rolling, lasts, seen)"
    " VALUES (?, ?, ?, 0, 0, 0, 0, 0, '', '', ?, ?)"
)
BEGIN: Final = "INSERT INTO operations (op, process, state, granted, holds, at) VALUES (?, ?, 0, ?, ?, ?)"
_NS: Final = 1_000_000_000
_STAND: Final = "INSERT INTO line (process, account) VALUES (?, ?)"


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
        self, store: Store, shares: Callable[[Account], bool], operations: dict[str, Operation], waiters: dict[Stander, None], now_ns: int
    ) -> None:
        self.operations = operations
        self.waiters = waiters
        self.woken: list[Waiter] = []
        self.store = store
        self._shares = shares
        self._now_ns = now_ns
        self.now_s = now_ns // _NS
        self._at_hand: dict[int, Account] = {}
        self._read: dict[int, tuple[Any, ...]] = {}
        self._before: dict[Account, tuple[Any, ...]] = {}
        self._twins: list[tuple[Account, Account]] = []
        self.ended: list[tuple[str, Operation, int]] = []
        self._extended: list[tuple[Operation, list[int], Account | None]] = []
        self._begun: list[str] = []
        self._tickets: list[tuple[int, int]] = []
        self._stood: list[tuple[Stander, int | None, int]] = []
        self._joined: list[Stander] = []
        self._gone: list[Stander] = []
        self._answered: list[Stander] = []
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
                self._before[account] = (None, *photograph(account))
                expire(account, self._now_ns)
            return account
        assert isinstance(row, Row)
        known = self._at_hand.get(row.id)
        if known is not None:
            if known is not account:
                self._twins.append((account, known))
            return known
        self._before.setdefault(account, (row.used, *photograph(account)))
        found = self.store.all(_SELECT, (row.id,))
        if not found or found[0][1] != account.epoch:
            self._begin_anew(account, row.seen_s, "because what was counted in it is gone")
            return self.at_hand(account)
        row.seen_s = self.now_s
        self._read[row.id] = found[0][2:]
        by_hand = account.used - row.used  # written by the program's own hand, while no call was made
        show(account, found[0])
        if by_hand > 0 and account.nature is not Nature.CLOCK:
            account.used += by_hand
        expire(account, self._now_ns)
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
        self._before[account] = (None, *photograph(account))
        found = self.store.all(
            "SELECT names.id, declared, value, epoch FROM names JOIN accounts ON accounts.id = names.id WHERE key = ?", (account.key,)
        )
        if account.epoch is not None and (not found or found[0][3] != account.epoch):
            self._begin_anew(account, self.now_s, "because what was counted in it before is not there any more")
        if not found:
            number = self._make(account)
        else:
            number, declared, value, epoch = found[0]
            if not isinstance(epoch, str):
                raise StoreError("because it does not say which life of a counter it keeps")
            if account.value < from_sql(declared):
                least = min(account.value, from_sql(value))
                self.store.run("UPDATE names SET declared = ? WHERE key = ?", (to_sql(account.value), account.key))
                self.store.run("UPDATE accounts SET value = ? WHERE id = ?", (to_sql(least), number))
                if number in self._at_hand:
                    self._at_hand[number].revalue(least)
            account.epoch = epoch
        account.row = row = Row(number, account.used, self.now_s)
        return row

    def _begin_anew(self, account: Account, seen_s: int, lost: str) -> None:
        """Have an account that the file has forgotten begin anew, where it may (see `losses`); else StoreError."""
        accepted_s = self.store.accepted_s()
        why = may_begin_anew(
            account,
            seen_ago_s=self.now_s - seen_s,
            keep_s=self.store.keep_s,
            accepted_ago_s=None if accepted_s is None else self.now_s - accepted_s,
        )
        if why is None:
            raise StoreError(lost, "store_lost")
        forget(account)
        tell(account, why, repr(str(self.store.path)))
        account.row = None

    def _make(self, account: Account) -> int:
        epoch, value = token_hex(6), to_sql(account.value)
        number = self.store.run(_MAKE, (epoch, value, to_sql(account.used), kept_s(account, self.store.keep_s), self.now_s)).lastrowid
        assert number is not None
        self.store.run("INSERT INTO names (key, id, declared) VALUES (?, ?, ?)", (account.key, number, value))
        account.epoch = epoch
        return number

    def request_at_hand(self, request: Reservation) -> Reservation:
        """Give the request on the accounts that count in here; a limit that was declared twice is asked once."""
        if len({line.account.key for line in request.lines}) < len(request.lines):
            for line in sorted(request.lines, key=lambda line: line.account.rank):
                self.at_hand(line.account)  # the strictest counts for all that are one counter
        accounts = [self.at_hand(line.account) for line in request.lines]
        if all(account is line.account for account, line in zip(accounts, request.lines, strict=True)):
            return request
        asked: dict[int, list[Line]] = {}
        for account, line in zip(accounts, request.lines, strict=True):
            asked.setdefault(id(account), []).append(replace(line, account=account))
        return replace(request, lines=tuple(asked_once(lines) for lines in asked.values()))

    # -- operations -----------------------------------------------------------------------------------------------

    def judge(self, request: Reservation, *, newcomer: bool) -> Grant | Denied:
        """Judge a request, and write what it was granted."""
        request = self.request_at_hand(request)
        known = self.operations.get(request.op_id)
        if known is None:
            told = None if is_fresh(request.op_id) else self._told(request.op_id)
            if told is not None:  # made in another process, or over: the same answer, nothing twice
                return told
            note(request.op_id)
            self._begun.append(request.op_id)
        return judge.reserve(request, self.operations, newcomer=newcomer)

    def _told(self, op_id: str) -> Told | None:
        found = self.store.all("SELECT granted FROM operations WHERE op = ?", (op_id,))
        if found:
            return Told(op_id, None if found[0][0] is None else from_sql(found[0][0]))
        return Told(op_id, None) if is_over(self.store, op_id) else None

    def end(self, op_id: str) -> Operation | None:
        """Take an operation out, with its accounts as they are now, ready to be settled or released; None when it is over."""
        operation = self.operations.get(op_id)
        if operation is None:
            return None
        self.bring(operation, ends=True)
        self.ended.append((op_id, operation, operation.ended))
        del self.operations[op_id]
        if op_id in self._begun:  # in this very transaction: the file has not heard of it, and need not
            return operation
        if self.store.run("UPDATE operations SET state = 2, at = ? WHERE op = ? AND state = 0", (self.now_s, op_id)).rowcount != 1:
            self._take_up_again(op_id, operation)
        return operation

    def extend(self, op_id: str, more: Mapping[str, int]) -> Extended:
        """Hold more for an operation that goes on; nothing for one that is over, or whose process was thought dead meanwhile."""
        operation = self.operations.get(op_id)
        if operation is None:
            return Extended({})
        self.bring(operation)
        found = self.store.all("SELECT state FROM operations WHERE op = ?", (op_id,))
        if not found or found[0][0] != LIVE:
            return Extended({})
        self._extended.append((operation, list(operation.share()), operation.observed))
        return judge.extend(operation, more)

    def bring(self, operation: Operation, *, ends: bool = False) -> None:
        """Put an operation on the accounts that count in here; one that `ends` goes without those that were lost."""
        if ends:
            self._leave_lost(operation)
        accounts = [self.at_hand(line.account) for line in operation.lines]
        if any(account is not line.account for account, line in zip(accounts, operation.lines, strict=True)):
            operation.lines = [replace(line, account=account) for account, line in zip(accounts, operation.lines, strict=True)]

    def _leave_lost(self, operation: Operation) -> None:
        there: list[tuple[Line, int]] = []
        for line, hold in operation.holds:
            try:
                self.at_hand(line.account)
            except StoreError as error:
                if error.reason != "store_lost":
                    raise
            else:
                there.append((line, hold))
        if len(there) < len(operation.lines) and not operation.ended:
            operation.lines, operation.held = [line for line, _ in there], [hold for _, hold in there]
            operation.taken = len(there)
            warn_uncounted(FORGOTTEN)

    def _take_up_again(self, op_id: str, operation: Operation) -> None:
        """Undo the provisional end of an operation whose process had gone silent, so that the real one can follow."""
        found = self.store.all("SELECT state FROM operations WHERE op = ?", (op_id,))
        state = found[0][0] if found else OVER if is_over(self.store, op_id) else PROVISIONAL
        over = state == OVER
        for line, hold in operation.holds[operation.ended : operation.taken]:
            account = line.account
            if account.row is LOCAL or over:
                continue
            if state == GIVEN_BACK:
                account.held, account.used = account.held + hold, account.used + charged_at_once(line)
            elif account.nature is Nature.HELD or line.carved:
                account.held, account.used = account.held + hold, max(0, account.used - hold)
        if over:
            operation.ended = operation.taken
        self.store.run("UPDATE operations SET state = 2, at = ? WHERE op = ?", (self.now_s, op_id))

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
                wait_queue.serve_line(account, self.operations, self.woken)
        self._begun.extend(waiter.request.op_id for waiter in self.woken if waiter.request.op_id not in self._begun)

    def stand(self, waiter: Stander) -> Grant | Denied | None:
        """Put somebody of ours at the end of the line for what stands in the way, or answer when nobody has to wait."""
        waiter.request = self.request_at_hand(waiter.request)
        answer = self.judge(waiter.request, newcomer=True)
        if not isinstance(answer, Denied) or not wait_queue.is_contended(answer):
            return answer
        if wait_queue.blocks_itself(waiter.request, answer.account, self.operations):
            return self.judge(replace(waiter.request, patience_s=0.0), newcomer=True)
        waiter.blocked_by = answer.account
        self._joined.append(waiter)
        answer.account.line.append(waiter)
        self.waiters[waiter] = None
        return None

    def answer(self, waiter: Stander) -> None:
        """Give somebody of ours whose patience is over what there is, if it is the least that is needed."""
        answer = self.judge(replace(waiter.request, patience_s=0.0), newcomer=False)
        if not wait_queue.is_contended(answer):
            waiter.answer = answer
            self._answered.append(waiter)

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
        ours = [self.operations[op_id] for op_id in self._begun if op_id in self.operations]
        ours += [operation for operation, _, _ in self._extended]
        return bool(self.waiters) or any(hold for operation in ours for hold in operation.share())

    def close(self, process: int) -> None:
        """Write everything, under the number of this process; what is raised leaves everything to `undo`."""
        for number, account in self._at_hand.items():
            values = written(account)
            if values != self._read[number]:
                self.store.run(UPDATE, (*values, self.now_s, number))
            account.row.steady = values[STEADY - 2 :]  # type: ignore[attr-defined]  # what is at hand has a row
        for op_id in self._begun:
            if op_id in self.operations:
                self._write_operation(op_id, process)
        for operation, _, _ in self._extended:  # one that held nothing until now may be known under no process yet
            row = (holds_of(operation), process, operation.op_id)
            self.store.run("UPDATE operations SET holds = ?, process = ? WHERE op = ?", row)
        if self.waiters or self.woken:
            self._write_line(process)
        for account in self._at_hand.values():
            assert isinstance(account.row, Row)
            account.row.used = account.used
        for twin, account in self._twins:
            mirror(twin, account)
        self.store.commit()
        for waiter in self.woken:
            assert isinstance(waiter, Stander)
            self.waiters.pop(waiter, None)

    def _write_operation(self, op_id: str, process: int) -> None:
        operation = self.operations[op_id]
        if all(line.account.row is LOCAL for line in operation.lines):
            return
        granted = operation.granted
        self.store.run(
            BEGIN,
            (op_id, process, None if granted is None else to_sql(granted), holds_of(operation), self.now_s),
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
        for account, (used, *before) in self._before.items():
            restore(account, before)
            if used is not None and isinstance(account.row, Row):
                account.row.used = used
            elif account.row is not LOCAL:
                account.row = None  # the row was made in here
        self._undo_operations()
        for waiter in (*self.woken, *self._answered):
            waiter.answer = None
        for stander, ticket, place in reversed(self._stood):
            stander.ticket, stander.place = ticket, place
        for stander in self._joined:
            self.waiters.pop(stander, None)
        self.waiters.update(dict.fromkeys(self._gone))

    def _undo_operations(self) -> None:
        begun = set(self._begun)
        if self._known is not None:
            begun |= self.operations.keys() - self._known
        for op_id in begun:
            self.operations.pop(op_id, None)
        for operation, held, observed in reversed(self._extended):
            operation.held, operation.observed = held, observed
        for op_id, operation, ended in self.ended:
            operation.ended = ended
            if op_id not in begun:
                self.operations[op_id] = operation


def look(store: Store, account: Account, now_ns: int) -> bool:
    """Show in an account what its row says, outside of transactions; False when there is none."""
    found = store.look(_LOOK, (account.key,))
    if found:
        shown(account, found[0])
        expire(account, now_ns)
    return bool(found)


def copies(store: Store, accounts: Sequence[Account], now_ns: int) -> list[Copy | None]:
    """Copy accounts as their rows are now, outside of transactions; None where a row is lost, or another life's."""
    rows: dict[str, tuple[Any, ...]] = {}
    keys = [] if store.is_unmade() else [account.key for account in accounts]
    for at in range(0, len(keys), _MOST_AT_ONCE):
        some = keys[at : at + _MOST_AT_ONCE]
        for key, *row in store.look(f"{_COPY}({', '.join('?' * len(some))})", some):
            rows[key] = tuple(row)
    return [_copy(account, rows.get(account.key), now_ns) for account in accounts]


def _copy(account: Account, found: tuple[Any, ...] | None, now_ns: int) -> Copy | None:
    if found is None:
        return None if account.epoch is not None else Copy(account, now_ns)
    if account.epoch not in (None, found[1]):
        return None
    one, row = Copy(account, now_ns), account.row
    by_hand = account.used - row.used if isinstance(row, Row) and row is not LOCAL else 0
    try:
        show(one.account, found)
    except StoreError:  # of the others it may say what can be read
        return None
    one.account.used += max(0, by_hand)
    expire(one.account, now_ns)
    return one
