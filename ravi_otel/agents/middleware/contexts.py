"""Carry what passes through a chain of middleware, inwards as a request and outwards as a result.

Each run of an agent, each model call and each tool call has a context of its own, which nothing else shares. What a middleware
changes of the request is seen by the ones inside it and by the call itself, and by nobody outside: `call_next()` gives the
inner ones a copy, so a request that is sent again is the same request. What is set as a result is seen outwards.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol, TypeAlias

from ravi_otel.agents.results import AgentResult
from ravi_otel.errors import ConfigurationError
from ravi_otel.policy._checks import show
from ravi_otel.policy._contracts import ChatMessage, Generation, JsonObject, JsonValue, LLMClient

Level = Literal["agent", "chat", "tool"]
"""What a middleware stands around: a whole run of an agent, one model call, or one tool call."""

AgentInput: TypeAlias = str | Sequence[ChatMessage]


class MiddlewareError(ConfigurationError):
    """Report a middleware that does not do what a middleware must: its run ends with it, at every level."""


class Passing(Protocol):
    """Be a context, as much of it as the pipeline has to know."""

    level: ClassVar[Level]
    gives: ClassVar[str]
    """The field in which its result is."""
    calls: int

    def request(self) -> tuple[Any, ...]:
        """Give the request as it stands."""
        ...

    def begin(self, request: tuple[Any, ...]) -> None:
        """Take a copy of a request and forget the result."""
        ...

    def restore(self, request: tuple[Any, ...]) -> None:
        """Take back a request that was given."""
        ...

    @property
    def answered(self) -> bool:
        """Tell whether there is a result."""
        ...

    def flaw_of_request(self) -> str | None:
        """Say what a middleware has put into the request that cannot be sent, None when all can."""
        ...

    def flaw_of_result(self) -> str | None:
        """Say why what a middleware has set is no result, None when it is one."""
        ...


def _flaw_of_messages(field_name: str, given: Any) -> str | None:
    if not isinstance(given, list | tuple):
        return f"context.{field_name}={show(given)} must be a list of ChatMessage"
    wrong: list[Any] = [each for each in given if not isinstance(each, ChatMessage)]  # pyright: ignore[reportUnknownVariableType]  # of whatever
    if wrong:
        return f'context.{field_name} holds {show(wrong[0])}, which is no ChatMessage; write ChatMessage("user", "...")'
    return None


def _flaw_of_kind(field_name: str, given: Any, kind: type, example: str) -> str | None:
    return None if isinstance(given, kind) else f"context.{field_name}={show(given)} is no {kind.__name__}; give {example}"


@dataclass(slots=True, kw_only=True)
class AgentRun:
    """Show one run of an agent to its middleware.

    `input` is what the agent is asked and may be replaced; `result` what came of it, None until then. `calls` counts how often the
    innermost of the chain, the agent itself, was reached: 0 says that a middleware answered instead. `notes` is room for what
    middlewares tell each other; nothing reads it. `hooks` are the agent's own.
    """

    level: ClassVar[Level] = "agent"
    gives: ClassVar[str] = "result"

    agent_name: str
    run_id: str
    session_id: str | None = None
    input: AgentInput = ""
    result: AgentResult | None = None
    calls: int = 0
    notes: dict[str, Any] = field(default_factory=dict[str, Any])
    hooks: tuple[object, ...] = field(default=(), repr=False)

    @property
    def answered(self) -> bool:
        """Tell whether there is a result."""
        return self.result is not None

    def request(self) -> tuple[Any, ...]:
        """Give the request as it stands."""
        return (self.input,)

    def begin(self, request: tuple[Any, ...]) -> None:
        """Take a copy of a request and forget the result."""
        (asked,) = request
        self.input = asked if isinstance(asked, str) else list(asked)
        self.result = None

    def restore(self, request: tuple[Any, ...]) -> None:
        """Take back a request that was given."""
        (self.input,) = request

    def flaw_of_request(self) -> str | None:
        """Say what a middleware has put into the request that cannot be sent, None when all can."""
        return None if isinstance(self.input, str) else _flaw_of_messages("input", self.input)

    def flaw_of_result(self) -> str | None:
        """Say why what a middleware has set is no result, None when it is one."""
        return _flaw_of_kind("result", self.result, AgentResult, "AgentResult(...)")


@dataclass(slots=True, kw_only=True)
class ChatCall:
    """Show one model call to its middleware.

    *Request*: `messages` oldest first, without the `system_instructions`; `tools` on offer, as their JSON; `options` such as
    `{"temperature": 0}`; `model` is the name, None for the client's own; `client` asks it, None for an
    agent's own OpenAIModel.
    `session_id` and `tenant_id` say whose it is, None for nobody's.

    *Result*: `response`, None until then; `cached` says that it was asked before and nothing was spent; `fallback_from` is the
    model that failed before another one answered. `calls` counts how often the model was asked.
    """

    level: ClassVar[Level] = "chat"
    gives: ClassVar[str] = "response"

    agent_name: str
    run_id: str
    session_id: str | None = None
    tenant_id: str | None = None
    system_instructions: str | None = None
    messages: list[ChatMessage]
    tools: list[JsonObject] = field(default_factory=list[JsonObject])
    options: dict[str, JsonValue] = field(default_factory=dict[str, JsonValue])
    model: str | None = None
    client: LLMClient | None = None
    response: Generation | None = None
    cached: bool = False
    fallback_from: str | None = None
    calls: int = 0
    notes: dict[str, Any] = field(default_factory=dict[str, Any])

    @property
    def answered(self) -> bool:
        """Tell whether there is a result."""
        return self.response is not None

    def request(self) -> tuple[Any, ...]:
        """Give the request as it stands."""
        return (self.system_instructions, self.messages, self.tools, self.options, self.model, self.client)

    def begin(self, request: tuple[Any, ...]) -> None:
        """Take a copy of a request and forget the result."""
        self.system_instructions, messages, tools, options, self.model, self.client = request
        self.messages, self.tools, self.options = list(messages), list(tools), dict(options)
        self.response, self.cached, self.fallback_from = None, False, None

    def restore(self, request: tuple[Any, ...]) -> None:
        """Take back a request that was given."""
        self.system_instructions, self.messages, self.tools, self.options, self.model, self.client = request

    def flaw_of_request(self) -> str | None:
        """Say what a middleware has put into the request that cannot be sent, None when all can."""
        return (
            _flaw_of_messages("messages", self.messages)
            or _flaw_of_kind("options", self.options, Mapping, "a dict, {} for none")
            or _flaw_of_kind("tools", self.tools, list, "a list, [] for none")
            or ("context.options asks for a stream, and an agent reads whole answers; leave it out" if self.options.get("stream") else None)
        )

    def flaw_of_result(self) -> str | None:
        """Say why what a middleware has set is no result, None when it is one."""
        return _flaw_of_kind("response", self.response, Generation, 'Generation(ChatMessage("assistant", "..."))')


class _Settable:
    """Know whether `result` was set since: None is a result."""

    __slots__ = ("_set",)
    _set: bool

    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)
        if name == "result":
            object.__setattr__(self, "_set", True)


@dataclass(slots=True, kw_only=True)
class ToolUse(_Settable):
    """Show one tool call to its middleware; a gate stands inside it and judges the arguments as the middleware leaves them.

    *Request*: `function_name`, and `arguments` by name. `call_id` is the model's own id of the call.

    *Result*: `result`, None until then and where the tool gives None; to answer with None instead of the tool, set it to None. `calls`
    counts how often the tool, or its gate, was reached.
    """

    level: ClassVar[Level] = "tool"
    gives: ClassVar[str] = "result"

    agent_name: str
    run_id: str
    session_id: str | None = None
    function_name: str
    arguments: JsonObject
    call_id: str | None = None
    result: Any = None
    calls: int = 0
    notes: dict[str, Any] = field(default_factory=dict[str, Any])

    @property
    def answered(self) -> bool:
        """Tell whether there is a result: None is one, once it was set."""
        return self._set

    def request(self) -> tuple[Any, ...]:
        """Give the request as it stands."""
        return (self.arguments,)

    def begin(self, request: tuple[Any, ...]) -> None:
        """Take a copy of a request and forget the result."""
        arguments: JsonObject = request[0]
        self.arguments = dict(arguments)
        self.result = None
        self._set = False

    def restore(self, request: tuple[Any, ...]) -> None:
        """Take back a request that was given."""
        (self.arguments,) = request

    def flaw_of_request(self) -> str | None:
        """Say what a middleware has put into the request that cannot be sent, None when all can."""
        return _flaw_of_kind("arguments", self.arguments, Mapping, "a dict of the arguments by name")

    def flaw_of_result(self) -> str | None:
        """Say why what a middleware has set is no result: anything is one."""
        return None
