"""Tell how everything ends that SIGTERM ends: by its default action a process dies without a word.

Only where the program has left the signal to the system when it is instrumented: a handler of its own is never replaced, and one that it
sets later takes this one's place. The process still dies of the signal, within five seconds and at once by a second one.
`RAVI_SIGTERM=off` leaves the signal alone.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterable
from typing import Any, Final

from ravi_otel._enforcement.ending import Ending
from ravi_otel._enforcement.scope import Scope
from ravi_otel._forksafe import renew_in_child
from ravi_otel._runtime.late import drain
from ravi_otel._runtime.scopes import finish_open
from ravi_otel._runtime.state import STATE
from ravi_otel._runtime.stopping import end_under_way
from ravi_otel.errors import CancellationError
from ravi_otel.hooks._listeners import swallow
from ravi_otel.policy._checks import switch
from ravi_otel.policy._limits import ScopeKind
from ravi_otel.policy._runs import StopReason

VARIABLE: Final = "RAVI_SIGTERM"
LONGEST_S: Final = 5.0
_ENTERED: Final = frozenset({ScopeKind.RUN, ScopeKind.HANDOFF, ScopeKind.AGENT, ScopeKind.BLOCK})
_TERMINATED: Final = Ending("cancelled", StopReason.CANCELLED)


class Termination:
    """The handler of SIGTERM of this process, while one is installed."""

    def __init__(self) -> None:
        self._open: Callable[[], Iterable[Any]] = tuple
        self._abandon: Callable[[], object] = tuple
        self._leave: Callable[[], object] = tuple
        self.ends: list[Callable[[int], object]] = []
        """What is told of the signal last: who keeps a run for the whole process."""

    def install(self, open_scopes: Callable[[], Iterable[Any]], *, abandon: Callable[[], object], leave: Callable[[], object]) -> None:
        """Handle the signal, where nobody else does.

        What `abandon` finds open and every other call under way is ended first, then `open_scopes`, innermost first; `leave` tells what
        is untold.
        """
        self._open, self._abandon, self._leave = open_scopes, abandon, leave
        if threading.current_thread() is not threading.main_thread() or not switch(os.environ, VARIABLE, default=True, safe=False):
            return
        if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, self.handle)

    def remove(self) -> None:
        """Leave the signal to the system again, unless the program has taken it meanwhile."""
        self._open = self._abandon = self._leave = tuple
        if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) == self.handle:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def handle(self, number: int, _frame: object) -> None:
        """Tell what ends, and die of the signal."""
        signal.signal(number, signal.SIG_DFL)
        try:
            last = threading.Timer(LONGEST_S, os.kill, (os.getpid(), number))  # whatever hangs in what is told
            last.daemon = True
            last.start()
            self._tell(number)
        except BaseException as error:  # noqa: BLE001 - the process is to end, whatever a callback of the program's raises
            if isinstance(error, Exception):
                swallow("terminate", error)
        finally:
            os.kill(os.getpid(), number)

    def _tell(self, number: int) -> None:
        self._abandon()
        drain()
        end_under_way()
        scopes = [
            scope for scope in self._open() if isinstance(scope, Scope) and scope.facts.kind in _ENTERED and not scope.facts.surrounding
        ]
        finish_open(scopes, _TERMINATED)
        STATE.conclude(CancellationError("the process was told to end", reason=signal.Signals(number).name))
        self._leave()
        for end in self.ends:
            end(number)


TERMINATION: Final = Termination()

renew_in_child(TERMINATION.remove)
