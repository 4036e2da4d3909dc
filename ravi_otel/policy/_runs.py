"""Describe runs and agents: who they are, what they may spawn and spend, where they stand, when they must end, and why they did."""

from __future__ import annotations

import logging
import sys
import time
import uuid
import weakref
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass, field, replace
from datetime import datetime
from decimal import Decimal
from enum import IntEnum, StrEnum
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, NoReturn, Self, TypeVar

from ravi_otel.errors import CancellationError, ConfigurationError, DeadlineExceededError
from ravi_otel.policy import _checks as checks
from ravi_otel.policy._limits import ScopeKind

if TYPE_CHECKING:
    import asyncio

PROGRESS_TOPIC = "agent.progress"


class Priority(IntEnum):
    """Rank agents; the numbers are also the weights of a weighted pool."""

    BACKGROUND = 0
    LOW = 1
    NORMAL = 2
    HIGH = 4
    CRITICAL = 8


class HistoryRetention(StrEnum):
    """How long an agent's history is kept."""

    NONE = "none"
    RUN = "run"
    PERMANENT = "permanent"


@dataclass(frozen=True, slots=True)
class SpawnBudget:
    """Allow `max_agents` live agents in a run, the root included.

    `allow_preempt` lets HIGH and CRITICAL agents take the slot of a lesser one when the run is full. Raises
    ConfigurationError for a cap below 1: the root is always there.
    """

    max_agents: int = 50
    allow_preempt: bool = True

    def __post_init__(self) -> None:
        """Check both fields."""
        least = "the root agent counts as 1"
        object.__setattr__(self, "max_agents", checks.count("max_agents", self.max_agents, least=1, way_out=least))
        checks.flag("allow_preempt", self.allow_preempt)


UNLIMITED_AGENTS: Final = SpawnBudget(max_agents=1_000_000_000)
"""What a run without a spawn budget has: counted, never refused."""


@dataclass(frozen=True, slots=True)
class ExecutionBudget:
    """Allow one agent so much; None is unlimited, 0 allows nothing.

    `max_tokens` is input and output together, `max_turns` counts model generations, `deadline_s` is seconds from
    the agent's start. Raises ConfigurationError for anything negative, not finite or of a wrong type.
    """

    max_tokens: int | None = None
    max_cost_usd: float | Decimal | None = None
    max_turns: int | None = None
    deadline_s: float | None = None

    def __post_init__(self) -> None:
        """Check every field that is set."""
        for name in ("max_tokens", "max_turns"):
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, checks.count(name, value, way_out="None is unlimited, 0 allows nothing"))
        if self.max_cost_usd is not None:
            checks.nano_usd("max_cost_usd", self.max_cost_usd)
        if self.deadline_s is not None:
            checks.nanoseconds("deadline_s", self.deadline_s)


class AgentId(str):
    """Name an agent: 1 to 256 printable characters.

    It is text, so a plain string is accepted wherever an AgentId is, equals it, and finds it in a mapping.
    """

    __slots__ = ()

    def __new__(cls, value: str) -> Self:
        """Check the name; raise ConfigurationError for an empty or unprintable one."""
        return value if type(value) is cls else super().__new__(cls, checks.name("agent_id", value))

    @classmethod
    def checked(cls, value: str, parameter: str = "agent_id", example: str | None = None) -> Self:
        """Return it as it is where it is an AgentId, else as one; an error names the `parameter`, and an `example` of a right name."""
        return value if isinstance(value, cls) else super().__new__(cls, checks.name(parameter, value, example))

    def __reduce__(self) -> tuple[Any, ...]:
        """Be checked again on arrival in another process."""
        return (AgentId, (str(self),))


@dataclass(frozen=True, slots=True)
class TopicId:
    """Address a stream of messages: what it is about (`type`) and whose it is (`source`)."""

    type: str
    source: str

    def __post_init__(self) -> None:
        """Check both names."""
        checks.name("type", self.type)
        checks.name("source", self.source)

    def __str__(self) -> str:
        return f"{self.type}/{self.source}"


def new_run_id() -> str:
    """Make up the id of a run or a session: 32 hexadecimal digits."""
    return uuid.uuid4().hex


@dataclass(frozen=True, slots=True)
class Supervision:
    """Place one agent in the tree of a run.

    `root_id` is the run's first agent, `parent_id` who spawned this one (None at the root), `depth` how many levels
    below the root it is: informational, nothing is refused because of it unless a depth limit is set. All agents of a
    run share one SpawnBudget object. A run's own node, in which no agent has been entered, has no `root_id`.
    """

    run_id: str = field(default_factory=new_run_id)
    session_id: str | None = None
    root_id: str | None = None
    parent_id: str | None = None
    depth: int = 0
    spawn_budget: SpawnBudget = field(default_factory=SpawnBudget)
    execution_budget: ExecutionBudget = field(default_factory=ExecutionBudget)
    retention: HistoryRetention = HistoryRetention.RUN
    priority: Priority = Priority.NORMAL

    def __post_init__(self) -> None:
        """Check every field; plain strings become AgentIds, plain values members of their enum."""
        checks.name("run_id", self.run_id)
        checks.optional_name("session_id", self.session_id)
        for name in ("root_id", "parent_id"):
            value = checks.optional_name(name, getattr(self, name))
            object.__setattr__(self, name, None if value is None else AgentId(value))
        object.__setattr__(self, "depth", checks.count("depth", self.depth, way_out="0 is the root"))
        checks.instance("spawn_budget", self.spawn_budget, SpawnBudget, "SpawnBudget()")
        checks.instance("execution_budget", self.execution_budget, ExecutionBudget, "ExecutionBudget()")
        object.__setattr__(self, "retention", checks.member("retention", self.retention, HistoryRetention))
        object.__setattr__(self, "priority", checks.member("priority", self.priority, Priority))

    @classmethod
    def root(
        cls,
        agent_id: str,
        session_id: str | None = None,
        spawn_budget: SpawnBudget | None = None,
        execution_budget: ExecutionBudget | None = None,
        retention: HistoryRetention = HistoryRetention.PERMANENT,
        priority: Priority = Priority.NORMAL,
        *,
        run_id: str | None = None,
    ) -> Supervision:
        """Start a run's tree with its first agent; a budget left out is the default one.

        Without a `session_id` one is made up, which the whole tree shares. What `run()` and `agent()` give as their `supervision` has none
        there: a session that nobody named is nobody's to go on with.
        """
        return cls(
            run_id=new_run_id() if run_id is None else run_id,
            session_id=new_run_id() if session_id is None else session_id,
            root_id=checks.name("agent_id", agent_id),
            spawn_budget=SpawnBudget() if spawn_budget is None else spawn_budget,
            execution_budget=ExecutionBudget() if execution_budget is None else execution_budget,
            retention=retention,
            priority=priority,
        )

    def spawn_child(
        self,
        parent_id: str,
        retention: HistoryRetention = HistoryRetention.RUN,
        priority: Priority = Priority.NORMAL,
        execution_budget: ExecutionBudget | None = None,
    ) -> Supervision:
        """Place an agent one level below: same run, session and SpawnBudget object, this ExecutionBudget unless given.

        A budget that is given stands instead of this one, larger or smaller: it loosens nothing, since each agent has its own
        tab, and what holds for the whole tree (limits of the run, the deadlines around) holds for the child besides.
        """
        retention = checks.member("retention", retention, HistoryRetention)
        priority = checks.member("priority", priority, Priority)
        if execution_budget is not None:
            checks.instance("execution_budget", execution_budget, ExecutionBudget, "ExecutionBudget()")
        budget = self.execution_budget if execution_budget is None else execution_budget
        return self._below(AgentId.checked(parent_id, "parent_id"), retention, priority, budget)

    def _below(self, parent_id: AgentId, retention: HistoryRetention, priority: Priority, budget: ExecutionBudget) -> Supervision:
        """Place an agent one level below like `spawn_child`, by values that were checked before."""
        child = copy(self)  # what it has from this one is checked
        object.__setattr__(child, "parent_id", parent_id)
        object.__setattr__(child, "depth", self.depth + 1)
        object.__setattr__(child, "retention", retention)
        object.__setattr__(child, "priority", priority)
        object.__setattr__(child, "execution_budget", budget)
        return child

    @property
    def is_root(self) -> bool:
        """Say whether nobody spawned this agent."""
        return self.parent_id is None

    @property
    def progress_topic(self) -> TopicId:
        """Address this run's progress messages."""
        return TopicId(PROGRESS_TOPIC, self.run_id)


Phase = Literal["worker", "supervisor", "human_approval", "execution", "finalize"]
"""Where an agent's work ended."""


class StopReason(StrEnum):
    """Why a run or an agent ended; exhaustion is never a success.

    The last ten are families: of them a reason is the family, a colon and a detail, such as `supervisor_block:over_the_cap`. A program
    that raises StopRun spells a reason of its own.
    """

    SUCCESS = "success"
    ERROR = "error"
    CANCELLED = "cancelled"
    DEADLINE = "deadline"
    PAUSED = "paused"
    CLOSED = "closed"
    ABANDONED = "abandoned"
    STORE_FAILED = "store_failed"
    STORE_LOST = "store_lost"
    LIMIT_TOKENS = "limit_tokens"
    LIMIT_INPUT_TOKENS = "limit_input_tokens"
    LIMIT_OUTPUT_TOKENS = "limit_output_tokens"
    LIMIT_COST = "limit_cost"
    LIMIT_REQUESTS = "limit_requests"
    LIMIT_TURNS = "limit_turns"
    LIMIT_MESSAGES = "limit_messages"
    LIMIT_TOOL_CALLS = "limit_tool_calls"
    LIMIT_AGENTS = "limit_agents"
    LIMIT_AGENTS_TOTAL = "limit_agents_total"
    LIMIT_DEPTH = "limit_depth"
    LIMIT_FAN_OUT = "limit_fan_out"
    LIMIT_TIME = "limit_time"
    LIMIT_WORKING = "limit_working"
    LIMIT_CUSTOM = "limit_custom"
    MAX_STEPS = "max_steps"
    MAX_TOOL_CALLS = "max_tool_calls"
    MAX_SECONDS = "max_seconds"
    ASK_TIMEOUT = "ask_timeout"
    NOT_ACCEPTED = "not_accepted"
    HUMAN_REJECTED = "human_rejected"
    HISTORY_ERROR = "history_error"
    MIDDLEWARE_TERMINATED = "middleware_terminated"
    LLM_TIMEOUT = "llm_timeout"
    LLM_EMPTY = "llm_empty"
    LLM_LENGTH = "llm_length"
    LLM_REFUSAL = "llm_refusal"
    LLM_CONTENT_FILTER = "llm_content_filter"
    LLM_BROKEN_OFF = "llm_broken_off"
    LLM_ERROR = "llm_error"
    GUARDRAIL = "guardrail"
    SUPERVISOR_BLOCK = "supervisor_block"
    LOOP_DETECTED = "loop_detected"
    INVALID_ACTION = "invalid_action"
    TOOL_DENIED = "tool_denied"
    TOOL_MISSING = "tool_missing"
    TOOL_ERROR = "tool_error"
    TOOL_BAD_ARGS = "tool_bad_args"
    TOOL_BAD_RESULT = "tool_bad_result"

    @classmethod
    def for_kind(cls, kind: str) -> StopReason:
        """Return the reason for a limit of this kind; `tool.NAME` is a tool call, a kind of the program's own is custom."""
        if kind.startswith("tool."):
            return cls.LIMIT_TOOL_CALLS
        return _BY_KIND.get(kind.partition("@")[0].partition("(")[0], cls.LIMIT_CUSTOM)


_BY_KIND = {reason.value.removeprefix("limit_"): reason for reason in StopReason if reason.value.startswith("limit_")}
del _BY_KIND["custom"]


def family(stop_reason: str) -> str:
    """Return the part before the colon, which is one of few: what may stand on a metric."""
    return stop_reason.partition(":")[0]


@dataclass(frozen=True, slots=True)
class ScopeFacts:
    """Identify a scope; everything unknown or not applicable is None.

    Made once when the scope opens, read by telemetry, hooks, events and errors. `scope_id` is unique per opened scope,
    `name` is its own name, `run_name` and `agent_name` are those of the innermost enclosing run and agent. A `surrounding`
    scope is the whole process's: no block of code entered it, and several processes may have the same one. `hooks` are who the
    program wants told of what happens right here, and `run_hooks` those of them that the scopes inside inherit. `attempt` says of an
    agent that is supervised which one of its attempts this is, from 1.
    """

    scope_id: str
    kind: ScopeKind
    name: str | None = None
    run_id: str | None = None
    run_name: str | None = None
    session_id: str | None = None
    tenant_id: str | None = None
    user_id: str | None = None
    agent_name: str | None = None
    agent_id: str | None = None
    supervision: Supervision | None = None
    tags: Mapping[str, str] = field(default_factory=dict[str, str])
    surrounding: bool = False
    hooks: tuple[object, ...] = field(default=(), compare=False, repr=False)
    run_hooks: tuple[object, ...] = field(default=(), compare=False, repr=False)
    attempt: int | None = None


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
        put(
            "cancellation",
            CancellationToken()
            if cancellation is None
            else checks.instance("cancellation", cancellation, CancellationToken, "CancellationToken()"),
        )
        put(
            "supervision",
            None if supervision is None else checks.instance("supervision", supervision, Supervision, "Supervision.root(...)"),
        )
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
