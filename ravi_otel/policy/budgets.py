"""Hold who an agent is, what one run may spawn and one agent may spend, and where an agent stands in the tree of its run."""

from __future__ import annotations

import uuid
from copy import copy
from dataclasses import dataclass, field
from decimal import Decimal
from enum import IntEnum, StrEnum
from typing import Any, Final, Self

from ravi_otel.errors import ConfigurationError
from ravi_otel.policy import checks

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
    """Make up a run's id: 32 hexadecimal digits."""
    return uuid.uuid4().hex


def new_session_id() -> str:
    """Make up a session's id: 32 hexadecimal digits."""
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
        _instance("spawn_budget", self.spawn_budget, SpawnBudget)
        _instance("execution_budget", self.execution_budget, ExecutionBudget)
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
            session_id=new_session_id() if session_id is None else session_id,
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
        child = copy(self)  # what it has from this one is checked
        object.__setattr__(child, "parent_id", AgentId.checked(parent_id, "parent_id"))
        object.__setattr__(child, "depth", self.depth + 1)
        object.__setattr__(child, "retention", checks.member("retention", retention, HistoryRetention))
        object.__setattr__(child, "priority", checks.member("priority", priority, Priority))
        if execution_budget is not None:
            _instance("execution_budget", execution_budget, ExecutionBudget)
            object.__setattr__(child, "execution_budget", execution_budget)
        return child

    @property
    def is_root(self) -> bool:
        """Say whether nobody spawned this agent."""
        return self.parent_id is None

    @property
    def progress_topic(self) -> TopicId:
        """Address this run's progress messages."""
        return TopicId(PROGRESS_TOPIC, self.run_id)


def _instance(parameter: str, value: object, kind: type) -> None:
    if not isinstance(value, kind):
        raise ConfigurationError(f"{parameter}={checks.show(value)} must be a {kind.__name__}, such as {kind.__name__}().")
