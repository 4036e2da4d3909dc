"""Show an operator what a ledger's file says, and write what the operator decides."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from ravi_otel._enforcement.ledger.operators import Counter, Listing
from ravi_otel._enforcement.ledger.sqlite.file import LedgerFile
from ravi_otel._enforcement.ledger.sqlite.rows import from_sql, to_sql
from ravi_otel._enforcement.ledger.sqlite.transaction import Transaction
from ravi_otel._enforcement.ledger.store_failures import StoreError

_COLUMNS = "accounts.id, key, epoch, value, used, held, denied, near, exceeded, draining, declared, seen"
_LIST = f"SELECT {_COLUMNS} FROM names JOIN accounts ON accounts.id = names.id ORDER BY seen DESC LIMIT ?"  # noqa: S608 - constants alone
_ONE = f"SELECT {_COLUMNS} FROM names JOIN accounts ON accounts.id = names.id WHERE key = ?"  # noqa: S608 - constants alone
_ALIVE = "SELECT count(*) FROM processes WHERE seen + lease >= ? AND seen <= ?"
_SLACK_NS = 1_000_000_000


def listing(file: LedgerFile, most: int) -> Listing:
    """Show the counters that were used last."""
    now = time.monotonic_ns()
    found = file.look(_LIST, (most + 1,))
    processes = file.look(_ALIVE, (now, now + _SLACK_NS))[0][0]
    waiting = file.look("SELECT count(*) FROM line", ())[0][0]
    return Listing([_counter(row) for row in found[:most]], len(found) > most, processes, waiting)


def set_limit(step: Transaction, counter: Counter, value: int) -> Counter | None:
    """Set another limit on a row, as `judge.retune` does on an account."""
    found = _found(step.file, counter)
    if found is None:
        return None
    number = int(found.at)
    step.file.run("UPDATE accounts SET value = ?, seen = ? WHERE id = ?", (to_sql(value), step.now_s, number))
    if value > found.value:
        step.file.run("UPDATE accounts SET near = 0, exceeded = 0, draining = 0 WHERE id = ?", (number,))
    return _found(step.file, counter)


def declare(file: LedgerFile, key: str, value: int) -> bool:
    """Write that a limit was declared with so much; tell whether that is less than it ever was."""
    found = file.all("SELECT declared FROM names WHERE key = ?", (key,))
    if not found or value >= from_sql(found[0][0]):
        return False
    file.run("UPDATE names SET declared = ? WHERE key = ?", (to_sql(value), key))
    return True


def close(step: Transaction, counters: Sequence[Counter]) -> int:
    """Let nothing more be spent on these rows."""
    closed = 0
    for counter in counters:
        found = _found(step.file, counter)
        if found is not None:
            closed += 1
            step.file.run(
                "UPDATE accounts SET value = 0, near = 1, exceeded = 1, draining = 1, seen = ? WHERE id = ?", (step.now_s, int(found.at))
            )
    return closed


def _found(file: LedgerFile, counter: Counter) -> Counter | None:
    """Give the counter as it is now, if it still lives the life that was shown."""
    found = file.all(_ONE, (counter.key,))
    now = _counter(found[0]) if found else None
    return now if now is not None and now.epoch == counter.epoch else None


def _counter(row: Sequence[Any]) -> Counter:
    number, key, epoch, value, used, held, denied, near, exceeded, draining, declared, seen = row
    if not isinstance(key, str) or not isinstance(epoch, str) or type(seen) is not int:
        raise StoreError("because it has a counter that cannot be read")
    amounts = [from_sql(amount) for amount in (value, used, held, denied, declared)]
    return Counter(
        at=str(number),
        key=key,
        value=amounts[0],
        used=amounts[1],
        held=amounts[2],
        denied=amounts[3],
        near=near == 1,
        exceeded=exceeded == 1,
        draining=draining == 1,
        declared=amounts[4],
        used_s=float(seen),
        epoch=epoch,
    )
