"""Say that a limit cannot be kept because its file cannot be used."""

from __future__ import annotations

from pathlib import Path

from ravi_otel.enforcement.ledger.account import Account
from ravi_otel.enforcement.ledger.sqlite_store import StoreError
from ravi_otel.errors import BudgetExhaustedError
from ravi_otel.policy.limits import public_amount


def unkept(error: StoreError, path: Path, account: Account | None) -> BudgetExhaustedError:
    """Write the error of a step that the file could not take; `reason` is "store_failed" or "store_lost"."""
    sentence = error.sentence(path)
    if account is None:
        return BudgetExhaustedError(f"{sentence[0].upper()}{sentence[1:]}", reason=error.reason)
    facts = account.facts
    return BudgetExhaustedError(
        f"{account.origin} cannot be kept, so nothing is sent: {sentence}",
        limit_kind=account.kind,
        threshold=public_amount(account.limit.kind, account.value),
        scope=str(facts.kind),
        agent_name=facts.agent_name,
        run_name=facts.run_name,
        run_id=facts.run_id,
        reason=error.reason,
    )
