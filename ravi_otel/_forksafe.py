"""Go safely through forks and signals: one registry, and one hook of the interpreter for the whole package.

A fork leaves the child with locks that threads of the parent held, and with the parent's connections, threads and open work. A signal for
the process goes to any thread that does not block it. A program that blocks signals in its own threads and waits for them would be killed
by one that a thread of ours took, with the default action.
"""

from __future__ import annotations

import contextvars
import os
import signal
import sys
import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager, suppress
from functools import partial
from itertools import count
from typing import Any, Final, TypeVar

Owner = TypeVar("Owner")
Renew = TypeVar("Renew", bound=Callable[[], Any])

_BREATHER_S: Final = 0.1
"""How long a thread rests after a fault, so that one that stays does not keep a processor busy."""

_numbers: Final = count()
_befores: Final[list[Callable[[], object]]] = []
_in_parents: Final[list[Callable[[], object]]] = []
_renewals: Final[dict[int, Callable[[], Callable[[], object] | None]]] = {}
"""Ways to what is to be called in a forked child, in order; an owner that is gone gives None."""


def renew_in_child(renew: Renew) -> Renew:
    """Call a function, or an object's method, in every forked child before anything else runs there; after all registered before it.

    It may not wait for anybody, and does no I/O. What it raises the interpreter reports; the others are called all the same.
    """
    _renewals[next(_numbers)] = lambda: renew
    return renew


def renew_while_alive(owner: Owner, renew: Callable[[Owner], object]) -> None:
    """Call `renew` with its owner in every forked child for as long as the owner lives, which this does not prolong."""
    number, pop = next(_numbers), _renewals.pop  # kept here: at the end of the interpreter no global is left to the one below

    def forget(_: weakref.ref[Owner]) -> None:
        pop(number, None)

    known = weakref.ref(owner, forget)

    def living() -> Callable[[], object] | None:
        found = known()
        return None if found is None else partial(renew, found)

    _renewals[number] = living


def around_fork(before: Callable[[], object], in_parent: Callable[[], object] | None = None) -> None:
    """Call a function in the thread that forks, right before it does, and another one afterwards in the parent."""
    _befores.append(before)
    if in_parent is not None:
        _in_parents.append(in_parent)


def _before() -> None:
    _all(reversed(_befores))


def _in_parent() -> None:
    _all(_in_parents)


def _in_child() -> None:
    _all(renew for found in tuple(_renewals.values()) if (renew := found()) is not None)


def _all(acts: Iterable[Callable[[], object]]) -> None:
    bug: BaseException | None = None
    for act in acts:
        try:
            act()
        except BaseException as error:  # noqa: BLE001 - one that fails keeps no other from its work
            bug = bug or error
    if bug is not None:
        raise bug


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)


class ForkLock:
    """Have a lock, `own`, that one thread may take twice, and that is free in a forked child whoever held it in the parent.

    Take it by `with lock.own:` alone. It is no context manager itself: what a signal's handler raises in code of ours around the
    lock's own would leave it held for ever.
    """

    __slots__ = ("__weakref__", "own")

    def __init__(self) -> None:
        self.renew()
        renew_while_alive(self, ForkLock.renew)

    def renew(self) -> None:
        """Be free, in a child that has none of the threads which may have held it."""
        self.own = threading.RLock()  # a signal handler of the program's may come back here


@contextmanager
def without_signals() -> Generator[None]:
    """Block every signal meanwhile: threads inherit that from the thread that starts them.

    Not where gevent has made greenlets of threads: those run on this very thread, and would begin with the program's signals blocked.
    """
    if not hasattr(signal, "pthread_sigmask") or are_greenlets():
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def are_greenlets() -> bool:
    """Whether gevent has made greenlets of threads: one that is started runs on this very thread, and lets others run meanwhile."""
    monkey = sys.modules.get("gevent.monkey")
    return monkey is not None and monkey.is_module_patched("threading")


class Turns:
    """Let one at a time do something, and nobody wait for it.

    A signal's handler may raise right after a lock was taken, before any code of ours could note that: the lock would be held
    for ever. Here whoever leaves lets go of what is his, whether or not he knows that he has it.
    """

    __slots__ = ("__weakref__", "_busy", "_lock")

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        """Be free, in a forked child that has none of the threads which were at it."""
        self._lock = threading.RLock()
        self._busy = False

    def alone(self, work: Callable[..., object], *given: object) -> bool:
        """Do `work` with what is `given`, or nothing (False) while another thread is at it, or this one below a handler or a finaliser."""
        try:
            if not self._lock.acquire(blocking=False) or self._busy:
                return False
            try:
                self._busy = True
                work(*given)
            finally:
                self._busy = False
            return True
        finally:
            try:  # noqa: SIM105 - no call may come before this one, or a signal could
                self._lock.release()
            except RuntimeError:  # it is another thread's
                pass


class BackgroundThread(ABC):
    """A daemon thread of ours, which is started by the first work and again in a forked child; it takes none of the program's signals.

    Each `turn` of it waits with `sleep` and works; False ends it, though not where it was woken meanwhile.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self.renew()
        renew_while_alive(self, type(self).renew)

    def renew(self) -> None:
        """Start anew in a forked child, where there is no such thread."""
        self.running = False
        self._starting = Turns()
        self._gate = threading.Lock()

    def start(self) -> None:
        """Start the thread, unless it runs or somebody is at it."""
        if not self.running:
            self._starting.alone(self._start)

    def wake(self) -> None:
        """Wake it, by one step in C: a finaliser may."""
        with suppress(RuntimeError):  # woken already
            self._gate.release()

    def sleep(self, timeout_s: float) -> bool:
        """Wait until woken; return whether it was, also before."""
        return self._gate.acquire(timeout=timeout_s)

    @abstractmethod
    def turn(self) -> bool:
        """Wait, and do what there is to do; return whether to go on."""

    @abstractmethod
    def fault(self, bug: Exception) -> None:
        """Log what a turn has raised."""

    def _start(self) -> None:
        if self.running:
            return
        self.running = True
        self._gate = threading.Lock()  # of now: where threads were made greenlets meanwhile, an older one would stop all of them
        try:
            with without_signals():
                contextvars.Context().run(threading.Thread(target=self._live, name=self._name, daemon=True).start)
        except RuntimeError:  # the interpreter is ending, or has no room: who comes next does it
            self.running = False

    def _live(self) -> None:
        try:
            while self._goes_on():
                pass
        finally:
            self.running = False
        if not self._gate.locked():  # it was woken in between
            self.start()

    def _goes_on(self) -> bool:
        try:
            return self.turn()
        except Exception as bug:  # noqa: BLE001 - one fault, ours or a client's, keeps nothing else from being done
            self.fault(bug)
        except BaseException:  # noqa: BLE001, S110 - what would end a thread, such as SystemExit, comes from code of the program's
            pass
        time.sleep(_BREATHER_S)
        return True
