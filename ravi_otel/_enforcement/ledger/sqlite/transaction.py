"""Be one step on a ledger's file: rows read into accounts, judged, and written back, or forgotten as one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from secrets import token_hex
from typing import Any, Final

from ravi_otel._enforcement.ledger import judge, wait_queue
from ravi_otel._enforcement.ledger.account import Account, Nature
from ravi_otel._enforcement.ledger.contract import Denied, Extended, Grant, Line, Reservation, Settled, Told, asked_once
from ravi_otel._enforcement.ledger.judge import Operation
from ravi_otel._enforcement.ledger.sqlite.file import LedgerFile
from ravi_otel._enforcement.ledger.sqlite.leases import Leases
from ravi_otel._enforcement.ledger.sqlite.rows import (
    COLUMNS,
    GIVEN_BACK,
    LIVE,
    OVER,
    PROVISIONAL,
    STEADY,
    Columns,
    Row,
    charged_at_once,
    from_sql,
    mirror,
    show,
    steady_of,
    to_sql,
    written,
)
from ravi_otel._enforcement.ledger.sqlite.settled_ids import is_fresh, is_over
from ravi_otel._enforcement.ledger.store_failures import (
    FORGOTTEN,
    StoreError,
    begin_anew,
    kept_s,
    may_begin_anew,
    warn_begun_anew,
    warn_uncounted,
)
from ravi_otel._enforcement.ledger.store_readings import Copy
from ravi_otel._enforcement.ledger.wait_queue import Waiter
from ravi_otel._enforcement.ledger.windows import expire

_NS: Final = 1_000_000_000
_LARGEST: Final = 1 << 62
_MOST_AT_ONCE: Final = 500
_FIRST: Final = f"SELECT {COLUMNS}, EXISTS (SELECT 1 FROM line) FROM accounts WHERE id = ?"  # noqa: S608 - constants alone
_NEXT: Final = f" UNION ALL SELECT {COLUMNS}, 0 FROM accounts WHERE id = ?"  # noqa: S608 - constants alone
_MOST_ROWS: Final = 100
"""How many rows are read at once: SQLite takes so many parts of one query."""

_LOOK: Final = f"SELECT {COLUMNS} FROM accounts WHERE id = (SELECT id FROM names WHERE key = ?)"  # noqa: S608 - constants alone
_COPY: Final = f"SELECT names.key, accounts.{COLUMNS} FROM names JOIN accounts ON accounts.id = names.id WHERE names.key IN "  # noqa: S608 - constants alone
_ADD: Final = "UPDATE accounts SET used=?, held=?, seen=? WHERE id=?"
_UPDATE: Final = (
    "UPDATE accounts SET used=?, held=?, value=?, denied=?, near=?, exceeded=?, draining=?, events=?, rolling=?, seen=? WHERE id=?"
)
_MAKE: Final = (
    "INSERT INTO accounts (epoch, value, used, held, denied, near, exceeded, draining, events, rolling, lasts, seen)"
    " VALUES (?, ?, ?, 0, 0, 0, 0, 0, '', '', ?, ?)"
)
_BEGIN: Final = "INSERT INTO operations (op, process, state, granted, holds, at) VALUES (?, ?, 0, ?, ?, ?)"
_END: Final = "UPDATE operations SET state = 2, at = ? WHERE op = ? AND state = 0"
_STAND: Final = "INSERT INTO line (process, account) VALUES (?, ?)"
_selects: Final[dict[int, str]] = {}


class Stander(Waiter):
    """Stand in line in this process, with a ticket that the others see; `failure` ends the wait when the store is gone."""

    __slots__ = ("blocked_by", "failure", "place", "ticket")

    def __init__(self, request: Reservation) -> None:
        super().__init__(request)
        self.ticket: int | None = None
        self.place = 0
        self.blocked_by: Account | None = None
        self.failure: StoreError | None = None


class Transaction:
    """Be one step. What it changes is everybody's after `close`, nobody's after `undo`.

    `operations` and `waiters` are this process's own. The first account object that stands for a row is the one that counts in here;
    others of the same row are shown the result. What a row said when it was read is what its account says again after `undo`.
    """

    def __init__(self, file: LedgerFile, operations: dict[str, Operation], waiters: dict[Stander, None], now_ns: int) -> None:
        self.file = file
        self.operations = operations
        self.waiters = waiters
        self.now_ns = now_ns
        self.now_s = now_ns // _NS
        self.woken: list[Waiter] = []
        self.ended: list[tuple[str, Operation, int]] = []
        self._at_hand: dict[int, Account] = {}
        self._read: dict[int, Columns] = {}
        self._by_hand: dict[int, int] = {}
        self._made: list[tuple[Account, tuple[Any, ...]]] = []
        self._twins: list[Account] = []
        self._lost: list[Account] = []
        self._begun: list[str] = []
        self._extended: list[tuple[Operation, list[int], Account | None]] = []
        self._tickets: list[tuple[int, int]] | None = None
        self._line: _Line | None = None

    # -- accounts -------------------------------------------------------------------------------------------------

    def bring(self, lines: Sequence[Line]) -> None:
        """Have the accounts of these lines say what their rows say now. Raises StoreError for one that the file has lost.

        Of several that stand for one row the strictest counts for all.
        """
        wanted: dict[int, Account] = {}
        at_hand = self._at_hand
        for line in lines:
            account = line.account
            row = account.row
            if row is None:
                row = self._first_sight(account)
            number: int = row.id
            known = at_hand.get(number) or wanted.get(number)
            if known is None:
                wanted[number] = account
                if len(wanted) == _MOST_ROWS:
                    self._read_rows(wanted)
            elif known is not account:
                if number in wanted and account.rank < known.rank:
                    wanted[number], account = account, known
                self._twins.append(account)
        if wanted:
            self._read_rows(wanted)
        if self._lost:
            lost, self._lost = self._lost, []
            for account in lost:
                self._begin_anew(account, account.row.seen_s, "because what was counted in it is gone")
            self.bring(lines)

    def _read_rows(self, wanted: dict[int, Account]) -> None:
        """Read all of them, and leave none."""
        read, at_hand, now_s = self._read, self._at_hand, self.now_s
        found = self.file.all(_selects.get(len(wanted)) or _selecting(len(wanted)), tuple(wanted))
        lined = len(found) < len(wanted) or found[0][-1]  # whether somebody may stand in line
        for values in found:
            number, epoch, used, held = values[:4]
            account = wanted[number]
            if epoch != account.epoch:
                continue
            del wanted[number]
            row: Row = account.row
            by_hand = account.used - row.used  # written by the program's own hand, while no call was made
            if by_hand > 0 and account.nature is not Nature.CLOCK:
                self._by_hand[number] = by_hand
            read[number] = values
            at_hand[number] = account  # before it changes: `undo` shows again what was read
            same = values[STEADY] == row.steady and account.changes == row.changes and account.denied == row.denied
            if same and type(used) is type(held) is int and 0 <= used < _LARGEST and 0 <= held < _LARGEST:
                account.used, account.held = used, held
            else:
                show(account, values)
                row.steady, row.changes, row.denied = values[STEADY], account.changes, account.denied
            row.used, row.seen_s = account.used, now_s
            if number in self._by_hand:
                account.used += self._by_hand[number]
            if account.roll_ns:
                expire(account, self.now_ns)
            if account.line or lined:
                self._see_line(account, number)
        if wanted:
            self._lost.extend(wanted.values())
            wanted.clear()

    def _see_line(self, account: Account, number: int) -> None:
        """See who stands in line for an account, in this process and in others."""
        if self._tickets is None:
            self._tickets = self.file.all("SELECT ticket, account FROM line ORDER BY ticket")
        ours: dict[object, Stander] = {waiter.ticket: waiter for waiter in self.waiters}
        account.line = [ours.get(ticket, ticket) for ticket, place in self._tickets if place == number]

    def at_hand(self, account: Account) -> Account:
        """Return the account that counts in here for a row, with what the row says now."""
        self.bring((Line(account, 0, 0),))
        return self._counting(account)

    def _counting(self, account: Account) -> Account:
        return self._at_hand[account.row.id]

    def _first_sight(self, account: Account) -> Row:
        """Find or make the row; a limit declared again takes the smaller value, and arms nothing."""
        self._remember(account)
        found = self.file.all(
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
                self.file.run("UPDATE names SET declared = ? WHERE key = ?", (to_sql(account.value), account.key))
                self.file.run("UPDATE accounts SET value = ? WHERE id = ?", (to_sql(least), number))
                if number in self._at_hand:
                    self._at_hand[number].revalue(least)
            account.epoch = epoch
        account.row = row = Row(number, account.used, self.now_s)
        return row

    def _begin_anew(self, account: Account, seen_s: int, lost: str) -> None:
        """Have an account that the file has forgotten begin anew, where it may (see `store_failures`); else StoreError."""
        accepted_s = self.file.accepted_s()
        why = may_begin_anew(
            account,
            seen_ago_s=self.now_s - seen_s,
            keep_s=self.file.keep_s,
            accepted_ago_s=None if accepted_s is None else self.now_s - accepted_s,
        )
        if why is None:
            raise StoreError(lost, "store_lost")
        self._remember(account)
        begin_anew(account)
        warn_begun_anew(account, why, repr(str(self.file.path)))
        account.row = None

    def _remember(self, account: Account) -> None:
        """Note an account as it was before it had a row, or while it had one that the file has lost."""
        window = account.rolled, account.told, account.buckets
        flags = account.near, account.exceeded, account.draining
        counted = account.used, account.held, account.denied, account.events, account.refused_at
        self._made.append((account, (account.row, account.epoch, account.value, counted, flags, window)))

    @staticmethod
    def _put_back(account: Account, before: tuple[Any, ...]) -> None:
        account.row, account.epoch, value, counted, (near, exceeded, draining), window = before
        account.used, account.held, account.denied, account.events, account.refused_at = counted
        account.rolled, account.told, account.buckets = window
        account.flag(near=near, exceeded=exceeded, draining=draining)
        account.revalue(value)

    def _make(self, account: Account) -> int:
        epoch, value = token_hex(6), to_sql(account.value)
        number = self.file.run(_MAKE, (epoch, value, to_sql(account.used), kept_s(account, self.file.keep_s), self.now_s)).lastrowid
        assert number is not None
        self.file.run("INSERT INTO names (key, id, declared) VALUES (?, ?, ?)", (account.key, number, value))
        account.epoch = epoch
        return number

    def _request_at_hand(self, request: Reservation) -> Reservation:
        """Return the request on the accounts that count in here; a limit that was declared twice is asked once."""
        self.bring(request.lines)
        if not self._twins or all(self._counting(line.account) is line.account for line in request.lines):
            return request
        asked: dict[int, list[Line]] = {}
        for line in request.lines:
            account = self._counting(line.account)
            asked.setdefault(id(account), []).append(replace(line, account=account))
        return request.on([asked_once(lines) for lines in asked.values()])

    # -- operations -----------------------------------------------------------------------------------------------

    def reserve(self, request: Reservation, *, newcomer: bool = True) -> Grant | Denied:
        """Judge a request, and write what it was granted."""
        request = self._request_at_hand(request)
        op_id = request.op_id
        if op_id not in self.operations:
            told = None if is_fresh(op_id) else self._told(op_id)
            if told is not None:  # made in another process, or over: the same answer, nothing twice
                return told
            self._begun.append(op_id)
        operation = None if self._tickets or self.waiters else judge.at_once(request, self.operations)
        return operation or judge.reserve(request, self.operations, newcomer=newcomer)

    def _told(self, op_id: str) -> Told | None:
        found = self.file.all("SELECT granted FROM operations WHERE op = ?", (op_id,))
        if found:
            return Told(op_id, None if found[0][0] is None else from_sql(found[0][0]))
        return Told(op_id, None) if is_over(self.file, op_id) else None

    def settle(self, op_id: str, actual: Mapping[str, int], guessed: bool) -> Settled | None:
        """Replace what an operation holds by what was used; None when it is over."""
        operation = self.end(op_id)
        if operation is None:
            return None
        settled = judge.settle(operation, actual, guessed=guessed)
        if self.waiters:
            self.serve()
        return settled

    def release(self, op_id: str) -> None:
        """Give back what an operation holds."""
        operation = self.end(op_id)
        if operation is not None:
            judge.release(operation)
            self.serve()

    def end(self, op_id: str) -> Operation | None:
        """Take an operation out, with its accounts as they are now, ready to be settled or released; None when it is over."""
        operation = self.operations.get(op_id)
        if operation is None:
            return None
        self._bring(operation, ends=True)
        self.ended.append((op_id, operation, operation.ended))
        del self.operations[op_id]
        if op_id in self._begun:  # in this very transaction: the file has not heard of it, and need not
            return operation
        if self.file.run(_END, (self.now_s, op_id)).rowcount != 1:
            self._take_up_again(op_id, operation)
        return operation

    def extend(self, op_id: str, more: Mapping[str, int]) -> Extended:
        """Hold more for an operation that goes on; nothing for one that is over, or whose process was thought dead meanwhile."""
        operation = self.operations.get(op_id)
        if operation is None:
            return Extended({})
        self._bring(operation)
        found = self.file.all("SELECT state FROM operations WHERE op = ?", (op_id,))
        if not found or found[0][0] != LIVE:
            return Extended({})
        self._extended.append((operation, list(operation.share()), operation.observed))
        return judge.extend(operation, more)

    def hold_again(self, op_id: str, operation: Operation, process: int) -> None:
        """Hold again, whatever is left, a slot that was given away while its agent lived, under this process's new number."""
        again = "UPDATE operations SET state = ?, process = ?, at = ? WHERE op = ? AND state = ?"
        if self.file.run(again, (LIVE, process, self.now_s, op_id, GIVEN_BACK)).rowcount == 1:
            self._bring(operation)
            for line, hold in operation.holds:
                line.account.held += hold
                line.account.used += charged_at_once(line)

    def _bring(self, operation: Operation, *, ends: bool = False) -> None:
        """Put an operation on the accounts that count in here; one that `ends` goes without those that were lost."""
        try:
            self.bring(operation.lines)
        except StoreError as error:
            if error.reason != "store_lost" or not ends:
                raise
            self._leave_lost(operation)
        if self._twins and any(self._counting(line.account) is not line.account for line in operation.lines):
            operation.lines = [replace(line, account=self._counting(line.account)) for line in operation.lines]

    def _leave_lost(self, operation: Operation) -> None:
        there: list[tuple[Line, int]] = []
        for line, hold in operation.holds:
            try:
                self.bring((line,))
            except StoreError as error:
                if error.reason != "store_lost":
                    raise
            else:
                there.append((line, hold))
        if not operation.ended:
            operation.lines, operation.held = [line for line, _ in there], [hold for _, hold in there]
            operation.taken = len(there)
            warn_uncounted(FORGOTTEN)

    def _take_up_again(self, op_id: str, operation: Operation) -> None:
        """Undo the provisional end of an operation whose process had gone silent, so that the real one can follow."""
        found = self.file.all("SELECT state FROM operations WHERE op = ?", (op_id,))
        state = found[0][0] if found else OVER if is_over(self.file, op_id) else PROVISIONAL
        for line, hold in operation.holds[operation.ended : operation.taken]:
            account = line.account
            if state == GIVEN_BACK:
                account.held, account.used = account.held + hold, account.used + charged_at_once(line)
            elif state != OVER and (account.nature is Nature.HELD or line.carved):
                account.held, account.used = account.held + hold, max(0, account.used - hold)
        if state == OVER:
            operation.ended = operation.taken
        self.file.run("UPDATE operations SET state = 2, at = ? WHERE op = ?", (self.now_s, op_id))

    # -- the line -------------------------------------------------------------------------------------------------

    def _in_line(self) -> _Line:
        self._line = self._line or _Line()
        return self._line

    def serve(self) -> None:
        """Answer our own who stand in line, where it is their turn."""
        if not self.waiters:
            return
        line = self._in_line()
        for waiter in self.waiters:
            waiter.request = self._request_at_hand(waiter.request)
            known = {ticket for ticket, _ in self._tickets or ()}
            if waiter.ticket is not None and waiter.ticket not in known and waiter.blocked_by is not None:
                # Thought dead: its place is gone, and it stands behind all others now.
                line.stood.append((waiter, waiter.ticket, waiter.place))
                waiter.ticket, waiter.place = None, 0
                self.at_hand(waiter.blocked_by).line.append(waiter)
        line.known = frozenset(self.operations) if line.known is None else line.known
        for account in tuple(self._at_hand.values()):
            if account.line:
                wait_queue.serve_line(account, self.operations, self.woken)
        self._begun.extend(waiter.request.op_id for waiter in self.woken if waiter.request.op_id not in self._begun)

    def stand(self, waiter: Stander) -> Grant | Denied | None:
        """Put somebody of ours at the end of the line for what stands in the way, or answer when nobody has to wait."""
        waiter.request = self._request_at_hand(waiter.request)
        answer = self.reserve(waiter.request)
        if not isinstance(answer, Denied) or not wait_queue.is_contended(answer):
            return answer
        if wait_queue.blocks_itself(waiter.request, answer.account, self.operations):
            return self.reserve(waiter.request.hurried())
        waiter.blocked_by = answer.account
        self._in_line().joined.append(waiter)
        answer.account.line.append(waiter)
        self.waiters[waiter] = None
        return None

    def leave(self, waiter: Stander, *, wants: bool) -> None:
        """Take somebody of ours out of line; who ran out of patience, and still wants, gets what there is, if that is the least needed."""
        waiter.request = self._request_at_hand(waiter.request)
        line = self._in_line()
        for account in self._at_hand.values():
            if waiter in account.line:
                account.line.remove(waiter)
        self._tear(waiter)
        line.gone.append(waiter)
        self.waiters.pop(waiter, None)
        if wants and not waiter.woken:
            answer = self.reserve(waiter.request.hurried(), newcomer=False)
            if not wait_queue.is_contended(answer):
                waiter.answer = answer
                line.answered.append(waiter)
        self.serve()  # whoever stood behind may fit where this one did not

    def _tear(self, waiter: Stander) -> None:
        if waiter.ticket is not None:
            self.file.run("DELETE FROM line WHERE ticket = ?", (waiter.ticket,))

    # -- its end --------------------------------------------------------------------------------------------------

    def close(self, leases: Leases, now: int) -> bool:
        """Write everything, under the number of this process; tell whether something is held, so that others must know if it dies."""
        alive, granted, extended = bool(self.waiters), list[tuple[str, Any, str]](), list[tuple[str, str]]()
        for op_id in self._begun:
            if op_id in self.operations:
                tokens, holds = written(self.operations[op_id])
                alive = alive or holds != "[]"
                granted.append((op_id, tokens, holds))
        for operation, _, _ in self._extended:
            holds = written(operation)[1]
            alive = alive or holds != "[]"
            extended.append((holds, operation.op_id))
        process = leases.process
        if alive and (not process or now - leases.seen >= leases.lease_ns // 4):
            process = leases.keep(self.file, now)
        for op_id, tokens, holds in granted:
            self.file.run(_BEGIN, (op_id, process, tokens, holds, self.now_s))
        for holds, op_id in extended:  # one that held nothing until now may be known under no process yet
            self.file.run("UPDATE operations SET holds = ?, process = ? WHERE op = ?", (holds, process, op_id))
        if self._line is not None:
            self._write_line(process, self._line)
        self._write_rows()
        self.file.commit()
        for twin in self._twins:
            mirror(twin, self._counting(twin))
        for waiter in self.woken:
            assert isinstance(waiter, Stander)
            self.waiters.pop(waiter, None)
        return alive

    def _write_rows(self) -> None:
        now_s, sums = self.now_s, list[tuple[int, int, int, int]]()
        for number, account in self._at_hand.items():
            row: Row = account.row
            used, held, values = account.used, account.held, self._read[number]
            row.used = used
            same = account.changes == row.changes and account.denied == row.denied and not account.roll_ns
            if same and 0 <= used < _LARGEST and 0 <= held < _LARGEST:
                if used != values[2] or held != values[3]:
                    sums.append((used, held, now_s, number))
                continue
            steady = steady_of(account)
            amounts = to_sql(used), to_sql(held)
            if amounts != values[2:4] or steady != values[STEADY]:
                self.file.run(_UPDATE, (*amounts, *steady, now_s, number))
            row.steady, row.changes, row.denied = steady, account.changes, account.denied
        if sums:
            self.file.many(_ADD, sums)

    def _write_line(self, process: int, line: _Line) -> None:
        for answered in self.woken:
            assert isinstance(answered, Stander)
            self._tear(answered)
        for number, account in self._at_hand.items():
            for waiter in account.line:
                if isinstance(waiter, Stander) and waiter.place != number:
                    line.stood.append((waiter, waiter.ticket, waiter.place))
                    self._tear(waiter)
                    waiter.place, waiter.ticket = number, self.file.run(_STAND, (process, number)).lastrowid

    def undo(self) -> None:
        """Forget everything: the file is as before, our accounts say what it says, and our operations are what they were."""
        self.file.rollback()
        for number, account in self._at_hand.items():
            row: Row = account.row
            try:
                show(account, self._read[number])
            except StoreError:  # it could not be read, and the account is as it was
                continue
            row.used, row.steady, row.changes = account.used, (), -1
            account.used += self._by_hand.get(number, 0)
        for account, before in reversed(self._made):
            self._put_back(account, before)
        self._undo_operations(self._line)
        if self._line is not None:
            self._undo_line(self._line)

    def _undo_operations(self, line: _Line | None) -> None:
        begun = set(self._begun)
        if line is not None and line.known is not None:
            begun |= self.operations.keys() - line.known
        for op_id in begun:
            self.operations.pop(op_id, None)
        for operation, held, observed in reversed(self._extended):
            operation.held, operation.observed = held, observed
        for op_id, operation, ended in self.ended:
            operation.ended = ended
            if op_id not in begun:
                self.operations[op_id] = operation

    def _undo_line(self, line: _Line) -> None:
        for waiter in (*self.woken, *line.answered):
            waiter.answer = None
        for stander, ticket, place in reversed(line.stood):
            stander.ticket, stander.place = ticket, place
        for stander in line.joined:
            self.waiters.pop(stander, None)
        self.waiters.update(dict.fromkeys(line.gone))
        for account in self._at_hand.values():
            account.line = [waiter for waiter in account.line if waiter in self.waiters]


class _Line:
    """Note what a step does with those who stand in line, so that it can be undone; `known` are the operations from before."""

    __slots__ = ("answered", "gone", "joined", "known", "stood")

    def __init__(self) -> None:
        self.answered: list[Stander] = []
        self.gone: list[Stander] = []
        self.joined: list[Stander] = []
        self.known: frozenset[str] | None = None
        self.stood: list[tuple[Stander, int | None, int]] = []


def _selecting(count: int) -> str:
    statement = _selects[count] = _FIRST + _NEXT * (count - 1)
    return statement


def look(file: LedgerFile, account: Account, now_ns: int) -> bool:
    """Show in an account what its row says, outside of transactions; False when there is none."""
    found = file.look(_LOOK, (account.key,))
    if found:
        show(account, found[0])
        if isinstance(account.row, Row):
            account.row.used = account.used
        expire(account, now_ns)
    return bool(found)


def copies(file: LedgerFile, accounts: Sequence[Account], now_ns: int) -> list[Copy | None]:
    """Copy accounts as their rows are now, outside of transactions; None where a row is lost, or another life's."""
    rows: dict[str, tuple[Any, ...]] = {}
    keys = [] if file.is_unmade() else [account.key for account in accounts]
    for at in range(0, len(keys), _MOST_AT_ONCE):
        some = keys[at : at + _MOST_AT_ONCE]
        for key, *row in file.look(f"{_COPY}({', '.join('?' * len(some))})", some):
            rows[key] = tuple(row)
    return [_copy(account, rows.get(account.key), now_ns) for account in accounts]


def _copy(account: Account, found: tuple[Any, ...] | None, now_ns: int) -> Copy | None:
    if found is None:
        return None if account.epoch is not None else Copy(account, now_ns)
    if account.epoch not in (None, found[1]):
        return None
    one, row = Copy(account, now_ns), account.row
    by_hand = account.used - row.used if isinstance(row, Row) else 0
    try:
        show(one.account, found)
    except StoreError:  # of the others it may say what can be read
        return None
    one.account.used += max(0, by_hand)
    expire(one.account, now_ns)
    return one
