"""Tell living processes from dead ones: a sign of life in the file, and what is done when it stays away.

Times are readings of the machine's monotonic clock, which all processes of one boot share. After a reboot it begins
again: a sign of life from the future is one from before it.
"""

from __future__ import annotations

import os
from typing import Final

from ravi_otel._enforcement.ledger.sqlite.file import LedgerFile
from ravi_otel._enforcement.ledger.sqlite.rows import GIVEN_BACK, LIVE, PROVISIONAL, from_sql, held_by, to_sql
from ravi_otel._enforcement.ledger.store_failures import StoreError

_NS: Final = 1_000_000_000
_REAP_EVERY_NS: Final = _NS
_SLACK_NS: Final = _NS
_NEVER: Final = -(1 << 62)


class Leases:
    """Keep this process's row alive, and end what silent processes left behind; everything inside a transaction.

    `process` is this process's number in the file, 0 without one, and `seen` when it gave its last sign of life.
    """

    def __init__(self, lease_s: float) -> None:
        self.lease_ns = round(lease_s * _NS)
        self._every_ns = min(_REAP_EVERY_NS, self.lease_ns)
        self.process = 0
        self.seen = _NEVER
        self._reaped = _NEVER

    def is_due(self, now: int) -> bool:
        """Whether a sign of life should be given, or the dead be looked for."""
        reaped = self._reaped
        return now - reaped >= self._every_ns or now < reaped or (self.process != 0 and now - self.seen >= self.lease_ns // 4)

    def due(self, now: int) -> bool:
        """Tell that a sign of life should be given."""
        return now - self.seen >= self.lease_ns // 4

    def keep(self, file: LedgerFile, now: int) -> int:
        """Give a sign of life when one is due, and this process's number; it gets another when it had been given up."""
        if self.process and not self.due(now):
            return self.process
        if not self.process or file.run("UPDATE processes SET seen = ? WHERE id = ?", (now, self.process)).rowcount != 1:
            made = file.run("INSERT INTO processes (pid, seen, lease) VALUES (?, ?, ?)", (os.getpid(), now, self.lease_ns))
            self.process = made.lastrowid or 0
        self.seen = now
        return self.process

    def was_given_up(self, file: LedgerFile, now: int) -> bool:
        """Tell that this process was thought dead, which nobody can have thought before a sign of life was due."""
        return self.process != 0 and self.due(now) and not file.all("SELECT 1 FROM processes WHERE id = ?", (self.process,))

    def may_reap(self, now: int) -> bool:
        """Tell that it is time to look for the dead again: once a second is enough."""
        return now - self._reaped >= self._every_ns or now < self._reaped

    def reap(self, file: LedgerFile, now: int, now_s: int, *, everybody: bool = False) -> int:
        """End what processes hold whose lease ran out (or that are others, with `everybody`); give how many there were."""
        self._reaped = now
        found = file.all(
            "SELECT id FROM processes WHERE id != ? AND (? OR seen + lease < ? OR seen > ?)",
            (self.process, everybody, now, now + _SLACK_NS),
        )
        for (process,) in found:
            _bury(file, process, now_s)
        return len(found)

    def forget(self) -> None:
        """Have no number any more: it was given in another file."""
        self.process, self.seen = 0, _NEVER

    def sign_off(self, file: LedgerFile, now_s: int) -> None:
        """End what this process still holds as if it had died."""
        if self.process:
            _bury(file, self.process, now_s)
            self.process, self.seen = 0, _NEVER


def _bury(file: LedgerFile, process: int, now_s: int) -> None:
    """Settle at its grant whatever a process holds, until it says otherwise, give its slots back, drop its places in line."""
    operations = file.all("SELECT op, holds FROM operations WHERE process = ? AND state = ?", (process, LIVE))
    for op_id, holds in operations:
        state = PROVISIONAL
        for account, hold, charged in held_by(holds):
            _settle(file, account, hold, hold if charged is None else -charged)
            state = PROVISIONAL if charged is None else GIVEN_BACK
        file.run("UPDATE operations SET state = ?, at = ? WHERE op = ?", (state, now_s, op_id))
    file.run("DELETE FROM line WHERE process = ?", (process,))
    file.run("DELETE FROM processes WHERE id = ?", (process,))


def _settle(file: LedgerFile, account: int, hold: int, more: int) -> None:
    # Whether this crosses a warning level is told by whoever knows the limit, at its next step.
    found = file.all("SELECT used, held FROM accounts WHERE id = ?", (account,))
    if not found:
        raise StoreError("because what was counted in it is gone", "store_lost")
    used, held = max(0, from_sql(found[0][0]) + more), max(0, from_sql(found[0][1]) - hold)
    file.run("UPDATE accounts SET used = ?, held = ? WHERE id = ?", (to_sql(used), to_sql(held), account))
