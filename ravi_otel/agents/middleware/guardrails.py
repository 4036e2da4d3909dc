"""Stop what must not go in or come out."""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, Final, Literal, TypeAlias, cast

from ravi_otel._runtime.scopes import current_scope
from ravi_otel.agents.middleware.contexts import AgentRun, ChatCall, Level, ToolUse
from ravi_otel.agents.middleware.levels import LEVELS
from ravi_otel.agents.middleware.texts import UnreadableError, answered_text, asked_text
from ravi_otel.errors import ConfigurationError, MiddlewareTermination, RaviError
from ravi_otel.hooks._events import GuardrailEvent
from ravi_otel.hooks._manager import hear
from ravi_otel.policy import _checks as checks
from ravi_otel.policy._contracts import CallNext

Check: TypeAlias = str | re.Pattern[str] | Callable[[str], Awaitable[str | None] | str | None]
"""A regular expression that must not be found, or a function of the text, sync or async: the reason to stop, or None."""

Stage = Literal["input", "output"]
_MOST_REASON: Final = 500
_WHAT: Final[dict[Level, str]] = {"agent": "agent's run", "chat": "model call", "tool": "tool call"}


class _Guardrail:
    stage: Stage

    def __init__(self, check: Check, *, name: str | None = None, level: Level = "chat") -> None:
        kind = type(self).__name__
        self.level: Level = cast("Level", checks.choice(f"{kind}(level)", level, LEVELS))
        self._check = _read(kind, check)
        self.name = checks.name(f"{kind}(name)", _name_of(check) if name is None else name, "no_secrets")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, level={self.level!r})"

    async def _look(self, context: AgentRun | ChatCall | ToolUse) -> None:
        reason: str | None
        cause: Exception | None = None
        try:
            reason = await self._judged(asked_text(context) if self.stage == "input" else answered_text(context))
        except (MiddlewareTermination, UnreadableError) as error:
            reason, cause = str(error), error
        except RaviError:
            raise  # a limit, or a cancellation, that ended a guardrail which asks a model: nothing goes on either
        except Exception as error:  # noqa: BLE001 - whatever goes wrong in deciding stops what was to be decided about
            reason, cause = f"the guardrail itself raised {type(error).__name__}", error
        if reason is not None:
            self._stop(reason, cause, context)

    async def _judged(self, text: str) -> str | None:
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
            told = (*facts.hooks, *(each for each in context.hooks if each not in facts.hooks))
            if told:
                hear(scope.engine.listeners)
            facts = replace(facts, agent_name=context.agent_name, hooks=told)
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

    async def process(self, context: AgentRun | ChatCall | ToolUse, call_next: CallNext) -> None:
        """Look, then await the rest of the chain."""
        await self._look(context)
        await call_next()


class OutputGuardrail(_Guardrail):
    """Look at what comes out, and stop it before anybody gets it; what it cost was spent, and what a tool did is done.

    As InputGuardrail. At level "chat" it is given the answer and the arguments of its tool calls, at "agent" the answer of the run, at
    "tool" the result.
    """

    stage: Stage = "output"

    async def process(self, context: AgentRun | ChatCall | ToolUse, call_next: CallNext) -> None:
        """Await the rest of the chain, then look."""
        await call_next()
        await self._look(context)


def _read(kind: str, check: Any) -> Callable[[str], Any]:
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
