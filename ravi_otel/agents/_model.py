"""The model of an agent: the plain openai client over chat or Responses, or any client of the program's own."""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, Final, Literal, cast

from anyio import CancelScope
from anyio.lowlevel import current_token

from ravi_otel._extras import load
from ravi_otel._flow import Step, run_async
from ravi_otel._instrumentation.formats import chat, responses
from ravi_otel._runtime.state import STATE
from ravi_otel._runtime.unwrapped_calls import walk_unseen
from ravi_otel.errors import ConfigurationError, LLMEmpty, LLMTimeout
from ravi_otel.policy import _checks as checks
from ravi_otel.policy._contracts import ChatMessage, Generation, JsonObject, JsonValue, LLMClient
from ravi_otel.policy._usage import Call, Reply, Usage

Api = Literal["chat", "responses"]

DEFAULT_MODEL: Final = "gpt-4.1-mini"
DEFAULT_TIMEOUT_S: Final = 60.0
_INCOMPLETE: Final = {"max_output_tokens": "length", "content_filter": "content_filter"}
_BYTES_A_TOKEN: Final = 4
_TOKENS_A_MESSAGE: Final = 4
_MOST_TOKENS: Final = 2**53
_COUNTED: Final = tuple(field.name for field in fields(Usage) if field.name != "source")


class OpenAIModel:
    """A model behind an AsyncOpenAI client; an LLMClient.

    `model` None is `OPENAI_MODEL`, else "gpt-4.1-mini"; `timeout_s` None is `OPENAI_TIMEOUT_SECONDS`, else 60; it
    applies to each attempt, as the client's own does. Without a `client`, one is made from the environment for each run; the program
    closes a client of its own. Raises ConfigurationError for what cannot be used.
    """

    def __init__(self, model: str | None = None, *, client: Any = None, api: Api = "chat", timeout_s: float | None = None) -> None:
        self.model = checks.name("OpenAIModel(model)", model or os.environ.get("OPENAI_MODEL") or DEFAULT_MODEL, DEFAULT_MODEL)
        self.api = cast("Api", checks.choice("OpenAIModel(api)", api, ("chat", "responses")))
        self.timeout_s = _seconds(timeout_s)
        if client is not None and not hasattr(client, "chat"):
            raise ConfigurationError(f"OpenAIModel(client={checks.show(client)}) takes an openai.AsyncOpenAI, or None to make one.")
        if isinstance(client, load("openai").OpenAI):
            raise ConfigurationError("OpenAIModel(client) is an OpenAI, which blocks the event loop: give an openai.AsyncOpenAI.")
        self._client = client

    def __repr__(self) -> str:
        return f"OpenAIModel({self.model!r}, api={self.api!r})"

    async def generate(
        self,
        messages: Sequence[ChatMessage],
        *,
        tools: Sequence[JsonObject] = (),
        options: Mapping[str, Any] | None = None,
        model: str | None = None,
    ) -> Generation:
        """Return the next message; `options` are the endpoint's own parameters, `model` is another model for this call only.

        Raises LLMTimeout, LLMEmpty, refusals of limits, and the client's own errors. *finish_reason* is chat's, or "refusal", whose
        text is the message.
        """
        given = dict(options or {})
        if given.get("stream"):
            raise ConfigurationError("options={'stream': True}: an agent reads whole answers. Leave it out.")
        given.setdefault("timeout", self.timeout_s)
        name = model or self.model
        openai = load("openai")
        try:
            if self._client is not None:
                return await self._ask(self._client, name, messages, tools, given)
            async with shared_client() as shared:
                return await self._ask(shared.client(), name, messages, tools, given)
        except openai.APITimeoutError as error:
            raise LLMTimeout(
                f"Model {checks.show(name)} did not answer in {given['timeout']} s. "
                "Give OpenAIModel(timeout_s=…) or OPENAI_TIMEOUT_SECONDS more."
            ) from error

    async def _ask(
        self, client: Any, name: str, messages: Sequence[ChatMessage], tools: Sequence[JsonObject], options: dict[str, Any]
    ) -> Generation:
        if self.api == "chat":
            offered: dict[str, Any] = {"tools": list(tools)} if tools else {}
            return from_chat(await client.chat.completions.create(model=name, messages=to_chat(messages), **offered, **options))
        if options.get("store") is False:  # nobody keeps the reasoning for us, so it has to travel
            options.setdefault("include", ["reasoning.encrypted_content"])
        offered = {"tools": tools_of_responses(tools)} if tools else {}
        return from_responses(await client.responses.create(model=name, input=to_responses(messages), **offered, **options))


def _seconds(given: float | None) -> float:
    parameter, value = "OpenAIModel(timeout_s)", given
    if value is None:
        text = os.environ.get("OPENAI_TIMEOUT_SECONDS")
        if not text:
            return DEFAULT_TIMEOUT_S
        parameter = "OPENAI_TIMEOUT_SECONDS"
        try:
            value = float(text)
        except ValueError:
            raise ConfigurationError(f"OPENAI_TIMEOUT_SECONDS={checks.show(text)} must be a number of seconds such as 60.") from None
    checks.nanoseconds(parameter, value)
    if not value:
        raise ConfigurationError(f"{parameter}=0 leaves a model no time to answer. Give seconds such as 60.")
    return float(value)


class _SharedClient:
    """The client of one run, made on first use: a connection pool belongs to one event loop, and an agent to none."""

    def __init__(self) -> None:
        self.loop = current_token()
        self.made: Any = None

    def client(self) -> Any:
        """Return the client."""
        if self.made is None:
            self.made = load("openai").AsyncOpenAI()
        return self.made


_SHARED: ContextVar[_SharedClient | None] = ContextVar("ravi_otel_agent_client", default=None)


@asynccontextmanager
async def shared_client() -> AsyncGenerator[_SharedClient, None]:
    """Share one client among all models inside that have none of their own, also those of sub-agents."""
    outer = _SHARED.get()
    if outer is not None and outer.loop == current_token():
        yield outer
        return
    shared = _SharedClient()
    token = _SHARED.set(shared)
    try:
        yield shared
    finally:
        _SHARED.reset(token)
        if shared.made is not None:
            with CancelScope(shield=True):  # closed also when the run is cancelled
                await shared.made.close()


# -- any client -------------------------------------------------------------------------------------------------------


async def generate(
    client: LLMClient, messages: Sequence[ChatMessage], tools: Sequence[JsonObject], options: Mapping[str, Any], model: str | None
) -> Generation:
    """Return what the client generates; a client of the program's own gets options and the model only if it accepts them.

    Raises ConfigurationError for another model if the client does not accept one: it would call its own model, and the records would name
    the other. The calls of the program's own client are limited and recorded here, unless it calls an instrumented one, which does so;
    the same applies to our own client while nothing is instrumented.
    """
    if isinstance(client, OpenAIModel) and STATE.instrumented:
        return await client.generate(messages, tools=tools, options=options, model=model)
    if model is not None and model != model_name(client) and not takes_model(client):
        raise ConfigurationError(
            f"model={checks.show(model)} cannot be asked of {type(client).__name__}, whose generate() takes no model. "
            "Let it take model=, or give a client for that model, as in ModelFallback(client)."
        )
    asking = partial(client.generate, messages, tools=tools, **_accepted(client, {"options": options or None, "model": model}))
    call = Call(
        "chat",
        "chat.completions",
        provider="openai" if isinstance(client, OpenAIModel) else _name_in(client, "provider") or "custom",
        model=model or model_name(client),
        size=sum(map(_tokens, messages)),
        messages=len(messages),
    )
    answer = await run_async(walk_unseen(type(client), call, Step(_never, asking), _reply))
    if not isinstance(answer, Generation):
        raise ConfigurationError(f"{type(client).__name__}.generate() gave {checks.show(answer)}, and must give a Generation.")
    return answer


def write_messages(client: LLMClient, messages: Sequence[ChatMessage]) -> list[dict[str, Any]]:
    """Return the messages in the format of a client's endpoint, in chat's if that is unknown."""
    return to_responses(messages) if isinstance(client, OpenAIModel) and client.api == "responses" else to_chat(messages)


def model_name(client: LLMClient) -> str | None:
    """Return the name of a client's model, None if it does not have one."""
    return _name_in(client, "model")


def takes_model(client: LLMClient) -> bool:
    """Whether a client accepts another model than its own."""
    return isinstance(client, OpenAIModel) or bool(_accepted(client, {"model": "any"}))


def _never() -> None:
    raise ConfigurationError("A model is awaited, and was called.")


def _accepted(client: LLMClient, more: Mapping[str, Any]) -> dict[str, Any]:
    parameters = inspect.signature(client.generate).parameters
    takes_all = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
    return {name: value for name, value in more.items() if value is not None and (takes_all or name in parameters)}


def _name_in(client: LLMClient, attribute: str) -> str | None:
    value = getattr(client, attribute, None)
    return value if isinstance(value, str) and value else None


def _tokens(message: ChatMessage) -> int:
    text = (message.content or "") + "".join(map(str, message.tool_calls))
    return _TOKENS_A_MESSAGE + len(text.encode("utf-8", "replace")) // _BYTES_A_TOKEN


def _reply(answer: object) -> Reply:
    if not isinstance(answer, Generation):
        return Reply()
    usage = answer.usage if isinstance(answer.usage, Usage) else None
    # All that a client reports must be numbers of something: a ledger would never again be right with what is none.
    if not all(type(each) is int and 0 <= each <= _MOST_TOKENS for each in (getattr(usage, name, None) for name in _COUNTED)):
        usage = None
    return Reply(usage=usage, finish_reasons=() if answer.finish_reason is None else (answer.finish_reason,), answers=1)


# -- messages as an endpoint writes them ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ResponseMessage(ChatMessage):
    """An assistant's message of the Responses API with its original `items`, which are sent back unchanged, reasoning included."""

    items: tuple[JsonObject, ...] = ()


def clean(text: str) -> str:
    """Return text that every endpoint accepts, without lone surrogates."""
    return text.encode("utf-8", "replace").decode()


# -- chat -------------------------------------------------------------------------------------------------------------


def to_chat(messages: Sequence[ChatMessage]) -> list[dict[str, JsonValue]]:
    """Return messages in chat's format."""
    return [message.as_json() for message in messages]


def from_chat(completion: Any) -> Generation:
    """Return a chat completion's first choice; raise LLMEmpty for one that says nothing and asks for nothing."""
    choice = next(iter(getattr(completion, "choices", None) or ()), None)
    message = getattr(choice, "message", None)
    calls = tuple(
        _call(index, _function(call), getattr(call, "id", None)) for index, call in enumerate(getattr(message, "tool_calls", None) or ())
    )
    content, refusal = _text(getattr(message, "content", None)), _text(getattr(message, "refusal", None))
    reason = _text(getattr(choice, "finish_reason", None))
    return _generation(ChatMessage("assistant", content, tool_calls=calls), refusal, reason, chat.usage(getattr(completion, "usage", None)))


def _function(call: Any) -> tuple[Any, Any]:
    held = getattr(call, "function", None) or getattr(call, "custom", None)
    return getattr(held, "name", None), getattr(held, "arguments", getattr(held, "input", None))


# -- Responses --------------------------------------------------------------------------------------------------------


def to_responses(messages: Sequence[ChatMessage]) -> list[dict[str, Any]]:
    """Return messages as input items."""
    items: list[dict[str, Any]] = []
    for message in messages:
        if isinstance(message, ResponseMessage):
            items.extend(dict(item) for item in message.items)
        elif message.role == "tool":
            items.append({"type": "function_call_output", "call_id": message.tool_call_id, "output": message.content or ""})
        else:
            if message.content is not None:
                items.append({"role": message.role, "content": message.content})
            items.extend(_asked(call) for call in message.tool_calls)
    return items


def _asked(call: JsonObject) -> dict[str, Any]:
    function = cast("Mapping[str, Any]", call.get("function") or {})
    return {"type": "function_call", "call_id": call.get("id"), "name": function.get("name"), "arguments": function.get("arguments")}


def tools_of_responses(tools: Sequence[JsonObject]) -> list[dict[str, Any]]:
    """Return tools flat, as Responses takes them; not strict unless they say so, which is its default and chat's is not."""
    flat: list[dict[str, Any]] = []
    for tool in tools:
        function = tool.get("function")
        flat.append({"type": "function", "strict": False, **function} if isinstance(function, Mapping) else dict(tool))
    return flat


def from_responses(response: Any) -> Generation:
    """Return what a response says; raise LLMEmpty for one that failed, or says nothing and asks for nothing."""
    output: list[Any] = list(getattr(response, "output", None) or ())
    asked = [item for item in output if getattr(item, "type", None) in ("function_call", "custom_tool_call")]
    calls = tuple(
        _call(index, (item.name, getattr(item, "arguments", getattr(item, "input", None))), getattr(item, "call_id", None))
        for index, item in enumerate(asked)
    )
    parts = [part for item in output if getattr(item, "type", None) == "message" for part in getattr(item, "content", None) or ()]
    content = "".join(filter(None, (_text(getattr(part, "text", None)) for part in parts))) or None
    refusal = "".join(filter(None, (_text(getattr(part, "refusal", None)) for part in parts))) or None
    if getattr(response, "status", None) == "failed":
        error = getattr(response, "error", None)
        raise LLMEmpty(f"The response failed: {_text(getattr(error, 'message', None)) or 'nobody said why'}. Ask again later.")
    details = getattr(response, "incomplete_details", None)
    reason = _INCOMPLETE.get(str(getattr(details, "reason", None))) or ("tool_calls" if calls else "stop")
    items = tuple(_item(item) for item in output)
    message = ResponseMessage("assistant", content, tool_calls=calls, items=items)
    return _generation(message, refusal, reason, responses.usage(getattr(response, "usage", None)))


def _item(item: Any) -> JsonObject:
    """Return an item as it is sent back, without unset fields and without its status, which only answers have."""
    return cast("JsonObject", item.model_dump(mode="json", exclude_none=True, exclude={"status"}))


# -- of both -----------------------------------------------------------------------------------------------------------


def _text(value: object) -> str | None:
    return clean(value) if isinstance(value, str) and value else None


def _call(index: int, function: tuple[Any, Any], call_id: object) -> JsonObject:
    name, arguments = function
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments, default=str)
    return {
        "id": _text(call_id) or f"call_{index}",
        "type": "function",
        "function": {"name": _text(name) or "", "arguments": clean(arguments)},
    }


def _generation(message: ChatMessage, refusal: str | None, reason: str | None, usage: Any) -> Generation:
    if refusal is not None and not message.tool_calls:
        return Generation(ChatMessage("assistant", refusal), usage, "refusal")
    if message.content is None and not message.tool_calls and reason not in ("length", "content_filter"):
        raise LLMEmpty("The model answered with neither text nor tool calls. Ask again, or ask another model.")
    return Generation(message, usage, reason)
