"""What watches over what goes in and comes out: guardrails stop it, redaction takes secrets out of it, an audit trail records it."""

from __future__ import annotations

import inspect
import json
import re
import uuid
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, Literal, TypeAlias, cast

from anyio import CancelScope, to_thread

from ravi_otel._runtime.scopes import current_scope
from ravi_otel._telemetry.content import redact_secrets
from ravi_otel.agents._model import ResponseMessage
from ravi_otel.agents.middleware._pipeline import LEVELS, AgentRun, ChatCall, Level, ToolUse, emit_effect
from ravi_otel.errors import BudgetError, CancellationError, ConfigurationError, MiddlewareTermination, RaviError, StopRun, ToolDeniedError
from ravi_otel.hooks._events import GuardrailEvent
from ravi_otel.hooks._manager import hear
from ravi_otel.policy import _checks as checks
from ravi_otel.policy._contracts import CallNext, ChatMessage, JsonObject
from ravi_otel.supervisor import AuditError, AuditLog
from ravi_otel.supervisor._audit import LIMIT_CHANGES

Check: TypeAlias = str | re.Pattern[str] | Callable[[str], Awaitable[str | None] | str | None]
"""A regular expression that must not be found, or a function of the text, sync or async: the reason to stop, or None."""

Stage = Literal["input", "output"]
_MOST_REASON: Final = 500
_REFUSALS: Final = (ToolDeniedError, StopRun, BudgetError, MiddlewareTermination)
_WHAT: Final[dict[Level, str]] = {"agent": "agent's run", "chat": "model call", "tool": "tool call"}
_MOST_DEPTH: Final = 64
_MOST_CHARACTERS: Final = 4_000_000
_OPAQUE: Final = frozenset({"type", "id", "role", "status", "encrypted_content"})


class _Guardrail(ABC):
    """A check of the texts at one stage of a run, a model call or a tool call."""

    stage: Stage

    def __init__(self, check: Check, *, name: str | None = None, level: Level = "chat") -> None:
        kind = type(self).__name__
        self.level: Level = cast("Level", checks.choice(f"{kind}(level)", level, LEVELS))
        self._check = _read_check(kind, check)
        self.name = checks.name(f"{kind}(name)", _name_of(check) if name is None else name, "no_secrets")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, level={self.level!r})"

    async def _inspect(self, context: AgentRun | ChatCall | ToolUse) -> None:
        reason: str | None
        cause: Exception | None = None
        try:
            reason = await self._judge(_joined(self._values(context)))
        except (MiddlewareTermination, _UnreadableError) as error:
            reason, cause = str(error), error
        except RaviError:
            raise  # a limit, or a cancellation, that ended a guardrail which asks a model: nothing goes on either
        except Exception as error:  # noqa: BLE001 - whatever goes wrong in deciding stops what was to be decided about
            reason, cause = f"the guardrail itself raised {type(error).__name__}", error
        if reason is not None:
            self._stop(reason, cause, context)

    @abstractmethod
    def _values(self, context: AgentRun | ChatCall | ToolUse) -> list[Any]:
        """Return the values whose texts are checked, one text a line."""

    async def _judge(self, text: str) -> str | None:
        found: Any = self._check(text)
        if inspect.isawaitable(found):
            found = await found
        if found is None or (isinstance(found, str) and found):
            return found
        return f"the guardrail gave {checks.show(found)}, which is neither a reason nor None"

    def _stop(self, reason: str, cause: Exception | None, context: AgentRun | ChatCall | ToolUse) -> None:
        reason = reason[:_MOST_REASON]
        scope = current_scope()
        facts = scope.facts
        if isinstance(context, AgentRun):  # the agent is not entered any more, or not yet
            hooks = (*facts.hooks, *(each for each in context.hooks if each not in facts.hooks))
            if hooks:
                hear(scope.engine.listeners)
            facts = replace(facts, agent_name=context.agent_name, hooks=hooks)
        scope.engine.listeners.tripped(GuardrailEvent(facts, self.name, self.level, self.stage, reason))
        raise MiddlewareTermination(
            f"Guardrail {self.name!r} stopped the {self.stage} of the {_WHAT[self.level]}: {reason}.", guardrail=self.name
        ) from cause


class InputGuardrail(_Guardrail):
    """Look at what goes in, and stop it before anything is called.

    `check` is a regular expression that must not be found, or a function of the text, sync or async, that gives the reason to stop, or
    None. It is given every text there is, one a line: at level "chat" the instructions and all messages with the arguments of
    their tool calls, at "agent" the input, at "tool" the arguments. A guardrail that raises, or gives anything else, stops too;
    so does what is too deep or too large to look through. `name` is by default the function's.

    Raises MiddlewareTermination, which ends the run with the stop reason "guardrail:NAME"; emits GUARDRAIL_TRIP.
    """

    stage: Stage = "input"

    def _values(self, context: AgentRun | ChatCall | ToolUse) -> list[Any]:
        if isinstance(context, ToolUse):
            return [context.arguments]
        if isinstance(context, ChatCall):
            return [context.system_instructions, *_texts_of(context.messages)]
        return [context.input] if isinstance(context.input, str) else _texts_of(context.input)

    async def process(self, context: AgentRun | ChatCall | ToolUse, call_next: CallNext) -> None:
        """Look, then await the rest of the chain."""
        await self._inspect(context)
        await call_next()


class OutputGuardrail(_Guardrail):
    """Look at what comes out, and stop it before anybody gets it; what it cost was spent, and what a tool did is done.

    As InputGuardrail. At level "chat" it is given the answer and the arguments of its tool calls, at "agent" the answer of the run, at
    "tool" the result.
    """

    stage: Stage = "output"

    def _values(self, context: AgentRun | ChatCall | ToolUse) -> list[Any]:
        if isinstance(context, ToolUse):
            return [context.result]
        if isinstance(context, ChatCall):
            return [] if context.response is None else _texts_of([context.response.message])
        return [] if context.result is None else [context.result.answer, context.result.partial]

    async def process(self, context: AgentRun | ChatCall | ToolUse, call_next: CallNext) -> None:
        """Await the rest of the chain, then look."""
        await call_next()
        await self._inspect(context)


def _read_check(kind: str, check: Any) -> Callable[[str], Any]:
    if isinstance(check, str):
        try:
            check = re.compile(check)
        except re.error as error:
            raise ConfigurationError(f"{kind}(check={checks.show(check)}) is no regular expression: {error}.") from None
    if isinstance(check, re.Pattern):
        pattern: re.Pattern[Any] = check  # pyright: ignore[reportUnknownVariableType]  # of text or of bytes
        if not isinstance(pattern.pattern, str):
            raise ConfigurationError(f"{kind}(check={checks.show(pattern)}) looks for bytes; give a regular expression of text.")
        return lambda text: None if pattern.search(text) is None else "it holds what must not be there"
    if callable(check):
        return cast("Callable[[str], Any]", check)
    raise ConfigurationError(f"{kind}(check={checks.show(check)}) must be a regular expression or a function of the text.")


def _name_of(check: Any) -> str:
    if isinstance(check, str | re.Pattern):
        return "pattern"
    return str(getattr(check, "__name__", type(check).__name__))


# -- redaction --------------------------------------------------------------------------------------------------------


class Redaction:
    """Replace secrets in the instructions and messages of a model call, so that the model never sees them.

    This changes what the model is asked; the agent's own history keeps what was said. `redact` gives a text without its secrets,
    by default `ravi_otel.redact_secrets`. The names of tools and their descriptions are the program's own and stay. A message of the
    Responses API in which something is replaced goes back without the reasoning and the hosted tools' items it came with. When `redact`
    raises, or gives no text, nothing is sent: MiddlewareTermination. Emits `ravi.middleware` "redacted" when something was
    replaced. What telemetry captures is redacted by `instrument(redact=)`, which changes nothing that is sent.
    """

    level: Level = "chat"

    def __init__(self, redact: Callable[[str], str] = redact_secrets) -> None:
        if not callable(redact):
            raise ConfigurationError(f"Redaction(redact={checks.show(redact)}) must be a function that takes a text and gives one.")
        self._redact = redact

    async def process(self, context: ChatCall, call_next: CallNext) -> None:
        """Redact, then await the rest of the chain."""
        messages = [self._message(message) for message in context.messages]
        instructions = None if context.system_instructions is None else self._text(context.system_instructions)
        if messages != context.messages or instructions != context.system_instructions:
            emit_effect("redacted", model=context.model)
        context.messages, context.system_instructions = messages, instructions
        await call_next()

    def _message(self, message: ChatMessage) -> ChatMessage:
        content = None if message.content is None else self._text(message.content)
        calls = tuple(self._call(call) for call in message.tool_calls)
        if (content, calls) == (message.content, message.tool_calls) and all(self._is_clean(item) for item in _items_beside(message)):
            return message
        if isinstance(message, ResponseMessage):  # what it came with says the same once more, and may not be changed
            return ChatMessage(message.role, content, message.name, message.tool_call_id, calls)
        return replace(message, content=content, tool_calls=calls)

    def _is_clean(self, value: Any) -> bool:
        """Whether nothing in it would be replaced."""
        if isinstance(value, str):
            return self._text(value) == value
        if isinstance(value, Mapping):
            return all(map(self._is_clean, cast("Mapping[str, Any]", value).values()))
        return not isinstance(value, (list, tuple)) or all(map(self._is_clean, cast("Sequence[Any]", value)))

    def _call(self, call: JsonObject) -> JsonObject:
        """Redact the arguments of a call the model asked for: it is shown them again."""
        function = call.get("function")
        inner = cast("Mapping[str, Any]", function) if isinstance(function, Mapping) else call
        written = inner.get("arguments")
        if not isinstance(written, str):
            return call
        redacted = {"arguments": self._text(written)}
        return {**call, **redacted} if inner is call else {**call, "function": {**inner, **redacted}}

    def _text(self, text: str) -> str:
        try:
            found: Any = self._redact(text)
        except Exception as error:
            raise MiddlewareTermination(f"Redaction: the hook raised {type(error).__name__}, so nothing was sent.") from error
        if not isinstance(found, str):
            raise MiddlewareTermination(f"Redaction: the hook gave {type(found).__name__}, not a text, so nothing was sent.")
        return found


# -- audit ----------------------------------------------------------------------------------------------------------


class AuditTrail:
    """Record each tool call in an audit log: "proposed" before it, "executed" after it, with how it ended.

    `status` is "ok", "error", "refused" (a gate, a limit or a middleware let it not through), "cancelled", or "answered" where a
    middleware inside gave the result and the tool did not run. A call that cannot be noted is not made: AuditError. A gate that has
    an audit log of its own notes more, and needs no AuditTrail.
    """

    level: Level = "tool"

    def __init__(self, log: AuditLog) -> None:
        self._log = checks.instance("AuditTrail(log)", log, AuditLog, "AuditLog('audit')")
        LIMIT_CHANGES.note_in(log)

    async def process(self, context: ToolUse, call_next: CallNext) -> None:
        """Note, await the rest of the chain, and note how it ended."""
        op_id = uuid.uuid4().hex
        await to_thread.run_sync(self._line("proposed", context, op_id))
        try:
            await call_next()
        except BaseException as error:
            line = self._line("executed", context, op_id, status=_status(error))
            try:
                if isinstance(error, Exception):
                    await _write(line)
                else:  # of what is cancelled nothing more can be awaited
                    line()
            except AuditError as unwritten:  # what ended the call goes on all the same: a cancellation must not be lost
                error.add_note(f"ravi-otel: {unwritten}")
            raise
        await _write(self._line("executed", context, op_id, status="ok" if context.calls else "answered"))

    def _line(self, what: Literal["proposed", "executed"], context: ToolUse, op_id: str, **facts: Any) -> Callable[[], None]:
        """Return what writes a line, in a thread: a disk may be slow. The lines of one call are awaited one after the other."""
        return partial(
            self._log.note,
            what,
            run_id=context.run_id,
            agent_name=context.agent_name,
            tool=context.function_name,
            op_id=op_id,
            arguments=context.arguments,
            **facts,
        )


async def _write(line: Callable[[], None]) -> None:
    """Write what was done, also when nobody waits for it any more."""
    with CancelScope(shield=True):
        await to_thread.run_sync(line)


def _status(error: BaseException) -> str:
    if isinstance(error, _REFUSALS):
        return "refused"
    return "error" if isinstance(error, Exception) and not isinstance(error, CancellationError) else "cancelled"


# -- texts ------------------------------------------------------------------------------------------------------------


class _UnreadableError(Exception):
    """What is too deep or too large to be looked through."""


def _texts_of(messages: Iterable[ChatMessage]) -> list[Any]:
    """Return what each message says and asks for."""
    found: list[Any] = []
    for message in messages:
        found += [message.name, message.content]
        for call in (*message.tool_calls, *_items_beside(message)):
            found += [call, *_arguments(call)]
    return found


def _items_beside(message: ChatMessage) -> list[JsonObject]:
    """Return what a message of the Responses API came with: reasoning, what hosted tools were asked and gave, nothing opaque."""
    if not isinstance(message, ResponseMessage):
        return []
    return [{key: value for key, value in item.items() if not _is_opaque(key, item)} for item in message.items]


def _is_opaque(key: str, item: JsonObject) -> bool:
    """Whether nobody reads it as text: names of things, and what is sealed or a picture."""
    return key in _OPAQUE or key.endswith("_id") or (key == "result" and item.get("type") == "image_generation_call")


def _arguments(call: Mapping[str, Any]) -> list[Any]:
    """Return the arguments as they will be read: as JSON text, any letter of them may be written as an escape."""
    function = call.get("function")
    inner = cast("Mapping[str, Any]", function) if isinstance(function, Mapping) else call
    written = inner.get("arguments")
    if not isinstance(written, str):
        return []
    try:
        return [json.loads(written)]
    except (ValueError, RecursionError):
        return []  # what cannot be read is refused where it is read; the text itself is looked through


def _joined(values: Iterable[Any]) -> str:
    lines: list[str] = []
    left = _MOST_CHARACTERS
    waiting = [(value, 0) for value in reversed(list(values))]
    while waiting:
        value, depth = waiting.pop()
        inner = _inner(value)
        if inner is not None:
            if depth >= _MOST_DEPTH:
                raise _UnreadableError(f"it is nested deeper than {_MOST_DEPTH}")
            left -= len(inner)
            if left >= 0:
                waiting.extend((each, depth + 1) for each in reversed(inner))
        elif value is not None:
            line = value if isinstance(value, str) else str(value)
            lines.append(line)
            left -= len(line)
        if left < 0:
            raise _UnreadableError(f"it is longer than {_MOST_CHARACTERS} characters")
    return "\n".join(lines)


def _inner(value: Any) -> list[Any] | None:
    found: Any = value
    if isinstance(value, Mapping):
        return [part for pair in found.items() for part in pair]
    return list(found) if isinstance(value, list | tuple | set | frozenset) else None
