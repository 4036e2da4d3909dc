"""Share accounts among the processes of many machines, through one Redis.

Each step is one script, which does what judging.py does on the accounts that are everybody's. Those that are not are counted in
memory, in the same step, so that a refusal leaves all of them alone: the store is asked first, and gives back what it granted should
this process refuse after all.

A process that dies holding something is silent; when its lease runs out, whoever comes next settles that at its grant. Should it have
been asleep only, the real amount corrects that later, once. A message that was lost is sent again: an operation counts once.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, cast
from weakref import WeakValueDictionary

from ravi_otel._flow import Done, Flow, run_sync
from ravi_otel.enforcement.clock import Clock, SystemClock
from ravi_otel.enforcement.ledger import judging, rolling, room, serving
from ravi_otel.enforcement.ledger.account import Account, Nature
from ravi_otel.enforcement.ledger.claims import of_others, split
from ravi_otel.enforcement.ledger.contract import Crossing, Denied, Extended, Grant, Reservation, Settled, Told, new_op_id
from ravi_otel.enforcement.ledger.failing import StoreError, unkept
from ravi_otel.enforcement.ledger.judging import Operation
from ravi_otel.enforcement.ledger.redis_answers import Reply, Shared, in_order, overage
from ravi_otel.enforcement.ledger.redis_asking import LAST, NEWCOMER, OBSERVED, ONLY_LOOK, PATIENT, WRAPS_UP, Ask
from ravi_otel.enforcement.ledger.redis_leases import Lease, Leases
from ravi_otel.enforcement.ledger.redis_line import Stander, wait, wake_first
from ravi_otel.enforcement.ledger.redis_link import Link
from ravi_otel.enforcement.ledger.redis_owed import Owed, Sent
from ravi_otel.enforcement.ledger.redis_places import TOP, Graves, Place, Sight, bounded, digest, facts_of, tag_of
from ravi_otel.enforcement.ledger.redis_scripts import BEAT, CLOCK, EXTEND, LEAVE, LOOK, REAP, RELEASE, RESERVE, RETUNE, SETTLE
from ravi_otel.enforcement.ledger.sqlite_leases import Pulse
from ravi_otel.errors import BudgetExhaustedError, ConfigurationError

_DAY_S: Final = 86_400
_TURNS: Final = 3
_TRY_AGAIN_S: Final = 1.0
_TOKENS: Final = "tokens"


class RedisLedger:
    """Count for all processes that reach the same Redis.

    `shares` says which accounts are everybody's; the others stay in this process. `namespace` keeps programs that share a server
    apart. `lease_s` is how long a silent process keeps what it holds. `failed` hears of every step that the store could not take. Such
    a step refuses (BudgetExhaustedError, `reason` "store_failed" or "store_lost"); the end of an operation is kept, and sent again.
    """

    def __init__(
        self,
        link: Link,
        *,
        shares: Callable[[Account], bool] = lambda _: True,
        namespace: str = "default",
        lease_s: float = 30.0,
        clock: Clock | None = None,
        failed: Callable[[], object] = lambda: None,
    ) -> None:
        self.link: Final = link
        self.failed = failed
        self._shares = shares
        self._namespace = namespace
        self._lease_s = lease_s
        self._clock = SystemClock() if clock is None else clock
        self._renew()

    def _renew(self) -> None:
        self._lock = threading.RLock()
        self._life = object()
        self.name = secrets.token_hex(8)
        self._operations: dict[str, Shared] = {}
        self._local: dict[str, Operation] = {}
        self._places: WeakValueDictionary[str, Place] = WeakValueDictionary()
        self._leases = Leases(self._lease_s, self._clock)
        self._graves = Graves(new_op_id().rpartition("-")[0] + "-")
        self._owed = Owed()
        self._pulse = Pulse(self._beat)

    def __len__(self) -> int:
        """Count the operations of this process that still hold something."""
        return len(self._operations.keys() | self._local.keys())

    def reset_after_fork(self) -> None:
        """Start anew in a forked child: own locks, own connections, nothing of the parent's in flight; the store is the same."""
        self.link.reset_after_fork()
        self._renew()

    def close(self) -> None:
        """Let the store go; what this process still holds is settled at its grant, once its lease runs out."""
        self._pulse.end()
        try:
            run_sync(self._pay())
        except StoreError:
            self.failed()
        self.link.close()

    # -- the contract ---------------------------------------------------------------------------------------------

    def reserve(self, request: Reservation) -> Flow[Grant | Denied]:
        """See `Ledger.reserve`."""
        known = self._operations.get(request.op_id)
        if known is not None:
            return cast("Flow[Grant | Denied]", Done(known))
        return self._reserve(Ask(request, self._sight))

    def extend(self, op_id: str, more: Mapping[str, int]) -> Flow[Extended]:
        """See `Ledger.extend`."""
        operation = self._operations.get(op_id)
        if operation is not None:
            return self._extend(operation, more)
        with self._lock:
            local = self._local.get(op_id)
            extended = Extended({}) if local is None else judging.extend(self._rolled(local), more)
        return cast("Flow[Extended]", Done(extended))

    def settle(self, op_id: str, actual: Mapping[str, int] | None, *, guessed: bool = False) -> Flow[Settled]:
        """See `Ledger.settle`."""
        told = actual or {}
        with self._lock:
            operation, local = self._operations.pop(op_id, None), self._local.pop(op_id, None)
            settled = judging.PLAIN if local is None else judging.settle(self._rolled(local), told, guessed=guessed)
        if operation is not None:
            return self._settle(operation, told, settled, guessed=guessed)
        if local is not None:
            wake_first(local.lines)
        return cast("Flow[Settled]", Done(settled))

    def release(self, op_id: str) -> Flow[None]:
        """See `Ledger.release`."""
        with self._lock:
            operation, local = self._operations.pop(op_id, None), self._local.pop(op_id, None)
            if local is not None:
                judging.release(self._rolled(local))
        if operation is not None:
            return self._release(operation)
        if local is not None:
            wake_first(local.lines)
        return cast("Flow[None]", Done(None))

    def retune(self, account: Account, value: int | None) -> Flow[None]:
        """See `Ledger.retune`."""
        sight = self._sight(account)
        if sight.place is None or value is None:
            with self._lock:
                judging.retune(account, value)
            wake_first((), [account])
            return cast("Flow[None]", Done(None))
        return self._retune(account, sight, sight.place, value)

    def clocked(self, account: Account, elapsed: int, *, refuses: bool = True) -> Flow[Sequence[Crossing]]:
        """See `Ledger.clocked`."""
        sight = self._sight(account)
        if sight.place is not None:
            return self._clocked(account, sight, sight.place, elapsed, refuses=refuses)
        with self._lock:
            crossings = judging.clock(account, elapsed, refuses=refuses)
        return cast("Flow[Sequence[Crossing]]", Done(crossings))

    def spans(self, account: Account) -> bool:
        """See `Ledger.spans`."""
        return self._sight(account).place is not None

    def read(self, account: Account) -> bool:
        """Show in the account what the store says, changing nothing; False when it says nothing."""
        sight = self._sight(account)
        if sight.place is None:
            return True
        try:
            state = run_sync(self.link.call(LOOK, [sight.place.key], []))
            if state is None:
                return False
            with self._lock:
                Reply(b"S;;" + state).show([(account, sight)])
        except StoreError as error:
            raise self.refusal(error, account) from None
        return True

    def reap(self, *, everybody: bool = False) -> int:
        """End what processes left behind whose lease ran out; with `everybody`, what any other process holds. Tell how many."""
        ended = 0
        try:
            for tag in dict.fromkeys((tag_of(self._namespace, None), *self._leases.tags())):
                ended += run_sync(self._reap(tag, everybody=everybody))
        except StoreError as error:
            raise self.refusal(error, None) from None
        return ended

    # -- accounts -------------------------------------------------------------------------------------------------

    def _sight(self, account: Account) -> Sight:
        sight = account.row
        if isinstance(sight, Sight) and sight.life is self._life:
            return sight
        place = None
        if self._shares(account):
            tag = tag_of(self._namespace, account.facts.tenant_id)
            key = f"{tag}:a:{digest(account.key)}"
            with self._lock:
                place = self._places.get(key) or self._places.setdefault(key, Place(tag, key))
        sight = account.row = Sight(self._life, place, account)
        account.line = [] if place is None else place.line
        return sight

    def _rolled(self, operation: Operation) -> Operation:
        """Let go of what rolling windows of this process's own have left behind."""
        rolling.expire_all(operation.lines, round(self._clock.time() * 1e9))
        return operation

    def _day(self) -> str:
        return str(int(self._clock.time()) // _DAY_S)

    def refusal(self, error: StoreError, account: Account | None) -> BudgetExhaustedError:
        """Write the error of a step that the store could not take."""
        self.failed()
        return unkept(self.link.sentence(error), error.reason, account)

    # -- reserve --------------------------------------------------------------------------------------------------

    def _reserve(self, ask: Ask) -> Flow[Grant | Denied]:
        answer = yield from self.attempt(ask, NEWCOMER)
        if ask.request.patience_s > 0 and serving.contended(answer):
            return (yield from wait(self, ask, cast("Denied", answer)))
        return answer

    def attempt(self, ask: Ask, mode: int, stander: Stander | None = None) -> Flow[Grant | Denied]:
        """Ask once: the store for what is everybody's, and this process for what is its own; all of it, or nothing."""
        newcomer = mode & NEWCOMER != 0
        if ask.shared and not ask.own:
            return (yield from self._share(ask, ask.shared, mode, stander))
        local = replace(ask.locally, patience_s=0.0) if mode & LAST else ask.locally
        answer: Grant | Denied | None = None
        for _ in range(_TURNS):  # between the look and the step another thread may come in
            with self._lock:
                rolling.expire_all(local.lines, round(self._clock.time() * 1e9))
                refused = room.first_refused(local, newcomer=newcomer)
            among = ask.shared if refused is None else [at for at in ask.shared if at < ask.own[refused]]
            if among:
                only = 0 if refused is None else ONLY_LOOK
                answer = yield from self._share(ask, among, mode | only, stander)
                if isinstance(answer, Denied):
                    return answer
            with self._lock:
                own = judging.judge(local, self._local, newcomer=newcomer)
                if isinstance(own, Operation) and refused is None:
                    if not isinstance(answer, Shared):
                        return own if not among else cast("Grant", answer)
                    return self._both(answer, own, ask)
            if isinstance(own, Denied):
                if isinstance(answer, Shared):
                    own.crossings = in_order(ask.lines, answer.crossings, own.crossings)
                    self._operations.pop(ask.request.op_id, None)
                    yield from self._release(answer)
                return own
            run_sync(self.release(ask.request.op_id))  # refused before, and not any more: from the beginning
        return judging.deny(ask.lines[ask.own[0]], "contended")

    def _both(self, shared: Shared, own: Operation, ask: Ask) -> Shared:
        shared.take_up(own, ask.own)
        shared.crossings = in_order(ask.lines, shared.crossings, own.crossings)
        shared.observed = shared.observed or own.observed
        return shared

    def _share(self, ask: Ask, among: Sequence[int], mode: int, stander: Stander | None) -> Flow[Grant | Denied]:
        account = ask.lines[among[0]].account
        try:
            yield from self._pay()
            return (yield from self._asked(ask, among, mode | (ask.mode & ~PATIENT if mode & LAST else ask.mode), stander))
        except StoreError as error:
            return self._without_store(ask, error, account)

    def _asked(self, ask: Ask, among: Sequence[int], mode: int, stander: Stander | None) -> Flow[Grant | Denied]:
        places = ask.places(among)
        tag = self._one_tag(ask, places)
        name, tombstone, bit = self._graves.of(ask.request.op_id, tag)
        yield from self._reap_in_time(tag)
        while True:
            with self._lock:
                lease = self._leases.on(tag)
                words = ask.words(among)
            keys = [lease.operations, tombstone, f"{tag}:x", *(place.key for place in places)]
            ticket, at = ("", 0) if stander is None else stander.stands(ask, among)
            made = "" if lease.made else self._leases.lease_ms
            head: list[str | int] = [mode, name, bit, lease.name, made, self._day(), ticket, at]
            sent = Sent(RELEASE, [lease.operations, tombstone, *keys[3:]], self._undoing(ask, among, name, bit))
            try:
                reply = Reply((yield from self.link.call(RESERVE, keys, [*head, *words])))
            except BaseException as error:
                if not mode & ONLY_LOOK:
                    self._owed.add(sent)  # it may have come there all the same
                    if not isinstance(error, (GeneratorExit, StoreError)):
                        self._pay_now()
                raise
            if reply.letter == "N":
                self._leases.over(lease)
                continue
            self._leases.made(lease)
            return self._granted(ask, among, reply.there(), (lease, name, tombstone, bit), look=mode & ONLY_LOOK != 0)

    def _granted(self, ask: Ask, among: Sequence[int], reply: Reply, place: tuple[Lease, str, str, str], *, look: bool) -> Grant | Denied:
        accounts = ask.accounts(among)
        with self._lock:
            reply.show(ask.seen(among))
            if reply.letter == "D":
                at, reason, used, held = reply.words[1:]
                line = ask.lines[among[int(at) - 1]]
                crossings = reply.crossed(accounts, "admission", "denied") or ()
                return Denied(line.account, cast("Any", reason), int(used), int(held), line.minimum, crossings)
            if reply.letter == "O":
                least = [line.minimum for line in ask.lines if line.account.kind == _TOKENS]
                return Told(ask.request.op_id, min(least, default=None))
            if look:
                return Grant(ask.request.op_id)
            return self._taken(ask, among, reply, place)

    def _taken(self, ask: Ask, among: Sequence[int], reply: Reply, place: tuple[Lease, str, str, str]) -> Shared:
        at, holds = int(reply.words[1]), [int(hold) for hold in reply.words[2].split(",")]
        held = [0] * len(ask.lines)
        for number, hold in zip(among, holds, strict=True):
            held[number] = hold
        observed = ask.lines[among[at - 1]].account if at else None
        operation = Shared(ask.request, held, observed, among)
        operation.crossings = reply.crossed(ask.accounts(among), "admission", "observed" if observed else "admitted")
        operation.sights = ask.sights
        lease, operation.name, operation.tombstone, operation.bit = place
        operation.lease = lease.operations
        self._operations[ask.request.op_id] = operation
        self._pulse.start()
        return operation

    def _one_tag(self, ask: Ask, places: Sequence[Place]) -> str:
        tags = {place.tag for place in places}
        if len(tags) > 1 and self.link.clustered:
            origins = " and ".join(sorted({line.account.origin for line in ask.lines}))
            raise ConfigurationError(
                f"{origins} are counted for different tenants, which a Redis Cluster keeps on different servers: declare them all inside "
                "the tenant, or all outside of it, or use one server."
            )
        return places[-1].tag

    def _without_store(self, ask: Ask, error: StoreError, account: Account) -> Grant | Denied:
        """Refuse, unless nothing was asked: what is only observed goes on."""
        shared = ask.accounts(ask.shared)
        if all(one.observe for one in shared):
            self.failed()
            return Grant(ask.request.op_id)
        raise self.refusal(error, next((one for one in shared if not one.observe), account)) from None

    # -- the end of an operation ----------------------------------------------------------------------------------

    def _undoing(self, ask: Ask, among: Sequence[int], name: str, bit: str) -> list[str]:
        words = [name, bit, self._day()]
        for account, sight in ask.seen(among):
            words += (account.epoch or "", f"{facts_of(sight, account)} {sight.warn}")
        return words

    def _settle(self, operation: Shared, told: Mapping[str, int], local: Settled, *, guessed: bool) -> Flow[Settled]:
        words = [operation.name, operation.bit, self._day()]
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
            self._shown(operation, reply)
            accounts = [operation.lines[at].account for at in operation.shared]
            return Settled(reply.crossed(accounts, "settle", None), over if reply.letter == "S" else ())

        found = yield from self._end(operation, Sent(SETTLE, self._keys(operation), words, settled))
        if found is None or not (found.crossings or found.overage):
            return self._owed.tell_settled(local)
        crossings = in_order(operation.lines, found.crossings, local.crossings)
        order = {id(line.account): at for at, line in enumerate(operation.lines)}
        both = sorted((*found.overage, *local.overage), key=lambda one: order[id(one[0])])
        return self._owed.tell_settled(Settled(crossings, both))

    def _release(self, operation: Shared) -> Flow[None]:
        words = [operation.name, operation.bit, self._day()]
        for at in operation.shared:
            account, sight = operation.lines[at].account, cast("Sight", operation.sights[at])
            words += (account.epoch or "", f"{facts_of(sight, account)} {sight.warn}")

        def released(reply: Reply) -> Settled:
            self._shown(operation, reply)
            return judging.PLAIN

        yield from self._end(operation, Sent(RELEASE, self._keys(operation), words, released))

    def _end(self, operation: Shared, sent: Sent) -> Flow[Settled | None]:
        try:
            reply = Reply((yield from self.link.call(sent.script, sent.keys, sent.words)))
        except StoreError:
            self.failed()
            self._owed.add(sent)
            self._pulse.start()
            return None
        except BaseException as error:
            self._owed.add(sent)
            if not isinstance(error, GeneratorExit):
                self._pay_now()  # a cancellation does not keep an operation from its end
            raise
        settled = None if sent.done is None else sent.done(reply)
        wake_first(operation.lines)
        return settled

    @staticmethod
    def _keys(operation: Shared) -> list[str]:
        places = (cast("Sight", operation.sights[at]).place for at in operation.shared)
        return [operation.lease, operation.tombstone, *(place.key for place in places if place is not None)]

    def _shown(self, operation: Shared, reply: Reply) -> None:
        with self._lock:
            reply.show([(operation.lines[at].account, cast("Sight", operation.sights[at])) for at in operation.shared])

    # -- the rest of the steps ------------------------------------------------------------------------------------

    def _extend(self, operation: Shared, more: Mapping[str, int]) -> Flow[Extended]:
        given = {kind: amount for kind, amount in more.items() if amount > 0}
        with self._lock:
            local = operation.local
            refused = None if local is None else room.first_short(self._rolled(local), given)
            if isinstance(refused, int):
                among = [at for at in operation.shared if at < operation.own[refused]]
            else:
                given, among = ({} if refused is None else refused) or given, list(operation.shared)
            asks = [at for at in among if operation.lines[at].account.nature is Nature.HELD and operation.lines[at].account.kind in given]
        extended = Extended(given)
        if asks and given:
            try:
                extended = yield from self._extend_shared(operation, given, look=isinstance(refused, int))
            except StoreError as error:
                shared = [operation.lines[at].account for at in asks]
                if not all(account.observe for account in shared):
                    raise self.refusal(error, None) from None
                self.failed()
        if extended.short is not None or local is None:
            return extended
        with self._lock:
            own = judging.extend(local, extended.more)
            operation.show_own()
        return Extended(own.more, own.short, in_order(operation.lines, extended.crossings, own.crossings))

    def _extend_shared(self, operation: Shared, given: Mapping[str, int], *, look: bool) -> Flow[Extended]:
        operation.extended += 1
        mode = (WRAPS_UP if operation.request.wraps_up else 0) + (OBSERVED if operation.observed is not None else 0)
        kinds = {kind: number for number, kind in enumerate(given)}
        words: list[str | int] = [mode + (ONLY_LOOK if look else 0), operation.name, operation.extended, self._day()]
        for at in operation.shared:
            line, sight = operation.lines[at], cast("Sight", operation.sights[at])
            asks = line.account.nature is Nature.HELD and line.account.kind in kinds
            amount = bounded(given[line.account.kind]) if asks else 0
            others = bounded(of_others(line.account, operation.request)) if line.account.claims else 0
            facts = facts_of(sight, line.account, line)
            words += (line.account.epoch or "", f"{facts} {amount} {kinds.get(line.account.kind, 0)} {others} {sight.warn}")
        keys = self._keys(operation)
        reply = Reply((yield from self.link.call(EXTEND, [keys[0], *keys[2:]], words))).there()
        self._shown(operation, reply)
        accounts = [operation.lines[at].account for at in operation.shared]
        if reply.letter == "O":
            return Extended({})
        if reply.letter == "X":
            number, reason, used, held = reply.words[1:]
            crossings = reply.crossed(accounts, "stream", "denied")
            return Extended({}, Denied(accounts[int(number) - 1], cast("Any", reason), int(used), int(held), 0), crossings)
        return self._extended(operation, reply, given, look=look)

    def _extended(self, operation: Shared, reply: Reply, given: Mapping[str, int], *, look: bool) -> Extended:
        accounts = [operation.lines[at].account for at in operation.shared]
        tells, gives = int(reply.words[1]), [int(one) for one in reply.words[2].split(",")]
        more = dict(given)
        with self._lock:
            held = operation.share()
            for at, amount in zip(operation.shared, gives, strict=True):
                if amount:
                    more[operation.lines[at].account.kind] = amount
                    held[at] += 0 if look else amount
            if tells and operation.observed is None:
                operation.observed = accounts[tells - 1]
        return Extended(more, None, reply.crossed(accounts, "stream", "observed"))

    def _retune(self, account: Account, sight: Sight, place: Place, value: int) -> Flow[None]:
        words = [account.epoch or "", sight.birth(account), self._day(), str(bounded(value))]
        try:
            reply = Reply((yield from self.link.call(RETUNE, [place.key], words))).there()
        except StoreError as error:
            raise self.refusal(error, account) from None
        with self._lock:
            reply.show([(account, sight)])
            if value > TOP:
                account.revalue(value)
            if account.claims:
                split(account)
        wake_first((), [account])

    def _clocked(self, account: Account, sight: Sight, place: Place, elapsed: int, *, refuses: bool) -> Flow[Sequence[Crossing]]:
        facts = f"{facts_of(sight, account)} {sight.warn}"
        words = [account.epoch or "", sight.birth(account), self._day(), facts, str(bounded(elapsed)), str(int(refuses))]
        try:
            reply = Reply((yield from self.link.call(CLOCK, [place.key], words))).there()
        except StoreError:
            self.failed()
            with self._lock:
                return judging.clock(account, elapsed, refuses=refuses)  # time passes without the store
        with self._lock:
            reply.show([(account, sight)])
        decision = "observed" if account.observe else "denied" if reply.words[1] == "1" else "admitted"
        return reply.crossed([account], "timer", decision)

    # -- the line -------------------------------------------------------------------------------------------------

    def blocks_itself(self, request: Reservation, account: Account) -> bool:
        """Tell that the asker's own chain holds what stands in the way."""
        with self._lock:
            return serving.blocks_itself(request, account, {**self._local, **self._operations})

    def leave(self, stander: Stander) -> None:
        """Take somebody out of line in the store."""
        self.drop(stander)
        self._pay_now()

    def drop(self, stander: Stander) -> None:
        """Do so at the next step."""
        if stander.ticket and stander.place:
            self._owed.add(Sent(LEAVE, [stander.place], [stander.ticket]))

    # -- debts, signs of life, and the dead -----------------------------------------------------------------------

    def _pay(self) -> Flow[None]:
        if self._owed:
            yield from self._owed.pay(self.link)

    def _pay_now(self) -> None:
        try:
            run_sync(self._pay())
        except StoreError:
            self.failed()
            self._pulse.start()

    def _reap_in_time(self, tag: str) -> Flow[None]:
        with self._lock:
            due = self._leases.may_reap(tag)
        if due:
            yield from self._reap(tag)

    def _reap(self, tag: str, *, everybody: bool = False) -> Flow[int]:
        with self._lock:
            own = self._leases.on(tag).name
        ended, more = 0, True
        while more:
            found = yield from self.link.call(REAP, [f"{tag}:x", f"{tag}:d"], [f"{tag}:o:", int(everybody), own])
            ended += int(found[0])
            more = everybody and (found[0] or found[1])
        return ended

    def _beat(self) -> float | None:
        """Give a sign of life, and send what is owed; None when nothing is held any more."""
        try:
            run_sync(self._pay())
            with self._lock:
                leases = self._leases.current() if self._operations else []
            for lease in leases:
                self._live_on(lease)
        except StoreError:
            self.failed()
            return min(_TRY_AGAIN_S, self._lease_s / 4)
        with self._lock:
            if self._operations or self._owed:
                return self._lease_s / 4
            self._pulse.stopped()
            return None

    def _live_on(self, lease: Lease) -> None:
        alive = run_sync(self.link.call(BEAT, [f"{lease.tag}:x", lease.operations], [lease.name, self._leases.lease_ms]))
        with self._lock:
            self._leases.beaten(lease) if alive else self._leases.over(lease)
