"""Drop what a rolling window has left behind: `tokens=100k:per=90m` counts what was used in the last 90 minutes.

An account with `roll_ns` > 0 keeps what it has used by when it was charged, in `buckets`: an index to an amount above 0, in
ascending order. A bucket is a sixtieth of the window long, rounded up: `width_ns`, and its index is the store's time divided by that.
So an amount leaves at most a sixtieth of the window late, and never early. Beside them stand `rolled`, the index of the last look,
and `told`, the index at which an event was told last, 0 for none.

Every ledger calls `expire` with its own time, under its lock or in its transaction, right before it reads or changes what such an
account has used, by any step: reserve, extend, settle, release, retune, a reading. What was charged since the last look is what
`used` says beyond the sum of the buckets, and it was charged at that look, which each step begins with. The arithmetic, exactly:

1. `index = now_ns // width_ns`. Is that less than `rolled`, the clock was put back: every index, `rolled` and `told` go back by as much.
2. `used - sum(buckets)` above 0 is added to bucket `rolled` (`index`, at the first look); below 0 it is taken from the oldest on.
3. Buckets below `index - 60` are dropped, and their sum is taken off `used`. Then `rolled = index`.
4. With used below the warning level draining ends; where besides nothing was told for longer than the window (`index - told > 60`),
   nearing and exceeded are armed again, and `told = 0`.

What is given back, or corrected downwards, later than a window after it was charged has left before, and is then taken from what others
used, the oldest first: a window should be longer than a lease, which only such calls outlive.

A calendar's window needs none of this: each window is an account of its own (`Account.part`).
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

from ravi_otel._enforcement.ledger.account import Account

BUCKETS: Final = 60
"""How many parts of a window are told apart; one more is the part that goes on now."""
_MOST_DIGITS: Final = 20


def width_ns(roll_ns: int) -> int:
    """Return how long one bucket is."""
    return -(-roll_ns // BUCKETS)


def expire(account: Account, now_ns: int) -> None:
    """Drop what was used longer ago than the account's window, by the store's time; nothing on an account that does not roll."""
    if not account.roll_ns:
        return
    index = now_ns // width_ns(account.roll_ns)
    if index < account.rolled:
        _put_back(account, account.rolled - index)
    _book(account, account.rolled or index)
    gone = [] if index == account.rolled else [at for at in account.buckets if at < index - BUCKETS]
    account.rolled = index
    for at in gone:
        left = account.buckets.pop(at)
        account.used -= left  # read after the call: a signal's handler may come in it, and charge
    if account.used < account.warn_value:
        _arm(account, index)


def leaves_after_ns(account: Account, most: int) -> int | None:
    """Return how long until no more than `most` is used, if nothing is charged meanwhile; None where what leaves when is not known.

    It is at most one bucket too long: the last look does not tell where in its bucket the store's time is.
    """
    if not account.rolled:
        return None
    buckets = dict(account.buckets)
    buckets[account.rolled] = buckets.get(account.rolled, 0) + max(0, account.used - sum(buckets.values()))
    left, until = account.used, account.rolled
    for at, amount in sorted(buckets.items()):
        if left <= most:
            break
        left, until = left - amount, at + BUCKETS + 1
    return (until - account.rolled) * width_ns(account.roll_ns)


def _put_back(account: Account, by: int) -> None:
    account.buckets = {at - by: amount for at, amount in account.buckets.items()}
    account.rolled -= by
    account.told = max(1, account.told - by) if account.told else 0


def _book(account: Account, at: int) -> None:
    """Have the buckets sum up to what is used."""
    buckets = account.buckets
    since = account.used - sum(buckets.values())
    if since > 0:
        buckets[at] = buckets.get(at, 0) + since
    for oldest in list(buckets) if since < 0 else ():
        taken = min(buckets[oldest], -since)
        buckets[oldest] -= taken
        since += taken
        if not buckets[oldest]:
            del buckets[oldest]


def _arm(account: Account, index: int) -> None:
    if not account.told and (account.near or account.exceeded):
        account.told = index  # elsewhere, before a run went on here
    again = bool(account.told) and index - account.told > BUCKETS
    if again:
        account.told = 0
    if again or account.draining:
        account.flag(near=account.near and not again, exceeded=account.exceeded and not again, draining=False)


def packed(account: Account) -> str:
    """Write it as text, for a store: `rolled told index:amount …`; empty for an account that does not roll."""
    if not account.roll_ns:
        return ""
    return " ".join((f"{account.rolled}", f"{account.told}", *(f"{at}:{amount}" for at, amount in account.buckets.items())))


def unpack(account: Account, text: object) -> None:
    """Read that text into the account, nothing or None as of one never looked at; any other raises ValueError, and changes nothing."""
    rolled, told, buckets = 0, 0, dict[int, int]()
    words = text.split(" ") if isinstance(text, str) else ["none", "none"]
    if text:
        first, second, *rest = words if len(words) > 1 else (*words, "none")
        rolled, told = _number(first), _number(second)
        if len(rest) > BUCKETS + 2:
            raise ValueError("a rolling window has more parts than there are")
        for one in rest:
            at, _, amount = one.partition(":")
            buckets[_number(at)] = _number(amount)
        if list(buckets) != sorted(buckets) or len(buckets) != len(rest):
            raise ValueError("the parts of a rolling window are in no order")
    account.rolled, account.told, account.buckets = rolled, told, buckets


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS):
        raise ValueError("a part of a rolling window is no number")
    return int(text)


def resets_at(account: Account, needed: int | None = None) -> datetime | None:
    """Return when the limit has room again, in UTC: for `needed`, else for as much as leaves it below its warning level. None: never.

    Of a window of the calendar that is its end, and of a rolling one when enough has left it; where its store does not tell what
    leaves when, it is when everything has. A limit that is draining has no room before it is below its warning level, either.
    """
    if account.limit.per is None or (needed or 0) > account.value - account.kept_back or not account.value:
        return None
    if account.ends_s is not None:
        return datetime.fromtimestamp(account.ends_s, UTC)
    most = account.warn_value - 1 if needed is None else account.value - account.kept_back - needed
    if account.draining:
        most = min(most, account.warn_value - 1)
    after_ns = leaves_after_ns(account, most)
    at = datetime.fromtimestamp(account.wall_s(), UTC)
    return at + timedelta(microseconds=-(-(account.roll_ns if after_ns is None else after_ns) // 1_000))
