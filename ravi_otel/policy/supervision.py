"""Say who started an agent, and what it may use."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field, replace

from ravi_otel.errors import ConfigurationError
from ravi_otel.policy import checks
from ravi_otel.policy.budgets import ExecutionBudget, HistoryRetention, Priority, SpawnBudget
from ravi_otel.policy.ids import AgentId, TopicId

PROGRESS_TOPIC = "agent.progress"


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
        return replace(
            self,
            parent_id=checks.name("parent_id", parent_id),
            depth=self.depth + 1,
            retention=retention,
            priority=priority,
            execution_budget=self.execution_budget if execution_budget is None else execution_budget,
        )

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
