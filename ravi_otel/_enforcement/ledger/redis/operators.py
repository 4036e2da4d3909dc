"""Show an operator what a namespace of a Redis counts, and set or close it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, cast

from ravi_otel._enforcement.ledger.failing import StoreError
from ravi_otel._enforcement.ledger.operators import Counter, Listing
from ravi_otel._enforcement.ledger.redis.client import RedisClient
from ravi_otel._enforcement.ledger.redis.messages import LIST, OPERATE, bounded, read_state, tag_of
from ravi_otel._flow import Flow

_MOST_DIGITS: Final = 20
_OF_A_PAGE, _OF_A_ROW = 3, 4
_MOST_PAGES: Final = 1_000_000
"""Looks at a store, of some hundred keys each; one that never comes to its end is no store."""

_FOREIGN: Final = "because it holds what no process of ours writes"
_NEAR, _EXCEEDED, _DRAINING = 1, 2, 4


def list_accounts(client: RedisClient, namespace: str, most: int) -> Flow[Listing]:
    """See `Operated.list_accounts`; of a Cluster only what one of its servers keeps."""
    tag = tag_of(namespace, None)
    pattern = f"{tag[:-1]}[:}}]*"
    counters: dict[str, Counter] = {}
    cursor, processes, waiting = "0", 0, 0
    for _ in range(_MOST_PAGES):
        answer = yield from client.call(LIST, [f"{tag}:x"], [cursor, pattern])
        cursor, processes_here, rows = _page(answer)
        processes += processes_here
        for row in rows:
            counter, stand = _row(row)
            waiting += 0 if counter.at in counters else stand
            counters[counter.at] = counter
        if cursor == "0" or len(counters) > most:
            break
    shown = list(counters.values())[:most]
    return Listing(shown, left_out=client.clustered or cursor != "0" or len(counters) > most, processes=processes, waiting=waiting)


def set_limit(client: RedisClient, counter: Counter, value: int) -> Flow[Counter | None]:
    """See `Operated.set_limit`."""
    found = yield from client.call(OPERATE, [counter.at], [str(bounded(value)), "0", counter.epoch or ""])
    return None if not found else _row([counter.at, *_listed(found)])[0]


def close_scope(client: RedisClient, counters: Sequence[Counter]) -> Flow[int]:
    """See `Operated.close_scope`."""
    closed = 0
    for counter in counters:
        found = yield from client.call(OPERATE, [counter.at], ["0", "1", counter.epoch or ""])
        if found:
            _row([counter.at, *_listed(found)])  # one that cannot be read was not closed
            closed += 1
    return closed


def _page(answer: object) -> tuple[str, int, list[object]]:
    """Give the next cursor, how many processes are seen, and the rows of one answer."""
    found = _listed(answer)
    if len(found) != _OF_A_PAGE or not isinstance(found[1], int):
        raise StoreError(_FOREIGN)
    return _text(found[0]), max(0, found[1]), _listed(found[2])


def _row(found: object) -> tuple[Counter, int]:
    """Give a counter, and how many stand in line for it."""
    parts = _listed(found)
    if len(parts) != _OF_A_ROW:
        raise StoreError(_FOREIGN)
    at, key, state, declared = parts
    return _counter(_text(at), _text(key), state, _text(declared))


def _listed(found: object) -> list[object]:
    if not isinstance(found, list):
        raise StoreError(_FOREIGN)
    return cast("list[object]", found)


def _text(found: object) -> str:
    try:
        return found.decode("utf-8", "surrogatepass") if isinstance(found, bytes) else str(found)
    except UnicodeDecodeError:
        raise StoreError(_FOREIGN) from None


def _counter(at: str, key: str, said: object, declared: str) -> tuple[Counter, int]:
    try:
        state = read_state(said if isinstance(said, bytes) else b"")
    except ValueError:
        raise StoreError(_FOREIGN) from None
    counter = Counter(
        at,
        key,
        state.value,
        state.used,
        state.held,
        state.denied,
        near=state.flags & _NEAR != 0,
        exceeded=state.flags & _EXCEEDED != 0,
        draining=state.flags & _DRAINING != 0,
        declared=int(declared) if _is_amount(declared) else None,
        used_s=float(state.last_s),
        epoch=state.epoch,
    )
    return counter, state.waiting


def _is_amount(word: str) -> bool:
    return word.isascii() and word.isdigit() and len(word) <= _MOST_DIGITS
