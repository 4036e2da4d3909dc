"""Be the model of an agent: the plain openai client, over chat or Responses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from ravi_otel.policy.contracts import ChatMessage, Generation, JsonObject

Api = Literal["chat", "responses"]


class OpenAIModel:
    """Be a model behind an AsyncOpenAI client; an LLMClient.

    `model` None is `OPENAI_MODEL`, else "gpt-4.1-mini"; `client` None is one made when it is first asked, by the environment;
    `timeout_s` None is `OPENAI_TIMEOUT_SECONDS`, else 60.
    """

    def __init__(self, model: str | None = None, *, client: Any = None, api: Api = "chat", timeout_s: float | None = None) -> None:
        self.model = model
        self.api: Api = api
        self.timeout_s = timeout_s
        self._client = client

    async def generate(
        self, messages: Sequence[ChatMessage], *, tools: Sequence[JsonObject] = (), options: Mapping[str, Any] | None = None
    ) -> Generation:
        """Ask for the next message; raises LLMTimeout, LLMEmpty, refusals of ours, and the client's own errors."""
        raise NotImplementedError
