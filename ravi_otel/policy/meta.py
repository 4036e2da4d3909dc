"""Tell a run to stop, and let whoever works for it notice."""

from __future__ import annotations

import logging
import sys
import time
import uuid
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NoReturn, Self, TypeVar

from ravi_otel.errors import CancellationError, ConfigurationError, DeadlineExceededError
from ravi_otel.policy import checks
from ravi_otel.policy.budgets import Supervision, new_run_id

if TYPE_CHECKING:
    import asyncio

_log = logging.getLogger("ravi_otel")
_HEX: Final = frozenset("0123456789abcdef")
_TRACE_ID_CHARS: Final = 32
_LATEST: Final = 253_402_300_800
"""The year 10000 in epoch seconds: a deadline past it was given in another unit."""

T = TypeVar("T")


class CancellationToken:
    """Ask work to stop, from any thread or signal handler, and find out whether it was asked.

    Nothing in it takes a lock: every change is one step of a dict or a set, which Python makes atomic, so a signal
    that interrupts `subscribe` can safely cancel.
    """

    __slots__ = ("__weakref__", "_callbacks", "_children", "_parent", "_state")

    def __init__(self, *, _parent: CancellationToken | None = None) -> None:
        self._state: dict[str, str | None] = {}
        self._callbacks: dict[object, Callable[[], object]] = {}
        self._children: set[weakref.ref[CancellationToken]] = set()
        self._parent = _parent  # kept alive, so that what cancels it still reaches us

    @property
    def cancelled(self) -> bool:
        """Say whether anybody asked to stop."""
        return bool(self._state)

    @property
    def reason(self) -> str | None:
        """Return the first reason, None while not cancelled or when none was given."""
        return self._state.get("reason")

    def cancel(self, reason: str | None = None) -> None:
        """Ask to stop, this token and its children; later calls change nothing, the first reason stays.

        Whoever is told finds all of them cancelled already. What a callback raises to end the program, such as SystemExit, is
        raised when all were told.
        """
        self._state.setdefault("reason", reason)
        found: list[CancellationToken] = [self]
        for token in found:  # which grows; not by recursion: a chain of children may be longer than the stack
            found.extend(token._pass_on(self.reason))  # noqa: SLF001 - another token of this class
        ends: list[BaseException] = []
        for token in found:
            ends.extend(token._tell())  # noqa: SLF001 - another token of this class
        if ends:
            raise ends[0]

    def _pass_on(self, reason: str | None) -> list[CancellationToken]:
        """Cancel the children that were not, and give them."""
        living = [child for ref in list(self._children) if (child := ref()) is not None]
        asked = [child for child in living if not child.cancelled]
        for child in asked:
            child._state.setdefault("reason", reason)  # noqa: SLF001 - another token of this class
        return asked

    def check(self) -> None:
        """Raise CancellationError with the reason when cancelled."""
        if self._state:
            reason = self.reason
            raise CancellationError(f"cancelled: {reason}" if reason else "cancelled", reason=reason)

    async def wait(self) -> None:
        """Wait until cancelled, on the running asyncio loop, without polling; any thread may cancel."""
        loop = _running_loop()
        if loop is None:
            msg = "CancellationToken.wait() needs a running asyncio loop; elsewhere use CancellationToken.subscribe()."
            raise ConfigurationError(msg)
        woken = loop.create_future()
        unsubscribe = self.subscribe(lambda: _wake(loop, woken))
        try:
            await woken
        finally:
            unsubscribe()

    def child(self) -> CancellationToken:
        """Make a token that is cancelled with this one, but not the other way round; held weakly."""
        child = CancellationToken(_parent=self)
        self._children.add(weakref.ref(child, self._children.discard))
        if self._state:
            child.cancel(self.reason)
        return child

    def subscribe(self, callback: Callable[[], object]) -> Callable[[], None]:
        """Call `callback` once when cancelled, at once if it already is; return a function that takes it off again.

        It runs in the thread that cancels; what it raises is logged and keeps no other callback from running.
        """
        key = object()
        self._callbacks[key] = callback
        if self._state and (ends := self._tell()):
            raise ends[0]
        return lambda: self._unsubscribe(key)

    def _unsubscribe(self, key: object) -> None:
        self._callbacks.pop(key, None)

    def _tell(self) -> list[BaseException]:
        """Call all callbacks; return what they raised that is no Exception."""
        ends: list[BaseException] = []
        for key in list(self._callbacks):
            callback = self._callbacks.pop(key, None)  # only one of several tellers gets it
            if callback is not None:
                try:
                    callback()
                except Exception:  # noqa: BLE001 - a stranger's callback must not keep others from hearing
                    _log.exception("A callback of a CancellationToken failed.")
                except BaseException as error:  # noqa: BLE001 - raised by the caller, once nobody is left to tell
                    ends.append(error)
        return ends

    def __repr__(self) -> str:
        return f"<CancellationToken {f'cancelled: {self.reason}' if self.cancelled else 'active'}>"

    def __copy__(self) -> CancellationToken:
        return self

    def __deepcopy__(self, _memo: object) -> CancellationToken:
        return self

    def __reduce__(self) -> NoReturn:
        """Refuse to cross a process: the copy would never hear of a cancellation."""
        msg = "a CancellationToken cannot be pickled: send the run_id and the deadline, and make a token where they arrive"
        raise TypeError(msg)


def _running_loop() -> asyncio.AbstractEventLoop | None:
    """Return the asyncio loop that runs here; none does where nobody has imported asyncio, which takes a while."""
    running = getattr(sys.modules.get("asyncio"), "_get_running_loop", None)  # the public one raises where there is none
    return None if running is None else running()


def _wake(loop: asyncio.AbstractEventLoop, woken: asyncio.Future[None]) -> None:
    try:
        loop.call_soon_threadsafe(_resolve, woken)
    except RuntimeError:  # the waiter's loop is closed: nobody waits any more
        return


def _resolve(woken: asyncio.Future[None]) -> None:
    if not woken.done():
        woken.set_result(None)


@dataclass(frozen=True, slots=True)
class Deadline:
    """What a deadline was set to, and how much of it has passed by now, in seconds; `whose` and `fields` are for its error."""

    allowed_s: float
    passed_s: float
    whose: str
    fields: Mapping[str, str | None]


@dataclass(frozen=True, slots=True, init=False)
class RunMeta:
    """Identify a run to whoever works for it, and say when it must end.

    `deadline` is UTC epoch seconds, for transport, and may be given as an aware datetime; what is left is measured from here on by a
    clock that nobody sets. `trace_id` is 32 hexadecimal digits, made up when not given. Raises ConfigurationError.
    """

    run_id: str = field(default_factory=new_run_id)
    cancellation: CancellationToken = field(default_factory=CancellationToken)
    supervision: Supervision | None = None
    deadline: float | None = None
    trace_id: str | None = None
    tenant_id: str | None = None
    _started: float = field(default=0.0, init=False, repr=False, compare=False)
    _limit: Deadline | None = field(default=None, init=False, repr=False, compare=False)

    def __init__(
        self,
        run_id: str | None = None,
        cancellation: CancellationToken | None = None,
        supervision: Supervision | None = None,
        deadline: float | datetime | None = None,
        trace_id: str | None = None,
        tenant_id: str | None = None,
    ) -> None:
        put = partial(object.__setattr__, self)
        put("run_id", new_run_id() if run_id is None else checks.name("run_id", run_id))
        put("cancellation", CancellationToken() if cancellation is None else _expected("cancellation", cancellation, CancellationToken))
        put("supervision", None if supervision is None else _expected("supervision", supervision, Supervision))
        put("deadline", None if deadline is None else _epoch(deadline))
        put("trace_id", uuid.uuid4().hex if trace_id is None else _trace_id(trace_id))
        put("tenant_id", checks.optional_name("tenant_id", tenant_id))
        put("_started", time.monotonic())
        left = None if self.deadline is None else self.deadline - time.time()
        own: dict[str, str | None] = {"scope": "run", "run_id": self.run_id}
        put("_limit", None if left is None else Deadline(max(0.0, left), max(0.0, -left), f"run {self.run_id!r}", own))

    def held_to(self, deadline: Deadline) -> Self:
        """Return the same meta with the deadline of a scope around, as that scope has it."""
        held = replace(self)
        object.__setattr__(held, "_limit", deadline)
        return held

    @classmethod
    def standalone(
        cls,
        agent_id: str = "standalone",
        *,
        session_id: str | None = None,
        tenant_id: str | None = None,
        deadline_s: float | None = None,
        trace_id: str | None = None,
        supervision: Supervision | None = None,
    ) -> RunMeta:
        """Make the meta of a run that nobody supervises, ending `deadline_s` seconds from now if given."""
        if deadline_s is not None:
            checks.nanoseconds("deadline_s", deadline_s)
        root = Supervision.root(agent_id, session_id) if supervision is None else supervision
        return cls(
            run_id=root.run_id,
            supervision=root,
            deadline=None if deadline_s is None else time.time() + deadline_s,
            trace_id=trace_id,
            tenant_id=tenant_id,
        )

    @property
    def remaining_s(self) -> float | None:
        """Return the seconds left, negative past the deadline, None without one."""
        limit = self._limit
        return None if limit is None else limit.allowed_s - limit.passed_s - (time.monotonic() - self._started)

    def check(self) -> None:
        """Raise CancellationError when cancelled, DeadlineExceededError when past the deadline."""
        self.cancellation.check()
        left, limit = self.remaining_s, self._limit
        if limit is None or left is None or left > 0:
            return
        raise DeadlineExceededError(
            f"deadline exceeded: {limit.whose} had {limit.allowed_s:.3f} s and is {-left:.3f} s over; give a later deadline or None.",
            threshold=limit.allowed_s,
            used=limit.allowed_s - left,
            held=0,
            remaining=left,
            **limit.fields,
        )


def _expected(parameter: str, value: T, kind: type[T]) -> T:
    if not isinstance(value, kind):
        raise ConfigurationError(f"{parameter}={checks.show(value)} must be a {kind.__name__}.")
    return value


def _trace_id(value: Any) -> str:
    if isinstance(value, str) and len(value) == _TRACE_ID_CHARS and _HEX.issuperset(value) and value.strip("0"):
        return value
    raise ConfigurationError(f"trace_id={checks.show(value)} must be 32 lower-case hexadecimal digits, not all 0; None makes one up.")


def _epoch(value: object) -> float:
    if isinstance(value, datetime):
        if value.utcoffset() is None:
            raise ConfigurationError(
                f"deadline={checks.show(value)} has no time zone, so nobody knows which moment it is: give an aware one, such as "
                "datetime.now(timezone.utc) + timedelta(seconds=90), or UTC epoch seconds."
            )
        value = value.timestamp()
    if not isinstance(value, bool) and isinstance(value, (int, float)) and 0 <= value < _LATEST:
        return float(value)
    raise ConfigurationError(
        f"deadline={checks.show(value)} must be UTC epoch seconds, such as time.time() + 90, or an aware datetime, or None."
    )
