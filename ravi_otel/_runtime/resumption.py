"""Wait to go on with a slot that was lost: because the program asks for it, or before the call of an agent that chose to wait."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from ravi_otel._enforcement import errors_text
from ravi_otel._enforcement.scope import Scope
from ravi_otel._enforcement.sleeper import on_event_loop
from ravi_otel._enforcement.spawn.slots import Lease
from ravi_otel._flow import Flow, Step
from ravi_otel._runtime.late import later
from ravi_otel.errors import AgentPausedError, SpawnDeniedError
from ravi_otel.hooks.records import CallRecord, ToolRecord
from ravi_otel.policy import checks
from ravi_otel.policy.limits import NANO

_SLACK_S: Final = 0.001
"""What an event loop may wake a sleeper too early by."""


def in_time(scope: Scope, timeout_s: float | None) -> float | None:
    """Wait no longer than the deadlines around allow, and until they are over for certain."""
    left = scope.left_ns()
    if left is None:
        return timeout_s
    left_s = max(0, left) / NANO + _SLACK_S
    return left_s if timeout_s is None else min(timeout_s, left_s)


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
    yield from scope.spawn.resumption(lease, in_time(scope, longest_s), stops=stops)
    if scope.lease is lease:
        scope.pauses = 0  # what was refused is made again


# -- agents that wait where others end --------------------------------------------------------------------------------

_HERE: Final = (
    "It chose to wait, and a blocking call on a thread that runs an event loop cannot: use the async client there, or make the call in "
    "a thread of its own."
)


def waiting(scope: Scope, at: CallRecord | ToolRecord | None, refused: AgentPausedError) -> Flow[None]:
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
            refused = _refused(scope, at)
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
        yield from paused.spawn.resumption(lease, in_time(scope, None), stops=stops)
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


def _refused(scope: Scope, at: CallRecord | ToolRecord | None) -> AgentPausedError | None:
    try:
        scope.checkpoint(at)
    except AgentPausedError as refused:
        return refused
    return None


def _may_block() -> bool:
    return not on_event_loop()


async def _may_await() -> bool:
    return True
