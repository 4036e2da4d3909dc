"""Agree with programs on shapes: what agents, clients and middlewares look like from outside."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias, TypeVar, runtime_checkable

from ravi_otel.policy.meta import RunMeta
from ravi_otel.policy.usage import Usage

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
    """Hold what a model answered, and what it used (None when the provider did not say)."""

    message: ChatMessage
    usage: Usage | None = None
    finish_reason: str | None = None


@runtime_checkable
class LLMClient(Protocol):
    """Ask a model for the next message."""

    async def generate(self, messages: Sequence[ChatMessage], *, tools: Sequence[JsonObject] = ()) -> Generation:
        """Send the conversation and the tools on offer; give the answer."""
        ...


@runtime_checkable
class CompactionStrategy(Protocol):
    """Shorten a history that no longer fits."""

    async def compact(self, raw_history: Sequence[ChatMessage]) -> Sequence[ChatMessage]:
        """Give the messages to keep, oldest first."""
        ...


@runtime_checkable
class AgentContextProtocol(Protocol):
    """Show an agent's memory."""

    @property
    def agent_id(self) -> str:
        """Name the agent."""
        ...

    async def get_prompt_window(self, session_id: str) -> Sequence[ChatMessage]:
        """Give the messages of a session that the next prompt is made of, oldest first."""
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
        """Give the instructions the model is called with, None without any."""
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
        """Give the arguments it is called with."""
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
