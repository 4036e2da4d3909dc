"""Read legacy completions: a prompt in, text out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from ravi_otel.instrumentation.http.contract import Collector, Request, Wordless
from ravi_otel.instrumentation.http.fields import count, get, text, tokens_in, weight_of
from ravi_otel.instrumentation.openai.endpoints import bounds, chat_content
from ravi_otel.instrumentation.openai.endpoints.chat import Chat, ChatCollector, parameters
from ravi_otel.instrumentation.openai.endpoints.chat_saying import Telling
from ravi_otel.instrumentation.openai.endpoints.other import any_usage
from ravi_otel.policy.content import Asked, Message
from ravi_otel.policy.usage import Call, Reply

_INPUT_FIELDS = ("prompt", "suffix", "messages")
"""The last is no field of this API, but a server may take a chat here."""


class Completions(Wordless):
    """Read `/completions`, whose answer is shaped like a chat's."""

    @property
    def usage_on_request(self) -> bool:
        """See `Endpoint.usage_on_request`."""
        return True

    def __init__(self) -> None:
        self._chat = Chat()

    def call(self, request: Request) -> Call:
        """See `Endpoint.call`."""
        body, host = request.body, request.host
        each = max(1, count(body.get("n")) or 1, count(body.get("best_of")) or 1)
        return Call(
            operation="text_completion",
            endpoint="completions",
            provider=host.provider,
            provider_assumed=host.assumed,
            model=text(body, "model"),
            stream=request.stream,
            input_estimate=sum(tokens_in(body.get(name)) for name in _INPUT_FIELDS) + 1,
            output_cap=count(body.get("max_tokens")),
            choices=each * _prompts(body.get("prompt")),
            server_address=host.address,
            server_port=host.port,
            parameters=parameters(body),
        )

    def reply(self, result: Any) -> Reply:
        """See `Endpoint.reply`."""
        reply = self._chat.reply(result)
        return reply if reply.usage is not None else replace(reply, usage=any_usage(get(result, "usage")))

    def collector(self, call: Call) -> Collector:
        """See `Endpoint.collector`."""
        collector = CompletionsCollector(call.input_estimate, call.choices)
        return collector if call.content is None else Telling(collector)

    def asked(self, request: Request) -> Asked | None:
        """See `Endpoint.asked`."""
        return chat_content.prompted(request.body)

    def answered(self, result: Any) -> Sequence[Message]:
        """See `Endpoint.answered`."""
        return chat_content.completed(result)

    def bound(self, request: Request, call: Call) -> None:
        """See `Endpoint.bound`."""
        bounds.bound_completion(request, call)

    def cap(self, request: Request, cap: int) -> Mapping[str, int]:  # noqa: ARG002 - the protocol's
        """See `Endpoint.cap`."""
        return {"max_tokens": cap}


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
