"""Remember what was done in a run, so that a rule can judge what comes next."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, Literal

from ravi_otel.policy.contracts import JsonObject

CallStatus = Literal["running", "ok", "error", "cancelled"]

_NUMBER: Final = (int, float)


@dataclass(frozen=True, slots=True)
class StatedCall:
    """Be one call that was let through: `status` is "running" until it ended."""

    tool: str
    arguments: JsonObject
    status: CallStatus = "running"
    result: Any = None


class RunState:
    """Be the state of one run that a gate keeps when it is given no other: every call that was let through, in order.

    Threads may share it. What is begun counts from the step in which it was let through, so that two calls at once cannot both use
    what is left of a cap. A call that failed or was cancelled counts on: it may have done its work before it failed; one that was
    refused afterwards never ran, and is taken out again.
    """

    def __init__(self, calls: Iterable[StatedCall] = ()) -> None:
        self._lock = threading.RLock()
        self._calls: list[StatedCall] = list(calls)
        self._version = 0

    def __repr__(self) -> str:
        return f"<RunState of {len(self.calls)} calls, version {self.version}>"

    @property
    def version(self) -> int:
        """Give a number that changes with each call that begins or ends."""
        return self._version

    @property
    def calls(self) -> tuple[StatedCall, ...]:
        """List the calls that were let through, the first one first."""
        with self._lock:
            return tuple(self._calls)

    def begin(self, tool: str, arguments: JsonObject) -> None:
        """Note that a call was let through."""
        with self._lock:
            self._calls.append(StatedCall(tool, arguments))
            self._version += 1

    def end(self, tool: str, arguments: JsonObject, status: str, result: Any) -> None:
        """Note how a call ended: the oldest one that runs with just these arguments; an end without a beginning changes nothing."""
        with self._lock:
            at = next((index for index, call in enumerate(self._calls) if _is(call, tool, arguments)), None)
            if at is None:
                return
            if status == "refused":
                del self._calls[at]
            else:
                ended: CallStatus = "ok" if status == "ok" else "cancelled" if status == "cancelled" else "error"
                self._calls[at] = StatedCall(tool, arguments, ended, result if ended == "ok" else None)
            self._version += 1

    def begun(self, tool: str) -> int:
        """Count the calls of a tool that were let through: running, done and failed ones."""
        return sum(call.tool == tool for call in self.calls)

    def done(self, tool: str) -> int:
        """Count the calls of a tool that came to a good end: what comes after them may rely on it."""
        return sum(call.tool == tool and call.status == "ok" for call in self.calls)

    def total(self, tool: str, field: str) -> float:
        """Add up a number among the arguments of each call of a tool that was let through; no number, or one below zero, adds nothing."""
        return float(sum(_amount(call.arguments.get(field)) for call in self.calls if call.tool == tool))

    def result(self, tool: str) -> Any:
        """Give what the last call of a tool that came to a good end returned, None without one."""
        return next((call.result for call in reversed(self.calls) if call.tool == tool and call.status == "ok"), None)


def _is(call: StatedCall, tool: str, arguments: JsonObject) -> bool:
    return call.status == "running" and call.tool == tool and call.arguments == arguments


def _amount(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, _NUMBER) or not math.isfinite(value):
        return 0
    return max(0, value)
