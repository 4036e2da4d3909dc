"""One step on a ledger's file: rows are read into accounts, judged, and written back, or dropped as one."""

from __future__ import annotations

import contextlib
import os
import re
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from json import loads  # as it is now: the program may make tools of that module's functions
from secrets import token_hex
from typing import Any, Final, cast

from ravi_otel._enforcement.clock import Clock
from ravi_otel._enforcement.ledger import judge, wait_queue
from ravi_otel._enforcement.ledger.account import Account, Copy, Nature, state_of
from ravi_otel._enforcement.ledger.contract import is_fresh
from ravi_otel._enforcement.ledger.judge import Denied, Extended, Grant, Line, Operation, RepeatedGrant, Reservation, Settled, asked_once
from ravi_otel._enforcement.ledger.sqlite.file import Execute, LedgerFile, accepted_at, from_sql, to_sql
from ravi_otel._enforcement.ledger.store_failures import StoreError, warn_begun_anew
from ravi_otel._enforcement.ledger.wait_queue import Waiter

LIVE, PROVISIONAL, OVER, GIVEN_BACK = 0, 1, 2, 3
"""The states of an operation."""

_NS: Final = 1_000_000_000
_NEVER: Final = -(1 << 62)


# -- leases -----------------------------------------------------------------------------------------------------------


class Leases:
    """Keep this process's row alive, and end what silent processes left behind; everything inside a transaction.

    `process` is this process's number in the file of `epoch`, 0 without one. `kept` is when it gave its last sign of life. Both are done
    once a second, or four times a lease, and again where the step that did them was not written.

    Times of signs of life are readings of the machine's monotonic clock, which all processes of one boot share. After a reboot it begins
    again: a sign of life from the future is one from before it.
    """

    def __init__(self, lease_s: float) -> None:
        self.lease_ns: Final = round(lease_s * _NS)
        self._every_ns = min(_NS, self.lease_ns // 4)
        self.process = 0
        self.epoch: str | None = None
        self.kept = _NEVER

    def restore(self, process: int, kept: int) -> None:
        """Have the number, and the last sign of life, that there were before a step that was not written."""
        self.process, self.kept = process, kept

    def is_due(self, now: int) -> bool:
        """Whether a sign of life should be given, and the dead be looked for."""
        return not 0 <= now - self.kept < self._every_ns

    def enrol(self, execute: Execute, now: int) -> int:
        """Have this process known in the file; return its number."""
        made = execute("INSERT INTO processes (pid, seen, lease) VALUES (?, ?, ?)", (os.getpid(), now, self.lease_ns))
        self.process = made.lastrowid or 0
        return self.process

    def keep(self, execute: Execute, now: int) -> bool:
        """Give a sign of life; False where this process was thought dead meanwhile, and has another number from now on."""
        self.kept = now
        if not self.process or execute("UPDATE processes SET seen = ? WHERE id = ?", (now, self.process)).rowcount == 1:
            return True
        self.enrol(execute, now)
        return False

    def reap(self, execute: Execute, now: int, now_s: int, *, everybody: bool = False) -> int:
        """End what processes hold whose lease ran out (or that are others, with `everybody`); return how many there were."""
        silent = "SELECT id FROM processes WHERE id != ? AND (? OR seen + lease < ? OR seen > ?)"
        found = execute(silent, (self.process, everybody, now, now + _NS)).fetchall()
        for (process,) in found:
            _bury(execute, process, now_s)
        return len(found)

    def sign_off(self, execute: Execute, now_s: int) -> None:
        """End what this process still holds as if it had died."""
        if self.process:
            _bury(execute, self.process, now_s)
            self.process = 0


def _bury(execute: Execute, process: int, now_s: int) -> None:
    """Settle at its grant whatever a process holds, until it says otherwise, give its slots back, drop its places in line."""
    operations = execute("SELECT op, holds FROM operations WHERE process = ? AND state = ?", (process, LIVE)).fetchall()
    for op_id, holds in operations:
        state = PROVISIONAL
        for account, hold, charged in _held_by(holds):
            _settle(execute, account, hold, hold if charged is None else -charged)
            state = PROVISIONAL if charged is None else GIVEN_BACK
        execute("UPDATE operations SET state = ?, at = ? WHERE op = ?", (state, now_s, op_id))
    execute("DELETE FROM line WHERE process = ?", (process,))
    execute("DELETE FROM processes WHERE id = ?", (process,))


def _settle(execute: Execute, account: int, hold: int, more: int) -> None:
    # Whether this crosses a warning level is told by whoever knows the limit, at its next step.
    found = execute("SELECT used, held FROM accounts WHERE id = ?", (account,)).fetchone()
    if found is None:  # the counter is gone, and what was held of it with it
        return
    used, held = max(0, from_sql(found[0]) + more), max(0, from_sql(found[1]) - hold)
    execute("UPDATE accounts SET used = ?, held = ? WHERE id = ?", (to_sql(used), to_sql(held), account))


def _held_by(holds: object) -> Iterable[tuple[int, int, int | None]]:
    """Read which rows an operation holds how much of, and for a slot what was charged; StoreError for what cannot be read."""
    held: list[tuple[Any, Any, Any]] = [(None, None, None)]
    with contextlib.suppress(TypeError, ValueError, RecursionError):
        found: Any = loads(holds) if isinstance(holds, str) else None
        if isinstance(found, list):
            held = [(number, *_amounts(*amounts)) for number, *amounts in found]  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]  # JSON may hold anything
    for number, hold, charged in held:
        if not (type(number) is int and type(hold) is int and hold >= 0 and (charged is None or (type(charged) is int and charged >= 0))):
            raise StoreError("because what it says of an operation cannot be read")
    return held


def _amounts(hold: object, charged: object = None) -> tuple[object, object]:
    return hold, charged


# -- what is over -----------------------------------------------------------------------------------------------------

BATCH: Final = 64
"""How many rows of operations that are over a process leaves before it turns them into bits."""

KEPT_S: Final = 7 * 24 * 3600
"""How long it is known what is over."""

_PART: Final = 4_096
_MOST_FORGOTTEN: Final = 1_000
_EVERY_S: Final = 3600
_MADE: Final = re.compile(r"([0-9a-f]{1,16}-[0-9a-f]{8})-(0|[1-9][0-9]{0,14})")


class SettledIds:
    """Know which operations of this process are over, as far as the file does not say it in bits yet; changed under the ledger's lock.

    A message may come again, also in another process: it must count once. So an operation leaves a trace for as long as counters live.
    Its row is turned into a bit when there are some more, because a step that writes few pages is a quick one.
    """

    def __init__(self) -> None:
        self.ended: list[str] = []
        self._cleaned_s = -_EVERY_S

    def write(self, execute: Execute, now_s: int) -> None:
        """Turn them into bits."""
        numbers: dict[tuple[str, int], int] = {}
        done = [(op_id, made) for op_id in self.ended if (made := _parts(op_id)) is not None]
        for _, (prefix, part, bit) in done:
            numbers[prefix, part] = numbers.get((prefix, part), 0) | 1 << bit
        for (prefix, part), bits in numbers.items():
            written = (_bits_of(execute, prefix, part) | bits).to_bytes(_PART // 8, "little")
            execute("INSERT OR REPLACE INTO ended (prefix, part, bits, at) VALUES (?, ?, ?, ?)", (prefix, part, written, now_s))
        for op_id, _ in done:
            execute("DELETE FROM operations WHERE op = ? AND state = 2", (op_id,))

    def clean(self, execute: Execute, now_s: int, keep_s: float) -> None:
        """Forget what nobody has used for long; once an hour, and not all of very much at once."""
        if abs(now_s - self._cleaned_s) < _EVERY_S:
            return
        self._cleaned_s = now_s
        unused = "SELECT id FROM accounts WHERE held IN (0, '0') AND seen < ? - max(lasts, ?) LIMIT ?"
        for gone in execute(unused, (now_s, min(KEPT_S, round(keep_s)), _MOST_FORGOTTEN)).fetchall():
            execute("DELETE FROM names WHERE id = ?", gone)
            execute("DELETE FROM accounts WHERE id = ?", gone)
        execute("DELETE FROM ended WHERE at < ?", (now_s - KEPT_S,))
        execute("DELETE FROM operations WHERE at < ? AND (state != 0 OR holds = '[]')", (now_s - KEPT_S,))


def is_over(execute: Execute, op_id: str) -> bool:
    """Whether an operation was ended, as far as the bits say."""
    made = _parts(op_id)
    return made is not None and bool(_bits_of(execute, made[0], made[1]) >> made[2] & 1)


def _parts(op_id: str) -> tuple[str, int, int] | None:
    """Return the process that made an operation's id, and where its bit is; None for an id that was made otherwise."""
    made = _MADE.fullmatch(op_id)
    return None if made is None else (made[1], *divmod(int(made[2]), _PART))


def _bits_of(execute: Execute, prefix: str, part: int) -> int:
    """Read which operations of a process are over."""
    (bits,) = execute("SELECT bits FROM ended WHERE prefix = ? AND part = ?", (prefix, part)).fetchone() or (None,)
    return int.from_bytes(bits, "little") if isinstance(bits, bytes) and len(bits) == _PART // 8 else 0


_LARGEST: Final = 1 << 62
_MOST_AT_ONCE: Final = 500
_MOST_EVENTS: Final = 10_000
_EVENTS: Final = frozenset({"limit_nearing", "limit_exceeded"})

_COLUMNS: Final = "accounts.id, epoch, used, held, value, denied, near, exceeded, draining, events, rolling"
_STEADY: Final = slice(4, 11)
"""Where of a row stands what changes seldom."""

_READ: Final = f"SELECT {_COLUMNS}, EXISTS (SELECT 1 FROM line) FROM accounts WHERE id IN "  # noqa: S608 - constants alone
_LOOK: Final = f"SELECT key, {_COLUMNS} FROM names JOIN accounts ON accounts.id = names.id WHERE key IN "  # noqa: S608 - constants alone
_ADD: Final = "UPDATE accounts SET used=?, held=?, seen=? WHERE id=?"
_UPDATE: Final = (
    "UPDATE accounts SET used=?, held=?, value=?, denied=?, near=?, exceeded=?, draining=?, events=?, rolling=?, seen=? WHERE id=?"
)
_MAKE: Final = (
    "INSERT INTO accounts (epoch, value, used, held, denied, near, exceeded, draining, events, rolling, lasts, seen)"
    " VALUES (?, ?, ?, 0, 0, 0, 0, 0, '', '', ?, ?)"
)
_HOLD: Final = "INSERT OR REPLACE INTO operations (op, process, state, granted, holds, at) VALUES (?, ?, 0, ?, ?, ?)"


class Stander(Waiter):
    """Stand in line in this process, with a ticket that the others see; `failure` ends the wait when the store is gone."""

    __slots__ = ("failure", "place", "ticket")

    def __init__(self, request: Reservation) -> None:
        super().__init__(request)
        self.ticket: int | None = None
        self.place = 0
        self.failure: StoreError | None = None


class Transaction:
    """One step. What it changes is everybody's after `write` and a commit, nobody's after `undo`.

    `operations` and `waiters` are this process's own. The first account object that stands for a row is the one that counts in here;
    others of the same row are shown the result. `execute` runs a statement, `then` is what to do once it is everybody's. It begins on the
    file when it is made, and reads two clocks: one by which windows roll, and the one that all processes share.
    """

    def __init__(
        self, file: LedgerFile, operations: dict[str, Operation], waiters: dict[Stander, None], leases: Leases, clock: Clock
    ) -> None:
        connection = file.begin()
        self.file = file
        self.operations = operations
        self.waiters = waiters
        self.leases = leases
        self.execute: Execute = connection.execute
        self._execute_many = connection.executemany
        self.now_ns, self.alive_ns = int(clock.time() * _NS), clock.monotonic_ns()
        self.now_s = self.now_ns // _NS
        self.then: list[Callable[[], object]] = []
        self.woken: deque[Waiter] = deque()
        self.ended: list[str] = []
        self.holds = False  # whether others must know if this process dies
        self._at_hand: dict[int, Account] = {}
        self._read: dict[int, tuple[Any, ...]] = {}
        self._twins: list[Account] = []
        if leases.epoch != file.epoch:  # there was another file before, in which this process had a number
            leases.process, leases.epoch = 0, file.epoch
        self._undo: list[Callable[[], object]] = [partial(leases.restore, leases.process, leases.kept)]
        self._tickets: dict[int, int] | None = None
        self._lined = self._forgotten = False

    # -- accounts -------------------------------------------------------------------------------------------------

    def bring(self, lines: Sequence[Line]) -> None:
        """Have the accounts of these lines say what their rows say now. Raises StoreError for one that the file has lost.

        Of several that stand for one row the strictest counts for all.
        """
        wanted: dict[int, Account] = {}
        at_hand = self._at_hand
        for line in lines:
            account = line.account
            row: Row = account.row or self._first_sight(account)
            known = at_hand.get(row.id) or wanted.get(row.id)
            if known is None:
                wanted[row.id] = account
            elif known is not account:
                if row.id in wanted and account.rank < known.rank:
                    wanted[row.id], account = account, known
                self._twins.append(account)
        if wanted:
            self._read_rows(wanted)
        if wanted:
            for account in wanted.values():
                self._begin_anew(account, account.row.seen_s, "because what was counted in it is gone")
            self.bring(lines)

    def _read_rows(self, wanted: dict[int, Account]) -> None:
        """Read all of them, and leave those that are lost."""
        read, at_hand, now_s = self._read, self._at_hand, self.now_s
        found = self.execute(f"{_READ}({', '.join('?' * len(wanted))})", tuple(wanted)).fetchall()
        lined = found and found[0][-1]  # whether somebody may stand in line
        for values in found:
            number, epoch, used, held = values[:4]
            account = wanted[number]
            if epoch != account.epoch:
                continue
            row: Row = account.row
            self._undo.append(partial(_put_back, account, row, row.used, account.refused_at, account.waiters[:], state_of(account)))
            del wanted[number]
            read[number], at_hand[number] = values, account
            by_hand = account.used - row.used  # written by the program's own hand, while no call was made
            same = values[_STEADY] == row.steady and account.changes == row.changes and account.denied == row.denied
            if same and type(used) is type(held) is int and 0 <= used < _LARGEST and 0 <= held < _LARGEST:
                account.used, account.held = used, held
            else:
                _show(account, values)
                row.steady, row.changes, row.denied = values[_STEADY], account.changes, account.denied
            row.used, row.seen_s = account.used, now_s
            if by_hand > 0 and account.nature is not Nature.CLOCK:
                account.used += by_hand
            if account.roll_ns:
                account.buckets = dict(account.buckets)
                account.expire(self.now_ns)
            if account.waiters or lined:
                self._see_line(account, number)

    def _see_line(self, account: Account, number: int) -> None:
        """See who stands in line for an account, in this process and in others."""
        if self._tickets is None:
            self._tickets = dict(self.execute("SELECT ticket, account FROM line ORDER BY ticket"))
        ours: dict[object, Stander] = {waiter.ticket: waiter for waiter in self.waiters}
        account.waiters = [ours.get(ticket, ticket) for ticket, place in self._tickets.items() if place == number]

    def at_hand(self, account: Account) -> Account:
        """Return the account that counts in here for a row, with what the row says now."""
        self.bring((Line(account, 0, 0),))
        return self._counting(account)

    def _counting(self, account: Account) -> Account:
        return self._at_hand[account.row.id]

    def _first_sight(self, account: Account) -> Row:
        """Find or make the row; a limit declared again takes the smaller value, and arms nothing."""
        self._note(account)
        question = "SELECT names.id, declared, value, epoch FROM names JOIN accounts ON accounts.id = names.id WHERE key = ?"
        found = self.execute(question, (account.key,)).fetchone()
        if account.epoch is not None and (found is None or found[3] != account.epoch):
            self._begin_anew(account, self.now_s, "because what was counted in it before is not there any more")
        if found is None:
            number = self._make(account)
        else:
            number, declared, value, epoch = found
            if not isinstance(epoch, str):
                raise StoreError("because it does not say which life of a counter it keeps")
            account.epoch = epoch
            if account.value < from_sql(declared):
                least = min(account.value, from_sql(value))
                self.execute("UPDATE names SET declared = ? WHERE key = ?", (to_sql(account.value), account.key))
                self.execute("UPDATE accounts SET value = ? WHERE id = ?", (to_sql(least), number))
                if number in self._at_hand:
                    self._at_hand[number].revalue(least)
        account.row = row = Row(number, account.used, self.now_s)
        return row

    def _make(self, account: Account) -> int:
        account.epoch, value = token_hex(6), to_sql(account.value)
        made = (account.epoch, value, to_sql(account.used), account.kept_s(self.file.keep_s), self.now_s)
        number = self.execute(_MAKE, made).lastrowid
        assert number is not None
        self.execute("INSERT INTO names (key, id, declared) VALUES (?, ?, ?)", (account.key, number, value))
        return number

    def _begin_anew(self, account: Account, seen_s: int, lost: str) -> None:
        """Have an account that the file has forgotten begin anew, where it may (see `store_failures`); else StoreError."""
        accepted_s = accepted_at(self.execute)
        why = account.may_begin_anew(
            seen_ago_s=self.now_s - seen_s,
            keep_s=self.file.keep_s,
            accepted_ago_s=None if accepted_s is None else self.now_s - accepted_s,
        )
        if why is None:
            raise StoreError.of_lost_counter(lost)
        self._note(account)
        account.begin_anew()
        warn_begun_anew(account, why, repr(str(self.file.path)))
        account.row = None

    def _note(self, account: Account) -> None:
        """Have `undo` show again what an account says now."""
        row: Row | None = account.row
        used = 0 if row is None else row.used
        self._undo.append(partial(_put_back, account, row, used, account.refused_at, account.waiters[:], state_of(account)))

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
        op_id, operations = request.op_id, self.operations
        known = operations.get(op_id)
        if known is None and not is_fresh(op_id):
            told = self._repeated_grant(op_id)
            if told is not None:  # made in another process, or over: the same answer, nothing twice
                return told
        self._undo.append(partial(operations.pop, op_id, None) if known is None else partial(operations.__setitem__, op_id, known))
        operation = None if self._tickets or self.waiters else judge.at_once(request, operations)
        answer = operation or judge.reserve(request, operations, newcomer=newcomer)
        if isinstance(answer, Operation) and answer is not known:
            self._hold(answer)
        return answer

    def _repeated_grant(self, op_id: str) -> RepeatedGrant | None:
        found = self.execute("SELECT granted FROM operations WHERE op = ?", (op_id,)).fetchone()
        if found is not None:
            return RepeatedGrant(op_id, None if found[0] is None else from_sql(found[0]))
        return RepeatedGrant(op_id, None) if is_over(self.execute, op_id) else None

    def _hold(self, operation: Operation) -> None:
        """Write which rows an operation holds how much of, as a burial reads it, under the number of this process.

        One that holds nothing needs none. Of a slot it also says what was charged at once: all of it is given back when its process dies.
        """
        granted, held = operation.granted, list[str]()
        for line, hold in operation.holds:
            charged = [line.charged_at_once] if operation.request.slot else []
            if hold or any(charged):
                held.append(str([line.account.row.id, hold, *charged]))
        self.holds = self.holds or bool(held)
        process = self.leases.process or (self.leases.enrol(self.execute, self.alive_ns) if self.holds else 0)
        self.execute(_HOLD, (operation.op_id, process, None if granted is None else to_sql(granted), f"[{', '.join(held)}]", self.now_s))

    def settle(self, op_id: str, actual: Mapping[str, int], guessed: bool) -> Settled:
        """Replace what an operation holds by what was used."""
        operation = self._end(op_id)
        if operation is None:
            return judge.NOTHING_CROSSED
        settled = judge.settle(operation, actual, guessed=guessed)
        if self.waiters:
            self.serve()
        return replace(settled, forgotten=True) if self._forgotten else settled

    def release(self, op_id: str) -> None:
        """Give back what an operation holds."""
        operation = self._end(op_id)
        if operation is not None:
            judge.release(operation)
            self.serve()

    def extend(self, op_id: str, more: Mapping[str, int]) -> Extended:
        """Hold more for an operation that goes on; nothing for one that is over, or whose process was thought dead meanwhile."""
        operation = self.operations.get(op_id)
        if operation is None:
            return Extended({})
        self._bring(operation)
        if self._state(op_id) != LIVE:
            return Extended({})
        extended = judge.extend(operation, more)
        self._hold(operation)
        return extended

    def hold_again(self) -> None:
        """Hold again, whatever is left, the slots that were given away while their agents lived, under this process's new number."""
        for op_id, operation in self.operations.items():
            if operation.request.slot and self._state(op_id) == GIVEN_BACK:
                self._bring(operation, partly=True)
                for line, hold in operation.holds:
                    line.account.held += hold
                    line.account.used += line.charged_at_once
                self._hold(operation)

    def _state(self, op_id: str) -> int | None:
        found = self.execute("SELECT state FROM operations WHERE op = ?", (op_id,)).fetchone()
        return None if found is None else found[0]

    def _end(self, op_id: str) -> Operation | None:
        """Take an operation out, with its accounts as they are now, ready to be settled or released; None when it is over."""
        operation = self.operations.get(op_id)
        if operation is None:
            return None
        self._bring(operation, partly=True)
        self.ended.append(op_id)
        self._undo.append(partial(self.operations.__setitem__, op_id, operation))
        del self.operations[op_id]
        ended = self.execute("UPDATE operations SET state = 2, at = ? WHERE op = ? AND state = 0", (self.now_s, op_id))
        if ended.rowcount != 1:
            self._take_up_again(op_id, operation)
        return operation

    def _bring(self, operation: Operation, *, partly: bool = False) -> None:
        """Put an operation on the accounts that count in here; `partly` goes without those that were lost."""
        held = operation.held and operation.held[:]
        self._undo.append(partial(operation.restore, operation.lines, held, operation.taken, operation.ended, operation.observed))
        try:
            self.bring(operation.lines)
        except StoreError as error:
            if error.reason != "store_lost" or not partly:
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
            self._forgotten = True

    def _take_up_again(self, op_id: str, operation: Operation) -> None:
        """Undo the provisional end of an operation whose process had gone silent, so that the real one can follow.

        Of one that the file does not know nothing is held or charged in it: it may have been lost since, and begun anew.
        """
        state = self._state(op_id)
        if state is None:
            state = OVER if is_over(self.execute, op_id) else GIVEN_BACK
        for line, hold in operation.holds[operation.ended : operation.taken]:
            account = line.account
            if state == GIVEN_BACK:
                account.held, account.used = account.held + hold, account.used + line.charged_at_once
            elif state != OVER and (account.nature is Nature.HELD or line.carved):
                account.held, account.used = account.held + hold, max(0, account.used - hold)
        if state == OVER:
            operation.ended = operation.taken
        self.execute("UPDATE operations SET state = 2, at = ? WHERE op = ?", (self.now_s, op_id))

    # -- the line -------------------------------------------------------------------------------------------------

    def serve(self) -> None:
        """Answer our own who stand in line, where it is their turn."""
        if not self.waiters:
            return
        self._see_standing()
        for waiter in self.waiters:
            waiter.request = self._request_at_hand(waiter.request)
            if waiter.ticket is not None and waiter.ticket not in (self._tickets or ()) and waiter.blocked_by is not None:
                # Thought dead: its place is gone, and it stands behind all others now.
                waiter.ticket, waiter.place = None, 0
                self.at_hand(waiter.blocked_by).waiters.append(waiter)
        served = len(self.woken)
        for account in tuple(self._at_hand.values()):
            if account.waiters:
                wait_queue.serve_line(account, self.operations, self.woken)
        for answer in [waiter.answer for waiter in self.woken][served:]:
            if isinstance(answer, Operation):
                self._hold(answer)

    def stand(self, waiter: Stander) -> Grant | Denied | None:
        """Put somebody of ours at the end of the line for what stands in the way, or answer when nobody has to wait."""
        waiter.request = self._request_at_hand(waiter.request)
        answer = self.reserve(waiter.request)
        if not isinstance(answer, Denied) or not answer.contended:
            return answer
        if waiter.request.blocks_itself(answer.account, self.operations):
            return self.reserve(waiter.request.patient(0.0))
        self._see_standing()
        waiter.blocked_by = answer.account
        answer.account.waiters.append(waiter)
        self.waiters[waiter] = None
        return None

    def leave(self, waiter: Stander, wants: bool) -> None:
        """Take somebody of ours out of line; who ran out of patience, and still wants, gets what there is, if that is the least needed."""
        if waiter.answer is not None or waiter not in self.waiters:
            return
        self._see_standing()
        waiter.request = self._request_at_hand(waiter.request)
        for account in self._at_hand.values():
            if waiter in account.waiters:
                account.waiters.remove(waiter)
        self._tear(waiter)
        self.waiters.pop(waiter, None)
        if wants and not waiter.woken:
            answer = self.reserve(waiter.request.patient(0.0), newcomer=False)
            if not answer.contended:
                waiter.answer = answer
        self.serve()  # whoever stood behind may fit where this one did not

    def _see_standing(self) -> None:
        """Note, once, how everybody of ours stands in line, and what is asked there, so that it can be undone."""
        if not self._lined:
            self._lined = True
            standing = [(waiter, waiter.ticket, waiter.place) for waiter in self.waiters]
            self._undo.append(partial(_stand_again, self.waiters, self.operations, standing))

    def _tear(self, waiter: Stander) -> None:
        if waiter.ticket is not None:
            self.execute("DELETE FROM line WHERE ticket = ?", (waiter.ticket,))

    # -- its end --------------------------------------------------------------------------------------------------

    def _write_line(self) -> None:
        for answered in cast("deque[Stander]", self.woken):
            self._tear(answered)
            self.then.append(partial(self.waiters.pop, answered, None))
        if self.waiters:
            self.holds, process = True, self.leases.process or self.leases.enrol(self.execute, self.alive_ns)
            for number, account in self._at_hand.items():
                for waiter in account.waiters:
                    if isinstance(waiter, Stander) and waiter.place != number:
                        self._tear(waiter)
                        stood = self.execute("INSERT INTO line (process, account) VALUES (?, ?)", (process, number))
                        waiter.place, waiter.ticket = number, stood.lastrowid

    def write(self) -> None:
        """Write what became of the accounts, and who stands in line."""
        now_s, sums = self.now_s, list[tuple[int, int, int, int]]()
        if self._lined:
            self._write_line()
        for number, account in self._at_hand.items():
            row: Row = account.row
            used, held, values = account.used, account.held, self._read[number]
            row.used = used
            same = account.changes == row.changes and account.denied == row.denied and not account.roll_ns
            if same and 0 <= used < _LARGEST and 0 <= held < _LARGEST:
                if used != values[2] or held != values[3]:
                    sums.append((used, held, now_s, number))
                continue
            steady = _steady_of(account)
            amounts = to_sql(used), to_sql(held)
            if amounts != values[2:4] or steady != values[_STEADY]:
                self.execute(_UPDATE, (*amounts, *steady, now_s, number))
            row.steady, row.changes, row.denied = steady, account.changes, account.denied
        if sums:
            self._execute_many(_ADD, sums)
        for twin in self._twins:
            self._note(twin)
            twin.restore(state_of(self._counting(twin)))
            twin.row.used = twin.used

    def undo(self) -> None:
        """Forget everything: the file is as before, and so are our accounts, our operations and our line."""
        self.file.rollback()
        for put_back in reversed(self._undo):
            put_back()


def _put_back(account: Account, row: Row | None, used: int, refused_at: int | None, waiters: list[object], state: tuple[Any, ...]) -> None:
    account.row, account.refused_at, account.waiters = row, refused_at, waiters
    account.restore(state)
    if row is not None:
        row.used, row.steady, row.changes = used, (), -1


def _stand_again(
    waiters: dict[Stander, None], operations: dict[str, Operation], standing: Sequence[tuple[Stander, int | None, int]]
) -> None:
    waiters.clear()
    for waiter, ticket, place in standing:
        waiter.ticket, waiter.place, waiter.answer = ticket, place, None
        waiters[waiter] = None
        operations.pop(waiter.request.op_id, None)  # it was let in


# -- rows ---------------------------------------------------------------------------------------------------------


class Row:
    """Where an account is kept, and what this process last saw there, at `seen_s`.

    `used` was used then, `steady` is what seldom changes as it was read or written, when the account stood at `changes` and `denied`.
    """

    __slots__ = ("changes", "denied", "id", "seen_s", "steady", "used")

    def __init__(self, number: int, used: int, seen_s: int) -> None:
        self.id = number
        self.seen_s = seen_s
        self.used = used
        self.steady: tuple[Any, ...] = ()
        self.changes = self.denied = -1


def _show(account: Account, found: tuple[Any, ...]) -> None:
    """Write what a row says into an account."""
    used, held, value, denied, near, exceeded, draining, events, rolling = found[2:11]
    value, used, held, denied = from_sql(value), from_sql(used), from_sql(held), from_sql(denied)
    told = tuple(events.split(",")) if isinstance(events, str) and events else ()
    if (events and not told) or len(told) > _MOST_EVENTS or not _EVENTS.issuperset(told):
        raise StoreError("because what it says of events is nothing it can say")
    if account.roll_ns:
        try:
            account.unpack_window(rolling)
        except ValueError as error:
            raise StoreError(f"of a counter's window it says what cannot be: {error}") from error
    if value != account.value:
        account.revalue(value)
    account.flag(near=near == 1, exceeded=exceeded == 1, draining=draining == 1)
    account.used, account.held, account.denied, account.events = used, held, denied, told


def _steady_of(account: Account) -> tuple[Any, ...]:
    """Return what a row is to say of what seldom changes."""
    return (
        to_sql(account.value),
        to_sql(account.denied),
        int(account.near),
        int(account.exceeded),
        int(account.draining),
        ",".join(account.events[-_MOST_EVENTS:]),
        account.packed_window(),
    )


# -- readings -----------------------------------------------------------------------------------------------------


def look(file: LedgerFile, account: Account, now_ns: int) -> bool:
    """Show in an account what its row says, outside of transactions; False when there is none."""
    found = file.look(f"{_LOOK}(?)", (account.key,))
    if found:
        _show(account, found[0][1:])
        if isinstance(account.row, Row):
            account.row.used = account.used
        account.expire(now_ns)
    return bool(found)


def copies(file: LedgerFile, accounts: Sequence[Account], now_ns: int) -> list[Copy | None]:
    """Copy accounts as their rows are now, outside of transactions; None where a row is lost, or another life's."""
    rows: dict[str, tuple[Any, ...]] = {}
    keys = [] if file.is_unmade() else [account.key for account in accounts]
    for at in range(0, len(keys), _MOST_AT_ONCE):
        some = keys[at : at + _MOST_AT_ONCE]
        rows |= {key: tuple(row) for key, *row in file.look(f"{_LOOK}({', '.join('?' * len(some))})", some)}
    return [_copy(account, rows.get(account.key), now_ns) for account in accounts]


def _copy(account: Account, found: tuple[Any, ...] | None, now_ns: int) -> Copy | None:
    if found is None:
        return None if account.epoch is not None else Copy(account, now_ns)
    if account.epoch not in (None, found[1]):
        return None
    one, row = Copy(account, now_ns), account.row
    by_hand = account.used - row.used if isinstance(row, Row) else 0
    try:
        _show(one.account, found)
    except StoreError:  # of the others it may say what can be read
        return None
    one.account.used += max(0, by_hand)
    one.account.expire(now_ns)
    return one
