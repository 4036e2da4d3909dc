"""Say why a store of counters cannot be used: inside the ledgers a StoreError, and to whoever made the call a refusal."""

from __future__ import annotations

import contextlib
import logging
from typing import Final, Literal

from ravi_otel._enforcement.ledger.account import Account
from ravi_otel.errors import UNCHECKED, BudgetExhaustedError
from ravi_otel.policy.limits import public_amount

_log = logging.getLogger("ravi_otel")

Failure = Literal["store_failed", "store_lost"]
SO: Final = "so nothing is sent: "
"""What stands before the sentence that says which store it is and what is wrong."""


FORGOTTEN: Final = "it has forgotten what was counted in it"
"""Why what is owed to a store is in no counter of it."""

MEANWHILE: Final = " What a limit does meanwhile is said by its on_store_failure=, in words `:store=`."
"""What ends the sentence of a store that fails, where a limit was asked."""


class StoreError(Exception):
    """Say why the store cannot be used: `why` is a part of a sentence.

    The reason is "store_lost" where it works and has forgotten what was counted in it, else "store_failed".
    """

    def __init__(self, why: str, reason: Failure = "store_failed") -> None:
        super().__init__(why)
        self.why = why
        self.reason: Failure = reason


def unkept(sentence: str, reason: Failure, account: Account | None) -> BudgetExhaustedError:
    """Write the error of a step that the store could not take; `sentence` says which store it is, what is wrong, and the way out."""
    if account is None:
        return BudgetExhaustedError(f"{sentence[0].upper()}{sentence[1:]}", reason=reason, public_message=UNCHECKED)
    facts = account.facts
    return BudgetExhaustedError(
        f"{account.origin} cannot be kept, {SO}{sentence}{MEANWHILE if reason == 'store_failed' else ''}",
        limit_kind=account.kind,
        threshold=public_amount(account.limit.kind, account.value),
        scope=str(facts.kind),
        agent_name=facts.agent_name,
        run_name=facts.run_name,
        run_id=facts.run_id,
        reason=reason,
        per=account.limit.per,
        public_message=UNCHECKED,
    )


def warn_uncounted(why: str) -> None:
    """Say in the log that something was spent while a store failed, and is in none of its counters."""
    with contextlib.suppress(Exception):  # a broken log handler is the application's
        _log.warning("ravi-otel: what happened while the shared ledger failed is not all counted in it: %s.", why)
