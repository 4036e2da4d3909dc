"""Anthropic's Messages API, plain and beta, its stream, and what of the rest of that API may ask a model."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, Final, cast

from ravi_otel._instrumentation.formats.content import Parts, bound, capless, contents, definition, first_of, hosted, message_of
from ravi_otel._instrumentation.formats.fields import (
    MOST,
    PER_MESSAGE,
    PER_REQUEST,
    as_mapping,
    as_text,
    count,
    fields_of,
    get,
    id_of,
    items,
    text,
    tokens_in,
    total_only,
    weight_of,
)
from ravi_otel._instrumentation.formats.format import (
    MOST_USES,
    READS,
    Request,
    Settings,
    Shapes,
    TextCollector,
    WireFormat,
    below_version,
    named,
    segments,
)
from ravi_otel.policy._usage import Asked, Call, Message, Reply, ToolUse, Usage

_INPUT_FIELDS: Final = ("messages", "system", "tools", "output_format")
_SETTINGS: Final = Settings(
    ("temperature", "top_p", "top_k", "max_tokens", "stop_sequences", "service_tier"),
    ("reasoning_level", "output_config", "effort"),
    ("output_type", "output_config", "format", "type"),
    ("output_type", "output_format", "type"),
)

_MOST_BLOCKS: Final = 1_000

_STOPS: Final = {
    "end_turn": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "content_filter",
    "stop_sequence": "stop",
    "tool_use": "tool_calls",
}
_APART: Final = frozenset({"advisor_message", "compaction"})
"""Steps of a call whose tokens are not in the figures of the whole."""

_USE: Final = "tool_use"
"""Those of `server_tool_use` and `mcp_tool_use` the provider runs."""

_RESULT: Final = "tool_result"

_HIDES: Final = ("mcp_servers", "container", "context_management")
_OWN_TOOLS: Final = ("custom", "bash_", "text_editor_", "memory_")
"""How the types of the tools begin that the program runs itself."""

_NAMED_TOOL: Final = 1_024
"""What a tool that is only named counts at most: the vendor writes its description."""

_PIECES: Final = {
    "compaction_delta": "content",
    "input_json_delta": "partial_json",
    "text_delta": "text",
    "thinking_delta": "thinking",
}
"""Sorts of delta, and the field that holds the new piece of what the model wrote."""

_FIELDS: Final = {"compaction": "content", "text": "text", "thinking": "thinking"}
"""Sorts of block, and the field their pieces belong to; those of all others are JSON of their input."""


class Messages(WireFormat):
    """Read `/v1/messages`."""

    def call(self, request: Request) -> Call:
        """See `WireFormat.call`."""
        body = request.body
        messages = body.get("messages")
        known = isinstance(messages, (list, tuple))
        size = len(cast("Sequence[Any]", messages)) if known else 0
        told = isinstance(body.get("system"), (str, list, tuple))
        given: list[Any] = [value for name in _INPUT_FIELDS if isinstance(value := body.get(name), (str, list, tuple, Mapping))]
        return request.describe(
            "chat",
            "messages",
            size=partial(tokens_in, given, (size + told) * PER_MESSAGE + PER_REQUEST),
            output_cap=count(body.get("max_tokens")),
            messages=size + told if known else None,
            parameters=_SETTINGS.of(body),
            offers_tools="tools" in body,
        )

    def reply(self, result: Any) -> Reply:
        """See `WireFormat.reply`."""
        told = as_mapping(result)
        used, reason = told.get("usage"), _finish_reason(as_text(told.get("stop_reason")))
        return Reply(
            id=as_text(told.get("id")),
            model=as_text(told.get("model")),
            usage=usage(used),
            finish_reasons=() if reason is None else (reason,),
            service_tier=text(used, "service_tier"),
            answers=int(isinstance(told.get("content"), (list, tuple))),
        )

    def collector(self, call: Call) -> MessagesCollector:
        """See `WireFormat.collector`."""
        return MessagesCollector(call)

    def asked(self, request: Request) -> Asked | None:
        """See `WireFormat.asked`; iterators are the caller's to read, and are left alone."""
        body = request.body
        return Asked(
            system=contents(body.get("system")),
            messages=[message_of(text(one, "role") or "user", contents(get(one, "content"))) for one in items(body, "messages")],
            tools=[definition(one) for one in items(body, "tools")],
        )

    def answered(self, result: Any) -> Sequence[Message]:
        """See `WireFormat.answered`."""
        return _answered(get(result, "content"), text(result, "stop_reason"))

    def tool_uses(self, result: Any) -> tuple[ToolUse, ...]:
        """See `WireFormat.tool_uses`."""
        return _uses(items(result, "content"))

    def tool_results(self, request: Request) -> Sequence[str | None]:
        """See `WireFormat.tool_results`."""
        said = [items(message, "content") for message in items(request.body, "messages") if text(message, "role") == "user"]
        return [id_of(block, "tool_use_id") for blocks in said for block in blocks if text(block, "type") == _RESULT]

    def bound(self, request: Request, call: Call) -> None:
        """See `WireFormat.bound`; what the provider keeps or fetches has no bound."""
        body, parts = request.body, Parts()
        tools = body.get("tools")
        parts.hide(first_of(body, _HIDES) or (hosted(body, _OWN_TOOLS) if isinstance(tools, (list, tuple)) else None))
        system = body.get("system")
        if isinstance(system, (list, tuple)):
            parts.take(cast("Sequence[Any]", system))
        for message in items(body, "messages"):
            parts.take(get(message, "content"))
        thinking = count(get(body.get("thinking"), "budget_tokens"))
        if thinking is not None:
            call.least_cap = thinking + 1  # the vendor refuses a smaller one
        named_only = sum(text(tool, "type") not in (None, "custom") for tool in items(body, "tools"))
        uncapped = capless(body, "max_tokens")
        bound(request, call, parts.hidden, pictures=parts.pictures, tools=named_only * _NAMED_TOOL, uncapped=uncapped)

    def cap(self, request: Request, cap: int) -> Mapping[str, int]:  # noqa: ARG002 - the format's
        """See `WireFormat.cap`."""
        return {"max_tokens": cap}


def _finish_reason(stop: str | None) -> str | None:
    """Return the convention's word for a stop reason; one it has no word for stays as it is."""
    return None if stop is None else _STOPS.get(stop, stop)


def usage(found: Any, before: Any = None) -> Usage | None:
    """Read a usage object, in which fresh, cached and cache-written input is told apart, and the sum of them nowhere.

    What it leaves out is taken from `before`, which came earlier in the stream. None when it tells no input or no output, or more
    than can be true. Hosts with this API may tell their sum alone.
    """
    told, first = as_mapping(found), as_mapping(before)
    fresh, made = _counted(told, first, "input_tokens"), _counted(told, first, "output_tokens")
    if fresh is None or made is None:
        return total_only(told, first)
    cached = _counted(told, first, "cache_read_input_tokens") or 0
    created = _detail(told, first, "cache_creation")
    hour = count(get(created, "ephemeral_1h_input_tokens")) or 0
    written = _counted(told, first, "cache_creation_input_tokens")
    if written is None:
        written = hour + (count(get(created, "ephemeral_5m_input_tokens")) or 0)
    thoughts = count(get(_detail(told, first, "output_tokens_details"), "thinking_tokens")) or 0
    for step in items(told, "iterations"):
        if text(step, "type") in _APART:
            fresh += count(get(step, "input_tokens")) or 0
            cached += count(get(step, "cache_read_input_tokens")) or 0
            written += count(get(step, "cache_creation_input_tokens")) or 0
            made += count(get(step, "output_tokens")) or 0
            hour += count(get(get(step, "cache_creation"), "ephemeral_1h_input_tokens")) or 0
    given = fresh + cached + written
    if given > MOST or made > MOST:
        return None
    return Usage(
        input_tokens=given,
        output_tokens=made,
        cached_input_tokens=cached,
        cache_write_tokens=written,
        cache_write_1h_tokens=min(hour, written),
        reasoning_tokens=min(thoughts, made),
        searches=count(get(_detail(told, first, "server_tool_use"), "web_search_requests")) or 0,
    )


def _counted(found: Mapping[str, Any], before: Mapping[str, Any], name: str) -> int | None:
    told = count(found.get(name))
    return count(before.get(name)) if told is None else told


def _detail(found: Mapping[str, Any], before: Mapping[str, Any], name: str) -> Any:
    told = found.get(name)
    return before.get(name) if told is None else told


def _uses(blocks: Sequence[Any]) -> tuple[ToolUse, ...]:
    """Return what the blocks of an answer ask for."""
    return tuple(ToolUse(id_of(block, "id"), text(block, "name")) for block in blocks[:MOST_USES] if text(block, "type") == _USE)


# -- streams ------------------------------------------------------------------------------------------------------------


class MessagesCollector(TextCollector):
    """Follow one stream, with what it says where the call is captured, and which tools it asks for where it offers some."""

    __slots__ = ("_blocks", "_id", "_model", "_started", "_stop", "_tier", "_told", "_uses")

    def __init__(self, call: Call) -> None:
        super().__init__(call)
        self._started: Any = None
        self._told: Any = None
        self._id: str | None = None
        self._model: str | None = None
        self._tier: str | None = None
        self._stop: str | None = None
        self._blocks: dict[int, _Block] | None = {} if call.content is not None else None
        self._uses: list[ToolUse] | None = [] if call.offers_tools else None

    @property
    def complete(self) -> bool:
        """See `Collector.complete`."""
        return self._stop is not None

    @property
    def told_input(self) -> int | None:
        """See `Collector.told_input`."""
        known = self._told_first()
        return None if known is None else known.input_tokens

    @property
    def tool_uses(self) -> Sequence[ToolUse]:
        """See `Collector.tool_uses`."""
        return tuple(self._uses or ())

    def add(self, event: Any) -> bool | None:
        """See `Collector.add`."""
        kind = text(event, "type")
        if kind == "content_block_delta":
            return self._piece(event)
        if kind == "content_block_start":
            self._block(event)
        elif kind == "message_start":
            message = get(event, "message")
            self._id, self._model = text(message, "id"), text(message, "model")
            self._started = get(message, "usage")
            self._tier = text(self._started, "service_tier")
            self._stop = text(message, "stop_reason")
        elif kind == "message_delta":
            self._stop = text(get(event, "delta"), "stop_reason") or self._stop
            found = get(event, "usage")
            if found is not None:
                self._told = found
        return None

    def _block(self, event: Any) -> None:
        block = get(event, "content_block")
        # What a block starts with is what it holds whole where no pieces follow, a search's results for one.
        for name in ("text", "thinking", "name"):
            self._weight += weight_of(text(block, name) or "")
        if self._blocks is not None and len(self._blocks) < _MOST_BLOCKS:
            self._blocks[count(get(event, "index")) or 0] = _Block(block)
        if self._uses is not None and len(self._uses) < MOST_USES:
            self._uses.extend(_uses((block,)))

    def _piece(self, event: Any) -> bool | None:
        delta = get(event, "delta")
        kind = text(delta, "type") or ""
        name = _PIECES.get(kind)
        piece = None if name is None else text(delta, name)
        if not piece:
            return None
        if self._blocks is not None:
            block = self._blocks.get(count(get(event, "index")) or 0)
            if block is not None:
                block.pieces.append(piece)
        return self._add_text(piece, is_text=kind == "text_delta")

    def reply(self) -> Reply:
        """See `Collector.reply`."""
        reason = _finish_reason(self._stop)
        reported = None if self._told is None else usage(self._told, self._started)
        came = self._id is not None or self._started is not None or self._chunks > 0
        reply = Reply(
            id=self._id,
            model=self._model,
            usage=reported or (self._counted() if came else None),
            finish_reasons=() if reason is None else (reason,),
            service_tier=self._tier,
            answers=int(self._id is not None),
            tool_uses=tuple(self.tool_uses),
        )
        if self._blocks is not None:
            reply.output = _answered([self._blocks[at].whole() for at in sorted(self._blocks)], self._stop)
        return reply

    def _told_first(self) -> Usage | None:
        known = None if self._started is None else usage(self._started)
        return None if known is None or known.total_only else known

    def _counted(self) -> Usage:
        """Count what came: the input is told at the start, the output is not."""
        known = self._told_first() or super()._counted()
        output = max(known.output_tokens, self.produced)
        return replace(known, output_tokens=output, total_tokens=known.input_tokens + output, source="estimated")


class _Block:
    """Put one block of content together."""

    __slots__ = ("_first", "pieces")

    def __init__(self, first: Any) -> None:
        self._first = first
        self.pieces: list[str] = []

    def whole(self) -> dict[str, Any]:
        block = fields_of(self._first)
        if not self.pieces:
            return block
        told = "".join(self.pieces)
        name = _FIELDS.get(str(block.get("type")))
        if name is not None:
            first = block.get(name)
            return {**block, name: f"{first}{told}" if isinstance(first, str) else told}
        try:
            return {**block, "input": json.loads(told)}
        except (ValueError, RecursionError):
            return {**block, "input": told}  # cut short, or never JSON


def _answered(blocks: Any, stop: str | None) -> list[Message]:
    """Write down an answer: one message of many parts."""
    return [message_of("assistant", contents(blocks), _finish_reason(stop))] if isinstance(blocks, (list, tuple)) else []


# -- every other path ---------------------------------------------------------------------------------------------------

_WORDS: Final = frozenset(
    """
    ack action_urls agents analytics api_keys archive batches cancel certificates compliance_settings content cost_report
    count_tokens credentials deny deployment_runs deployments download dreams enrollment_url environments events external_keys
    federation_issuers federation_rules files heartbeat invites mcp_oauth_validate members memories memory_stores memory_versions
    messages models organizations pause permissions plugin_marketplaces plugins rate_limits rbac_groups rbac_roles redact
    resources results run service_accounts sessions skills spend_limits stop stream telemetry_destinations threads tunnels
    unpause usage usage_report user_profiles users validate vaults versions webhooks work workspaces
    """.split()  # noqa: SIM905 - many words read better as text
)
"""The words of the API's paths."""

_FREE: Final = Shapes("files messages/count_tokens messages/batches/*/cancel")
"""What asks no model for anything, whoever has an API like this."""

_FREE_AT_HOME: Final = Shapes(
    "agents agents/* agents/*/archive deployments deployments/* deployments/*/archive|pause|unpause dreams/*/archive|cancel",
    "environments environments/* environments/*/archive environments/*/work/* environments/*/work/*/ack|heartbeat|stop",
    "memory_stores memory_stores/* memory_stores/*/archive|memories memory_stores/*/memories/* memory_stores/*/memory_versions/*/redact",
    "sessions sessions/* sessions/*/archive|resources sessions/*/resources/* sessions/*/threads/*/archive",
    "skills skills/*/versions tunnels tunnels/*/archive|certificates|reveal_token|rotate_token tunnels/*/certificates/*/archive",
    "user_profiles user_profiles/* user_profiles/*/action_urls|enrollment_url vaults vaults/* vaults/*/archive|credentials",
    "vaults/*/credentials/* vaults/*/credentials/*/archive|mcp_oauth_validate",
    # what an organization is made of
    "organizations/compliance_settings|external_keys|federation_issuers|federation_rules|invites|plugins|rbac_groups|service_accounts",
    "organizations/spend_limits|telemetry_destinations|webhooks|workspaces organizations/claude_tag/slack_channels",
    "organizations/api_keys|external_keys|federation_issuers|federation_rules|plugin_marketplaces|plugins|rbac_groups/*",
    "organizations/service_accounts|telemetry_destinations|users|webhooks|workspaces/*",
    "organizations/claude_code/managed_settings/configuration|rbac_group_default organizations/claude_code/managed_settings/rbac_groups/*",
    "organizations/claude_tag/bundles|slack_channels|slack_workspaces/* organizations/claude_tag/bundles/*/targets",
    "organizations/external_keys/*/validate organizations/federation_issuers|federation_rules|service_accounts|workspaces/*/archive",
    "organizations/federation_rules|service_accounts/*/workspaces organizations/plugin_marketplaces/validate_archive|validate_repository",
    "organizations/plugins/*/versions organizations/plugins/*/installation_settings/* organizations/rbac_groups/*/members",
    "organizations/spend_limit_increase_requests/*/approve|deny organizations/telemetry_destinations/*/test",
    "organizations/telemetry_destinations/*/workspaces/* organizations/users/*/sign_out",
    "organizations/webhooks/*/regenerate_signing_secret organizations/workspaces/*/members|service_accounts",
    "organizations/workspaces/*/members|rate_limits|service_accounts/*",
)
"""What asks no model for anything where the API is Anthropic's own."""

_LEGACY: Final = ("complete",)
_LEGACY_CAP: Final = "max_tokens_to_sample"
"""A legacy completion tells no usage: it is charged what is held of it."""

_HOME: Final = frozenset({"", "anthropic", "aws.bedrock", "gcp.vertex_ai"})
_JOBS: Final = Shapes("dreams messages/batches sessions/*/events deployments/*/run")
"""Where work is begun that is paid for later, or an agent that the provider runs is set to work: told to nobody here."""


class Other(WireFormat):
    """Read any other path. A POST is generative, and counts as a request, unless its path is known to ask no model."""

    def call(self, request: Request) -> Call:
        """See `WireFormat.call`."""
        host, body, shape = request.host, request.body, named(request.path, _WORDS)
        parts = below_version(segments(request.path, host.base))
        generative = request.method not in READS and asks_a_model(parts, "" if host.assumed else host.provider)
        job = generative and _JOBS.has(parts)
        completes = generative and parts == _LEGACY
        return request.describe(
            shape if generative else f"{request.method} {shape}",
            shape,
            model=None if job else text(body, "model"),  # what a job will cost has no price per call
            generative=generative,
            turn=completes,
            size=tokens_in(body) if generative and not job else 0,
            output_cap=count(body.get(_LEGACY_CAP)) if completes else None,
            job=job,
            unread=job,  # nobody can say what it costs: it is not refused for want of a price
        )

    def reply(self, result: Any) -> Reply:
        """See `WireFormat.reply`."""
        return Reply(model=text(result, "model"), usage=usage(get(result, "usage")))


def asks_a_model(parts: tuple[str, ...], provider: str = "") -> bool:
    """Whether a POST to a path of these segments, below the version, may make a model work; a path nobody knows may.

    `provider` is who answers; empty it is Anthropic.
    """
    return not (_FREE.has(parts) or (provider in _HOME and _FREE_AT_HOME.has(parts)))


MESSAGES: Final = Messages()
_OTHER: Final = Other()


@lru_cache(maxsize=512)
def format_for(method: str, path: str, base: str = "", _provider: str = "") -> WireFormat:
    """Return the format of `path` below the base URL's path, by how it ends; what only reads creates nothing."""
    return MESSAGES if method not in READS and segments(path, base)[-1:] == ("messages",) else _OTHER


def known(parts: tuple[str, ...], _body: Mapping[str, Any] | None = None) -> WireFormat | None:
    """Return the format of a POST to the messages of this API, which lie below its version, or below nothing: a thread's do not."""
    return MESSAGES if parts[-1:] == ("messages",) and below_version(parts[-2:]) == ("messages",) else None
