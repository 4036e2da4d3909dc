"""Ask another model when one fails."""

from __future__ import annotations

from ravi_otel.agents.metering import model_of
from ravi_otel.agents.middleware.contexts import ChatCall, Level
from ravi_otel.agents.middleware.failures import Errors, is_final, read_errors
from ravi_otel.agents.middleware.telling import tell
from ravi_otel.errors import ConfigurationError
from ravi_otel.policy import _checks as checks
from ravi_otel.policy._contracts import CallNext, LLMClient


class ModelFallback:
    """Ask the next of `models` when a model call fails: names, for the same client, or LLMClients.

    A name is refused with ConfigurationError when it would be asked of a client whose generate() takes no `model`.

    `on` says after which errors, by default those that may be gone in a moment (as of Retry). Never after a refusal of a limit, a
    cancellation, a pause, StopRun or MiddlewareTermination. Each model that is asked is a call like any other: charged, told, and
    refused by limits. `context.fallback_from` names the model that was asked first when another one answered, and the event
    `ravi.middleware` "fell_back" tells of each that failed. Raises the error of the last.
    """

    level: Level = "chat"

    def __init__(self, *models: str | LLMClient, on: Errors | None = None) -> None:
        if not models:
            raise ConfigurationError('ModelFallback() needs the models to fall back to, such as ModelFallback("gpt-4o-mini").')
        for model in models:
            if isinstance(model, str):
                checks.name("ModelFallback(models)", model, "gpt-4o-mini")
            else:
                checks.instance("ModelFallback(models)", model, LLMClient, "names of models, or clients with generate()")
        self._models = models
        self._on = read_errors("ModelFallback(on)", on)

    def __repr__(self) -> str:
        return f"ModelFallback({', '.join(_name(model) for model in self._models)})"

    async def process(self, context: ChatCall, call_next: CallNext) -> None:
        """Await the rest of the chain with one model after the other."""
        first = asked = context.model or (None if context.client is None else _name(context.client)) or "the agent's model"
        failed = await self._tried(call_next, last=False)
        for left, model in enumerate(self._models, 1 - len(self._models)):
            if failed is None:
                return
            if isinstance(model, str):
                context.model = model
            else:
                context.client, context.model = model, model_of(model)
            tell("fell_back", model=_name(model), instead_of=asked, error=failed)
            asked = _name(model)
            failed = await self._tried(call_next, last=left == 0)
            context.fallback_from = first

    async def _tried(self, call_next: CallNext, *, last: bool) -> Exception | None:
        """Await the rest of the chain; give what it raised where another model may be asked."""
        try:
            await call_next()
        except Exception as error:
            if last or is_final(error) or not self._on(error):
                raise
            return error
        return None


def _name(model: str | LLMClient) -> str:
    return model if isinstance(model, str) else model_of(model) or type(model).__name__
