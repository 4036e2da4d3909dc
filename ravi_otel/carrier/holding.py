"""Hold a loan on the limits around, all of it or nothing, and add what was used of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ravi_otel._enforcement import errors_text
from ravi_otel._enforcement.errors_text import owned
from ravi_otel._enforcement.ledger.judge import Denied, Line, Reservation
from ravi_otel._enforcement.scope import Scope
from ravi_otel._enforcement.usage_counters import add_charged, add_counts, add_usage
from ravi_otel._flow import Flow, owner, run_sync
from ravi_otel.carrier.lots import Lot
from ravi_otel.policy._limits import Kind, is_built_in
from ravi_otel.policy._usage import Usage

_COUNTS: Final = (Kind.REQUESTS, Kind.TURNS, Kind.TOOL_CALLS)


def refuse_too_large(scope: Scope, lines: list[Line]) -> None:
    """Refuse what would not fit if nobody held anything: asking for too much is no breach, and drains nothing."""
    for line in lines:
        account = line.account
        if not account.observe and line.minimum > account.value - account.kept_back - account.used:
            scope.engine.count("denied", account)
            add_counts(scope.tallies, refused=1)
            denied = Denied(account, "too_large", account.used, account.held, line.minimum)
            raise owned(errors_text.RefusalErrors(denied).refused(), account)


def _raise_for(scope: Scope, answer: Denied | None) -> None:
    if answer is None:
        return
    scope.engine.count("contended" if answer.reason == "contended" else "denied", answer.account)
    add_counts(scope.tallies, refused=1)
    raise owned(errors_text.RefusalErrors(answer).refused(), answer.account)


def hold_all(scope: Scope, lots: list[Lot], patience_s: float) -> Flow[None]:
    """Hold the first lot, or raise, and of the others what there is; what is raised leaves nothing held."""
    begun: list[Lot] = []
    try:
        for lot in lots:
            if lot.lines:
                begun.append(lot)
                request = Reservation(lot.op_id, lot.lines, owner=owner(), patience_s=patience_s if lot is lots[0] else 0.0)
                denied = yield from lot.hold(scope, request)
                if denied is not None:
                    lot.nothing()
                    _raise_for(scope, denied if lot is lots[0] else None)
    except BaseException:
        for lot in begun:  # at once, whatever came in between: a task that was cancelled waits for nothing more
            run_sync(lot.release(scope))
        raise


def tally(scope: Scope, amounts: Mapping[str, int]) -> None:
    """Add what was used of a loan to what the scopes around have used."""
    known = {kind: amounts.get(kind, 0) for kind in (Kind.INPUT_TOKENS, Kind.OUTPUT_TOKENS, *_COUNTS)}
    given, made = known[Kind.INPUT_TOKENS], known[Kind.OUTPUT_TOKENS]
    if given or made or amounts.get(Kind.COST):
        add_usage(scope.tallies, Usage(given, made), amounts.get(Kind.COST, 0))
    add_counts(scope.tallies, **{kind.value: known[kind] for kind in _COUNTS})
    for kind, amount in amounts.items():
        if not is_built_in(kind) and not kind.startswith("tool."):
            add_charged([*scope.tallies], kind, amount)
