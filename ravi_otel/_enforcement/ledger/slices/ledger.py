"""Count hot limits in slices: a process takes a part of a shared account beforehand, and most of its calls ask nobody.

A slice is held in the shared ledger like anything else, so that all slices and all calls together never pass the limit. Chunks grow
with the rate of calls, and shrink towards the warning level and the limit: in the last stretch every call is asked of the shared
ledger itself, one by one. A slice is given back when it is idle, when the limit is set anew, and when the ledger is closed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, TypeVar, cast
from weakref import WeakValueDictionary

from ravi_otel._enforcement.clock import Clock, SystemClock
from ravi_otel._enforcement.ledger.account import Account, Nature
from ravi_otel._enforcement.ledger.contract import Crossing, Denied, Extended, Grant, Ledger, Line, Reservation, Settled, new_op_id
from ravi_otel._enforcement.ledger.slices.merging import both, merged
from ravi_otel._enforcement.ledger.slices.slice import Joining, Slice, Twin, slice_of
from ravi_otel._enforcement.ledger.slices.supply import Near, Supply
from ravi_otel._flow import Done, Flow, is_done, run_sync

T = TypeVar("T", bound="Grant | Denied | Settled | Extended")

A = TypeVar("A")

_OWN: Final = "own"
"""What an account of this process alone is marked with."""

_ASKED: Final = "asked"
"""What a shared account of which no slice can be taken is marked with: each call asks for it."""

_SLICED: Final = frozenset({Nature.COUNTED, Nature.HELD})


class SlicedLedger:
    """Count in `inner`, and in slices of it where limits are hot.

    `shares` says which accounts other processes count in, `inner.spans` unless it is given. What this process may use without asking
    is held in `inner`: should it die, that much at most (`out`) is settled as if it had been used. Nearing and exceeded are told by
    `inner`, once, late by no more than the slices out. A thread gives back what is idle, unless `tidies` is False: then call `tidy`
    now and then. Takes the same requests, and gives the same answers, as `inner` does.
    """

    def __init__(
        self, inner: Ledger, *, shares: Callable[[Account], bool] | None = None, clock: Clock | None = None, tidies: bool = True
    ) -> None:
        self.inner: Final = inner
        self._shares = inner.spans if shares is None else shares
        self._clock = SystemClock() if clock is None else clock
        self._near = Near(self._clock)
        self._supply = Supply(inner, self._near, self._clock, tidies=tidies)
        self._asked: dict[str, Grant | None] = {}
        self._slices: WeakValueDictionary[str, Slice] = WeakValueDictionary()

    def __getattr__(self, name: str) -> Any:
        """Give what only the inner ledger has, such as `reap` or `wall_s`."""
        if name == "inner":
            raise AttributeError(name)
        return getattr(self.inner, name)

    def __len__(self) -> int:
        """Count the operations of this process that still hold something."""
        return len(self._near) + sum(1 for both in self._asked.values() if both is None)

    @property
    def out(self) -> int:
        """Count what is out in slices, over all accounts, each in its own unit."""
        with self._near.lock:
            return sum(each.out for each in self._supply.out)

    def reset_after_fork(self) -> None:
        """Start anew in a forked child: all slices are the parent's."""
        self._near.reset_after_fork()
        self._supply.forget()
        self._asked = {}
        self.inner.reset_after_fork()

    def close(self) -> None:
        """Give every slice back, and close the inner ledger."""
        self._supply.stop()
        close = getattr(self.inner, "close", None)
        if close is not None:
            close()

    def flush(self) -> None:
        """Give back all that no call holds right now, and charge what was used."""
        self._supply.flush()

    def tidy(self) -> None:
        """Give back the slices that are idle."""
        self._supply.tidy()

    def spans(self, account: Account) -> bool:
        """See `Ledger.spans`."""
        return self.inner.spans(account)

    def read(self, account: Account) -> bool:
        """Show in the account what the ledger that keeps it says."""
        read = getattr(self._near if self._place(account) is _OWN else self.inner, "read", None)
        return bool(read(account)) if read is not None else True

    # -- the contract ---------------------------------------------------------------------------------------------

    def reserve(self, request: Reservation) -> Flow[Grant | Denied]:
        """See `Ledger.reserve`."""
        lines = self._lines_here(request)
        if lines is None:
            return self._ask(request)
        flow = self._near.reserve(_of(request, lines))
        answer = _at_once(flow)
        if answer is None:  # it would have to wait in line, in which it does not stand yet
            return self._ask(request)
        if isinstance(answer, Denied):
            return self._ask(request) if isinstance(answer.account, Twin) else flow
        if self._supply.has_news:
            self._tell(answer)
        for line in lines:
            account = line.account
            if isinstance(account, Twin) and account.spare < cast("Slice", account.account.slice).low:
                return self._refill(answer, cast("Slice", account.account.slice), line.want)
        return flow

    def extend(self, op_id: str, more: Mapping[str, int]) -> Flow[Extended]:
        """See `Ledger.extend`."""
        if op_id in self._asked:
            return self.inner.extend(op_id, more) if self._asked[op_id] is None else self._extend_both(op_id, more)
        flow = self._near.extend(op_id, more)
        extended = _at_once(flow)
        short = None if extended is None or extended.short is None else extended.short.account
        return self._extend_slice(op_id, more, short) if isinstance(short, Twin) else flow

    def settle(self, op_id: str, actual: Mapping[str, int] | None, *, guessed: bool = False) -> Flow[Settled]:
        """See `Ledger.settle`."""
        if op_id in self._asked:
            return self._settle_asked(op_id, actual, guessed=guessed)
        flow = self._near.settle(op_id, actual, guessed=guessed)
        settled = run_sync(flow)
        if settled.overage or self._supply.frozen:
            return self._cover(settled)
        if self._supply.has_news:
            return cast("Flow[Settled]", Done(self._tell(Settled(settled.crossings, settled.overage))))
        return flow

    def release(self, op_id: str) -> Flow[None]:
        """See `Ledger.release`."""
        slices = [cast("Slice", twin.account.slice) for twin in self._near.twins_of(op_id)]
        if op_id not in self._asked and all(each.open for each in slices):
            return self._near.release(op_id)
        return self._release_asked(op_id, slices)

    def retune(self, account: Account, value: int | None) -> Flow[None]:
        """See `Ledger.retune`."""
        place = self._place(account)
        return self._near.retune(account, value) if place is _OWN else self._retune_asked(account, value)

    def declare(self, account: Account, value: int) -> Flow[None]:
        """See `Ledger.declare`."""
        place = self._place(account)
        return self._near.declare(account, value) if place is _OWN else self._declare_asked(account, value)

    def clocked(self, account: Account, elapsed: int, *, refuses: bool = True) -> Flow[Sequence[Crossing]]:
        """See `Ledger.clocked`."""
        ledger = self._near if self._place(account) is _OWN else self.inner
        return ledger.clocked(account, elapsed, refuses=refuses)

    # -- where an account is judged -------------------------------------------------------------------------------

    def _place(self, account: Account) -> object:
        place = account.slice
        if place is None:
            sliced = account.nature in _SLICED and not account.observe
            place = account.slice = _OWN if not self._shares(account) else self._slice_of(account) if sliced else _ASKED
        return place

    def _slice_of(self, account: Account) -> Slice | Joining:
        """Give the slice of a counter, which limits that are declared twice have in common."""
        known = self._slices.setdefault(account.key, Slice(account))
        return Joining(known, account.value) if known.is_stricter(account) else known

    def _lines_here(self, request: Reservation) -> list[Line] | None:
        """Give the request on what can be judged here; None when some of it has to be asked of the shared ledger."""
        special = request.spent or request.slot or request.wraps_up or request.op_id in self._asked
        lines: list[Line] = []
        for line in request.lines:
            place = line.account.slice or self._place(line.account)
            if place is _OWN:
                lines.append(line)
            elif special or place is _ASKED or line.carved or line.free or not cast("Slice | Joining", place).open:
                return None
            else:
                twin = cast("Slice", place).twin
                known = next((each for each in lines if each.account is twin), None)
                if known is None:
                    lines.append(Line(twin, line.want, line.want))
                else:
                    known.want = known.minimum = max(known.want, line.want)
        return lines

    # -- asking ---------------------------------------------------------------------------------------------------

    def _ask(self, request: Reservation) -> Flow[Grant | Denied]:
        """Take chunks where that is worth it, else ask the shared ledger for this call."""
        known = self._asked.get(request.op_id)
        if known is not None:
            return known  # a repeated message
        if self._near.knows(request.op_id):
            return (yield from self._near.reserve(request))
        lines = [(line, self._place(line.account)) for line in request.lines]
        asked = [line for line, place in lines if place is not _OWN]
        own = [line for line, place in lines if place is _OWN]
        if not asked:
            return (yield from self._near.reserve(request))
        plain = not (request.spent or request.slot or request.wraps_up or any(line.carved or line.free for line in asked))
        if plain and request.op_id not in self._asked and (yield from self._take_chunks(asked)):
            here = self._lines_here(request)
            answer = None if here is None else _at_once(self._near.reserve(_of(request, here)))
            if isinstance(answer, Grant):
                return self._tell(answer)
        for line in asked:
            slice_ = slice_of(line.account)
            if slice_ is not None:
                yield from self._supply.give_back(slice_)
        return self._tell((yield from self._ask_both(request, asked, own)))

    def _take_chunks(self, asked: Sequence[Line]) -> Flow[bool]:
        """Have a slice of each account with room for the call; False where one is not worth it, or not to be had."""
        now = self._supply.now()
        slices = [(line.account.slice, line.want) for line in asked]
        hot = [isinstance(each, Slice) and (each.open or each.asked(now)) for each, _ in slices]
        if not all(hot):
            return False
        for each, want in slices:
            assert isinstance(each, Slice)
            if not (each.open and each.twin.spare >= want) and not (yield from self._supply.take(each, max(1, want))):
                return False
        return True

    def _ask_both(self, request: Reservation, asked: Sequence[Line], own: Sequence[Line]) -> Flow[Grant | Denied]:
        """Ask the shared ledger, and judge what is this process's own; nothing of either is held while the other is waited for."""
        until = self._supply.now() + request.patience_s
        while True:
            refused = self._near.first_refused(request, own)
            if refused is not None:
                denied = yield from self._refused_here(request, asked, own, own[refused], max(0.0, until - self._supply.now()))
                if denied is not None:
                    return denied
            twins = [each.twin for line in asked if (each := slice_of(line.account)) is not None and each.twin.held]
            left = 0.0 if twins and self._near.stands_in_its_own_way(request, twins) else max(0.0, until - self._supply.now())
            far = yield from self.inner.reserve(replace(request, lines=asked, patience_s=left))
            self._supply.joined(asked)
            if isinstance(far, Denied):
                return far
            if not own:
                self._asked[request.op_id] = None
                return far
            near = run_sync(self._near.reserve(replace(request, lines=own, patience_s=0.0)))
            if isinstance(near, Grant):
                self._asked[request.op_id] = one = merged(request, far, near)
                return one
            yield from self.inner.release(request.op_id)
            if near.reason != "contended" or self._supply.now() >= until:
                return near

    def _refused_here(
        self, request: Reservation, asked: Sequence[Line], own: Sequence[Line], at: Line, patience_s: float
    ) -> Flow[Denied | None]:
        """Tell the outermost breach where an account of this process's own refuses; None when waiting for that one has helped."""
        within = request.lines.index(at)
        outer = [line for line in asked if request.lines.index(line) < within]
        trial = replace(request, op_id=new_op_id(), lines=outer, patience_s=patience_s)
        if outer:
            far = yield from self.inner.reserve(trial)
            if isinstance(far, Denied):
                return far
            self._supply.note(far.crossings)
            yield from self.inner.release(trial.op_id)
        near = yield from self._near.reserve(replace(trial, lines=own))
        if isinstance(near, Denied):
            return near
        self._supply.note(near.crossings)
        yield from self._near.release(trial.op_id)
        return None

    # -- ending what was asked ------------------------------------------------------------------------------------

    def _settle_asked(self, op_id: str, actual: Mapping[str, int] | None, *, guessed: bool) -> Flow[Settled]:
        far = yield from self.inner.settle(op_id, actual, guessed=guessed)
        near = yield from self._near.settle(op_id, actual, guessed=guessed)
        self._asked.pop(op_id, None)
        return self._tell(Settled([*far.crossings, *near.crossings], [*far.overage, *near.overage]))

    def _release_asked(self, op_id: str, slices: Sequence[Slice]) -> Flow[None]:
        if op_id in self._asked:
            yield from self.inner.release(op_id)
        yield from self._near.release(op_id)
        self._asked.pop(op_id, None)
        for each in slices:
            if not each.open:
                yield from self._supply.give_back(each)

    def _extend_both(self, op_id: str, more: Mapping[str, int]) -> Flow[Extended]:
        """Hold more of what is this process's own first: what is held of it in vain is given back with the operation."""
        near = run_sync(self._near.extend(op_id, more))
        if near.short is not None:
            return cast("Flow[Extended]", Done(near))
        flow = self.inner.extend(op_id, {**more, **near.more})
        far = _at_once(flow)
        return self._extended(flow, near) if far is None else cast("Flow[Extended]", Done(both(far, near)))

    def _extended(self, flow: Flow[Extended], near: Extended) -> Flow[Extended]:
        return both((yield from flow), near)

    def _extend_slice(self, op_id: str, more: Mapping[str, int], short: Twin) -> Flow[Extended]:
        """Take a chunk for a stream that goes on, as long as there is one to be had."""
        while True:
            slice_ = cast("Slice", short.account.slice)
            want = max(1, more.get(short.kind, 0))
            if not (yield from self._supply.take(slice_, want)) and not (yield from self._supply.take(slice_, want, exactly=True)):
                account = short.account
                return Extended({}, Denied(account, "contended", account.used, account.held, 0), self._supply.news())
            extended = yield from self._near.extend(op_id, more)
            if extended.short is None or not isinstance(extended.short.account, Twin):
                return self._tell(extended)
            short = extended.short.account

    def _retune_asked(self, account: Account, value: int | None) -> Flow[None]:
        slice_ = slice_of(account)
        if slice_ is not None:
            yield from self._supply.give_back(slice_)
        yield from self.inner.retune(account, value)

    def _declare_asked(self, account: Account, value: int) -> Flow[None]:
        slice_ = slice_of(account)
        if slice_ is not None:
            account.slice = Joining(slice_, value)
            yield from self._supply.give_back(slice_)
        yield from self.inner.declare(account, value)

    def _refill(self, grant: Grant, slice_: Slice, want: int) -> Flow[Grant | Denied]:
        """Take another chunk before the last one is used up; who asks is granted already."""
        taken = False
        try:
            yield from self._supply.take(slice_, max(1, want))
            taken = True
        finally:
            if not taken:  # cancelled meanwhile: nobody will end it
                run_sync(self._near.release(grant.op_id))
        return self._tell(grant)

    def _cover(self, settled: Settled) -> Flow[Settled]:
        """Hold at once what passed a grant, where the slice has no more of it, and tell it of the accounts themselves."""
        overage: list[tuple[Account, int]] = []
        for account, amount in settled.overage:
            if isinstance(account, Twin):
                yield from self._supply.cover(cast("Slice", account.account.slice))
            overage.append((account.account if isinstance(account, Twin) else account, amount))
        yield from self._supply.thaw()
        return self._tell(Settled(settled.crossings, overage))

    def _tell(self, answer: T) -> T:
        """Add to an answer what was crossed since the last one."""
        if self._supply.has_news:
            answer.crossings = [*answer.crossings, *self._supply.news()]
        return answer


def _at_once(flow: Flow[A]) -> A | None:
    """Give what a flow has at hand; None where it has to wait."""
    return flow.value if is_done(flow) else None


def _of(request: Reservation, lines: Sequence[Line]) -> Reservation:
    """Ask for the same on other lines."""
    return Reservation(
        request.op_id,
        lines,
        request.floor,
        request.owner,
        request.patience_s,
        request.spent,
        request.on_stop,
        request.meanwhile,
        request.around,
        request.wraps_up,
        request.sure,
        request.slot,
    )
