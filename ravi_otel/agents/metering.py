"""Ask a model through whatever client it is behind."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from ravi_otel.agents.model import OpenAIModel
from ravi_otel.policy.contracts import ChatMessage, Generation, JsonObject, LLMClient


async def ask(
    client: LLMClient, messages: Sequence[ChatMessage], tools: Sequence[JsonObject], options: Mapping[str, Any], model: str | None
) -> Generation:
    """Have the client generate; one of the program's own is given options, and the model, only where it takes them."""
    if isinstance(client, OpenAIModel):
        return await client.generate(messages, tools=tools, options=options, model=model)
    return await client.generate(messages, tools=tools, **_taken(client, {"options": options or None, "model": model}))


def _taken(client: LLMClient, more: Mapping[str, Any]) -> dict[str, Any]:
    parameters = inspect.signature(client.generate).parameters
    takes_all = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
    return {name: value for name, value in more.items() if value is not None and (takes_all or name in parameters)}
