"""Agree with programs on shapes: what agents, clients, middlewares and the gate of tools look like from outside."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias, TypeVar, runtime_checkable

from ravi_otel.policy._runs import RunMeta, ScopeFacts
from ravi_otel.policy._usage import Usage

JsonValue: TypeAlias = "bool | int | float | str | Sequence[JsonValue] | Mapping[str, JsonValue] | None"
JsonObject: TypeAlias = Mapping[str, JsonValue]
"""What a JSON object looks like once read."""

Role = Literal["system", "developer", "user", "assistant", "tool"]
CallNext: TypeAlias = Callable[[], Awaitable[None]]
"""Run the rest of the chain; results travel in the context."""

CtxT_contra = TypeVar("CtxT_contra", contravariant=True)  # the context is only ever taken in


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """Hold one message of a conversation.

    `tool_calls` are the calls an assistant asks for, as the provider wrote them; `tool_call_id` says which one a tool
    message answers.
    """

    role: Role
    content: str | None = None
    name: str | None = None
    tool_call_id: str | None = None
    tool_calls: tuple[JsonObject, ...] = ()

    def as_json(self) -> dict[str, JsonValue]:
        """Write the message for a chat endpoint; fields that are not set are left out."""
        body: dict[str, JsonValue] = {"role": self.role, "content": self.content}
        if self.name is not None:
            body["name"] = self.name
        if self.tool_call_id is not None:
            body["tool_call_id"] = self.tool_call_id
        if self.tool_calls:
            body["tool_calls"] = list(self.tool_calls)
        return body


@dataclass(frozen=True, slots=True)
class Generation:
    """What a model answered, and what it used (None when the provider did not say)."""

    message: ChatMessage
    usage: Usage | None = None
    finish_reason: str | None = None


@runtime_checkable
class LLMClient(Protocol):
    """Ask a model for the next message."""

    async def generate(self, messages: Sequence[ChatMessage], *, tools: Sequence[JsonObject] = ()) -> Generation:
        """Send the conversation and the tools on offer; return the answer."""
        ...


@runtime_checkable
class CompactionStrategy(Protocol):
    """Shorten a history that no longer fits."""

    async def compact(self, raw_history: Sequence[ChatMessage]) -> Sequence[ChatMessage]:
        """Return the messages to keep, oldest first."""
        ...


@runtime_checkable
class AgentContextProtocol(Protocol):
    """Show an agent's memory."""

    @property
    def agent_id(self) -> str:
        """Name the agent."""
        ...

    async def get_prompt_window(self, session_id: str) -> Sequence[ChatMessage]:
        """Return the messages of a session that the next prompt is made of, oldest first."""
        ...


@runtime_checkable
class RunContext(Protocol):
    """Show a run to the code that works for it."""

    @property
    def meta(self) -> RunMeta:
        """Identify the run."""
        ...

    def check(self) -> None:
        """Raise CancellationError when cancelled or past the deadline."""
        ...


@runtime_checkable
class AgentRunContextProtocol(Protocol):
    """Show an agent's run to its middleware."""

    @property
    def agent_name(self) -> str:
        """Name the agent."""
        ...

    @property
    def run_id(self) -> str:
        """Identify the run."""
        ...

    @property
    def session_id(self) -> str | None:
        """Identify the session, None without one."""
        ...


@runtime_checkable
class ChatContextProtocol(Protocol):
    """Show a model call to its middleware."""

    @property
    def agent_name(self) -> str:
        """Name the agent that calls."""
        ...

    @property
    def run_id(self) -> str:
        """Identify the run."""
        ...

    @property
    def system_instructions(self) -> str | None:
        """Return the instructions the model is called with, None without any."""
        ...


@runtime_checkable
class FunctionContextProtocol(Protocol):
    """Show a tool call to its middleware."""

    @property
    def agent_name(self) -> str:
        """Name the agent that calls."""
        ...

    @property
    def run_id(self) -> str:
        """Identify the run."""
        ...

    @property
    def function_name(self) -> str:
        """Name the tool."""
        ...

    @property
    def arguments(self) -> JsonObject:
        """Return the arguments it is called with."""
        ...


@runtime_checkable
class Middleware(Protocol[CtxT_contra]):
    """Stand between a caller and what it calls.

    Return without awaiting `call_next` to short-circuit; raise MiddlewareTermination to block.
    """

    async def process(self, context: CtxT_contra, call_next: CallNext) -> None:
        """Do something before, around or instead of the rest of the chain."""
        ...


AgentMiddleware: TypeAlias = Middleware[AgentRunContextProtocol]
ChatMiddleware: TypeAlias = Middleware[ChatContextProtocol]
FunctionMiddleware: TypeAlias = Middleware[FunctionContextProtocol]


# -- the gate a tool call passes: what it is asked, and what it answers ------------------------------------------------


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
