"""Measure reserve + settle of one limited kind on four scopes against a bare locked loop over four counters."""

from __future__ import annotations

import logging
import statistics
import threading

from rounds import per_piece_us

import ravi_otel
from ravi_otel._flow import run_sync
from ravi_otel.enforcement.ledger.contract import Line, Reservation, new_op_id
from ravi_otel.enforcement.opening import Opening, close_scope, open_scope
from ravi_otel.policy.limits import ScopeKind
from ravi_otel.runtime.state import STATE

LOOP = "bare locked loop"
OURS = "reserve + settle"
LIVE = (1, 100, 10_000)
"""How many scopes are open besides, each with a limit of its own and an operation in flight."""


class LockedLoop:
    """Count over four scopes the way anybody would: one lock, four checks, four additions."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.used = [0] * 4
        self.held = [0] * 4
        self.limits = [10**12] * 4

    def once(self, want: int, used: int) -> None:
        """Hold `want` everywhere or nowhere, then replace it by what was used."""
        with self.lock:
            for index in range(4):
                if self.used[index] + self.held[index] + want > self.limits[index]:
                    raise RuntimeError
            for index in range(4):
                self.held[index] += want
        with self.lock:
            for index in range(4):
                self.held[index] -= want
                self.used[index] += used


def measure(rounds: int, pieces: int = 1_000) -> dict[str, float]:
    """Give µs of both."""
    logging.getLogger("ravi_otel").setLevel(logging.ERROR)  # nothing is instrumented here, and that is meant
    loop, took = LockedLoop(), {LOOP: list[float](), OURS: list[float]()}
    caps = [ravi_otel.token_limit(10**12)]
    with ravi_otel.run("r", limits=caps), ravi_otel.apply_limits(caps), ravi_otel.apply_limits(caps), ravi_otel.agent("a", limits=caps):
        lines = [Line(account, 1_000, 100) for account in ravi_otel.current_scope().chain]
        ledger = STATE.engine.ledger

        def ours() -> None:
            op_id = new_op_id()
            run_sync(ledger.reserve(Reservation(op_id, lines, {})))
            run_sync(ledger.settle(op_id, {"tokens": 200}))

        for turn in range(rounds + 1):
            looped, reserved = per_piece_us(lambda: loop.once(1_000, 200), pieces), per_piece_us(ours, pieces)
            if turn:
                took[LOOP].append(looped)
                took[OURS].append(reserved)
        for live in LIVE:
            asked = Opening(kind=ScopeKind.RUN, limits=tuple(caps))
            others = [open_scope(STATE.engine, STATE.root, asked) for _ in range(live)]
            busy = [Reservation(new_op_id(), [Line(one.accounts[0], 1_000, 100)], {}) for one in others]
            for request in busy:
                run_sync(ledger.reserve(request))
            per_piece_us(ours, pieces)
            took[f"{OURS}, {live:,} scopes more"] = [per_piece_us(ours, pieces) for _ in range(rounds)]
            for request in busy:
                run_sync(ledger.release(request.op_id))
            for one in others:
                close_scope(one, None)
    return {name: statistics.median(figures) for name, figures in took.items()}
