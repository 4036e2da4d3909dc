"""Keep for each of several agents what is its own of a limit they share, without holding it.

A claim is a promise: of what was left when the agents that have one last changed, each may still use its part by weight. Whoever asks
is refused what others claim, and never what it claims itself. What an agent uses is taken off its claim first, so that the claims of
all together are never more than what is left. What is promised changes under the ledger's lock only; who has a claim comes and goes
without it, and is promised something by the next `split`. Claims are known to this process alone.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ravi_otel._enforcement.ledger.account import Account
    from ravi_otel._enforcement.ledger.contract import Reservation


class Claim:
    """Promise `granted` to whoever is counted by `meter`, from when that stood at `base`; nothing before the first `split`."""

    __slots__ = ("base", "granted", "meter", "weight")

    def __init__(self, meter: Account, weight: int) -> None:
        self.meter = meter
        self.weight = weight
        self.granted = 0
        self.base = 0

    @property
    def left(self) -> int:
        """Give what of it is not used and not held by now."""
        return max(0, self.granted - (self.meter.used + self.meter.held - self.base))


def split(account: Account) -> None:
    """Promise what is left to those who have a claim, by their weights; of what drains nothing is."""
    left = 0 if account.draining else max(0, account.remaining - account.reserved)
    claims = account.claims  # once: another may come or go meanwhile, and has all split anew afterwards
    total = sum(claim.weight for claim in claims)
    for claim in claims:
        claim.granted = left * claim.weight // total
        claim.base = claim.meter.used + claim.meter.held


def of_others(account: Account, request: Reservation) -> int:
    """Give what of the account is promised to others than the asker, and not used by them yet."""
    mine = {line.account for line in request.lines}
    return sum(claim.left for claim in account.claims if claim.meter not in mine)


def of_asker(account: Account, request: Reservation) -> int:
    """Give what of the account is promised to the asker, and not used yet."""
    mine = {line.account for line in request.lines}
    return sum(claim.left for claim in account.claims if claim.meter in mine)


def claimed(account: Account, but: Collection[Account] = ()) -> int:
    """Give what of the account is promised to anybody, and not used yet; those whom a meter of `but` counts are left out."""
    return sum(claim.left for claim in account.claims if claim.meter not in but)
