"""Ask a model through whatever client it is behind; what no wrapper of ours sees is counted here."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import partial
from typing import Any, Final

from ravi_otel._flow import Step, run_async
from ravi_otel._runtime.state import STATE
from ravi_otel._runtime.unwrapped_calls import walk_unseen
from ravi_otel.agents.model import OpenAIModel
from ravi_otel.errors import ConfigurationError
from ravi_otel.policy import _checks as checks
from ravi_otel.policy._contracts import ChatMessage, Generation, JsonObject, LLMClient
from ravi_otel.policy._usage import Call, Reply, Usage

_BYTES_A_TOKEN: Final = 4
_TOKENS_A_MESSAGE: Final = 4
_MOST_TOKENS: Final = 2**53
_COUNTED: Final = tuple(field.name for field in fields(Usage) if field.name != "source")


async def ask(
    client: LLMClient, messages: Sequence[ChatMessage], tools: Sequence[JsonObject], options: Mapping[str, Any], model: str | None
) -> Generation:
    """Have the client generate; one of the program's own is given options, and the model, only where it takes them.

    Another model than its own, of one that takes none, raises ConfigurationError.
    That one is counted, limited and told here, unless it calls a client that is instrumented, which is then; and so is our own while
    nothing is instrumented.
    """
    if isinstance(client, OpenAIModel) and STATE.instrumented:
        return await client.generate(messages, tools=tools, options=options, model=model)
    _refuse_unknown(client, model)
    generate = partial(client.generate, messages, tools=tools, **_taken(client, {"options": options or None, "model": model}))
    call = Call(
        "chat",
        "chat.completions",
        provider="openai" if isinstance(client, OpenAIModel) else _named(client, "provider") or "custom",
        model=model or _named(client, "model"),
        size=sum(map(_tokens, messages)),
        messages=len(messages),
    )
    answer = await run_async(walk_unseen(type(client), call, Step(_never, generate), _read))
    if not isinstance(answer, Generation):
        raise ConfigurationError(f"{type(client).__name__}.generate() gave {checks.show(answer)}, and must give a Generation.")
    return answer


def _never() -> None:
    raise ConfigurationError("A model is awaited, and was called.")


def _taken(client: LLMClient, more: Mapping[str, Any]) -> dict[str, Any]:
    parameters = inspect.signature(client.generate).parameters
    takes_all = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
    return {name: value for name, value in more.items() if value is not None and (takes_all or name in parameters)}


def model_of(client: LLMClient) -> str | None:
    """Give the name of the model a client asks, None where it does not say."""
    return _named(client, "model")


def takes_model(client: LLMClient) -> bool:
    """Tell whether a client can be asked for another model than its own."""
    return isinstance(client, OpenAIModel) or bool(_taken(client, {"model": "any"}))


def _refuse_unknown(client: LLMClient, model: str | None) -> None:
    """Raise for the name of a model that a client would not hear of: it would ask its own, and all would be told of the other."""
    if model is None or model == model_of(client) or takes_model(client):
        return
    raise ConfigurationError(
        f"model={checks.show(model)} cannot be asked of {type(client).__name__}, whose generate() takes no model. "
        "Let it take model=, or give a client for that model, as in ModelFallback(client)."
    )


def _named(client: LLMClient, attribute: str) -> str | None:
    value = getattr(client, attribute, None)
    return value if isinstance(value, str) and value else None


def _tokens(message: ChatMessage) -> int:
    text = (message.content or "") + "".join(map(str, message.tool_calls))
    return _TOKENS_A_MESSAGE + len(text.encode("utf-8", "replace")) // _BYTES_A_TOKEN


def _read(answer: object) -> Reply:
    if not isinstance(answer, Generation):
        return Reply()
    usage = answer.usage if isinstance(answer.usage, Usage) and _is_count(answer.usage) else None
    reasons = () if answer.finish_reason is None else (answer.finish_reason,)
    return Reply(usage=usage, finish_reasons=reasons, answers=1)


def _is_count(usage: Usage) -> bool:
    """Tell whether all that a client reports are numbers of something: a ledger would never again be right with what is none."""
    counts: list[object] = [getattr(usage, name) for name in _COUNTED]
    return all(type(each) is int and 0 <= each <= _MOST_TOKENS for each in counts)
