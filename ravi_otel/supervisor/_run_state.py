"""Keep what a run has come to at the gate: what was done in it, with a version, its loops, and the calls that were judged.

A rule judges by it what comes next. It is noticed what a review looks at, so that it is known what of it changed before the call is let
through.
"""

from __future__ import annotations

import inspect
import math
import weakref
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, Final, Literal, TypeVar, cast

from ravi_otel._enforcement.scope import Scope
from ravi_otel._forksafe import ForkLock
from ravi_otel.errors import ConfigurationError
from ravi_otel.policy._contracts import JsonObject
from ravi_otel.supervisor._decisions import GateState
from ravi_otel.supervisor.rules._kinds import ZERO, error_in, exact_number, keys_at, told_an_error, value_at

_lock = ForkLock()
_CURRENT_REVIEWS: Final[ContextVar[tuple[ReviewReads, ...]]] = ContextVar("ravi_otel_reviews", default=())
_OPEN_REVIEWS: Final[set[ReviewReads]] = set()


class ReviewReads:
    """What one review of a supervisor has read of the state: the calls of some tools, or the `whole` if that is unknown."""

    __slots__ = ("is_open", "supervisor", "tools", "whole")

    def __init__(self, supervisor: object, *, whole: bool) -> None:
        self.supervisor = supervisor
        self.whole = whole
        self.is_open = True
        self.tools: frozenset[str] = frozenset()


def note_read(tool: str | None) -> None:
    """Record that the calls of a tool, or of all tools, were read.

    Code outside any review may be a supervisor's own thread, so the read then counts for every review that is open.
    """
    reviews = _CURRENT_REVIEWS.get()
    if not reviews and not _OPEN_REVIEWS:
        return
    with _lock.own:
        for review in reviews or _OPEN_REVIEWS:
            if review.is_open and tool is None:
                review.whole = True
            elif review.is_open and tool is not None and tool not in review.tools:
                review.tools |= {tool}


@contextmanager
def recording_reads(review: ReviewReads) -> Generator[None, None, None]:
    """Mark what runs inside as part of a review."""
    with _lock.own:
        _OPEN_REVIEWS.add(review)
    token = _CURRENT_REVIEWS.set((*_CURRENT_REVIEWS.get(), review))
    try:
        yield
    finally:
        with _lock.own:
            review.is_open = False
            _OPEN_REVIEWS.discard(review)
        with suppress(ValueError):  # whoever closes a coroutine that nobody goes on with is elsewhere
            _CURRENT_REVIEWS.reset(token)


def is_reviewing(supervisor: object) -> bool:
    """Whether the running code is part of a review of this supervisor."""
    reviews = _CURRENT_REVIEWS.get()
    return bool(reviews) and any(review.is_open and review.supervisor is supervisor for review in reviews)


_MOST_CALLS: Final = 1000


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The versions before a review, and what it `reads`: if they have changed since, the call is reviewed again."""

    version: tuple[int, int]
    policy_version: str
    reads: ReviewReads | None = None


class StateKeeper:
    """The owner of one state, which counts the calls that begin and end, so that an outdated review is detected.

    The lock makes the state's own `begin` and `end` atomic with the count; it is not held during a review.
    """

    def __init__(self, state: GateState) -> None:
        self.state = state
        self._lock = ForkLock()
        self.version = (0, 0)
        """The number of beginnings and ends so far: of calls that change something, and of read-only ones."""
        self._read_at: dict[str, int] = {}
        self._began_at = 0
        self.broken: str | None = _broken.get(state)

    def is_current(self, tool: str, before: Snapshot, still: Callable[[], bool]) -> bool:
        """Whether nothing has changed since `before`, and `still()` is true."""
        with self._lock.own:
            (writes, reads), (old_writes, old_reads) = self.version, before.version
            changed = writes != old_writes or (reads != old_reads and self._is_read_since(old_reads, tool, before.reads))
            return not changed and still()

    def _is_read_since(self, when: int, tool: str, reads: ReviewReads | None) -> bool:
        """Whether a read-only tool that the review read has begun or ended since; if it read the `whole`, whether any has begun."""
        asked = (tool,) if reads is None else (tool, *reads.tools)
        return any(self._read_at.get(each, 0) > when for each in asked) or (reads is not None and reads.whole and self._began_at > when)

    def begin(self, tool: str, arguments: JsonObject, before: Snapshot, still: Callable[[], bool], *, read_only: bool) -> bool:
        """Record that a call begins, if nothing has changed since `before` and `still()` is true; return whether it begins."""
        with self._lock.own:
            if not self.is_current(tool, before, still):
                return False
            try:
                said = cast("Any", self.state).begin(tool, arguments)
            finally:  # after the state's own update, so that nobody sees the new version too early
                self._count(tool, read_only=read_only)
                if read_only:
                    self._began_at = self.version[1]
            if said is not None:
                refuse_awaitable("state.begin", said)
            return True

    def end(self, tool: str, arguments: JsonObject, status: str, result: Any, *, read_only: bool) -> None:
        """Record how a call ended. A state that raises here is broken from now on, and no more calls are let through."""
        with self._lock.own:
            try:
                said = cast("Any", self.state).end(tool, arguments, status, result)
                if said is not None:
                    refuse_awaitable("state.end", said)
            except BaseException as error:
                self.broken = type(error).__name__
                _broken.put(self.state, self.broken)
                raise
            finally:
                self._count(tool, read_only=read_only)

    def _count(self, tool: str, *, read_only: bool) -> None:
        writes, reads = self.version
        if read_only:
            self._read_at[tool] = reads = reads + 1
        else:
            writes += 1
        self.version = writes, reads


def refuse_awaitable(what: str, said: object) -> None:
    """Raise ConfigurationError for an awaitable: nothing would await it."""
    if inspect.isawaitable(said):
        if inspect.iscoroutine(said):
            said.close()
        raise ConfigurationError(f"{what}() gave something to await, which nobody awaits; make it a plain def.")


class _ObjectNotes:
    """A text for each of some objects, by identity, for as long as the object lives; for ever if it has no weak references."""

    def __init__(self) -> None:
        self._words: dict[int, tuple[object, str]] = {}

    def get(self, about: object) -> str | None:
        """Return the text of an object, None without one."""
        known = self._words.get(id(about))
        return None if known is None else known[1]

    def put(self, about: object, word: str) -> None:
        """Set the text of an object."""
        key = id(about)
        self._words[key] = (_watch(about, lambda _: self._words.pop(key, None)), word)


def _watch(thing: Any, gone: Callable[[Any], object] | None = None) -> Callable[[], Any]:
    """Return a weak reference to a thing, or a strong one if it has no weak references."""
    try:
        return weakref.ref(thing, gone)
    except TypeError:
        return lambda: thing


_broken = _ObjectNotes()
_kept: weakref.WeakValueDictionary[int, StateKeeper] = weakref.WeakValueDictionary()
_keeping = ForkLock()


def keeper_of(state: GateState) -> StateKeeper:
    """Return the keeper of a state, the same one to every gate that was given this state."""
    with _keeping.own:
        known = _kept.get(id(state))
        if known is None:
            known = _kept[id(state)] = StateKeeper(state)
        return known


class _States:
    """The states of runs by supervisor: a supervisor at several gates has one state for each run."""

    def __init__(self) -> None:
        self._known: weakref.WeakKeyDictionary[Scope, list[tuple[Callable[[], Any], object, StateKeeper]]] = weakref.WeakKeyDictionary()
        self._lock = ForkLock()

    def of(self, run: Scope, supervisor: object, make: Callable[[], GateState]) -> StateKeeper:
        """Return the run's state for this supervisor, which `make` makes once for all gates."""
        made = keeper_of(make())
        with self._lock.own:
            known = self._known.setdefault(run, [])
            known[:] = [each for each in known if each[0]() is not None]
            for whose, maker, kept in known:
                if whose() is supervisor and maker is make:
                    return kept
            known.append((_watch(supervisor), make, made))
            return made


_states = _States()


def keeper_for_run(run: Scope, supervisor: object, make: Callable[[], GateState]) -> StateKeeper:
    """Return the keeper of a run's state: one for all gates with this supervisor, or without a supervisor the gate's own."""
    return keeper_of(make()) if supervisor is None else _states.of(run, supervisor, make)


class RunHistory:
    """The calls of one run at one gate: `judged` are the last records; `loops` is None if there are no loop rules."""

    def __init__(self, keeper: StateKeeper, loops: Loops | None) -> None:
        self.keeper = keeper
        self.loops = loops
        self.judged: deque[Any] = deque(maxlen=_MOST_CALLS)


PER_TOOL: Final = "loop_detected:per_tool_limit"
REPEATED: Final = "loop_detected:signature_repeat"
ALTERNATING: Final = "loop_detected:alternation"
SAME_ERROR: Final = "loop_detected:same_error"

_SAME_ERRORS: Final = 3
_REPEATS: Final = 1
_TURNS: Final = 4
_MOST_ERRORS: Final = 1000


@dataclass(frozen=True, slots=True)
class LoopRules:
    """The rules by which a call counts as a loop.

    A call with the same tool and arguments runs `read_only_repeat_limit` times for a tool of `read_only`, once for any other.
    `per_tool_limit` is how often one tool runs at all, a number for each or by name; None has no ceiling.
    """

    read_only: frozenset[str] = frozenset()
    read_only_repeat_limit: int = 2
    per_tool_limit: int | Mapping[str, int] | None = None


class Loops:
    """The executed calls of one run, checked for loops; safe in threads."""

    def __init__(self, rules: LoopRules) -> None:
        self._rules = rules
        self._lock = ForkLock()
        self._tools: Counter[str] = Counter()
        self._calls: Counter[tuple[str, str]] = Counter()
        self._latest: deque[tuple[str, str]] = deque(maxlen=_TURNS - 1)
        self._errors: Counter[tuple[str, str]] = Counter()

    def enter(self, tool: str, signature: str) -> str | None:
        """Count one call that is about to run, atomically; if it would be a loop, return the loop's stop reason instead.

        `signature` stands for the exact arguments.
        """
        call, rules = (tool, signature), self._rules
        limit = rules.per_tool_limit
        ceiling = limit.get(tool) if isinstance(limit, Mapping) else limit
        with self._lock.own:
            if ceiling is not None and self._tools[tool] >= ceiling:
                return PER_TOOL
            if self._calls[call] >= (rules.read_only_repeat_limit if tool in rules.read_only else _REPEATS):
                return REPEATED
            if len(self._latest) == _TURNS - 1:
                first, second, third = self._latest
                if first == third and second == call and first != second:
                    return ALTERNATING
            stuck = self._stuck(tool) if self._errors else None
            if stuck is None:
                self._tools[tool] += 1
                self._calls[call] += 1
                self._latest.append(call)
            return stuck

    def failed(self, tool: str, error: str) -> str | None:
        """Count one error of a tool, by its text; return the loop's stop reason from the third time on."""
        with self._lock.own:
            if len(self._errors) >= _MOST_ERRORS:
                self._errors = Counter(dict(self._errors.most_common(_MOST_ERRORS // 2)))
            self._errors[(tool, error)] += 1
            return self._stuck(tool)

    def _stuck(self, tool: str) -> str | None:
        return SAME_ERROR if any(times >= _SAME_ERRORS and where == tool for (where, _), times in self._errors.items()) else None


T = TypeVar("T")
CallStatus = Literal["running", "ok", "error", "cancelled"]

MOST_RESULTS: Final = 1000
"""How many results a state keeps besides the last one of each tool."""
_MOST_KEPT_READY: Final = 64
_DEEPEST: Final = 50


@dataclass(frozen=True, slots=True)
class StatedCall:
    """One call that was let through: `status` is "running" until it ended."""

    tool: str
    arguments: JsonObject
    status: CallStatus = "running"
    result: Any = None


@dataclass(slots=True)
class _Sum:
    """A field added up over the calls of a tool; `unread` of them have nothing there that is exactly a number."""

    amount: Fraction = ZERO
    unread: int = 0

    def add(self, added: tuple[Fraction, bool], sign: int = 1) -> None:
        amount, readable = added
        self.amount += amount if sign > 0 else -amount
        self.unread += 0 if readable else sign


@dataclass(slots=True)
class _OfTool:
    """What the calls of one tool have come to, kept ready so that a review costs the same after any number of them.

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
    """The state of one run that a gate keeps when it is given no other: every call that was let through, in order.

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
        """Return a number that changes with each call that begins or ends."""
        return self._version

    @property
    def calls(self) -> tuple[StatedCall, ...]:
        """List the calls that were let through, the first one first."""
        note_read(None)
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
            for number in () if of is None else of.running:
                if self._calls[number].arguments == arguments:
                    self._version += 1
                    if status == "refused":
                        self._take_out(number)
                    else:
                        self._ended(number, "ok" if status == "ok" else "cancelled" if status == "cancelled" else "error", result)
                    return

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
        """Return what the last call of a tool that came to a good end and told of no error returned, None without one."""
        return self._read(tool, lambda of: of.result, None)

    def spent(self, tool: str, field: str) -> Fraction | None:
        """Return `total` exactly, None where a call of the tool has something else than a number there, or nothing."""
        note_read(tool)
        with self._lock.own:
            of = self._tools.get(tool)
            known = _Sum() if of is None else self._sum(tool, of, field)
            return None if known.unread else known.amount

    def done_with(self, tool: str, fields: tuple[str, ...], keys: tuple[str | None, ...]) -> bool:
        """Whether a call of a tool came to a good end and told of no error, with these `keys` (of `keys_at`) in `fields`."""

        def read(of: _OfTool) -> bool:
            return keys in self._keys(tool, of, fields) if fields else of.done > 0

        return self._read(tool, read, otherwise=False)

    # -- inside, each under the lock -----------------------------------------------------------------------------------

    def _read(self, tool: str, read: Callable[[_OfTool], T], otherwise: T) -> T:
        note_read(tool)
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
        result = _copy_result(result, 0) if status == "ok" else None
        self._calls[number] = StatedCall(call.tool, call.arguments, status, result)
        if status != "ok":
            return
        if error_in(result) is None:
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
        """Return a sum that is kept up from the first question on; of very many fields, one that is made for this question."""
        known = of.sums.get(field)
        if known is None:
            known = _Sum()
            keeper_of = len(of.sums) < _MOST_KEPT_READY
            for number, call in self._of(tool):
                amount = _amount(call.arguments, field)
                known.add(amount)
                if keeper_of and number in of.running:
                    of.running[number][field] = amount
            if keeper_of:
                of.sums[field] = known
        return known

    def _keys(self, tool: str, of: _OfTool, fields: tuple[str, ...]) -> set[tuple[str | None, ...]]:
        """Return what was in some fields of the calls that ended well, kept up as a sum is."""
        known = of.done_with.get(fields)
        if known is None:
            ended = (call for _, call in self._of(tool) if call.status == "ok" and not told_an_error(call.result))
            known = {keys_at(call.arguments, fields) for call in ended}
            if len(of.done_with) < _MOST_KEPT_READY:
                of.done_with[fields] = known
        return known


def _amount(arguments: JsonObject, field: str) -> tuple[Fraction, bool]:
    """Return what a call adds to the sum of a field, and whether that is exactly what is there."""
    value = value_at(arguments, field)
    number = exact_number(value)
    if number is not None:
        return max(number, ZERO), True
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return ZERO, False
    return max(Fraction(value), ZERO), False  # a number of a type of its own


def _copy_result(result: Any, depth: int) -> Any:
    """Copy the lists and dictionaries of a result; what else is in it is whatever the tool made, and stays as it is."""
    if depth > _DEEPEST:
        return result
    if type(result) is dict:
        known = cast("dict[Any, Any]", result)  # type: ignore[redundant-cast]  # pyright knows nothing of what is in it
        return {key: _copy_result(value, depth + 1) for key, value in known.items()}
    if type(result) is list:
        return [_copy_result(each, depth + 1) for each in cast("list[Any]", result)]  # type: ignore[redundant-cast]  # as above
    return result
