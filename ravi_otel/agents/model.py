"""Be the model of an agent: the plain openai client, over chat or Responses."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any, Final, Literal, cast

from anyio import CancelScope
from anyio.lowlevel import current_token

from ravi_otel._extras import load
from ravi_otel.agents import wire
from ravi_otel.errors import ConfigurationError, LLMTimeout
from ravi_otel.policy import _checks as checks
from ravi_otel.policy._contracts import ChatMessage, Generation, JsonObject

Api = Literal["chat", "responses"]

DEFAULT_MODEL: Final = "gpt-4.1-mini"
DEFAULT_TIMEOUT_S: Final = 60.0


class OpenAIModel:
    """Be a model behind an AsyncOpenAI client; an LLMClient.

    `model` None is `OPENAI_MODEL`, else "gpt-4.1-mini"; `timeout_s` None is `OPENAI_TIMEOUT_SECONDS`, else 60: of each attempt, as
    the client's own. `client` None makes one by the environment for the time of each run; one that is given is the program's, which
    closes it. Raises ConfigurationError for what cannot be used.
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
        """Ask for the next message; `options` are the endpoint's own parameters, `model` another name for this once.

        Raises LLMTimeout, LLMEmpty, refusals of limits, and the client's own errors. *finish_reason* is chat's, or "refusal", whose
        text is the message.
        """
        given = dict(options or {})
        if given.get("stream"):
            raise ConfigurationError("options={'stream': True}: an agent reads whole answers. Leave it out.")
        timeout = {} if "timeout" in given else {"timeout": self.timeout_s}
        name = model or self.model
        openai = load("openai")
        try:
            if self._client is not None:
                return await self._ask(self._client, name, messages, tools, {**timeout, **given})
            async with connected() as connection:
                return await self._ask(connection.client(), name, messages, tools, {**timeout, **given})
        except openai.APITimeoutError as error:
            raise LLMTimeout(
                f"Model {checks.show(name)} did not answer in {given.get('timeout', self.timeout_s)} s. "
                "Give OpenAIModel(timeout_s=…) or OPENAI_TIMEOUT_SECONDS more."
            ) from error

    async def _ask(
        self, client: Any, name: str, messages: Sequence[ChatMessage], tools: Sequence[JsonObject], options: dict[str, Any]
    ) -> Generation:
        if self.api == "chat":
            offered: dict[str, Any] = {"tools": list(tools)} if tools else {}
            return wire.from_chat(await client.chat.completions.create(model=name, messages=wire.to_chat(messages), **offered, **options))
        if options.get("store") is False:  # nobody keeps the reasoning for us, so it has to travel
            options.setdefault("include", ["reasoning.encrypted_content"])
        offered = {"tools": wire.tools_of_responses(tools)} if tools else {}
        return wire.from_responses(await client.responses.create(model=name, input=wire.to_responses(messages), **offered, **options))


class Connection:
    """Hold the client of one run, made when it is first needed: a pool of connections belongs to one event loop, and an agent to none."""

    def __init__(self) -> None:
        self.loop = current_token()
        self.held: Any = None

    def client(self) -> Any:
        """Give the client."""
        if self.held is None:
            self.held = load("openai").AsyncOpenAI()
        return self.held


_CONNECTION: ContextVar[Connection | None] = ContextVar("ravi_otel_agent_connection", default=None)


@asynccontextmanager
async def connected() -> AsyncGenerator[Connection, None]:
    """Have all models inside that were given no client share one, also those of agents below."""
    outer = _CONNECTION.get()
    if outer is not None and outer.loop == current_token():
        yield outer
        return
    connection = Connection()
    token = _CONNECTION.set(connection)
    try:
        yield connection
    finally:
        _CONNECTION.reset(token)
        if connection.held is not None:
            with CancelScope(shield=True):  # closed also when the run is cancelled
                await connection.held.close()


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
