"""Decide what becomes of a counter that its store does not know any more: it expired, it is begun anew, or calls are refused.

A store forgets a counter that nobody used for as long as it is kept. Any other that is gone was lost, and nobody knows what was used:
who knew it is refused, unless its limit says that calls pass when the store fails, or an operator has accepted the loss since.
"""

from __future__ import annotations

import contextlib
import logging
import time
from typing import Final, Literal

from ravi_otel._enforcement.ledger.account import Account
from ravi_otel.policy.limits import ScopeKind

Beginning = Literal["expired", "open", "accepted"]
"""Why a counter that is gone may begin anew."""

DAY_S: Final = 86_400
RUNS_S: Final = 7 * DAY_S
"""How long a counter of a run or a session is kept after its last use."""

KEEP_S: Final = 400 * DAY_S
"""How long one of a tenant or a process is, where nothing else is set."""

_LONG: Final = frozenset({ScopeKind.TENANT, ScopeKind.PROCESS})
_NOT_SURE_S: Final = 3_600
"""By how much less a store may have kept it: it renews the time once an hour."""

_TELLS_EVERY_S: Final = 60.0
_WHY: Final[dict[Beginning, str]] = {
    "expired": "was used by nobody for as long as it is kept",
    "open": "was lost, and is counted anew from nothing, as its limit says by on_store_failure",
    "accepted": "was lost, and is counted anew from nothing, as an operator has accepted that",
}
_log = logging.getLogger("ravi_otel")
_told: dict[Beginning, float] = {}


def kept_s(account: Account, keep_s: float) -> int:
    """Give for how many seconds after its last use a store keeps an account; `keep_s` is said for tenants and processes."""
    long = account.facts.kind in _LONG and account.limit.per is None
    return max(round(keep_s if long else min(keep_s, RUNS_S)), account.lasts_s)


def may_begin_anew(account: Account, *, seen_ago_s: float, keep_s: float, accepted_ago_s: float | None) -> Beginning | None:
    """Say why a counter that is gone may begin anew, which this process saw so long ago; None where it may not.

    `accepted_ago_s` is how long ago an operator accepted that something was lost; None: nobody did.
    """
    if seen_ago_s >= kept_s(account, keep_s) - _NOT_SURE_S:
        return "expired"
    if account.limit.on_store_failure == "open":
        return "open"
    return "accepted" if accepted_ago_s is not None and accepted_ago_s <= seen_ago_s else None


def forget(account: Account) -> None:
    """Forget what was known of a counter; under its ledger's lock."""
    account.epoch, account.used, account.held, account.denied, account.events = None, 0, 0, 0, ()
    account.buckets, account.rolled, account.told, account.refused_at = {}, 0, 0, None
    account.flag(near=False, exceeded=False, draining=False)
    account.revalue(account.declared)


def tell(account: Account, why: Beginning, shown: str) -> None:
    """Say that it begins anew in the store that is `shown` so: of one that expired each time, of those that were lost together once."""
    now = time.monotonic()
    if why != "expired":
        if now - _told.get(why, -_TELLS_EVERY_S) < _TELLS_EVERY_S:
            return
        _told[why] = now
    facts = account.facts
    name = {ScopeKind.TENANT: facts.tenant_id, ScopeKind.SESSION: facts.session_id}.get(facts.kind) or facts.run_name or facts.run_id
    whose = str(facts.kind) if name is None else f"{facts.kind} {name!r}"
    more = "" if why == "expired" else "; others that were lost with it are not told one by one"
    with contextlib.suppress(Exception):  # a broken log handler is the application's
        _log.warning("ravi-otel: the counter of %s of %s in the shared ledger %s %s%s.", account.origin, whose, shown, _WHY[why], more)
