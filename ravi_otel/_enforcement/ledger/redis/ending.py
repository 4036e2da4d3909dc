"""Hold more for an operation in the store, and end it: settled or given back, once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from ravi_otel._enforcement.ledger import judge
from ravi_otel._enforcement.ledger.account import Account, Nature
from ravi_otel._enforcement.ledger.contract import Denied, Extended, Settled
from ravi_otel._enforcement.ledger.failing import FORGOTTEN, StoreError
from ravi_otel._enforcement.ledger.judge import Operation
from ravi_otel._enforcement.ledger.redis.messages import (
    EXTEND,
    OBSERVED,
    ONLY_LOOK,
    RELEASE,
    SETTLE,
    WRAPS_UP,
    Reply,
    Shared,
    Sight,
    bounded,
    facts_of,
    in_order,
    overage,
    show_twins,
)
from ravi_otel._enforcement.ledger.redis.process import Counting, Sent, wake_first
from ravi_otel._flow import Flow


def settle(ledger: Counting, operation: Shared, told: Mapping[str, int], local: Settled, *, guessed: bool) -> Flow[Settled]:
    """Replace what it holds by what was used; `local` is what that brought in this process's own accounts."""
    words = [operation.name, operation.bit, ledger.day()]
    over: list[tuple[Account, int]] = []
    held = operation.share()
    for at in operation.shared:
        line, sight = operation.lines[at], cast("Sight", operation.sights[at])
        amount = told.get(line.account.kind)
        said = "" if amount is None else str(bounded(amount))
        words += (line.account.epoch or "", f"{facts_of(sight, line.account, line)} {sight.warn} {said} {int(guessed)}")
        more = overage(line, held[at], amount)
        if more:
            over.append((line.account, more))

    def settled(reply: Reply) -> Settled:
        sent.forgotten = not _shown(ledger, operation, reply)
        accounts = [operation.lines[at].account for at in operation.shared]
        return Settled(reply.crossed(accounts, "settle", None), over if reply.letter == "S" else ())

    sent = Sent(SETTLE, _keys(operation), words, settled)
    found = yield from _end(ledger, operation, sent)
    if found is None or not (found.crossings or found.overage):
        return ledger.owed.tell_settled(local)
    crossings = in_order(operation.lines, found.crossings, local.crossings)
    order = {id(line.account): at for at, line in enumerate(operation.lines)}
    both = sorted((*found.overage, *local.overage), key=lambda one: order[id(one[0])])
    return ledger.owed.tell_settled(Settled(crossings, both))


def release(ledger: Counting, operation: Shared) -> Flow[None]:
    """Give back everything it holds in the store."""
    words = [operation.name, operation.bit, ledger.day()]
    for at in operation.shared:
        account, sight = operation.lines[at].account, cast("Sight", operation.sights[at])
        words += (account.epoch or "", f"{facts_of(sight, account)} {sight.warn}")

    def released(reply: Reply) -> Settled:
        _shown(ledger, operation, reply)
        return judge.PLAIN

    yield from _end(ledger, operation, Sent(RELEASE, _keys(operation), words, released))


def _end(ledger: Counting, operation: Shared, sent: Sent) -> Flow[Settled | None]:
    try:
        if ledger.owed:
            yield from ledger.pay_some()
            if ledger.owed.has_yet_to_begin(operation.op_id):
                ledger.owe(sent)
                return None
        reply = Reply((yield from ledger.client.call(sent.script, sent.keys, sent.words))).of("SOLU")
    except StoreError:
        ledger.failed()
        ledger.owe(sent)
        return None
    except BaseException as error:
        ledger.owe(sent)
        if not isinstance(error, GeneratorExit):
            ledger.pay_now()  # a cancellation does not keep an operation from its end
        raise
    wake_first(operation.lines)
    try:
        found = None if sent.done is None else sent.done(reply)
    except StoreError:
        ledger.failed()  # it was taken: what the answer shows of the accounts is not needed for that
        return None
    if sent.forgotten:
        ledger.owed.give_up(sent, FORGOTTEN)
    return found


def _keys(operation: Shared) -> list[str]:
    places = (cast("Sight", operation.sights[at]).place for at in operation.shared)
    return [operation.lease, operation.tombstone, *(place.key for place in places if place is not None)]


def _shown(ledger: Counting, operation: Shared, reply: Reply) -> bool:
    with ledger.lock:
        whole = ledger.seen(reply, [(operation.lines[at].account, cast("Sight", operation.sights[at])) for at in operation.shared])
        if operation.twins:
            show_twins(operation.twins)
    return whole


def extend(ledger: Counting, operation: Shared, more: Mapping[str, int]) -> Flow[Extended]:
    """Hold more of each kind, in all of its accounts or in none."""
    given = {kind: amount for kind, amount in more.items() if amount > 0}
    with ledger.lock:
        local = operation.local
        refused = None if local is None else _first_short(ledger.rolled(local), given)
        if isinstance(refused, int):
            among = [at for at in operation.shared if at < operation.own[refused]]
        else:
            given, among = ({} if refused is None else refused) or given, list(operation.shared)
        asks = [at for at in among if operation.lines[at].account.nature is Nature.HELD and operation.lines[at].account.kind in given]
    extended = Extended(given)
    if asks and given:
        try:
            extended = yield from _extend_shared(ledger, operation, given, asks, look=isinstance(refused, int))
        except StoreError as error:
            shared = [operation.lines[at].account for at in asks]
            if not all(account.observe for account in shared):
                raise ledger.refusal(error, None) from None
            ledger.failed()
    if extended.short is not None or local is None:
        return extended
    with ledger.lock:
        own = judge.extend(local, extended.more)
        operation.show_own()
    return Extended(own.more, own.short, in_order(operation.lines, extended.crossings, own.crossings))


def _extend_shared(ledger: Counting, operation: Shared, given: Mapping[str, int], among: Sequence[int], *, look: bool) -> Flow[Extended]:
    operation.extended += 1
    mode = (WRAPS_UP if operation.request.wraps_up else 0) + (OBSERVED if operation.observed is not None else 0)
    kinds = {kind: number for number, kind in enumerate(given)}
    words: list[str | int] = [mode + (ONLY_LOOK if look else 0), operation.name, operation.extended, ledger.day()]
    for at in operation.shared:
        line, sight = operation.lines[at], cast("Sight", operation.sights[at])
        amount = bounded(given[line.account.kind]) if at in among else 0
        others = bounded(line.account.promised(but=operation.request.meters)) if line.account.claims else 0
        facts = facts_of(sight, line.account, line)
        words += (line.account.epoch or "", f"{facts} {amount} {kinds.get(line.account.kind, 0)} {others} {sight.warn}")
    keys = _keys(operation)
    reply = Reply((yield from ledger.client.call(EXTEND, [keys[0], *keys[2:]], words))).of("EOXLU").there()
    _shown(ledger, operation, reply)
    accounts = [operation.lines[at].account for at in operation.shared]
    if reply.letter == "O":
        return Extended({})
    if reply.letter == "X":
        at, reason, used, held = reply.denies(len(accounts), 2)
        crossings = reply.crossed(accounts, "stream", None, "denied")
        _observe(operation, accounts, reply.tells(len(accounts)))
        return Extended({}, Denied(accounts[at], cast("Any", reason), used, held, 0), crossings)
    return _extended(ledger, operation, reply, given, look=look)


def _observe(operation: Shared, accounts: Sequence[Account], tells: int) -> None:
    if tells and operation.observed is None:
        operation.observed = accounts[tells - 1]


def _extended(ledger: Counting, operation: Shared, reply: Reply, given: Mapping[str, int], *, look: bool) -> Extended:
    accounts = [operation.lines[at].account for at in operation.shared]
    tells, gives = reply.grants(len(accounts))
    _observe(operation, accounts, tells)
    more = dict(given)
    with ledger.lock:
        held = operation.share()
        for at, amount in zip(operation.shared, gives, strict=True):
            if amount:
                more[operation.lines[at].account.kind] = amount
                held[at] += 0 if look else amount
    return Extended(more, None, reply.crossed(accounts, "stream", "observed"))


def _first_short(operation: Operation, given: Mapping[str, int]) -> int | dict[str, int]:
    """Return the number of the first line that has nothing more for the operation, else how much of each kind it gets."""
    decision = judge.decide_more(operation, given)
    return next(at for at, line in enumerate(operation.lines) if line.account is decision) if isinstance(decision, Account) else decision
