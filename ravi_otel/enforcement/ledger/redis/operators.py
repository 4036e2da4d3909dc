"""Show an operator what a namespace of a Redis counts, and set or close it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from ravi_otel._flow import Flow
from ravi_otel.enforcement.ledger.failing import StoreError
from ravi_otel.enforcement.ledger.operators import Counter, Listing
from ravi_otel.enforcement.ledger.redis.link import Link
from ravi_otel.enforcement.ledger.redis.places import bounded, tag_of
from ravi_otel.enforcement.ledger.redis.scripts import LIST, OPERATE

_FIELDS: Final = 10
_MOST_DIGITS: Final = 20
_NEAR, _EXCEEDED, _DRAINING = 1, 2, 4


def list_accounts(link: Link, namespace: str, most: int) -> Flow[Listing]:
    """See `Operated.list_accounts`; of a Cluster only what one of its servers keeps."""
    tag = tag_of(namespace, None)
    pattern = f"{tag[:-1]}[:}}]*"
    counters: dict[str, Counter] = {}
    cursor, processes, waiting = "0", 0, 0
    while len(counters) <= most:
        answer = yield from link.call(LIST, [f"{tag}:x"], [cursor, pattern])
        cursor = _text(answer[0])
        processes += int(answer[1])
        for at, key, state, declared in answer[2]:
            counter, stand = _counter(_text(at), _text(key), _text(state), _text(declared))
            waiting += 0 if counter.at in counters else stand
            counters[counter.at] = counter
        if cursor == "0":
            break
    shown = list(counters.values())[:most]
    return Listing(shown, left_out=link.clustered or cursor != "0" or len(counters) > most, processes=processes, waiting=waiting)


def set_limit(link: Link, counter: Counter, value: int) -> Flow[Counter | None]:
    """See `Operated.set_limit`."""
    found = yield from link.call(OPERATE, [counter.at], [str(bounded(value)), "0"])
    return None if not found else _counter(counter.at, *(_text(each) for each in found))[0]


def close_scope(link: Link, counters: Sequence[Counter]) -> Flow[int]:
    """See `Operated.close_scope`."""
    closed = 0
    for counter in counters:
        found = yield from link.call(OPERATE, [counter.at], ["0", "1"])
        closed += bool(found)
    return closed


def _text(found: Any) -> str:
    try:
        return found.decode("utf-8", "surrogatepass") if isinstance(found, bytes) else str(found)
    except UnicodeDecodeError:
        raise StoreError("because it holds what no process of ours writes") from None


def _counter(at: str, key: str, state: str, declared: str) -> tuple[Counter, int]:
    words = state.split(" ")
    numbers = words[1 : _FIELDS - 1]
    if len(words) < _FIELDS or not all(word.isascii() and word.isdigit() and len(word) <= _MOST_DIGITS for word in numbers):
        raise StoreError("because it holds what no process of ours writes")
    value, used, held, denied, flags, _, waiting, last = (int(word) for word in numbers)
    counter = Counter(
        at,
        key,
        value,
        used,
        held,
        denied,
        near=flags & _NEAR != 0,
        exceeded=flags & _EXCEEDED != 0,
        draining=flags & _DRAINING != 0,
        declared=int(declared) if declared.isascii() and declared.isdigit() else None,
        used_s=float(last),
        epoch=words[0],
    )
    return counter, waiting
