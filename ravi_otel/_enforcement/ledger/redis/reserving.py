"""Ask for everything an operation needs: the store for what is everybody's, this process for what is its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final, cast

from ravi_otel._enforcement.ledger import judge, wait_queue, windows
from ravi_otel._enforcement.ledger.account import Account, Nature
from ravi_otel._enforcement.ledger.contract import Denied, Grant, Settled, Told, new_op_id
from ravi_otel._enforcement.ledger.failing import StoreError
from ravi_otel._enforcement.ledger.judge import Operation
from ravi_otel._enforcement.ledger.redis.ending import release
from ravi_otel._enforcement.ledger.redis.messages import (
    LAST,
    NEWCOMER,
    ONLY_LOOK,
    PATIENT,
    RELEASE,
    RESERVE,
    STRANGE,
    Ask,
    Place,
    Reply,
    Shared,
    Sight,
    facts_of,
    in_order,
    show_twins,
    tag_in,
)
from ravi_otel._enforcement.ledger.redis.process import Counting, Lease, Sent, Stander, wait
from ravi_otel._flow import Flow
from ravi_otel.errors import ConfigurationError

_TURNS: Final = 3
_TOKENS: Final = "tokens"


def reserve(ledger: Counting, ask: Ask) -> Flow[Grant | Denied]:
    """Ask, and stand in line where others hold what is needed."""
    answer = yield from attempt(ledger, ask, NEWCOMER)
    if ask.request.patience_s > 0 and wait_queue.is_contended(answer):
        answer = yield from wait(ledger, ask, cast("Denied", answer), attempt)
    return ledger.owed.tell(answer)


def attempt(ledger: Counting, ask: Ask, mode: int, stander: Stander | None = None) -> Flow[Grant | Denied]:
    """Ask once: the store for what is everybody's, and this process for what is its own; all of it, or nothing."""
    newcomer = mode & NEWCOMER != 0
    if ask.shared and not ask.own:
        return (yield from _share(ledger, ask, ask.shared, mode, stander))
    local = replace(ask.locally, patience_s=0.0) if mode & LAST else ask.locally
    answer: Grant | Denied | None = None
    for _ in range(_TURNS):  # between the look and the step another thread may come in
        with ledger.lock:
            windows.expire_all(local.lines, ledger.now_ns())
            decision = judge.decide(local, newcomer=newcomer)
            refused = local.lines.index(decision.line) if isinstance(decision, judge.Refused) else None
        among = ask.shared if refused is None else [at for at in ask.shared if at < ask.own[refused]]
        if among:
            only = 0 if refused is None else ONLY_LOOK
            answer = yield from _share(ledger, ask, among, mode | only, stander)
            if isinstance(answer, (Denied, Told)):
                return answer
        with ledger.lock:
            own = judge.reserve(local, ledger.local, newcomer=newcomer)
            if isinstance(own, Operation) and refused is None:
                return _both(answer, own, ask) if isinstance(answer, Shared) else own
        if isinstance(own, Denied):
            if isinstance(answer, Shared):
                own.crossings = in_order(ask.lines, answer.crossings, own.crossings)
                ledger.operations.pop(ask.request.op_id, None)
                yield from release(ledger, answer)
            return own
        _let_go(ledger, own)  # refused before, and not any more: from the beginning
    return judge.deny(ask.lines[ask.own[0]], "contended")


def _both(shared: Shared, own: Operation, ask: Ask) -> Shared:
    shared.take_up(own, ask.own)
    shared.crossings = in_order(ask.lines, shared.crossings, own.crossings)
    shared.observed = shared.observed or own.observed
    return shared


def _share(ledger: Counting, ask: Ask, among: Sequence[int], mode: int, stander: Stander | None) -> Flow[Grant | Denied]:
    account = ask.lines[among[0]].account
    try:
        if not ask.request.spent and ledger.owed:
            yield from ledger.pay_some()
        return (yield from _asked(ledger, ask, among, mode | (ask.mode & ~PATIENT if mode & LAST else ask.mode), stander))
    except StoreError as error:
        return _without_store(ledger, ask, error, account)


def _asked(ledger: Counting, ask: Ask, among: Sequence[int], mode: int, stander: Stander | None) -> Flow[Grant | Denied]:
    places = ask.places(among)
    tag = _one_tag(ledger, ask, places)
    name, tombstone, bit = ledger.graves.of(ask.request.op_id, tag)
    if not ask.request.spent and ledger.reap_is_due(tag):  # what is spent must not fail for anything but itself
        yield from ledger.reap_tag(tag)
    turns = 0
    while True:
        turns += 1
        if ask.request.slot and not ask.request.spent:
            yield from ledger.make_sure(tag)
            yield from retake(ledger)
        with ledger.lock:
            lease = ledger.leases.on(tag)
            words = ask.words(among)
        keys = [lease.operations, tombstone, f"{tag}:x", *(place.key for place in places)]
        ticket, at = ("", 0) if stander is None else stander.stands(ask, among)
        made = "" if lease.made else ledger.leases.lease_ms
        head: list[str | int] = [mode, name, bit, lease.name, made, ledger.day(), ticket, at]
        try:
            reply = yield from _heard(ledger, ask, among, keys, head, words)
            if not _is_over(reply, turns):
                ledger.leases.made(lease)
                return _granted(ledger, ask, among, reply, (lease, name, tombstone, bit), look=mode & ONLY_LOOK != 0)
        except StoreError as error:
            if ask.request.spent and error.reason == "store_failed":
                return _later(ledger, ask, among, Sent(RESERVE, keys, [*head[:4], ledger.leases.lease_ms, *head[5:], *words]), lease)
            if error.reason == "store_failed":
                _undo(ledger, ask, among, keys, mode)
            raise
        except BaseException as error:
            _undo(ledger, ask, among, keys, mode)  # it may have come there all the same
            if not isinstance(error, GeneratorExit):
                ledger.pay_now()
            raise
        ledger.over(lease)


def _heard(
    ledger: Counting, ask: Ask, among: Sequence[int], keys: Sequence[str], head: Sequence[str | int], words: Sequence[str | int]
) -> Flow[Reply]:
    """Ask the store, and again where it has forgotten an account that may begin anew."""
    while True:
        reply = Reply((yield from ledger.client.call(RESERVE, keys, [*head, *words]))).of("GODNLU")
        lost = _lost(ask, among, reply)
        if lost is None or not (yield from ledger.begin_anew(*lost)):
            return reply
        with ledger.lock:
            words = ask.words(among)


def _lost(ask: Ask, among: Sequence[int], reply: Reply) -> tuple[Account, Sight] | None:
    """Give the account that the store has forgotten, where it says that of one."""
    if reply.letter != "L":
        return None
    at = reply.tells(len(among))
    return ask.seen(among)[at - 1] if at else None


def _is_over(reply: Reply, turns: int) -> bool:
    """Tell that the lease is over; StoreError where each new one is, too."""
    if reply.letter == "N" and turns > _TURNS:
        raise StoreError(STRANGE)
    return reply.letter == "N"


def retake(ledger: Counting) -> Flow[None]:
    """Hold again, whatever is left, the slots that were given away while their agents lived: nobody is let in until that is made up for."""
    for op_id, operation in tuple(ledger.lost.items()):
        lines = [replace(line, free=True) for line in operation.request.lines]
        ask = Ask(replace(operation.request, op_id=new_op_id(), lines=lines, spent=True, patience_s=0.0), ledger.sight)
        if ledger.operations.get(op_id) is operation:
            try:
                again = yield from _asked(ledger, ask, ask.shared, ask.mode, None)
            except StoreError as error:
                if error.reason != "store_lost":
                    raise
                again = None
            with ledger.lock:
                ledger.operations.pop(ask.request.op_id, None)
                wanted = isinstance(again, Shared) and ledger.operations.get(op_id) is operation
                if wanted:
                    ledger.operations[op_id] = cast("Shared", again)
            if isinstance(again, Shared) and not wanted:  # it was given back meanwhile
                yield from release(ledger, again)
        ledger.lost.pop(op_id, None)


def _granted(
    ledger: Counting, ask: Ask, among: Sequence[int], reply: Reply, place: tuple[Lease, str, str, str], *, look: bool
) -> Grant | Denied:
    accounts = ask.accounts(among)
    reply.there()
    with ledger.lock:
        ledger.seen(reply, ask.seen(among))
        if ask.twins:
            show_twins(ask.twins)
        if reply.letter == "D":
            at, reason, used, held = reply.denies(len(among))
            line = ask.lines[among[at]]
            crossings = reply.crossed(accounts, "admission", "denied") or ()
            return Denied(line.account, cast("Any", reason), used, held, line.minimum, crossings)
        if reply.letter == "O":
            least = [line.minimum for line in ask.lines if line.account.kind == _TOKENS]
            return Told(ask.request.op_id, min(least, default=None))
        if look:
            return Grant(ask.request.op_id)
        return _taken(ledger, ask, among, reply, place)


def _taken(ledger: Counting, ask: Ask, among: Sequence[int], reply: Reply, place: tuple[Lease, str, str, str]) -> Shared:
    at, holds = reply.admits([ask.lines[number] for number in among])
    held = [0] * len(ask.lines)
    for number, hold in zip(among, holds, strict=True):
        held[number] = hold
    observed = ask.lines[among[at - 1]].account if at else None
    operation = Shared(ask.request, held, observed, among)
    operation.crossings = reply.crossed(ask.accounts(among), "admission", "observed" if observed else "admitted")
    operation.sights, operation.twins = ask.sights, ask.twins
    lease, operation.name, operation.tombstone, operation.bit = place
    operation.lease = lease.operations
    ledger.operations[ask.request.op_id] = operation
    ledger.pulse.start()
    return operation


def _one_tag(ledger: Counting, ask: Ask, places: Sequence[Place]) -> str:
    tags = {place.tag for place in places}
    if len(tags) > 1 and ledger.client.clustered:
        origins = " and ".join(sorted({line.account.origin for line in ask.lines}))
        raise ConfigurationError(
            f"{origins} are counted for different tenants, which a Redis Cluster keeps on different servers: declare them all inside "
            "the tenant, or all outside of it, or use one server."
        )
    return places[-1].tag


def _without_store(ledger: Counting, ask: Ask, error: StoreError, account: Account) -> Grant | Denied:
    """Refuse, unless nothing was asked: what is only observed goes on."""
    shared = ask.accounts(ask.shared)
    if all(one.observe for one in shared):
        ledger.failed()
        return Grant(ask.request.op_id)
    raise ledger.refusal(error, next((one for one in shared if not one.observe), account)) from None


def _undo(ledger: Counting, ask: Ask, among: Sequence[int], keys: Sequence[str], mode: int) -> None:
    """Give back, with the next message that gets through, what may have been granted although nobody heard of it."""
    ledger.operations.pop(ask.request.op_id, None)
    if mode & ONLY_LOOK:
        return
    name, _, bit = ledger.graves.of(ask.request.op_id, tag_in(keys[0]))
    words: list[str | int] = [name, bit, ledger.day()]
    for account, sight in ask.seen(among):
        words += (account.epoch or "", f"{facts_of(sight, account)} {sight.warn}")
    ledger.owe(Sent(RELEASE, [*keys[:2], *keys[3:]], words))


def _later(ledger: Counting, ask: Ask, among: Sequence[int], sent: Sent, lease: Lease) -> Shared:
    """Record what has happened already when the store is there again."""
    held = [0] * len(ask.lines)
    for at in among:
        line = ask.lines[at]
        held[at] = line.want if line.carved or line.account.nature is Nature.HELD else 0
    operation = Shared(ask.request, held, None, among)
    operation.sights, operation.lease = ask.sights, lease.operations
    operation.name, operation.tombstone, operation.bit = ledger.graves.of(ask.request.op_id, lease.tag)

    def recorded(reply: Reply) -> Settled:
        with ledger.lock:
            ledger.seen(reply.there(), ask.seen(among))
        return Settled(reply.crossed(ask.accounts(among), "admission", None))

    sent.done, sent.begins = recorded, ask.request.op_id
    ledger.failed()
    with ledger.lock:
        ledger.operations[ask.request.op_id] = operation
    ledger.owe(sent)
    return operation


def _let_go(ledger: Counting, own: Grant) -> None:
    with ledger.lock:
        operation = ledger.local.pop(own.op_id, None)
        if operation is not None:
            judge.release(operation)
