"""Hold a loan on the limits around, all of it or nothing."""

from __future__ import annotations

from ravi_otel._flow import Flow, run_sync
from ravi_otel.carrier.lots import Lot
from ravi_otel.enforcement import refusal
from ravi_otel.enforcement.ending import owned
from ravi_otel.enforcement.ledger.contract import Denied, Line, Reservation
from ravi_otel.enforcement.scope import Scope
from ravi_otel.enforcement.tally import add_counts
from ravi_otel.runtime.patience import owner


def refuse_too_large(scope: Scope, lines: list[Line]) -> None:
    """Refuse what would not fit if nobody held anything: asking for too much is no breach, and drains nothing."""
    for line in lines:
        account = line.account
        if not account.observe and line.minimum > account.value - account.reserved - account.used:
            scope.engine.count("denied", account)
            add_counts(scope.tallies, refused=1)
            denied = Denied(account, "too_large", account.used, account.held, line.minimum)
            raise owned(refusal.refused(denied), account)


def _raise_for(scope: Scope, answer: Denied | None) -> None:
    if answer is None:
        return
    scope.engine.count("contended" if answer.reason == "contended" else "denied", answer.account)
    add_counts(scope.tallies, refused=1)
    raise owned(refusal.refused(answer), answer.account)


def hold_all(scope: Scope, lots: list[Lot], patience_s: float) -> Flow[None]:
    """Hold the first lot, or raise, and of the others what there is; what is raised leaves nothing held."""
    begun: list[Lot] = []
    try:
        for lot in lots:
            if lot.lines:
                begun.append(lot)
                request = Reservation(lot.op_id, lot.lines, {}, owner=owner(), patience_s=patience_s if lot is lots[0] else 0.0)
                denied = yield from lot.hold(scope, request)
                if denied is not None:
                    lot.nothing()
                    _raise_for(scope, denied if lot is lots[0] else None)
    except BaseException:
        for lot in begun:  # at once, whatever came in between: a task that was cancelled waits for nothing more
            run_sync(lot.release(scope))
        raise
