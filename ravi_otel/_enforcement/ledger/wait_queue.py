"""Wait in line for what others hold, sync or async, and answer those who wait in their order."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Generic, TypeVar

from ravi_otel._enforcement.ledger.account import Account
from ravi_otel._enforcement.ledger.judge import Denied, Grant, Line, Operations, Reservation, last_word, reserve
from ravi_otel._enforcement.sleeper import Sleeper
from ravi_otel._flow import Flow, Step, run_sync


class Waiter(Sleeper):
    """Stand in line for one reservation, because of what `blocked_by` has; `answer` is set under the ledger's lock, before `wake`."""

    __slots__ = ("answer", "blocked_by", "request")

    def __init__(self, request: Reservation) -> None:
        super().__init__(request.meanwhile)
        self.request = request
        self.answer: Grant | Denied | None = None
        self.blocked_by: Account | None = None

    def step(self) -> Step:
        """Return the step that waits, as long as the request has patience."""
        patience_s = self.request.patience_s
        return Step(partial(self.block, patience_s), partial(self.wait, patience_s))

    def refused(self) -> Denied:
        """Return the answer to who was in line in vain."""
        return Line(self.blocked_by or self.request.lines[0].account, 0, 0).deny("contended")


W = TypeVar("W", bound=Waiter)


class WaitQueue(ABC, Generic[W]):
    """A line of callers, sync and async, who wait until their turn comes, their patience is over, or they are dropped."""

    _dropped: deque[W]
    _sweeping = False

    @abstractmethod
    def release(self, op_id: str) -> Flow[None]:
        """See `Ledger.release`."""

    @abstractmethod
    def _stand(self, waiter: W) -> Grant | Denied | None:
        """Judge again, now that it can be woken, so that nothing freed since is missed; return None where it stands in line now."""

    @abstractmethod
    def _leave(self, waiter: W, *, wants: bool = True) -> Grant | Denied:
        """Take somebody out of line; who only ran out of patience, and still wants, gets what there is."""

    def _wait(self, waiter: W) -> Flow[Grant | Denied]:
        answer = self._stand(waiter)
        if answer is not None:
            return answer
        request = waiter.request
        forget = None if request.on_stop is None else request.on_stop(waiter.wake)
        try:
            yield waiter.step()
        except GeneratorExit:
            self._dropped.append(waiter)  # perhaps by a finaliser, which must not take the lock
            raise
        except BaseException:
            self._give_up(waiter)
            raise
        finally:
            if forget is not None:
                forget()
        return self._leave(waiter)

    def _give_up(self, waiter: W) -> None:
        if isinstance(self._leave(waiter, wants=False), Grant):
            run_sync(self.release(waiter.request.op_id))

    def _sweep(self) -> None:
        """Take those out of line whose coroutine was dropped, once each: a store that fails drops them again."""
        if self._sweeping:  # a step that takes one out of line comes by here
            return
        self._sweeping = True
        try:
            for _ in range(len(self._dropped)):
                with contextlib.suppress(IndexError):  # another thread takes them out, too
                    self._give_up(self._dropped.popleft())
        finally:
            self._sweeping = False


def wake(woken: deque[W], release: Callable[[str], Flow[None]]) -> None:
    """Wake them, without the lock; what was granted to a task whose event loop is gone is given back."""
    while woken:
        try:
            waiter = woken.popleft()
        except IndexError:  # another thread has woken it
            return
        if not waiter.wake() and isinstance(waiter.answer, Grant):
            run_sync(release(waiter.request.op_id))


def serve_line(account: Account, operations: Operations, woken: deque[Waiter]) -> None:
    """Answer those in line, first come first served, until one has to go on waiting, or stands there for another process.

    Where there are claims one may have to wait for what another is promised, and lets that one pass.
    """
    at = 0
    while at < len(account.waiters):
        waiter = account.waiters[at]
        if not isinstance(waiter, Waiter):
            if not account.claims:
                return
            at += 1
            continue
        answer = reserve(waiter.request, operations, newcomer=False)
        if isinstance(answer, Denied) and answer.reason == "contended":
            if answer.account is account and not account.claims:
                return
            if answer.account is account:
                at += 1
                continue
            if not waiter.request.blocks_itself(answer.account, operations):
                account.waiters.pop(at)
                answer.account.waiters.append(waiter)  # now another account stands in the way
                continue
            answer = last_word(waiter.request, operations)
        account.waiters.pop(at)
        waiter.answer = answer
        woken.append(waiter)
