"""Agree on the gate a tool call passes: what it is asked, and what it answers."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias, TypeVar, runtime_checkable

from ravi_otel.policy.facts import ScopeFacts

T = TypeVar("T")
Coloured: TypeAlias = T | Awaitable[T]
"""An answer at once, or one to await: synchronous callers accept only the first."""

ExecutedFrom = Literal["original", "supervisor_revised", "human_revised"]
"""Whose arguments are executed."""

ToolStatus = Literal["ok", "error", "refused", "cancelled"]


@dataclass(frozen=True, slots=True)
class ToolRequest:
    """Ask for one tool call.

    `arguments` is what the model or the program gave: a mapping, or the JSON text it has not been read from yet.
    `call_id` is the model's own id of the call, None when a program calls. A caller that awaits says so with `awaited`: the
    gate may then answer with an awaitable, and keeps what blocks, such as a prompt, off the loop. Any other caller is answered at once.
    With `in_place` a program calls its own function with values of its own, which may be other than JSON's; else they are a model's.
    """

    tool: str
    arguments: Mapping[str, Any] | str
    op_id: str
    facts: ScopeFacts
    call_id: str | None = None
    awaited: bool = False
    in_place: bool = False


@dataclass(frozen=True, slots=True)
class GateVerdict:
    """Let a tool call through or refuse it.

    `arguments` are the effective ones of a call let through (None: the asked ones, read as they are). A refusal has
    a `reason` for the model and a `stop_reason` ("tool_denied:send_mail", …); `ends_run` says that nothing more may
    follow. The call is given up after `timeout_s` seconds, None never.
    """

    allowed: bool
    arguments: Mapping[str, Any] | None = None
    executed_from: ExecutedFrom = "original"
    reason: str | None = None
    stop_reason: str | None = None
    ends_run: bool = False
    timeout_s: float | None = None


@dataclass(frozen=True, slots=True)
class ToolOutcome:
    """Tell the gate how a tool call ended; `result` only with status "ok", `error` with the others if there was one."""

    status: ToolStatus
    verdict: GateVerdict
    result: Any = None
    error: BaseException | None = None
    duration_s: float = 0.0


@runtime_checkable
class ToolGate(Protocol):
    """Stand before, at and after the execution of tools; called in this order, `audit` always and last."""

    def before(self, request: ToolRequest) -> Coloured[GateVerdict]:
        """Read, allow, validate, review and perhaps escalate: give the effective arguments or a refusal."""
        ...

    def admit(self, request: ToolRequest, arguments: Mapping[str, Any]) -> Coloured[GateVerdict]:
        """Look for loops, once the call's budget is held and before it runs."""
        ...

    def after(self, request: ToolRequest, result: Any) -> Coloured[GateVerdict]:
        """Validate what the tool returned; a refusal makes it an error."""
        ...

    def audit(self, request: ToolRequest, outcome: ToolOutcome) -> Coloured[None]:
        """Write down what was asked, decided and done."""
        ...
