"""Hold a conversation with tools over any of the APIs: ask, run what is asked for, bring the results."""

from __future__ import annotations

import inspect
from typing import Any

from ravi_otel.hooks._listeners import Listener

NAMES = ("search", "fetch")
CHAT_TOOLS = [{"type": "function", "function": {"name": name, "parameters": {"type": "object"}}} for name in NAMES]


async def got(value: Any) -> Any:
    """Await what a client of the other colour gives as it is."""
    return await value if inspect.isawaitable(value) else value


async def every(stream: Any) -> list[Any]:
    """Read a stream of either colour to its end."""
    return [each async for each in stream] if hasattr(stream, "__aiter__") else list(stream)


class Talk:
    """One conversation; `asked` are the ids and names of the tools that the latest answer asks for."""

    package = "openai"

    def __init__(self, client: Any) -> None:
        self.client = client
        self.items: list[Any] = [{"role": "user", "content": "hi"}]
        self.asked: list[tuple[str, str]] = []

    async def ask(self, **more: Any) -> list[tuple[str, str]]:
        raise NotImplementedError

    def answer(self, call_id: str) -> None:
        raise NotImplementedError

    def answer_all(self) -> None:
        for call_id, _ in self.asked:
            self.answer(call_id)


class Chat(Talk):
    streams = False

    async def ask(self, **more: Any) -> list[tuple[str, str]]:
        create = self.client.chat.completions.create
        made = await got(create(**{"model": "gpt-4o-mini", "messages": self.items, "tools": CHAT_TOOLS, "stream": self.streams, **more}))
        calls = (
            self._pieces(await every(made)) if self.streams else [call.model_dump() for call in made.choices[0].message.tool_calls or ()]
        )
        self.items.append({"role": "assistant", "content": None, **({"tool_calls": calls} if calls else {"content": "done"})})
        self.asked = [(call["id"], call["function"]["name"]) for call in calls]
        return self.asked

    @staticmethod
    def _pieces(chunks: list[Any]) -> list[Any]:
        found: dict[int, Any] = {}
        for call in (call for chunk in chunks for choice in chunk.choices for call in choice.delta.tool_calls or ()):
            known = found.setdefault(call.index, {"id": "", "type": "function", "function": {"name": "", "arguments": ""}})
            known["id"] = known["id"] or call.id
            known["function"]["name"] += call.function.name or ""
            known["function"]["arguments"] += call.function.arguments or ""
        return list(found.values())

    def answer(self, call_id: str) -> None:
        self.items.append({"role": "tool", "tool_call_id": call_id, "content": "result"})


class ChatStream(Chat):
    streams = True


class Groq(Chat):
    package = "groq"


class GroqStream(ChatStream):
    package = "groq"


class Responses(Talk):
    chains = False

    async def ask(self, **more: Any) -> list[tuple[str, str]]:
        tools = [{"type": "function", "name": name, "parameters": {"type": "object"}, "strict": False} for name in NAMES]
        response = await self._made({"model": "gpt-4o-mini", "input": self.items, "tools": tools, **more})
        output = [item.model_dump(exclude_none=True) for item in response.output]
        self.items = [] if self.chains else self.items + output
        self.last = response.id
        self.asked = [(item["call_id"], item["name"]) for item in output if item["type"] == "function_call"]
        return self.asked

    async def _made(self, asked: dict[str, Any]) -> Any:
        return await got(self.client.responses.create(**asked))

    def answer(self, call_id: str) -> None:
        self.items.append({"type": "function_call_output", "call_id": call_id, "output": "result"})


class ResponsesStream(Responses):
    async def _made(self, asked: dict[str, Any]) -> Any:
        return (await every(await got(self.client.responses.create(**asked, stream=True))))[-1].response


class ResponsesChain(Responses):
    chains = True
    last: str | None = None

    async def _made(self, asked: dict[str, Any]) -> Any:
        more = {} if self.last is None else {"previous_response_id": self.last}
        return await got(self.client.responses.create(**asked, **more))


class Messages(Talk):
    package = "anthropic"
    streams = False

    async def ask(self, **more: Any) -> list[tuple[str, str]]:
        tools = [{"name": name, "input_schema": {"type": "object"}} for name in NAMES]
        asked = {"model": "claude-opus-4-8", "max_tokens": 64, "messages": self.items, "tools": tools, **more}
        made = await got(self.client.messages.create(**asked, stream=self.streams))
        blocks = self._started(await every(made)) if self.streams else [block.model_dump(exclude_none=True) for block in made.content]
        self.items = [*self.items, {"role": "assistant", "content": blocks}, {"role": "user", "content": []}]
        self.asked = [(block["id"], block["name"]) for block in blocks if block["type"] == "tool_use"]
        return self.asked

    @staticmethod
    def _started(events: list[Any]) -> list[Any]:
        return [event.content_block.model_dump(exclude_none=True) for event in events if event.type == "content_block_start"]

    def answer(self, call_id: str) -> None:
        self.items[-1]["content"].append({"type": "tool_result", "tool_use_id": call_id, "content": "result"})


class MessagesStream(Messages):
    streams = True


TALKS: list[type[Talk]] = [
    *(Chat, ChatStream, Groq, GroqStream, Responses, ResponsesStream, ResponsesChain, Messages, MessagesStream),
]


class Heard(Listener):
    """Keep every tool and call that is told."""

    def __init__(self) -> None:
        self.tools: list[Any] = []
        self.calls: list[Any] = []

    def tool_ended(self, record: Any) -> None:
        self.tools.append(record)

    def call_ended(self, record: Any) -> None:
        self.calls.append(record)

    @property
    def inferred(self) -> list[str]:
        return [record.name for record in self.tools if record.inferred]
