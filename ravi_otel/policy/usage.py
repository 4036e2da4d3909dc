"""Describe one model call in words of no provider: what was asked, what came back, what it used.

One of each is made for every call. They are written once, when they are made; that nothing can write to them later is not
enforced, because a frozen class costs four times as much to make.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

UsageSource = Literal["reported", "estimated", "reserved"]
"""Where token counts come from: the provider, our own count of what was received, or the grant that was held."""

Parameters = Mapping[str, Any]


@dataclass(slots=True, unsafe_hash=True)
class Usage:
    """Count the tokens of one call.

    `input_tokens` includes cached and cache-written ones, `output_tokens` includes reasoning. All counts are
    non-negative integers; what a provider did not report is 0 in the details and the whole `Usage` is None elsewhere
    when nothing was reported. `total_tokens` is the sum unless given.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cached_input_tokens: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0
    audio_input_tokens: int = 0
    audio_output_tokens: int = 0
    total_tokens: int = -1
    source: UsageSource = "reported"

    def __post_init__(self) -> None:
        """Fill in the total."""
        if self.total_tokens < 0:
            self.total_tokens = self.input_tokens + self.output_tokens


@dataclass(slots=True, unsafe_hash=True)
class Call:
    """Describe a request before it is sent.

    `operation` is the convention's name ("chat", "embeddings", …), `endpoint` the API's path shape
    ("chat.completions"). `generative` calls count as requests; `turn` says a logical generation. Token figures are
    estimates; `output_cap` is what the caller stated, None when nothing was. `messages` counts input items, None where
    the endpoint has none. `parameters` are neutral names (temperature, max_tokens, …) for telemetry. `unread` marks a
    request that a bug of ours kept from being read: it is counted as a request, and not refused for want of a price.
    """

    operation: str
    endpoint: str
    provider: str = "openai"
    provider_assumed: bool = False
    model: str | None = None
    generative: bool = True
    turn: bool = True
    stream: bool = False
    input_estimate: int = 0
    output_cap: int | None = None
    choices: int = 1
    messages: int | None = None
    previous_response_id: str | None = None
    server_address: str | None = None
    server_port: int | None = None
    parameters: Parameters = field(default_factory=dict[str, Any])
    unread: bool = False


@dataclass(slots=True, unsafe_hash=True)
class Reply:
    """Describe what came back; None and () are unknown.

    `answers` counts choices or output items, for message limits. `error_type` is set when the body itself reports a
    failure although the status was 200 (a failed Responses object, an error event on a stream).
    """

    id: str | None = None
    model: str | None = None
    usage: Usage | None = None
    finish_reasons: tuple[str, ...] = ()
    service_tier: str | None = None
    system_fingerprint: str | None = None
    conversation_id: str | None = None
    answers: int = 0
    error_type: str | None = None
