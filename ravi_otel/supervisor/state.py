"""Remember what was done in a run, so that a rule can judge what comes next."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, Final, Literal, TypeVar, cast

from ravi_otel._forksafe import ForkLock
from ravi_otel.policy._contracts import JsonObject
from ravi_otel.supervisor.rules_reading import NOTHING, exact, keys_at, told_an_error, value_at
from ravi_otel.supervisor.standing import looked_at

T = TypeVar("T")
CallStatus = Literal["running", "ok", "error", "cancelled"]

MOST_RESULTS: Final = 1000
"""How many results a state keeps besides the last one of each tool."""
_MOST_KEPT_READY: Final = 64
_DEEPEST: Final = 50


@dataclass(frozen=True, slots=True)
class StatedCall:
    """Be one call that was let through: `status` is "running" until it ended."""

    tool: str
    arguments: JsonObject
    status: CallStatus = "running"
    result: Any = None


@dataclass(slots=True)
class _Sum:
    """Be a field added up over the calls of a tool; `unread` of them have nothing there that is exactly a number."""

    amount: Fraction = NOTHING
    unread: int = 0

    def add(self, added: tuple[Fraction, bool], sign: int = 1) -> None:
        amount, readable = added
        self.amount += amount if sign > 0 else -amount
        self.unread += 0 if readable else sign


@dataclass(slots=True)
class _OfTool:
    """Be what the calls of one tool have come to, kept ready so that a review costs the same after any number of them.

    `running` has what each call that runs has added to the sums: just that is taken back of one that never ran.
    """

    begun: int = 0
    done: int = 0
    latest: int = -1
    result: Any = None
    running: dict[int, dict[str, tuple[Fraction, bool]]] = field(default_factory=dict[int, dict[str, tuple[Fraction, bool]]])
    sums: dict[str, _Sum] = field(default_factory=dict[str, _Sum])
    done_with: dict[tuple[str, ...], set[tuple[str | None, ...]]] = field(
        default_factory=dict[tuple[str, ...], set[tuple[str | None, ...]]]
    )


class RunState:
    """Be the state of one run that a gate keeps when it is given no other: every call that was let through, in order.

    Threads may share it. What is begun counts from the step in which it was let through, so that two calls at once cannot both use
    what is left of a cap. A call that failed or was cancelled counts on: it may have done its work before it failed; one that was
    refused afterwards never ran, and is taken out again.

    Each call is kept with its arguments, and the results of the last thousand. Of an older one that told of an error `{"error": True}`
    is left, of any other None; `result(tool)` is kept in any case. What counts and adds up costs the same after any number of calls.
    Of a result the lists and dictionaries are copied: what its caller does to them afterwards changes nothing here.
    """

    def __init__(self, calls: Iterable[StatedCall] = ()) -> None:
        self._lock = ForkLock()
        self._calls: dict[int, StatedCall] = {}
        self._tools: dict[str, _OfTool] = {}
        self._with_results: deque[int] = deque()
        self._next = 0
        self._version = 0
        for call in calls:
            number = self._put(call.tool, call.arguments)
            if call.status != "running":
                self._ended(number, call.status, call.result)

    def __repr__(self) -> str:
        return f"<RunState of {len(self._calls)} calls, version {self.version}>"

    @property
    def version(self) -> int:
        """Give a number that changes with each call that begins or ends."""
        return self._version

    @property
    def calls(self) -> tuple[StatedCall, ...]:
        """List the calls that were let through, the first one first."""
        looked_at(None)
        with self._lock.own:
            return tuple(self._calls.values())

    def begin(self, tool: str, arguments: JsonObject) -> None:
        """Note that a call was let through."""
        with self._lock.own:
            self._version += 1
            self._put(tool, arguments)

    def end(self, tool: str, arguments: JsonObject, status: str, result: Any) -> None:
        """Note how a call ended: the oldest one that runs with just these arguments; an end without a beginning changes nothing."""
        with self._lock.own:
            of = self._tools.get(tool)
            number = None if of is None else next((each for each in of.running if self._calls[each].arguments == arguments), None)
            if number is None:
                return
            self._version += 1
            if status == "refused":
                self._take_out(number)
            else:
                self._ended(number, "ok" if status == "ok" else "cancelled" if status == "cancelled" else "error", result)

    def begun(self, tool: str) -> int:
        """Count the calls of a tool that were let through: running, done and failed ones."""
        return self._read(tool, lambda of: of.begun, 0)

    def done(self, tool: str) -> int:
        """Count the calls of a tool that came to a good end and told of no error: what comes after them may rely on it."""
        return self._read(tool, lambda of: of.done, 0)

    def total(self, tool: str, field: str) -> float:
        """Add up a number among the arguments of each call of a tool that was let through; no number, or one below zero, adds nothing.

        Amounts are added as they are written: three times 0.1 is 0.3. A dot in `field` goes into an object.
        """
        return self._read(tool, lambda of: float(self._sum(tool, of, field).amount), 0.0)

    def result(self, tool: str) -> Any:
        """Give what the last call of a tool that came to a good end and told of no error returned, None without one."""
        return self._read(tool, lambda of: of.result, None)

    def spent(self, tool: str, field: str) -> Fraction | None:
        """Give `total` exactly, None where a call of the tool has something else than a number there, or nothing."""
        looked_at(tool)
        with self._lock.own:
            of = self._tools.get(tool)
            known = _Sum() if of is None else self._sum(tool, of, field)
            return None if known.unread else known.amount

    def done_with(self, tool: str, fields: tuple[str, ...], keys: tuple[str | None, ...]) -> bool:
        """Tell that a call of a tool came to a good end and told of no error, with these `keys` (of `keys_at`) in `fields`."""

        def read(of: _OfTool) -> bool:
            return keys in self._keys(tool, of, fields) if fields else of.done > 0

        return self._read(tool, read, otherwise=False)

    # -- inside, each under the lock -----------------------------------------------------------------------------------

    def _read(self, tool: str, read: Callable[[_OfTool], T], otherwise: T) -> T:
        looked_at(tool)
        with self._lock.own:
            of = self._tools.get(tool)
            return otherwise if of is None else read(of)

    def _put(self, tool: str, arguments: JsonObject) -> int:
        number = self._next
        self._next += 1
        of = self._tools.setdefault(tool, _OfTool())
        added = {field: _amount(arguments, field) for field in of.sums}
        self._calls[number] = StatedCall(tool, arguments)
        of.begun += 1
        of.running[number] = added
        for name, amount in added.items():
            of.sums[name].add(amount)
        return number

    def _take_out(self, number: int) -> None:
        of = self._tools[self._calls.pop(number).tool]
        of.begun -= 1
        for name, amount in of.running.pop(number).items():
            of.sums[name].add(amount, -1)

    def _ended(self, number: int, status: CallStatus, result: Any) -> None:
        call = self._calls[number]
        of = self._tools[call.tool]
        del of.running[number]
        result = _apart(result, 0) if status == "ok" else None
        self._calls[number] = StatedCall(call.tool, call.arguments, status, result)
        if status != "ok":
            return
        if not told_an_error(result):
            of.done += 1
            if number > of.latest:
                of.latest, of.result = number, result
            for fields, known in of.done_with.items():
                known.add(keys_at(call.arguments, fields))
        if result is not None:
            self._with_results.append(number)
            if len(self._with_results) > MOST_RESULTS:
                self._forget_result(self._with_results.popleft())

    def _forget_result(self, number: int) -> None:
        call = self._calls[number]
        self._calls[number] = replace(call, result={"error": True} if told_an_error(call.result) else None)

    def _of(self, tool: str) -> Iterator[tuple[int, StatedCall]]:
        return ((number, call) for number, call in self._calls.items() if call.tool == tool)

    def _sum(self, tool: str, of: _OfTool, field: str) -> _Sum:
        """Give a sum that is kept up from the first question on; of very many fields, one that is made for this question."""
        known = of.sums.get(field)
        if known is None:
            known = _Sum()
            keep = len(of.sums) < _MOST_KEPT_READY
            for number, call in self._of(tool):
                amount = _amount(call.arguments, field)
                known.add(amount)
                if keep and number in of.running:
                    of.running[number][field] = amount
            if keep:
                of.sums[field] = known
        return known

    def _keys(self, tool: str, of: _OfTool, fields: tuple[str, ...]) -> set[tuple[str | None, ...]]:
        """Give what was in some fields of the calls that ended well, kept up as a sum is."""
        known = of.done_with.get(fields)
        if known is None:
            ended = (call for _, call in self._of(tool) if call.status == "ok" and not told_an_error(call.result))
            known = {keys_at(call.arguments, fields) for call in ended}
            if len(of.done_with) < _MOST_KEPT_READY:
                of.done_with[fields] = known
        return known


def _amount(arguments: JsonObject, field: str) -> tuple[Fraction, bool]:
    """Give what a call adds to the sum of a field, and whether that is exactly what is there."""
    value = value_at(arguments, field)
    number = exact(value)
    if number is not None:
        return max(number, NOTHING), True
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return NOTHING, False
    return max(Fraction(value), NOTHING), False  # a number of a type of its own


def _apart(result: Any, depth: int) -> Any:
    """Copy the lists and dictionaries of a result; what else is in it is whatever the tool made, and stays as it is."""
    if depth > _DEEPEST:
        return result
    if type(result) is dict:
        known = cast("dict[Any, Any]", result)  # type: ignore[redundant-cast]  # pyright knows nothing of what is in it
        return {key: _apart(value, depth + 1) for key, value in known.items()}
    if type(result) is list:
        return [_apart(each, depth + 1) for each in cast("list[Any]", result)]  # type: ignore[redundant-cast]  # as above
    return result
