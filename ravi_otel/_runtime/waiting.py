"""Wait, and say who waits: for what others hold, for a slot that was lost, for a person, or before a refusal is raised.

`waiting` declares that the program waits for a person or another system: `working` limits stand still meanwhile, `time` goes on.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Final, Self

from ravi_otel._enforcement import errors_text
from ravi_otel._enforcement.engine import Engine
from ravi_otel._enforcement.scope import Scope
from ravi_otel._enforcement.sleeper import Sleeper, on_event_loop
from ravi_otel._enforcement.spawn_tracker import Lease
from ravi_otel._flow import Flow, Step
from ravi_otel._runtime.state import STATE
from ravi_otel._runtime.stopping import drain, later
from ravi_otel.errors import AgentPausedError, ConfigurationError, RaviError, SpawnDeniedError
from ravi_otel.hooks._events import CallRecord, ToolRecord
from ravi_otel.hooks._listeners import Guarded
from ravi_otel.policy import _checks as checks
from ravi_otel.policy._limits import NANO


class Waiting:
    """One declared wait: `with` and `async with`, once at a time."""

    __slots__ = ("_chosen", "_open", "reason")

    def __init__(self, reason: str, scope: Scope | None = None) -> None:
        self.reason = checks.name("waiting(reason)", reason)
        self._chosen = scope
        self._open: Scope | None = None

    def __repr__(self) -> str:
        return f"<Waiting for {self.reason!r} {'open' if self._open is not None else 'not open'}>"

    def __enter__(self) -> Self:
        if self._open is not None:
            raise ConfigurationError(f"waiting({self.reason!r}) is already open. Give each with block a waiting() of its own.")
        drain()  # waits that finalisers found over, before another begins
        inner, _ = STATE.locate()
        chosen = self._chosen
        scope = inner if chosen is None or chosen in inner.upwards() else chosen
        scope.begin_wait()
        self._open = scope
        scope.waits_for = (*scope.waits_for, self.reason)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        scope, self._open = self._open, None
        if scope is None:
            return
        scope.waits_for = tuple(each for each in scope.waits_for if each is not self.reason)
        if isinstance(error, GeneratorExit):
            later(partial(scope.end_wait, scope.engine.clock.monotonic_ns()))  # a finaliser may be running
        else:
            drain()
            scope.end_wait()

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.__exit__(kind, error, trace)


def waiting(reason: str) -> Waiting:
    """Declare a wait of the code that runs here, such as for a person's approval: `with ravi_otel.waiting("approval"):`.

    Until the block is left, `working` limits of the innermost scope and of every one around it stand still; waits at the same
    time count once. `time` limits go on. `stats().waited_s` tells what was waited. `reason` is for the reader of the code.
    """
    return Waiting(reason)


class _Unpaused:
    """Stop the wait of a paused agent for whatever ends it, but that it is paused."""

    __slots__ = ("_scope",)

    def __init__(self, scope: Scope) -> None:
        self._scope = scope

    def on_stop(self, wake: Callable[[], object]) -> Callable[[], None]:
        """See `Stops.on_stop`."""
        return self._scope.on_stop(wake)

    def checkpoint(self) -> None:
        """See `Stops.checkpoint`."""
        scope = self._scope
        scope.refuse_cancelled()
        scope.refuse_closed()
        late = scope.overdue()
        if late is not None:
            raise late


def resumption(scope: Scope | None, lease: Lease | None, timeout_s: float | None) -> Flow[None]:
    """Wait until `lease` is active, as long as nothing ends `scope`; nothing happens where there is no slot to wait for."""
    longest_s = None if timeout_s is None else checks.nanoseconds("resumed(timeout_s)", timeout_s) / NANO
    if scope is None or lease is None or scope.spawn is None:
        return
    stops = _Unpaused(scope)
    if not lease.ended:  # else that is what there is to say, whatever else is over by now
        stops.checkpoint()
    yield from scope.spawn.resumption(lease, scope.within_s(longest_s), stops=stops)
    if scope.lease is lease:
        scope.pauses = 0  # what was refused is made again


# -- agents that wait where others end --------------------------------------------------------------------------------

_HERE: Final = (
    "It chose to wait, and a blocking call on a thread that runs an event loop cannot: use the async client there, or make the call in "
    "a thread of its own."
)


def wait_for_lost_slot(scope: Scope, at: CallRecord | ToolRecord | None, refused: AgentPausedError) -> Flow[None]:
    """Stand in line with an agent that waits for the slot it lost, where the checkpoint has `refused`; raises that for any other."""
    if not any(one.rules.waits for one in scope.upwards()):
        raise refused
    return _patiently(scope, at, refused)


def _patiently(scope: Scope, at: CallRecord | ToolRecord | None, refused: AgentPausedError | None) -> Flow[None]:
    try:
        fit = yield Step(_may_block, _may_await)
        while refused is not None:
            paused = next((one for one in scope.upwards() if one.lease is not None and one.lease.paused), None)
            if paused is not None and paused.lease is not None:  # else it has its slot again by now
                if not paused.rules.waits:
                    raise refused
                if not fit:
                    raise errors_text.paused(paused.lease.agent_id, paused.partial, _HERE, on_hold=paused.lease.on_hold)
                yield from _stand_in_line(scope, paused, paused.lease)
            try:
                refused = None
                scope.checkpoint(at)
            except AgentPausedError as again:
                refused = again
    finally:
        refused = None  # its traceback knows this frame: a cycle that would keep both alive


def _stand_in_line(scope: Scope, paused: Scope, lease: Lease) -> Flow[None]:
    """Wait until the slot of `paused` is back, as long as nothing ends `scope`, which works for it."""
    stops = _Unpaused(scope)
    stops.checkpoint()
    if paused.spawn is None:
        return
    scope.begin_wait()  # before it is asked how much time is left: `working` limits stand still
    quiet = False
    try:
        yield from paused.spawn.resumption(lease, scope.within_s(None), stops=stops)
        paused.pauses = 0  # it was not refused after all
    except SpawnDeniedError:  # the deadline it was to wait for at most was put off meanwhile: it is looked at again
        if lease.ended:
            raise
    except GeneratorExit:
        quiet = True
        raise
    finally:
        ended_ns = scope.engine.clock.monotonic_ns()
        if quiet:
            later(partial(scope.end_wait, ended_ns))  # a finaliser may be running, which must not take a lock
        else:
            scope.end_wait(ended_ns)


def _may_block() -> bool:
    return not on_event_loop()


async def _may_await() -> bool:
    return True


def pause_after(engine: Engine, error: BaseException) -> float:
    """Return for how many seconds to hold `error` back; 0 for what is no refusal of ours, and where nobody asked for pauses."""
    asked = engine.pause_after
    if asked is None or not isinstance(error, RaviError):
        return 0.0
    with Guarded("pause"):  # our own bug never replaces the refusal
        return asked(error)
    return 0.0


def pause(seconds: float) -> Step:
    """Return the step that sleeps; synchronous code on a thread that runs an event loop does not."""
    sleeper = Sleeper()
    return Step(partial(sleeper.block, seconds), partial(sleeper.wait, seconds))
