"""Put a price on one call: what its usage costs, and what can be known of it without one."""

from __future__ import annotations

from typing import Final

from ravi_otel._enforcement.errors_text import belongs_to
from ravi_otel._enforcement.scope import Scope
from ravi_otel._pricing import PriceBook
from ravi_otel.errors import BudgetError
from ravi_otel.hooks.guard import swallow
from ravi_otel.hooks.records import CallRecord
from ravi_otel.policy.limits import Kind, ScopeKind
from ravi_otel.policy.usage import Call, Reply, Usage

_COST: Final = Kind.COST.value
_PRIORITY: Final = "priority"


def dearest_tier(call: Call) -> str | None:
    """Give the service tier a call is held at: the dear one where it was asked for, else the standard one.

    A cheap one that was asked for may be answered at the standard price.
    """
    return _PRIORITY if call.parameters.get("service_tier") == _PRIORITY else None


def price(record: CallRecord, prices: PriceBook, reply: Reply, usage: Usage) -> int | None:
    """Write a call's cost, whose price it is and of when on its record; give it in nano-USD, None when nobody knows it."""
    call = record.call
    try:
        cost, source, dated = prices.cost(call.provider, reply.model, call.model, usage, reply.service_tier)
    except Exception as error:  # noqa: BLE001 - a price that cannot be had is unknown, and the call goes on
        swallow("pricing", error)
        return None
    if record.usage is None:  # charged for safety, but what a failed call really cost is not known
        record.charged, record.charged_nano = usage, cost
        return cost
    record.cost_nano, record.price_date = cost, dated
    record.cost_source = "assumed" if call.provider_assumed and source not in (None, "override") else source
    return cost


def spoken(call: Call, prices: PriceBook) -> Usage | None:
    """Count the characters of a call that is sold by them, and whose answer, a sound, tells no usage; None for any other."""
    if call.expected is None or not call.expected.characters:
        return None
    usage = Usage(characters=call.expected.characters, source="estimated")
    card = prices.card(call.provider, call.model)
    return None if card is None or card.cost_nano(usage) is None else usage


def unpriced_of(scope: Scope, error: BudgetError) -> ScopeKind | None:
    """Count a refusal for want of a price, which no ledger has seen, and say in whose scope it was."""
    account = next((one for one in scope.plan.accounts() if belongs_to(one.facts.scope_id, error) and one.kind == _COST), None)
    if account is None:
        return None
    scope.engine.count("denied", account)
    return account.facts.kind


def is_free(record: CallRecord, prices: PriceBook, reply: Reply) -> bool:
    """Tell that a model costs nothing however much of it is used, and write that on the record."""
    call = record.call
    cards = (prices.card(call.provider, model) for model in (reply.model, call.model))
    card = next((card for card in cards if card is not None), None)
    if card is None or not card.is_free:
        return False
    _, source, record.price_date = prices.cost(call.provider, reply.model, call.model, Usage(), None)
    record.cost_nano = 0
    record.cost_source = "assumed" if call.provider_assumed and source != "override" else source
    return True
