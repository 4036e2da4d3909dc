"""Take secrets out of what a model is sent."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from ravi_otel._telemetry.content import redact_secrets
from ravi_otel.agents.middleware.contexts import ChatCall, Level
from ravi_otel.agents.middleware.telling import tell
from ravi_otel.agents.middleware.texts import beside
from ravi_otel.agents.wire import ResponseMessage
from ravi_otel.errors import ConfigurationError, MiddlewareTermination
from ravi_otel.policy._checks import show
from ravi_otel.policy._contracts import CallNext, ChatMessage, JsonObject


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
            raise ConfigurationError(f"Redaction(redact={show(redact)}) must be a function that takes a text and gives one.")
        self._redact = redact

    async def process(self, context: ChatCall, call_next: CallNext) -> None:
        """Redact, then await the rest of the chain."""
        messages = [self._message(message) for message in context.messages]
        instructions = None if context.system_instructions is None else self._text(context.system_instructions)
        if messages != context.messages or instructions != context.system_instructions:
            tell("redacted", model=context.model)
        context.messages, context.system_instructions = messages, instructions
        await call_next()

    def _message(self, message: ChatMessage) -> ChatMessage:
        content = None if message.content is None else self._text(message.content)
        calls = tuple(self._call(call) for call in message.tool_calls)
        if (content, calls) == (message.content, message.tool_calls) and all(self._is_clean(item) for item in beside(message)):
            return message
        if isinstance(message, ResponseMessage):  # what it came with says the same once more, and may not be changed
            return ChatMessage(message.role, content, message.name, message.tool_call_id, calls)
        return replace(message, content=content, tool_calls=calls)

    def _is_clean(self, value: Any) -> bool:
        """Tell that nothing in it would be replaced."""
        if isinstance(value, str):
            return self._text(value) == value
        if isinstance(value, Mapping):
            return all(map(self._is_clean, cast("Mapping[str, Any]", value).values()))
        return not isinstance(value, (list, tuple)) or all(map(self._is_clean, cast("Sequence[Any]", value)))

    def _call(self, call: JsonObject) -> JsonObject:
        """Redact the arguments of a call the model asked for: it is shown them again."""
        function = call.get("function")
        if isinstance(function, Mapping):
            inner = cast("Mapping[str, Any]", function)
            written = inner.get("arguments")
            return {**call, "function": {**inner, "arguments": self._text(written)}} if isinstance(written, str) else call
        written = call.get("arguments")
        return {**call, "arguments": self._text(written)} if isinstance(written, str) else call

    def _text(self, text: str) -> str:
        try:
            found: Any = self._redact(text)
        except Exception as error:
            raise MiddlewareTermination(f"Redaction: the hook raised {type(error).__name__}, so nothing was sent.") from error
        if not isinstance(found, str):
            raise MiddlewareTermination(f"Redaction: the hook gave {type(found).__name__}, not a text, so nothing was sent.")
        return found
