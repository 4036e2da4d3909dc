"""Say what went wrong, one class per decision a caller can take.

::

    RaviError
    ├── ConfigurationError (also ValueError)        fix the call, the flag or the file
    │   └── LimitSyntaxError                        fix one limit
    ├── MissingExtraError (also ImportError)        install what the sentence names
    ├── BudgetError                                 a limit stands in the way
    │   ├── BudgetExhaustedError                    final: wait for nothing, end or raise the limit
    │   │   ├── SpawnDeniedError                    no slot, or no room, for another agent
    │   │   └── DeadlineExceededError (also CancellationError)
    │   └── BudgetContendedError                    others hold what is left: try again later
    ├── CancellationError                           somebody asked the run to stop
    ├── AgentPausedError                            preempted: end with what you have
    ├── RetriesExhaustedError                       the supervisor's restart ceiling
    ├── MiddlewareTermination                       a middleware stopped the chain on purpose
    ├── ToolDeniedError                             the gate refused one tool call; others may follow
    ├── ToolTimeoutError (also TimeoutError)        a gated tool was given up after its time
    ├── StopRun                                     the gate ended the run: `reason` is its stop reason
    ├── LLMTimeout (also TimeoutError)              the model did not answer in time
    └── LLMEmpty                                    the model answered with nothing

Every message is one sentence with the user's own parameter in it, the value, and the way out; the same facts are fields.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

STOPPED: Final = "A usage limit was reached, so this could not be completed."
"""What an end user may read of a refusal of which nothing else is known."""
TOO_LATE: Final = "This took longer than is allowed, and was stopped."
"""What an end user may read where the time is up."""
BUSY: Final = "Too much is going on at once. Please try again in a moment."
"""What an end user may read where others are in the way, and end."""
UNCHECKED: Final = "Usage cannot be checked at the moment. Please try again later."
"""What an end user may read where the store of counters fails."""


class RaviError(Exception):
    """The root of every error this package raises."""


class ConfigurationError(RaviError, ValueError):
    """Report an argument, flag, file or environment value that cannot be used."""


class LimitSyntaxError(ConfigurationError):
    """Report a limit that cannot be read; `spec` is what was written."""

    def __init__(self, message: str, *, spec: str = "") -> None:
        super().__init__(message)
        self.spec = spec


class MissingExtraError(RaviError, ImportError):
    """Report an optional dependency that is not installed; the message names the extra."""


class BudgetError(RaviError):
    """Report a limit that stands in the way of a call.

    Fields mirror the limit event: `limit_kind`, `threshold`, `used`, `held` and `remaining` in the kind's own unit
    (tokens, USD, seconds, or a count), `scope` (tenant, session, run, handoff, block, agent or process), `agent_name`,
    `run_name`, `run_id` and `reason`; `partial` is the text of a stream that was cut, else None. Unknown is None. With
    `estimated` what was used is our own count of a stream that was cut.

    For the answer to whoever asked: `resets_at` is when what was refused fits again, an aware `datetime` in UTC, None where waiting
    does not help. Of a window of the calendar that is its end. Of a rolling one it is when enough has left it, and where a store does
    not tell what leaves when (Redis), when everything has. `per` is the limit's window in its own words ("day", "90m"), `counted_for`
    says whose counter it is ("user 'u42'", "tenant 'acme'"), both None where it has none. `public_message` is a sentence for an end
    user: no names of limits and no commands, and when to try again if that is known.
    """

    def __init__(  # noqa: PLR0913 - the fields are the payload of the limit event, each by its name
        self,
        message: str,
        *,
        limit_kind: str | None = None,
        threshold: float | None = None,
        used: float | None = None,
        held: float | None = None,
        remaining: float | None = None,
        scope: str | None = None,
        agent_name: str | None = None,
        run_name: str | None = None,
        run_id: str | None = None,
        reason: str | None = None,
        partial: str | None = None,
        estimated: bool = False,
        resets_at: datetime | None = None,
        per: str | None = None,
        counted_for: str | None = None,
        public_message: str = STOPPED,
    ) -> None:
        super().__init__(message)
        self.limit_kind = limit_kind
        self.threshold = threshold
        self.used = used
        self.held = held
        self.remaining = remaining
        self.scope = scope
        self.agent_name = agent_name
        self.run_name = run_name
        self.run_id = run_id
        self.reason = reason
        self.partial = partial
        self.estimated = estimated
        self.resets_at = resets_at
        self.per = per
        self.counted_for = counted_for
        self.public_message = public_message

    def __reduce__(self) -> tuple[Any, ...]:
        """Keep every field when the error crosses a process, and nothing that only this process knows of it."""
        return type(self), self.args, {name: value for name, value in vars(self).items() if not name.startswith("_")}


class BudgetExhaustedError(BudgetError):
    """Refuse for good: the limit is spent, and nothing was sent."""


class BudgetContendedError(BudgetError):
    """Refuse for now: calls in flight hold what is left, and it was not given back in time; a stream is cut with what had come."""


class CancellationError(RaviError):
    """Stop because the run was cancelled; `reason` says who or why.

    `partial` is the text of a stream that this ended, None of one that no limit could have ended, and of any other call.
    """

    def __init__(self, message: str = "cancelled", *, reason: str | None = None, partial: str | None = None) -> None:
        super().__init__(message)
        self.reason = reason
        self.partial = partial


class DeadlineExceededError(BudgetExhaustedError, CancellationError):
    """Stop because the time is up; `limit_kind` is "time" or "working"."""

    def __init__(self, message: str = "deadline exceeded", **fields: Any) -> None:
        fields.setdefault("limit_kind", "time")
        fields.setdefault("reason", "deadline")
        fields.setdefault("public_message", TOO_LATE)
        BudgetExhaustedError.__init__(self, message, **fields)


class SpawnDeniedError(BudgetExhaustedError):
    """Refuse another agent; `agent_id` asked, `max_agents` is the cap.

    `limit_kind` says of what: "agents" (live in the run), "agents_total" (entered in all) or "fan_out" (live under one agent). `reason` of
    those without a slot: "full"; "none_below", of one that is urgent, where no agent that may be paused has a lower priority;
    "preemption_off", where one has, and `allow_preempt=False` spares it. Of the others it is "exhausted".
    """

    def __init__(self, message: str, *, agent_id: str | None = None, max_agents: int | None = None, **fields: Any) -> None:
        fields.setdefault("limit_kind", "agents")
        fields.setdefault("threshold", max_agents)
        fields.setdefault("public_message", BUSY)
        super().__init__(message, **fields)
        self.agent_id = agent_id
        self.max_agents = max_agents

    def as_tool_error(self) -> dict[str, str | int | None]:
        """Say it to the model that asked for the agent: the result of a tool that could not start one, as a JSON object.

        *Shape*: `error` "spawn_denied", `message` what is the case, `agent_id`, `max_agents`, `limit_kind`, and `way_out` what a model can
        do about it, which raises no limit. What the program could do is in the error's own text and not in here.
        `json.dumps(denied.as_tool_error())` is the content of the tool's message.
        """
        lasting = self.limit_kind == "agents_total" or (self.max_agents == 1 and self.limit_kind == "agents")
        ended = "do that work yourself" if lasting else "do that work yourself, or ask again when one has ended"
        return {
            "error": "spawn_denied",
            "message": self._facts(),
            "agent_id": self.agent_id,
            "max_agents": self.max_agents,
            "limit_kind": self.limit_kind,
            "way_out": f"Go on without another agent: {ended}.",
        }

    def _facts(self) -> str:
        who = "another agent" if self.agent_id is None else f"agent {self.agent_id!r}"
        if self.max_agents is None:
            return f"There is no room for {who} now."
        agents = f"{self.max_agents} {'agent' if self.max_agents == 1 else 'agents'}"
        return f"There is no room for {who}: {_ALLOWED.get(self.limit_kind or '', _ALLOWED['agents']).format(agents)}."


class AgentPausedError(RaviError):
    """End this agent with what it has: its slot went to more urgent work, or an operator stopped it.

    `partial` is what the agent kept of its work (`Agent.keep`), None when it kept nothing.
    """

    def __init__(self, message: str, *, agent_id: str | None = None, partial: str | None = None) -> None:
        super().__init__(message)
        self.agent_id = agent_id
        self.partial = partial


class RetriesExhaustedError(RaviError):
    """Give up on an agent that was restarted as often as its policy allows; its `__cause__` is the last crash.

    `agent_id` is who, `attempts` how often it was started.
    """

    def __init__(self, message: str, *, agent_id: str | None = None, attempts: int | None = None) -> None:
        super().__init__(message)
        self.agent_id = agent_id
        self.attempts = attempts


class MiddlewareTermination(RaviError):  # noqa: N818 - the contract's own spelling
    """Block the chain from inside a middleware; `guardrail` is the name of the guardrail that did, None of any other middleware."""

    def __init__(self, message: str = "a middleware ended it", *, guardrail: str | None = None) -> None:
        super().__init__(message)
        self.guardrail = guardrail

    @property
    def stop_reason(self) -> str:
        """Spell it for programs: "guardrail:NAME", or "middleware_terminated"."""
        return "middleware_terminated" if self.guardrail is None else f"guardrail:{self.guardrail}"


class ToolDeniedError(RaviError):
    """Refuse one tool call at the gate: it did not run, unless `ran` says that it was its result that was refused.

    `tool` is its name, `reason` what a model is told, `stop_reason` the spelling for programs, such as "supervisor_block:over_the_cap".
    """

    def __init__(
        self, message: str, *, tool: str | None = None, reason: str | None = None, stop_reason: str | None = None, ran: bool = False
    ) -> None:
        super().__init__(message)
        self.tool = tool
        self.reason = reason
        self.stop_reason = stop_reason
        self.ran = ran

    def as_tool_error(self) -> dict[str, str | None]:
        """Say it to the model that asked: the result of a tool that was not run, as a JSON object.

        *Shape*: `error` "tool_denied", or "tool_result_refused" of one that ran, `tool`, `reason` in the gate's words, `stop_reason`.
        """
        error = "tool_result_refused" if self.ran else "tool_denied"
        return {"error": error, "tool": self.tool, "reason": self.reason, "stop_reason": self.stop_reason}


class ToolTimeoutError(RaviError, TimeoutError):
    """Give up on a gated tool after `timeout_s` seconds; `tool` is its name.

    It counts as executed. An async tool was cancelled; a synchronous one may still run, in a thread that nobody waits for.
    """

    def __init__(self, message: str, *, tool: str | None = None, timeout_s: float | None = None) -> None:
        super().__init__(message)
        self.tool = tool
        self.timeout_s = timeout_s


class StopRun(RaviError):  # noqa: N818 - the contract's own spelling
    """End the run at the gate; `reason` is the stop reason, such as "loop_detected:signature_repeat".

    `tool` is the one that was asked for, None where none was; `phase` says where: "worker", "supervisor", "human_approval",
    "execution" or "finalize". Raised with the reason alone, it is its own message.
    """

    def __init__(self, reason: str, message: str | None = None, *, tool: str | None = None, phase: str | None = None) -> None:
        super().__init__(reason if message is None else message)
        self.reason = reason
        self.tool = tool
        self.phase = phase


class LLMTimeout(RaviError, TimeoutError):  # noqa: N818 - the contract's own spelling
    """Give up on a model that did not answer in time; no limit of ours ended it."""


class LLMEmpty(RaviError):  # noqa: N818 - the contract's own spelling
    """Report an answer with neither text nor tool calls."""


_ALLOWED = {
    "agents": "at most {} may be at work at once",
    "agents_total": "{} in all were allowed, and none more may begin",
    "fan_out": "at most {} may be at work at once under the one that asks",
}
"""What a limit of agents means to a model."""
