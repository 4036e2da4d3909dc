"""What one process has in a ledger's file: its lease there, and which of its operations are over.

Times of signs of life are readings of the machine's monotonic clock, which all processes of one boot share. After a reboot it begins
again: a sign of life from the future is one from before it.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable
from json import loads  # as it is now: the program may make tools of that module's functions
from typing import Any, Final

from ravi_otel._enforcement.ledger.contract import number_here
from ravi_otel._enforcement.ledger.sqlite.file import Execute, from_sql, to_sql
from ravi_otel._enforcement.ledger.store_failures import StoreError

LIVE, PROVISIONAL, OVER, GIVEN_BACK = 0, 1, 2, 3
"""The states of an operation."""

_NS: Final = 1_000_000_000
_NEVER: Final = -(1 << 62)


# -- leases -----------------------------------------------------------------------------------------------------------


class Leases:
    """Keep this process's row alive, and end what silent processes left behind; everything inside a transaction.

    `process` is this process's number in the file of `epoch`, 0 without one. `kept` is when it gave its last sign of life. Both are done
    once a second, or four times a lease, and again where the step that did them was not written.
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

_newest = [0]
"""The highest number of an operation that this process has reserved, in whichever ledger."""


def is_fresh(op_id: str) -> bool:
    """Whether nobody can have asked for this operation before: it is this process's own, and newer than all others. Asked once for each."""
    number = number_here(op_id)
    fresh = number > _newest[0]
    if fresh:
        _newest[0] = number
    return fresh


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
