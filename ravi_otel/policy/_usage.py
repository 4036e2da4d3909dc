"""Describe one model call in words of no provider: what was asked, what came back, what it used.

One of each is made for every call. They are written once, when they are made; that nothing can write to them later is not
enforced, because a frozen class costs four times as much to make.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final, Literal, NamedTuple

Part = dict[str, Any]
"""One piece of what was said, in the shapes of the GenAI convention, before anything is cut, hashed or hidden.

A `Part` is one of `{"type": "text", "content": str}`, `{"type": "reasoning", "content": str}`,
`{"type": "tool_call", "id": str | None, "name": str, "arguments": Any}`,
`{"type": "tool_call_response", "id": str | None, "response": Any}`,
`{"type": "blob", "modality": str, "mime_type": str | None, "content": str | bytes}` (base64 text, or the bytes themselves),
`{"type": "uri", "modality": str, "mime_type": str | None, "uri": str}`, `{"type": "file", "modality": str, "file_id": str}`,
or `{"type": NAME, ...}` with the provider's own fields, for what the convention has no part. `modality` is "image", "audio",
"video" or "document". A `Message` is `{"role": str, "parts": [Part, ...]}`, with `"name"` where it has one and, in an answer,
`"finish_reason"`. A tool definition is `{"type": "function", "name": str, "description": str, "parameters": {...}}`.
"""
Message = dict[str, Any]

UsageSource = Literal["reported", "estimated", "reserved"]
"""Where token counts come from: the provider, our own count of what was received, or the grant that was held."""

Parameters = Mapping[str, Any]


@dataclass(slots=True, unsafe_hash=True)
class Usage:
    """Count the tokens of one call.

    `input_tokens` includes cached and cache-written ones, `output_tokens` includes reasoning. All counts are
    non-negative integers; what a provider did not report is 0 in the details and the whole `Usage` is None elsewhere
    when nothing was reported. `total_tokens` is the sum unless given; given alone, it is all that was told (`total_only`).
    `cache_write_1h_tokens` are part of
    `cache_write_tokens`, `cached_image_tokens` of the cached and of the image ones, `rejected_prediction_tokens` of the
    output. `audio_ms` is sound that was sent, `characters` text to be spoken, `searches` the web searches a provider made:
    what is billed by another measure than tokens. `told_nano` is what the answer says that it cost, in nano-USD, 0 where it says nothing.
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
    cache_write_1h_tokens: int = 0
    image_input_tokens: int = 0
    cached_image_tokens: int = 0
    image_output_tokens: int = 0
    rejected_prediction_tokens: int = 0
    audio_ms: int = 0
    characters: int = 0
    searches: int = 0
    told_nano: int = 0

    def __post_init__(self) -> None:
        """Fill in the total."""
        if self.total_tokens < 0:
            total = self.input_tokens + self.output_tokens
            self.total_tokens = min(_MOST, total)

    @property
    def tokenless(self) -> bool:
        """Whether this was measured in sound, characters or searches alone: how many tokens it took nobody said."""
        return self.total_tokens == 0 and (self.audio_ms > 0 or self.characters > 0 or self.searches > 0)

    @property
    def total_only(self) -> bool:
        """Whether only a total was told: how much of it was input and how much output nobody said, and neither is 0."""
        return not (self.input_tokens or self.output_tokens) and self.total_tokens > 0

    def is_half_told(self, operation: str) -> bool:
        """Whether what was sent is estimated and what was answered is not known, as of a stream left at its beginning."""
        return self.source == "estimated" and not self.output_tokens and not self.tokenless and operation != "embeddings"


class ToolUse(NamedTuple):
    """Name a tool that an answer asks for; either half may be missing, or be a lie."""

    call_id: str | None
    name: str | None


@dataclass(slots=True)
class Asked:
    """What a request says: what the model is told to be, what it is told, and the tools it may call."""

    system: list[Part] = field(default_factory=list[Part])
    messages: list[Message] = field(default_factory=list[Message])
    tools: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])


@dataclass(slots=True, unsafe_hash=True)
class Call:
    """Describe a request before it is sent.

    `operation` is the convention's name ("chat", "embeddings", …), `endpoint` the API's path shape ("chat.completions").
    `generative` calls count as requests; `turn` says a logical generation. Token figures are estimates; `output_cap` is what
    the caller stated, None when nothing was. `size` is the estimate of the input, or what works it out once somebody asks for
    `input_estimate`: few calls need one. `messages` counts input items, None where the endpoint has none. `parameters`
    are neutral names (temperature, max_tokens, …) for telemetry. `unread` marks a request that a bug of ours kept from being
    read: it is counted as a request, and not refused for want of a price. `job` says that it begins work which is paid for
    later, and whose usage nobody reads. `content` is what the request says, None unless it is captured. `changes` names what we
    changed in the request. `told_elsewhere` says that somebody else makes a span for it, and of a whole "call" the metrics
    too. `expected` is what the call is thought to use, where its endpoint knows better than `input_estimate` and a guess:
    pictures, sound and characters. `fetches` says that it asks no model, and brings what one has made. `session` says that
    it is a connection for many answers, each a call of its own: it has no metrics of a call. `input_bound` is a number of tokens
    that the input cannot pass, None where nobody asked; `unbounded` names what keeps it from being known, such as
    "previous_response_id". `least_cap` is the smallest output cap that its API takes, 0 where its output cannot be capped.
    `unchained` are those of its `messages` that a later request does not inherit which goes on with its answer. `offers_tools`
    says that its answer may ask for tools; `tool_results` are the call ids of those whose
    results its request brings. `seller` is whose prices hold, the provider's where it is empty.
    """

    operation: str
    endpoint: str
    provider: str = "openai"
    provider_assumed: bool = False
    model: str | None = None
    generative: bool = True
    turn: bool = True
    stream: bool = False
    size: int | Callable[[], int] = 0
    output_cap: int | None = None
    choices: int = 1
    messages: int | None = None
    previous_response_id: str | None = None
    server_address: str | None = None
    server_port: int | None = None
    parameters: Parameters = field(default_factory=dict[str, Any])
    unread: bool = False
    job: bool = False
    content: Asked | None = None
    changes: tuple[str, ...] = ()
    told_elsewhere: Literal["span", "call"] | None = None
    expected: Usage | None = None
    fetches: bool = False
    session: bool = False
    input_bound: int | None = None
    unbounded: str | None = None
    least_cap: int = 1
    unchained: int = 0
    offers_tools: bool = False
    tool_results: tuple[str, ...] = ()
    seller: str = ""

    @property
    def input_estimate(self) -> int:
        """How many tokens the input has, by our own count."""
        size = self.size
        if not isinstance(size, int):
            size = self.size = size()
        return size

    @input_estimate.setter
    def input_estimate(self, tokens: int) -> None:
        self.size = tokens


@dataclass(slots=True, unsafe_hash=True)
class Reply:
    """Describe what came back; None and () are unknown.

    `answers` counts choices or output items, for message limits. `error_type` is set when the body itself reports a
    failure although the status was 200 (a failed Responses object, an error event on a stream). `pending` says that the
    answer is still being made: its usage comes with a later look at it, under `id`. `awaited` says that this is such a look.
    `output` is what the answer says, None unless it is captured. `tool_uses` are the tools that the program is asked to run.
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
    pending: bool = False
    awaited: bool = False
    output: Sequence[Message] | None = None
    tool_uses: tuple[ToolUse, ...] = ()


_MOST: Final = 2**53
_COUNTS: Final = tuple(one.name for one in fields(Usage) if one.name != "source")


def added(usages: Iterable[Usage]) -> Usage:
    """Add usages up; the sum is the provider's where all of them are, and an estimate where one of them is none."""
    total = Usage()
    for usage in usages:
        add_to(total, usage)
    return total


def add_to(total: Usage, usage: Usage) -> None:
    """Add one more usage to a sum, which grows up to 2^53: a larger one is no count in JSON, or in a span."""
    for name in _COUNTS:
        more: int = getattr(usage, name)
        if more:
            setattr(total, name, max(getattr(total, name), min(getattr(total, name) + more, _MOST)))
    if usage.source != "reported":
        total.source = "estimated"
