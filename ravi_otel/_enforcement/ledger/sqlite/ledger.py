"""Be the ledger of the processes of one machine: a front over one SQLite file."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from ravi_otel._enforcement.clock import Clock
from ravi_otel._enforcement.ledger.account import Account
from ravi_otel._enforcement.ledger.front import SharedLedger
from ravi_otel._enforcement.ledger.sqlite.store import SqliteStore


class SqliteLedger(SharedLedger):
    """Count in a file what `shares` says, for all processes that open it; `options` are those of `SqliteStore`."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        shares: Callable[[Account], bool] = lambda _: True,
        clock: Clock | None = None,
        **options: Any,
    ) -> None:
        super().__init__(SqliteStore(path, clock=clock, **options), shares=shares, clock=clock)
