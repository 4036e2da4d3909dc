"""Show the budgets that programs share in a ledger, on whatever machine they run, and set or close them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from ravi_otel._flow import run_sync
from ravi_otel.errors import ConfigurationError, RaviError
from ravi_otel.local._shared_budgets import Shown, opened
from ravi_otel.local._wording import clean
from ravi_otel.policy._grammar import parse_limit
from ravi_otel.policy._limits import ScopeKind
from ravi_otel.supervisor.approval.sentences import login
from ravi_otel.supervisor.audit import AuditLog
from ravi_otel.ui import _api as api

_FRESH_S: Final = 1.0
_MOST: Final = 50
_SHARED: Final = (ScopeKind.TENANT, ScopeKind.SESSION, ScopeKind.PROCESS)
_NONE: Final = api.Budgets(where=None, error=None, budgets=[], more=0)


@dataclass(slots=True)
class SharedBudgets:
    """Be the shared ledger at `url`, None for none; what is changed in it is written down in the audit log at `audit`."""

    url: str | None
    audit: Path
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)
    _known: tuple[float, api.Budgets] | None = field(default=None, init=False)

    def all(self) -> api.Budgets:
        """Return the fullest budgets, not older than a second; a ledger that does not answer is said to be one, and hides nothing else."""
        if self.url is None:
            return _NONE
        with self._lock:
            if self._known is None or time.monotonic() - self._known[0] > _FRESH_S:
                self._known = (time.monotonic(), self._look(self.url))
            return self._known[1]

    def _look(self, url: str) -> api.Budgets:
        try:
            with opened(url) as (store, where):
                listing = run_sync(store.list_accounts())
        except RaviError as error:
            return api.Budgets(where=None, error=clean(str(error), 400), budgets=[], more=0)
        shown = [each for each in map(Shown, listing.counters) if each.named is not None and each.named.scope in _SHARED]
        shown.sort(key=lambda each: (-each.counter.ratio, each.where, each.label))
        budgets = [_budget(each) for each in shown[:_MOST]]
        return api.Budgets(where=clean(where, 200), error=None, budgets=budgets, more=len(shown) - len(budgets))

    def tried(self, asked: api.BudgetAsk) -> api.Tried:
        """Return what another value of a budget would do; ConfigurationError for one that is gone."""
        with opened(self.url) as (store, _):
            return api.Tried.of(_found(map(Shown, run_sync(store.list_accounts()).counters), asked.id).limit, asked.value)

    def set(self, asked: api.BudgetChange, by: str) -> api.Done:
        """Set another limit on a budget that is there, or close it; ConfigurationError for one that is gone, or a value that is none."""
        with opened(self.url) as (store, _):
            shown = _found(map(Shown, run_sync(store.list_accounts()).counters), asked.id)
            limit = shown.limit
            if asked.value is None:
                done, value = bool(run_sync(store.close_scope([shown.counter]))), 0.0
            else:
                value = limit.read_amount(asked.value)
                inner = parse_limit(f"{shown.kind}={replace(limit, limit=value).value}").value
                done = run_sync(store.set_limit(shown.counter, inner)) is not None
        self._known = None
        if not done:
            raise ConfigurationError("That budget is gone: nobody has used it for long, or the ledger was emptied.")
        scope, _, name = shown.where.partition(":")
        AuditLog(self.audit).note_limit(
            shown.label, shown.kind, limit.limit, value, run_id=None, agent_name=None, scope=scope, scope_name=name, who=by, login=login()
        )
        closed = asked.value is None
        return api.Done(said=f"{shown.label} of {shown.where} is {'closed' if closed else f'{limit.amount(value)} now'}.")


def _found(listed: Iterable[Shown], budget: str) -> Shown:
    for shown in listed:
        if shown.counter.id == budget and shown.named is not None:
            return shown
    raise ConfigurationError("That budget is not in the ledger any more.")


def _budget(shown: Shown) -> api.Budget:
    return api.Budget(id=shown.counter.id, state=shown.state, bar=api.Bar.of(shown.limit))
