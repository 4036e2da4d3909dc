"""Reserve and settle at the ledger alone: the one thing of the table that has no public name.

A program charges through its scope (`Scope.charge`, which the table has as well); the judge beneath is compared with a bare loop only
where nothing else is around it. An older tree, or a later one, in which these names are others has no figure in this row.
"""

from __future__ import annotations

from collections.abc import Callable

import ravi_otel
from ravi_otel._enforcement.ledger.contract import new_op_id
from ravi_otel._enforcement.ledger.judge import Line, Reservation
from ravi_otel._flow import run_sync
from ravi_otel._runtime.state import STATE


def reserve_and_settle() -> Callable[[], object]:
    """Give one reservation on every limit around, and its settlement."""
    lines = [Line(account, 1_000, 100) for account in ravi_otel.current_scope().plan.accounts()]
    ledger = STATE.engine.ledger

    def once() -> None:
        op_id = new_op_id()
        run_sync(ledger.reserve(Reservation(op_id, lines)))
        run_sync(ledger.settle(op_id, {"tokens": 200}))

    return once
