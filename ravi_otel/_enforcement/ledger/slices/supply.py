"""Take chunks from a shared ledger, and give them back: all the round trips that slices need."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Final

from ravi_otel._enforcement.clock import Clock
from ravi_otel._enforcement.ledger import room, serving
from ravi_otel._enforcement.ledger.account import Account, Nature
from ravi_otel._enforcement.ledger.contract import Crossing, Denied, Grant, Ledger, Line, Reservation, new_op_id
from ravi_otel._enforcement.ledger.memory import MemoryLedger
from ravi_otel._enforcement.ledger.pulse import Pulse
from ravi_otel._enforcement.ledger.slices.slice import KEEP_S, Chunk, Joining, Slice, Twin
from ravi_otel._flow import Flow, run_sync
from ravi_otel.errors import BudgetExhaustedError

_LOOK_EVERY_S: Final = 0.25
_PAUSE_S: Final = 1.0


class Near(MemoryLedger):
    """Judge what needs no round trip: accounts of this process alone, and twins of those it has a slice of."""

    def knows(self, op_id: str) -> bool:
        """Tell that an operation holds something here."""
        return op_id in self._operations

    def first_refused(self, request: Reservation, lines: Sequence[Line]) -> int | None:
        """Tell which of the request's own lines here would be refused first; changes nothing."""
        if not lines or request.spent:
            return None
        with self._lock:
            self._expire(line.account for line in lines)
            return room.first_refused(replace(request, lines=lines), newcomer=True)

    def twins_of(self, op_id: str) -> list[Twin]:
        """List the twins an operation holds something of."""
        operation = self._operations.get(op_id)
        return [] if operation is None else [line.account for line in operation.lines if isinstance(line.account, Twin)]

    @property
    def lock(self) -> AbstractContextManager[bool]:
        """Give the lock under which its accounts change."""
        return self._lock

    def stands_in_its_own_way(self, request: Reservation, accounts: Sequence[Account]) -> bool:
        """Tell that the asker's own chain holds some of these accounts here."""
        with self._lock:
            return any(serving.blocks_itself(request, account, self._operations) for account in accounts)


class Supply:
    """Keep the slices of one process supplied from `inner`; twins change under the lock of `near`.

    What a step could not finish, because its task was cancelled or a signal came, is finished by the next one or by a thread of its
    own, which also gives back what is idle. Nothing here refuses a call: who gets no chunk asks for the call itself.
    """

    def __init__(self, inner: Ledger, near: Near, clock: Clock, *, tidies: bool) -> None:
        self._inner = inner
        self._near = near
        self._clock = clock
        self.out: dict[Slice, None] = {}
        self.frozen: dict[Slice, None] = {}
        self._ending: dict[str, Mapping[str, int]] = {}
        self._untold: list[Crossing] = []
        self._resume_at = 0.0
        self._pulse = Pulse(self._beat)
        self._tidies = tidies

    def now(self) -> float:
        """Give the time in seconds, from anywhere."""
        return self._clock.monotonic_ns() / 1e9

    def forget(self) -> None:
        """Start anew in a forked child: all slices are the parent's."""
        for each in tuple(self.out):
            each.forget()
        self.__init__(self._inner, self._near, self._clock, tidies=self._tidies)  # type: ignore[misc]  # of this very class

    def stop(self) -> None:
        """Give everything back that no call holds, and look no more."""
        self._pulse.end()
        self.flush()

    def flush(self) -> None:
        """Give everything back that no call holds, and charge what was used."""
        for each in tuple(self.out):
            run_sync(self.give_back(each))
        run_sync(self._end_chunks())

    @property
    def has_news(self) -> bool:
        """Tell that something was crossed of which nobody was told yet."""
        return bool(self._untold)

    def news(self) -> list[Crossing]:
        """Give what was crossed since, to be told once."""
        news, self._untold = self._untold, []
        return news

    def note(self, crossings: Sequence[Crossing]) -> None:
        """Keep what was crossed until the next answer."""
        self._untold.extend(crossings)

    # -- chunks ---------------------------------------------------------------------------------------------------

    def take(self, slice_: Slice, want: int, *, exactly: bool = False) -> Flow[bool]:
        """Take one more chunk for calls that want so much each; with `exactly`, for that alone. False when there is none to be had."""
        if self.now() < self._resume_at:
            return False
        with self._near.lock:
            if slice_.busy:
                return False
            slice_.busy = True
            used_up = slice_.take_used_up()
            self._end(slice_.account, used_up)
        try:
            yield from self._end_chunks()  # first: it shows how much is left
            now = self.now()
            meant = want if exactly else slice_.next_size(want, now)
            return bool(meant) and (yield from self._take(slice_, meant, now, whole=not exactly))
        finally:
            slice_.busy = False

    def _take(self, slice_: Slice, meant: int, now: float, *, whole: bool) -> Flow[bool]:
        account, era = slice_.account, slice_.era
        chunk = Chunk(new_op_id(), meant)
        answer = yield from self._hold(chunk, Line(account, meant, 1, carved=True), spent=False)
        if answer is None:
            self._resume_at = now + _PAUSE_S
            return False
        self.note(answer.crossings)
        if isinstance(answer, Denied):
            return False
        size = sum(hold for _, hold in answer.holds)
        with self._near.lock:
            taken = size > 0 and not (whole and size < meant) and slice_.era == era
            if taken:
                slice_.add(Chunk(chunk.op_id, size), meant, now)
                self.out[slice_] = None
                self.frozen.pop(slice_, None)
        if not taken:  # the rest of what there is belongs to whoever needs it now
            self._ending[chunk.op_id] = {account.kind: 0}
            yield from self._end_chunks()
            return False
        self._watch()
        return True

    def joined(self, lines: Sequence[Line]) -> None:
        """Note that the shared ledger was asked with these: it knows of stricter limits that came later."""
        with self._near.lock:
            for line in lines:
                place = line.account.slice
                if isinstance(place, Joining):
                    place.slice.tighten(line.account, place.stated)
                    line.account.slice = place.slice

    def _hold(self, chunk: Chunk, line: Line, *, spent: bool) -> Flow[Grant | Denied | None]:
        """Hold a chunk; None when the store cannot be used. What comes of one whose wait was cut off is given back later."""
        known = False
        try:
            answer = yield from self._inner.reserve(Reservation(chunk.op_id, [line], {}, spent=spent))
            known = True
        except BudgetExhaustedError:
            known = True
            return None
        finally:
            if not known:
                self._ending[chunk.op_id] = {line.account.kind: 0}
                self._watch()
        return answer

    def force(self, slice_: Slice, amount: int) -> Flow[Chunk | None]:
        """Hold what calls have already, whatever is left; None when the store cannot be used."""
        chunk = Chunk(new_op_id(), amount)
        answer = yield from self._hold(chunk, Line(slice_.account, amount, 0, free=True, carved=True), spent=True)
        if answer is None:
            return None
        self.note(answer.crossings)
        return chunk

    def cover(self, slice_: Slice) -> Flow[None]:
        """Hold what calls used beyond what the slice had, before anybody else is granted it."""
        with self._near.lock:
            missing = -slice_.twin.spare
        if missing <= 0:
            return
        chunk = yield from self.force(slice_, missing)
        if chunk is not None:
            with self._near.lock:
                slice_.force(chunk)
                self.out[slice_] = None

    def give_back(self, slice_: Slice) -> Flow[None]:
        """Charge what was used of a slice, and give back what no call holds."""
        with self._near.lock:
            if slice_.busy or not (slice_.movable or slice_.twin.used):
                return
            slice_.busy = True
            held = slice_.freeze()
        try:
            instead = None
            if held:
                instead = yield from self.force(slice_, held)
                if instead is None:
                    return  # the store is gone: all stays as it is, and is tried again
            with self._near.lock:
                self._end(slice_.account, slice_.take_all(instead))
                credit, slice_.twin.used = slice_.twin.used, 0
                for known in () if slice_.chunks else (self.out, self.frozen):
                    known.pop(slice_, None)
                if slice_.chunks:
                    self.frozen[slice_] = None
            yield from self._end_chunks()
            if credit:
                yield from self._credit(slice_.account, credit)
        finally:
            slice_.busy = False

    def thaw(self) -> Flow[None]:
        """Give back what calls held of slices that are no longer used, as soon as they end."""
        for each in tuple(self.frozen):
            if each.worth_moving:
                yield from self.give_back(each)

    def _credit(self, account: Account, amount: int) -> Flow[None]:
        """Take off what was charged with a chunk for calls that never left; only what is counted at once is given back so."""
        if account.nature is not Nature.COUNTED or amount > 0:
            return
        chunk = Chunk(new_op_id(), 0)
        yield from self._hold(chunk, Line(account, amount, 0, free=True), spent=True)
        self._ending[chunk.op_id] = {account.kind: 0}
        yield from self._end_chunks()

    def _end(self, account: Account, ended: Sequence[tuple[str, int]]) -> None:
        for op_id, used in ended:
            self._ending[op_id] = {account.kind: used}

    def _end_chunks(self) -> Flow[None]:
        """Settle what is to be settled; once each, however often it is tried."""
        for op_id, used in tuple(self._ending.items()):
            settled = yield from self._inner.settle(op_id, used)
            self._ending.pop(op_id, None)
            self.note(settled.crossings)

    # -- the thread -----------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        if self._tidies:
            self._pulse.start()

    def tidy(self) -> None:
        """Give back what is idle, and finish what was cut off."""
        now = self.now()
        for each in tuple(self.out):
            if not each.open or now - each.since > KEEP_S:
                run_sync(self.give_back(each))
        run_sync(self._end_chunks())

    def _beat(self) -> float | None:
        """Tidy up; None when nothing is out."""
        self.tidy()
        with self._near.lock:
            if self.out or self._ending:
                return _LOOK_EVERY_S
            self._pulse.stopped()
        return None
