"""Read from a recorded body what a span must say, without any code of the package."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ravi_otel.testing import Exchange

KINDS = ("chat/completions", "responses", "completions", "embeddings")
"""The endpoints whose answers are read; of any other, its usage is, where its body tells one."""


@dataclass(frozen=True)
class Told:
    """What an answer says. None: it does not say."""

    model: str | None = None
    id: str | None = None
    finish_reasons: tuple[str, ...] = ()
    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    service_tier: str | None = None
    fingerprint: str | None = None

    @property
    def counted(self) -> bool:
        return self.input_tokens is not None


def tail_of(exchange: Exchange) -> str:
    """Give the path below the API's root: `/v1/chat/completions` and `/proxy/openai/responses` without their prefix."""
    path = exchange.path.partition("?")[0]
    for prefix in ("/v1/", "/proxy/openai/"):
        if path.startswith(prefix):
            return path.removeprefix(prefix)
    return path.lstrip("/")


def told_by(exchange: Exchange) -> Told:
    """Read one body; an error's or an unread endpoint's tells nothing."""
    kind = tail_of(exchange)
    if exchange.status >= 400:
        return Told()
    if kind not in KINDS:
        return _usage_alone(exchange.body)
    if kind in ("chat/completions", "completions"):
        return _chat_stream(exchange.body) if exchange.streamed else _chat(json.loads(exchange.body))
    if kind == "responses":
        return _response(_last_response(exchange.body) if exchange.streamed else json.loads(exchange.body))
    body = json.loads(exchange.body)
    return Told(model=body["model"], input_tokens=body["usage"]["prompt_tokens"], output_tokens=0)


def _usage_alone(body: str) -> Told:
    try:
        usage = json.loads(body)["usage"]
        return Told(input_tokens=usage["input_tokens"], output_tokens=usage["output_tokens"])
    except (ValueError, KeyError, TypeError):
        return Told()


def server_sent(body: str) -> Iterator[dict[str, Any]]:
    """Give the JSON objects of a stream, `[DONE]` left out."""
    for block in body.replace("\r\n", "\n").split("\n\n"):
        data = "\n".join(line[5:].lstrip() for line in block.split("\n") if line.startswith("data:"))
        if data and data != "[DONE]":
            yield json.loads(data)


# -- chat completions -------------------------------------------------------------------------------------------------


def _chat(body: dict[str, Any]) -> Told:
    return Told(
        model=body["model"],
        id=body["id"],
        finish_reasons=tuple(choice["finish_reason"] for choice in body["choices"] if choice["finish_reason"] is not None),
        service_tier=body.get("service_tier"),
        fingerprint=body.get("system_fingerprint"),
        **_chat_counts(body.get("usage")),
    )


def _chat_stream(body: str) -> Told:
    chunks = list(server_sent(body))
    ended: dict[int, str] = {}
    usage = None
    for chunk in chunks:
        usage = chunk.get("usage") or usage
        for choice in chunk["choices"]:
            if choice.get("finish_reason") is not None:
                ended[choice["index"]] = choice["finish_reason"]
    (name,) = {chunk["model"] for chunk in chunks if chunk.get("model")}
    (identity,) = {chunk["id"] for chunk in chunks if chunk.get("id")}
    return Told(
        model=name,
        id=identity,
        finish_reasons=tuple(ended[index] for index in sorted(ended)),
        service_tier=_only({chunk["service_tier"] for chunk in chunks if chunk.get("service_tier")}),
        fingerprint=_only({chunk["system_fingerprint"] for chunk in chunks if chunk.get("system_fingerprint")}),
        **_chat_counts(usage),
    )


def _only(found: set[str]) -> str | None:
    (value,) = found or {None}
    return value


def _chat_counts(usage: dict[str, Any] | None) -> dict[str, Any]:
    if usage is None:
        return {}
    return {
        "input_tokens": usage["prompt_tokens"],
        "output_tokens": usage["completion_tokens"],
        "cached_tokens": (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0,
        "reasoning_tokens": (usage.get("completion_tokens_details") or {}).get("reasoning_tokens") or 0,
    }


# -- Responses --------------------------------------------------------------------------------------------------------


def finish_reasons_of(response: dict[str, Any]) -> tuple[str, ...]:
    """Say why a response ended, in the words chat completions have for it.

    completed -> stop, or tool_calls where the output asks for a function or a custom tool; incomplete -> length where the cap on output
    tokens cut it, else the reason as given (content_filter); failed and cancelled -> error; still going -> nothing.
    """
    status = response["status"]
    if status == "completed":
        calls = {"function_call", "custom_tool_call"}
        return ("stop",) if calls.isdisjoint(item["type"] for item in response["output"]) else ("tool_calls",)
    if status == "incomplete":
        reason = (response.get("incomplete_details") or {}).get("reason")
        return ("length",) if reason in (None, "max_output_tokens") else (reason,)
    return ("error",) if status in ("failed", "cancelled") else ()


def _last_response(body: str) -> dict[str, Any]:
    return [event["response"] for event in server_sent(body) if "response" in event][-1]


def _response(body: dict[str, Any]) -> Told:
    usage = body.get("usage") or {}
    return Told(
        model=body["model"],
        id=body["id"],
        finish_reasons=finish_reasons_of(body),
        input_tokens=usage.get("input_tokens"),
        output_tokens=usage.get("output_tokens"),
        cached_tokens=(usage.get("input_tokens_details") or {}).get("cached_tokens") or 0,
        reasoning_tokens=(usage.get("output_tokens_details") or {}).get("reasoning_tokens") or 0,
        service_tier=body.get("service_tier"),
    )
