"""Stand before every tool call: read it, allow it, judge it, ask a person, and write it down."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from ravi_otel.policy.gate import Coloured, GateVerdict, ToolGate, ToolOutcome, ToolRequest
from ravi_otel.supervisor.approval.contract import Approver
from ravi_otel.supervisor.decisions import GateState, Supervisor

Tools = Mapping[str, Callable[..., Any]] | Iterable[Callable[..., Any]]


class Gate:
    """Implement `ToolGate` over a supervisor, a person and a state; without a supervisor every valid call is approved."""

    def __init__(  # noqa: PLR0913 - the front door's documented keywords
        self,
        supervisor: Supervisor | None = None,
        *,
        tools: Tools,
        allow: Collection[str] | None = None,
        approver: Approver | None = None,
        policy: Any = None,
        state: GateState | Callable[[], GateState] | None = None,
        audit: Any = None,
        read_only: Collection[str] = (),
        expires_s: float | None = 3600,
        timeout_s: float | None = None,
        per_tool_limit: int | Mapping[str, int] | None = None,
        read_only_repeat_limit: int = 2,
        policy_version: str | None = None,
    ) -> None:
        raise NotImplementedError

    def before(self, request: ToolRequest) -> Coloured[GateVerdict]:
        """Read, allow, validate, review and perhaps ask a person: give the effective arguments or a refusal."""
        raise NotImplementedError

    def admit(self, request: ToolRequest, arguments: Mapping[str, Any]) -> Coloured[GateVerdict]:
        """Look for loops, and that what is about to run is what was let through."""
        raise NotImplementedError

    def after(self, request: ToolRequest, result: Any) -> Coloured[GateVerdict]:
        """Validate what the tool returned."""
        raise NotImplementedError

    def audit(self, request: ToolRequest, outcome: ToolOutcome) -> Coloured[None]:
        """Write down how it ended."""
        raise NotImplementedError

    async def review_final(self, answer: str) -> GateVerdict:
        """Have an agent's final answer judged: the verdict's `arguments["answer"]` is the text to give, or it is a refusal."""
        raise NotImplementedError


def gate_for(
    supervisor: Supervisor | ToolGate | None, functions: Mapping[str, Callable[..., Any]], approver: Approver | None = None
) -> ToolGate:
    """Make a gate for the named functions; what is a gate already is given back."""
    raise NotImplementedError
