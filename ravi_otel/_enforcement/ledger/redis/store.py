"""Count for all processes that reach the same Redis: each step is one script, which does what `judge` does on accounts in memory.

A process that dies holding something is silent; when its lease runs out, whoever comes next settles that at its grant. Should it have
been asleep only, the real amount corrects that later, once. A message that was lost is sent again: an operation counts once.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, TypeVar, cast

from ravi_otel._enforcement.ledger import judge, wait_queue
from ravi_otel._enforcement.ledger.account import Account, Nature
from ravi_otel._enforcement.ledger.contract import Crossing, Denied, Extended, Grant, Reservation, Settled, Told, new_op_id
from ravi_otel._enforcement.ledger.operators import MOST_LISTED, Counter, Listing
from ravi_otel._enforcement.ledger.redis.messages import (
    CLOCK,
    EXTEND,
    LAST,
    LIST,
    LOOK,
    NEWCOMER,
    OBSERVED,
    OPERATE,
    PATIENT,
    RELEASE,
    RESERVE,
    RETUNE,
    SETTLE,
    STAND,
    STRANGE,
    TOP,
    WRAPS_UP,
    Ask,
    Reply,
    Shared,
    Sight,
    bounded,
    counter_of,
    facts_of,
    listed,
    listed_page,
    show_twins,
    tag_in,
    tag_of,
)
from ravi_otel._enforcement.ledger.redis.process import Lease, ProcessState, Ticket, Write, wake_first
from ravi_otel._enforcement.ledger.store_failures import FORGOTTEN, StoreError, warn_uncounted
from ravi_otel._enforcement.ledger.store_readings import Copy
from ravi_otel._enforcement.sleeper import Sleeper
from ravi_otel._flow import Done, Flow, Step, run_sync
from ravi_otel.errors import ConfigurationError

T = TypeVar("T")
_TOKENS: Final = "tokens"
_MOST_TURNS: Final = 3
_SENT_AT_THE_END_S: Final = 0.75
"""How long the end of a process waits for pending writes to be sent, one by one."""

_FIRST_PAUSE_S: Final = 0.002
_LONGEST_PAUSE_S: Final = 0.025
_BEHIND_S: Final = 0.2
"""How long one that waits sleeps between two looks: the first of its process, and those behind it."""

_MOST_PAGES: Final = 1_000_000
"""Looks at a store, of some hundred keys each; one that never comes to its end is no store."""


class RedisStore(ProcessState):
    """Keep accounts in a Redis; see `SharedStore`.

    `namespace` keeps programs that share a server apart. `lease_s` is how long a silent process keeps what it holds, `keep_s` how long a
    counter of a tenant or a process is kept after its last use. `failed` is called for every step that the store could not take. Such a
    step refuses (BudgetExhaustedError, `reason` "store_failed" or "store_lost"); the end of an operation is kept, and sent again.
    """

    def __len__(self) -> int:
        """Count the operations of this process that still hold something."""
        return len(self.operations)

    def __contains__(self, op_id: object) -> bool:
        """Whether an operation of this process holds something."""
        return op_id in self.operations

    def close(self) -> None:
        """Let the store go; what this process still holds is settled at its grant, until it says otherwise.

        What the store cannot be told, in the three quarters of a second that there are for it, is told as uncounted in the log: of it,
        what the store knows to be held is settled at its grant with the lease.
        """
        self.pulse.end()
        with self.beating:
            self.closed = True
        try:
            run_sync(self.pending.send(self.client, for_s=_SENT_AT_THE_END_S))
            run_sync(self.sign_off(for_s=_SENT_AT_THE_END_S / 2))
        except StoreError:
            self.failed()
        if self.pending:
            self.failed()
            warn_uncounted(f"the process ended, and {len(self.pending):,} messages could not be sent; what it held counts at its grant")
        self.client.close()

    def spans(self, _: Account) -> bool:
        """See `Ledger.spans`: all that is here is shared."""
        return True

    # -- reserving ------------------------------------------------------------------------------------------------

    def reserve(self, request: Reservation) -> Flow[Grant | Denied]:
        """See `Ledger.reserve`."""
        known = self.operations.get(request.op_id)
        return self._reserve(Ask(request, self.sight)) if known is None else cast("Flow[Grant | Denied]", Done(known))

    def _reserve(self, ask: Ask) -> Flow[Grant | Denied]:
        answer = yield from self._attempt(ask, NEWCOMER)
        if ask.request.patience_s > 0 and wait_queue.is_contended(answer):
            answer = yield from self._wait(ask, cast("Denied", answer))
        return self.pending.with_news(answer)

    def _attempt(self, ask: Ask, mode: int, ticket: Ticket | None = None) -> Flow[Grant | Denied]:
        """Ask once; where the store fails, refuse, unless nothing was asked: what is only observed goes on."""
        mode |= ask.mode & ~PATIENT if mode & LAST else ask.mode
        try:
            if not ask.request.spent and self.pending:
                yield from self.send_some()
            return (yield from self._ask(ask, mode, ticket))
        except StoreError as error:
            asked = [line.account for line in ask.lines if not line.account.observe]
            if asked:
                raise self.refusal(error, asked[0]) from None
            self.failed()
            return Grant(ask.request.op_id)

    def _ask(self, ask: Ask, mode: int, ticket: Ticket | None) -> Flow[Grant | Denied]:
        """Send the request under a lease of this process, a new one where the store has ended the last."""
        spent, tag = ask.request.spent, self._tag(ask)
        name, tombstone, bit = self.graves.of(ask.request.op_id, tag)
        if not spent and self.reap_is_due(tag):  # what is spent must not fail for anything but itself
            yield from self.reap_tag(tag)
        turns = 0
        while True:
            turns += 1
            yield from self._take_lost_slots(ask, tag)
            with self.lock:
                lease = self.leases.on(tag)
                words = ask.words()
            keys = [lease.operations, tombstone, f"{tag}:x", *(place.key for place in ask.places)]
            stands = ("", 0) if ticket is None else ticket.stands(ask)
            head: list[str | int] = [mode, name, bit, lease.name, "" if lease.made else self.leases.lease_ms, self.day(), *stands]
            try:
                reply = yield from self._answer(ask, keys, head, words)
                if reply.letter != "N":
                    self.leases.made(lease)
                    return self._granted(ask, reply, (lease, name, tombstone, bit))
                if turns > _MOST_TURNS:
                    raise StoreError(STRANGE)  # noqa: TRY301 - as any other failure of the store
            except StoreError as error:
                if spent and error.reason == "store_failed":
                    return self._record_later(ask, Write(RESERVE, keys, [*head[:4], self.leases.lease_ms, *head[5:], *words]), lease)
                if error.reason == "store_failed":
                    self._undo(ask, keys)
                raise
            except BaseException as error:
                self._undo(ask, keys)  # it may have come there all the same
                if not isinstance(error, GeneratorExit):
                    self.send_now()
                raise
            self.over(lease)

    def _take_lost_slots(self, ask: Ask, tag: str) -> Flow[None]:
        if ask.request.slot and not ask.request.spent:
            yield from self.make_sure(tag)
            yield from self.retake()

    def _answer(self, ask: Ask, keys: Sequence[str], head: Sequence[str | int], words: Sequence[str | int]) -> Flow[Reply]:
        """Send it, and again where the store has forgotten an account that may begin anew."""
        while True:
            reply = Reply((yield from self.client.call(RESERVE, keys, [*head, *words]))).of("GODNLU")
            at = reply.tells(len(ask.lines)) if reply.letter == "L" else 0
            if not at or not (yield from self.begin_anew(*ask.seen[at - 1])):
                return reply
            with self.lock:
                words = ask.words()

    def _granted(self, ask: Ask, reply: Reply, place: tuple[Lease, str, str, str]) -> Grant | Denied:
        accounts = ask.accounts
        reply.there()
        with self.lock:
            self.seen(reply, ask.seen)
            if ask.twins:
                show_twins(ask.twins)
            if reply.letter == "D":
                at, reason, used, held = reply.denies(len(accounts))
                crossings = reply.crossed(accounts, "admission", "denied") or ()
                return Denied(accounts[at], cast("Any", reason), used, held, ask.lines[at].minimum, crossings)
            if reply.letter == "O":
                least = [line.minimum for line in ask.lines if line.account.kind == _TOKENS]
                return Told(ask.request.op_id, min(least, default=None))
            at, holds = reply.admits(ask.lines)
            operation = Shared(ask, holds, accounts[at - 1] if at else None)
            operation.crossings = reply.crossed(accounts, "admission", "observed" if at else "admitted")
            lease, operation.name, operation.tombstone, operation.bit = place
            operation.lease = lease.operations
            self.operations[ask.request.op_id] = operation
            self.pulse.start()
            return operation

    def _tag(self, ask: Ask) -> str:
        tags = {place.tag for place in ask.places}
        if len(tags) > 1 and self.client.clustered:
            origins = " and ".join(sorted({line.account.origin for line in ask.lines}))
            raise ConfigurationError(
                f"{origins} are counted for different tenants, which a Redis Cluster keeps on different servers: declare them all inside "
                "the tenant, or all outside of it, or use one server."
            )
        return ask.places[-1].tag

    def _undo(self, ask: Ask, keys: Sequence[str]) -> None:
        """Give back, with the next message that gets through, what may have been granted although nobody heard of it."""
        self.operations.pop(ask.request.op_id, None)
        name, _, bit = self.graves.of(ask.request.op_id, tag_in(keys[0]))
        words: list[str | int] = [name, bit, self.day()]
        for account, sight in ask.seen:
            words += (account.epoch or "", f"{facts_of(sight, account)} {sight.warn}")
        self.write_later(Write(RELEASE, [*keys[:2], *keys[3:]], words))

    def _record_later(self, ask: Ask, write: Write, lease: Lease) -> Shared:
        """Record what has happened already when the store is there again."""
        held = [line.want if line.carved or line.account.nature is Nature.HELD else 0 for line in ask.lines]
        operation = Shared(ask, held, None)
        operation.lease = lease.operations
        operation.name, operation.tombstone, operation.bit = self.graves.of(ask.request.op_id, lease.tag)

        def recorded(reply: Reply) -> Settled:
            with self.lock:
                self.seen(reply.there(), ask.seen)
            return Settled(reply.crossed(ask.accounts, "admission", None))

        write.done, write.begins = recorded, ask.request.op_id
        self.failed()
        with self.lock:
            self.operations[ask.request.op_id] = operation
        self.write_later(write)
        return operation

    def retake(self) -> Flow[None]:
        """Hold again, whatever is left, the slots that were given away while their agents lived; nobody is let in until then."""
        for op_id, operation in tuple(self.lost.items()):
            lines = [replace(line, free=True) for line in operation.request.lines]
            ask = Ask(replace(operation.request, op_id=new_op_id(), lines=lines, spent=True, patience_s=0.0), self.sight)
            if self.operations.get(op_id) is operation:
                try:
                    again = yield from self._ask(ask, ask.mode, None)
                except StoreError as error:
                    if error.reason != "store_lost":
                        raise
                    again = None
                with self.lock:
                    self.operations.pop(ask.request.op_id, None)
                    wanted = isinstance(again, Shared) and self.operations.get(op_id) is operation
                    if wanted:
                        self.operations[op_id] = cast("Shared", again)
                if isinstance(again, Shared) and not wanted:  # it was given back meanwhile
                    yield from self._release(again)
            self.lost.pop(op_id, None)

    # -- waiting in line ------------------------------------------------------------------------------------------

    def _wait(self, ask: Ask, denied: Denied) -> Flow[Grant | Denied]:
        """Stand in line until it is granted, refused for good, or the patience is over."""
        if self._blocks_itself(ask, denied.account):
            return (yield from self._attempt(ask, LAST | NEWCOMER))
        ticket = Ticket(ask.request, self.name)
        answer = yield from self._attempt(ask, NEWCOMER | STAND, ticket)  # again, now that it has a ticket
        if not wait_queue.is_contended(answer):
            return answer
        ticket.move(ask, cast("Denied", answer).account)
        forget = None if ask.request.on_stop is None else ask.request.on_stop(ticket.stop)
        try:
            return (yield from self._stand(ask, ticket, cast("Denied", answer)))
        except GeneratorExit:
            self.drop(ticket)  # perhaps by a finaliser, which must do no I/O
            raise
        except BaseException:
            self.leave(ticket)
            raise
        finally:
            ticket.go()
            if forget is not None:
                forget()

    def _stand(self, ask: Ask, ticket: Ticket, answer: Denied) -> Flow[Grant | Denied]:
        until, pause_s = time.monotonic() + ask.request.patience_s, _FIRST_PAUSE_S
        while True:
            sleeper = ticket.sleeper
            left_s = until - time.monotonic()
            nap_s = min(left_s, pause_s if ticket.first else _BEHIND_S)
            if nap_s > 0 and not ticket.stopped:
                yield Step(partial(sleeper.block, nap_s), partial(sleeper.wait, nap_s))
            if ticket.stopped:
                self.leave(ticket)
                return Denied(answer.account, "contended", answer.account.used, answer.account.held, 0)
            if sleeper.unfit or time.monotonic() >= until:
                return (yield from self._attempt(ask, LAST, ticket))
            pause_s = _FIRST_PAUSE_S if sleeper.woken else min(pause_s * 1.5, _LONGEST_PAUSE_S)
            ticket.sleeper = Sleeper(ask.request.meanwhile)  # before it asks: nothing freed meanwhile is missed
            if not ticket.first:
                continue
            found = yield from self._attempt(ask, STAND, ticket)
            if not wait_queue.is_contended(found):
                return found
            answer = cast("Denied", found)
            if answer.account is not ticket.account and self._blocks_itself(ask, answer.account):
                return (yield from self._attempt(ask, LAST, ticket))
            ticket.move(ask, answer.account)

    def _blocks_itself(self, ask: Ask, account: Account) -> bool:
        with self.lock:
            return wait_queue.blocks_itself(ask.request, account, cast("Any", self.operations))

    # -- ending ---------------------------------------------------------------------------------------------------

    def settle(self, op_id: str, actual: Mapping[str, int] | None, *, guessed: bool = False) -> Flow[Settled]:
        """See `Ledger.settle`."""
        with self.lock:
            operation = self.operations.pop(op_id, None)
        if operation is None:
            return cast("Flow[Settled]", Done(judge.PLAIN))
        return self._settle(operation, actual or {}, guessed=guessed)

    def _settle(self, operation: Shared, told: Mapping[str, int], *, guessed: bool) -> Flow[Settled]:
        words = [operation.name, operation.bit, self.day()]
        over: list[tuple[Account, int]] = []
        for (line, hold), sight in zip(operation.holds, operation.sights, strict=True):
            account = line.account
            amount = told.get(account.kind)
            said = "" if amount is None else str(bounded(amount))
            words += (account.epoch or "", f"{facts_of(sight, account, line)} {sight.warn} {said} {int(guessed)}")
            if account.nature is Nature.HELD and amount is not None and amount > hold:
                over.append((account, amount - hold))

        def settled(reply: Reply) -> Settled:
            write.forgotten = not self._shown(operation, reply)
            return Settled(reply.crossed(operation.accounts, "settle", None), over if reply.letter == "S" else ())

        write = Write(SETTLE, operation.keys, words, settled)
        found = yield from self._end(operation, write)
        return self.pending.with_settled(found if found.crossings or found.overage else judge.PLAIN)

    def release(self, op_id: str) -> Flow[None]:
        """See `Ledger.release`."""
        with self.lock:
            operation = self.operations.pop(op_id, None)
        return cast("Flow[None]", Done(None)) if operation is None else self._release(operation)

    def _release(self, operation: Shared) -> Flow[None]:
        words = [operation.name, operation.bit, self.day()]
        for account, sight in operation.seen:
            words += (account.epoch or "", f"{facts_of(sight, account)} {sight.warn}")

        def released(reply: Reply) -> Settled:
            self._shown(operation, reply)
            return judge.PLAIN

        yield from self._end(operation, Write(RELEASE, operation.keys, words, released))

    def _end(self, operation: Shared, write: Write) -> Flow[Settled]:
        """Send the end of an operation, now or later: nothing keeps it from its end, not even a cancellation."""
        try:
            if self.pending:
                yield from self.send_some()
                if self.pending.begins(operation.op_id):
                    self.write_later(write)
                    return judge.PLAIN
            reply = Reply((yield from self.client.call(write.script, write.keys, write.words))).of("SOLU")
        except StoreError:
            self.failed()
            self.write_later(write)
            return judge.PLAIN
        except BaseException as error:
            self.write_later(write)
            if not isinstance(error, GeneratorExit):
                self.send_now()
            raise
        wake_first(operation.accounts)
        try:
            found = judge.PLAIN if write.done is None else write.done(reply)
        except StoreError:
            self.failed()  # it was taken: what the answer shows of the accounts is not needed for that
            return judge.PLAIN
        if write.forgotten:
            self.pending.give_up(write, FORGOTTEN)
        return found

    def _shown(self, operation: Shared, reply: Reply) -> bool:
        """Show in the accounts what the store says of them, and return whether it knows them all."""
        with self.lock:
            whole = self.seen(reply, operation.seen)
            if operation.twins:
                show_twins(operation.twins)
        return whole

    # -- extending ------------------------------------------------------------------------------------------------

    def extend(self, op_id: str, more: Mapping[str, int]) -> Flow[Extended]:
        """See `Ledger.extend`."""
        operation = self.operations.get(op_id)
        return cast("Flow[Extended]", Done(Extended({}))) if operation is None else self._extend(operation, more)

    def _extend(self, operation: Shared, more: Mapping[str, int]) -> Flow[Extended]:
        given = {kind: amount for kind, amount in more.items() if amount > 0}
        asked = [line.account for line in operation.lines if line.account.nature is Nature.HELD and line.account.kind in given]
        if not asked:
            return Extended(given)
        try:
            return (yield from self._extend_in_store(operation, given))
        except StoreError as error:
            if not all(account.observe for account in asked):
                raise self.refusal(error, None) from None
            self.failed()
            return Extended(given)

    def _extend_in_store(self, operation: Shared, given: Mapping[str, int]) -> Flow[Extended]:
        operation.extended += 1
        mode = (WRAPS_UP if operation.request.wraps_up else 0) + (OBSERVED if operation.observed is not None else 0)
        kinds = {kind: number for number, kind in enumerate(given)}
        words: list[str | int] = [mode, operation.name, operation.extended, self.day()]
        for line, sight in zip(operation.lines, operation.sights, strict=True):
            account = line.account
            amount = bounded(given.get(account.kind, 0)) if account.nature is Nature.HELD else 0
            others = bounded(account.promised(but=operation.request.meters)) if account.claims else 0
            facts = facts_of(sight, account, line)
            words += (account.epoch or "", f"{facts} {amount} {kinds.get(account.kind, 0)} {others} {sight.warn}")
        lease, _, *keys = operation.keys
        reply = Reply((yield from self.client.call(EXTEND, [lease, *keys], words))).of("EOXLU").there()
        self._shown(operation, reply)
        if reply.letter == "O":
            return Extended({})
        accounts = operation.accounts
        tells = reply.tells(len(accounts))
        if reply.letter == "X":
            at, reason, used, held = reply.denies(len(accounts), 2)
            crossings = reply.crossed(accounts, "stream", None, "denied")
            operation.observe(tells)
            return Extended({}, Denied(accounts[at], cast("Any", reason), used, held, 0), crossings)
        _, gives = reply.grants(len(accounts))
        operation.observe(tells)
        extended = dict(given)
        with self.lock:
            held_now = operation.share()
            for at, amount in enumerate(gives):
                if amount:
                    extended[accounts[at].kind] = amount
                    held_now[at] += amount
        return Extended(extended, None, reply.crossed(accounts, "stream", "observed"))

    # -- one account ----------------------------------------------------------------------------------------------

    def retune(self, account: Account, value: int | None) -> Flow[None]:
        """See `Ledger.retune`."""
        if value is not None:
            return self._retune(account, self.sight(account), value)
        with self.lock:
            judge.retune(account, None)
        wake_first([account])
        return cast("Flow[None]", Done(None))

    def _retune(self, account: Account, sight: Sight, value: int) -> Flow[None]:
        words = [account.epoch or "", sight.birth(account), self.day(), str(bounded(value)), f"{facts_of(sight, account)} {sight.warn}"]
        try:
            reply = Reply((yield from self.client.call(RETUNE, [sight.place.key], words))).of("SLU")
            if reply.letter == "L" and (yield from self.begin_anew(account, sight)):
                words[:2] = "", sight.birth(account)
                reply = Reply((yield from self.client.call(RETUNE, [sight.place.key], words))).of("SLU")
            with self.lock:
                self.seen(reply.there(), [(account, sight)])
        except StoreError as error:
            raise self.refusal(error, account) from None
        with self.lock:
            if value > TOP:
                account.revalue(value)
            if account.claims:
                account.split()
        wake_first([account])

    def declare(self, account: Account, value: int) -> Flow[None]:
        """See `Ledger.declare`: the store hears of it with what is asked next."""
        self.sight(account)
        with self.lock:
            judge.declare(account, value)
        return cast("Flow[None]", Done(None))

    def clocked(self, account: Account, elapsed: int, *, refuses: bool = True) -> Flow[Sequence[Crossing]]:
        """See `Ledger.clocked`."""
        sight = self.sight(account)
        facts = f"{facts_of(sight, account)} {sight.warn}"
        words = [account.epoch or "", sight.birth(account), self.day(), facts, str(bounded(elapsed)), str(int(refuses))]
        try:
            reply = Reply((yield from self.client.call(CLOCK, [sight.place.key], words))).of("SLU").there()
            decision = "observed" if account.observe else "denied" if reply.words[1:] == ["1"] else "admitted"
            crossings = reply.crossed([account], "timer", decision)
            with self.lock:
                reply.show([(account, sight)])
        except StoreError:
            self.failed()
            with self.lock:
                return judge.clock(account, elapsed, refuses=refuses)  # time passes without the store
        return crossings

    def read(self, account: Account) -> bool:
        """Show in the account what the store says, changing nothing; return False when it says nothing."""
        sight = self.sight(account)
        try:
            (state,) = run_sync(self._look([(account, sight)]))
            if not state:
                return False
            with self.lock:
                Reply(b"S;;%b" % state).show([(account, sight)])
        except StoreError as error:
            raise self.refusal(error, account) from None
        return True

    def seen_ns(self, account: Account) -> int | None:
        """See `Refreshing.seen_ns`."""
        sight = self.sight(account)
        return self.now_ns() - (self._clock.monotonic_ns() - sight.seen_ns) if sight.known else None

    def copies(self, accounts: Sequence[Account]) -> Sequence[Copy | None]:
        """See `Refreshing.copies`: one round trip, of a Cluster one for each slot."""
        asked = [(account, self.sight(account)) for account in accounts]
        slots = dict.fromkeys(sight.place.tag for _, sight in asked) if self.client.clustered else [None]
        found: dict[Account, Copy | None] = {}
        until = time.monotonic() + self.client.timeout_s
        for tag in slots:
            if found and time.monotonic() >= until:
                break
            these = [one for one in asked if tag in (None, one[1].place.tag)]
            try:
                states = run_sync(self._look(these, first=False))
            except StoreError:
                if not found:
                    raise
                break
            with self.lock:
                found |= {account: self._copy(account, sight, state) for (account, sight), state in zip(these, states, strict=True)}
        return [found.get(account) for account in accounts]

    def _copy(self, account: Account, sight: Sight, state: bytes) -> Copy | None:
        """Copy an account as the store has it, with what was used by hand since; under the lock."""
        if state in (b"", b"U"):
            return None if state or account.epoch is not None else Copy(account, self.now_ns())
        one, by_hand = Copy(account, self.now_ns()), max(0, account.used - sight.used) if sight.known else 0
        seen = Sight(self.life, sight.place, one.account)
        Reply(b"S;;%b" % state).show([(one.account, seen)])
        if account.epoch not in (None, one.account.epoch) or seen.revision < sight.revision:
            return None
        one.account.used += by_hand
        return one

    def _look(self, asked: Sequence[tuple[Account, Sight]], *, first: bool = True) -> Flow[list[bytes]]:
        """Ask for the states of these; empty where there is none."""
        words = [f"{facts_of(sight, account)} {sight.warn}" for account, sight in asked]
        states = yield from self.client.call(LOOK, [sight.place.key for _, sight in asked], [self.day(), *words], first=first)
        if not isinstance(states, list) or len(cast("list[object]", states)) != len(asked):
            raise StoreError(STRANGE)
        found = [state for state in cast("list[object]", states) if isinstance(state, bytes)]
        if len(found) != len(asked):
            raise StoreError(STRANGE)
        return found

    def reap(self, *, everybody: bool = False) -> int:
        """End what processes left behind whose lease ran out; with `everybody`, what any other process holds. Return how many."""
        ended = 0
        try:
            for tag in dict.fromkeys((tag_of(self._namespace, None), *self.leases.tags())):
                ended += run_sync(self.reap_tag(tag, everybody=everybody))
        except StoreError as error:
            raise self.refusal(error, None) from None
        return ended

    # -- operators ------------------------------------------------------------------------------------------------

    def list_accounts(self, *, most: int = MOST_LISTED) -> Flow[Listing]:
        """See `Operated.list_accounts`; of a Cluster only what one of its servers keeps."""
        return self._operated(self._list_accounts(most))

    def _list_accounts(self, most: int) -> Flow[Listing]:
        tag = tag_of(self._namespace, None)
        pattern = f"{tag[:-1]}[:}}]*"
        counters: dict[str, Counter] = {}
        cursor, processes, waiting = "0", 0, 0
        for _ in range(_MOST_PAGES):
            cursor, processes_here, rows = listed_page((yield from self.client.call(LIST, [f"{tag}:x"], [cursor, pattern])))
            processes += processes_here
            for row in rows:
                counter, stand = counter_of(row)
                waiting += 0 if counter.at in counters else stand
                counters[counter.at] = counter
            if cursor == "0" or len(counters) > most:
                break
        left_out = self.client.clustered or cursor != "0" or len(counters) > most
        return Listing(list(counters.values())[:most], left_out=left_out, processes=processes, waiting=waiting)

    def set_limit(self, counter: Counter, value: int) -> Flow[Counter | None]:
        """See `Operated.set_limit`."""
        return self._operated(self._operate(counter, str(bounded(value)), "0"))

    def close_scope(self, counters: Sequence[Counter]) -> Flow[int]:
        """See `Operated.close_scope`."""
        return self._operated(self._close_all(counters))

    def _close_all(self, counters: Sequence[Counter]) -> Flow[int]:
        closed = 0
        for counter in counters:
            closed += (yield from self._operate(counter, "0", "1")) is not None
        return closed

    def _operate(self, counter: Counter, value: str, closes: str) -> Flow[Counter | None]:
        """Set a counter's limit, or close it; return None where it is gone, or is another one now."""
        found = yield from self.client.call(OPERATE, [counter.at], [value, closes, counter.epoch or ""])
        return counter_of([counter.at, *listed(found)])[0] if found else None

    def _operated(self, flow: Flow[T]) -> Flow[T]:
        try:
            return (yield from flow)
        except StoreError as error:
            raise self.refusal(error, None) from None
