"""Read legacy completions as the chats they are shaped like: charged alike, their words not captured, bounded by no strict limit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from ravi_otel.instrumentation.http.contract import Collector, Request, Wordless
from ravi_otel.instrumentation.http.fields import count, get, tokens_in, weight_of
from ravi_otel.instrumentation.openai.endpoints.chat import Chat, ChatCollector
from ravi_otel.policy.usage import Call, Reply

_INPUT_FIELDS = ("prompt", "suffix", "messages")
"""The last is no field of this API, but a server may take a chat here."""

_CHAT = Chat()


class Completions(Wordless):
    """Read `/completions`."""

    @property
    def usage_on_request(self) -> bool:
        """See `Endpoint.usage_on_request`."""
        return True

    def call(self, request: Request) -> Call:
        """See `Endpoint.call`."""
        call, body = _CHAT.call(request), request.body
        call.operation, call.endpoint, call.messages, call.offers_tools = "text_completion", "completions", None, False
        call.input_estimate = sum(tokens_in(body.get(name)) for name in _INPUT_FIELDS) + 1
        call.choices = max(call.choices, count(body.get("best_of")) or 1) * _prompts(body.get("prompt"))
        return call

    def reply(self, result: Any) -> Reply:
        """See `Endpoint.reply`."""
        return _CHAT.reply(result)

    def collector(self, call: Call) -> Collector:
        """See `Endpoint.collector`."""
        return CompletionsCollector(call.input_estimate, call.choices)


class CompletionsCollector(ChatCollector):
    """Follow a completions stream, whose chunks are whole answers with a little text each."""

    __slots__ = ()

    def _weigh(self, choice: Any) -> None:
        content = get(choice, "text")
        if isinstance(content, str) and content:
            self._chunks += 1
            self._weight += weight_of(content)
            self._say(choice, content)


def _prompts(prompt: Any) -> int:
    """Count the prompts: a list of texts or of token lists holds many, a list of tokens is one."""
    if not isinstance(prompt, (list, tuple)):
        return 1
    many = cast("Sequence[Any]", prompt)
    return len(many) if many and isinstance(many[0], (str, list, tuple)) else 1
