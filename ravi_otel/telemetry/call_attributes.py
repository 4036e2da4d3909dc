"""Write a model call as attributes of a GenAI convention, at its start and at its end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from opentelemetry.util.types import AttributeValue

from ravi_otel.hooks.records import CallRecord
from ravi_otel.policy.limits import NANO
from ravi_otel.policy.usage import Call, Reply, Usage
from ravi_otel.telemetry import semconv
from ravi_otel.telemetry.cardinality import finite, integer, text, word, words
from ravi_otel.telemetry.conventions import Convention

PENDING: Final = "pending"
"""The source of usage that a later look will bring."""

UNREAD: Final = "unread"
"""The source of usage that nobody here will be told: of a batch, a training or an assistant's run."""

_REQUEST_IDS: Final = {"anthropic": "request-id"}
_REQUEST_ID: Final = "x-request-id"
"""The header by which a provider names a request, and the one by which most do."""

_MOST_CHANGES: Final = 16
_API_TYPES: Final = {"chat.completions": "chat_completions", "responses": "responses"}

_Names = dict[str, tuple[str, Callable[[object], AttributeValue | None]]]

_PARAMETERS: Final[_Names] = {
    "max_tokens": (semconv.REQUEST_MAX_TOKENS, integer),
    "temperature": (semconv.REQUEST_TEMPERATURE, finite),
    "top_p": (semconv.REQUEST_TOP_P, finite),
    "top_k": (semconv.REQUEST_TOP_K, integer),
    "frequency_penalty": (semconv.REQUEST_FREQUENCY_PENALTY, finite),
    "presence_penalty": (semconv.REQUEST_PRESENCE_PENALTY, finite),
    "stop_sequences": (semconv.REQUEST_STOP_SEQUENCES, words),
    "seed": (semconv.REQUEST_SEED, integer),
    "reasoning_level": (semconv.REQUEST_REASONING_LEVEL, word),
    "output_type": (semconv.OUTPUT_TYPE, word),
    "conversation_id": (semconv.CONVERSATION_ID, word),
    "service_tier": (semconv.OWN_REQUEST_TIER, word),
}
"""The neutral names of `Call.parameters`; a value of another type than the convention's is left out."""

_OPENAI_PARAMETERS: Final[_Names] = {**_PARAMETERS, "service_tier": (semconv.OPENAI_REQUEST_TIER, word)}
_OPENAI: Final = frozenset({"openai", "azure.ai.openai"})
"""Whose calls have the convention's `openai.*`; a host nobody knows that is asked through that client is taken for the first."""


def about(call: Call) -> dict[str, AttributeValue]:
    """Say what is asked of whom: operation, provider, model and server."""
    return about_names(call.operation, call.provider, call.model, call.server_address, call.server_port)


def about_names(operation: object, provider: object, model: object, address: object, port: object) -> dict[str, AttributeValue]:
    """Say the same of names that may be hidden; there is no port without an address."""
    attributes: dict[str, AttributeValue] = {semconv.OPERATION_NAME: text(operation), semconv.PROVIDER_NAME: text(provider)}
    if model is not None:
        attributes[semconv.REQUEST_MODEL] = text(model)
    if address is not None:
        attributes[semconv.SERVER_ADDRESS] = text(address)
        if isinstance(port, int):
            attributes[semconv.SERVER_PORT] = port
    return attributes


def is_told(call: Call) -> bool:
    """Tell that a call's span is one of the GenAI conventions; anything else, such as listing models, is a plain one."""
    return call.generative or call.fetches or call.session


def start_attributes(call: Call) -> dict[str, AttributeValue]:
    """Give what a call's parameters and options add to its span."""
    attributes: dict[str, AttributeValue] = {}
    if call.parameters:
        _add_parameters(attributes, call.parameters, _OPENAI_PARAMETERS if call.provider in _OPENAI else _PARAMETERS)
    if call.stream:
        attributes[semconv.REQUEST_STREAM] = True
    if call.choices != 1:
        attributes[semconv.REQUEST_CHOICE_COUNT] = call.choices
    if call.previous_response_id is not None:
        attributes[semconv.REQUEST_PREVIOUS_RESPONSE] = text(call.previous_response_id)
    if call.changes:
        attributes[semconv.REQUEST_CHANGES] = tuple(text(change) for change in call.changes[:_MOST_CHANGES])
    return attributes


def _add_parameters(attributes: dict[str, AttributeValue], parameters: Mapping[str, Any], names: _Names) -> None:
    for neutral, given in parameters.items():
        known = names.get(neutral)
        if known is not None:
            value = known[1](given)
            if value is not None:
                attributes[known[0]] = value


def api_type(call: Call) -> str | None:
    """Give `openai.api.type` by the path shape of an endpoint, None for those without one, and where another provider is asked."""
    endpoint = call.endpoint if call.provider in _OPENAI else ""
    return next((kind for shape, kind in _API_TYPES.items() if endpoint == shape or endpoint.startswith(f"{shape}.")), None)


class EndAttributes:
    """Give what is known once a call is over, under the names of one convention; what is unknown is left out.

    The cost is told under our own name and under the proposed ones; with `langfuse` under the one that it reads, in place of those.
    """

    __slots__ = ("_langfuse", "_names")

    def __init__(self, convention: Convention, *, langfuse: bool) -> None:
        self._names = convention
        self._langfuse = langfuse

    def of(self, record: CallRecord) -> dict[str, AttributeValue]:
        """Give the attributes of a call."""
        attributes: dict[str, AttributeValue] = {}
        call = record.call
        if call.fetches:  # some are known as such only by what they bring
            attributes[semconv.OPERATION_NAME], attributes[semconv.PROVIDER_NAME] = text(call.operation), text(call.provider)
            if call.model is not None:
                attributes[semconv.REQUEST_MODEL] = text(call.model)
        if record.reply is not None and is_told(call):
            _add_reply(attributes, record.reply, openai=call.provider in _OPENAI)
        if record.http_status is not None:
            attributes[semconv.HTTP_STATUS] = record.http_status
        if record.first_chunk_ns is not None:
            _add_times(attributes, record.first_chunk_ns, record.first_content_ns)
        if record.usage is None or record.usage.total_only:
            _add_unknown(attributes, record)
        else:
            _add_usage(attributes, record.usage, record.call.operation, self._names)
        if record.retries:
            attributes[semconv.RETRY_COUNT] = len(record.retries)
        paid = record.requests if record.call.generative else int(record.reply is not None)
        if paid != 1 and record.status != "refused":
            attributes[semconv.REQUEST_COUNT] = paid
        _add_grant(attributes, record)
        if call.changes:  # some are made only when it is sent
            attributes[semconv.REQUEST_CHANGES] = tuple(text(change) for change in call.changes[:_MOST_CHANGES])
        self._add_cost(attributes, record)
        add_headers(attributes, record.call.provider, record.request_id, record.rate_limits)
        return attributes

    def _add_cost(self, attributes: dict[str, AttributeValue], record: CallRecord) -> None:
        if record.cost_nano is not None:
            attributes[semconv.USAGE_COST] = usd = record.cost_nano / NANO
            if self._langfuse:
                attributes[semconv.LANGFUSE_COST] = usd
            else:
                attributes[semconv.COST_AMOUNT] = usd
                attributes[semconv.COST_CURRENCY] = "USD"
                attributes[semconv.COST_SOURCE] = "local"
        if record.cost_source is not None:
            attributes[semconv.USAGE_COST_SOURCE] = text(record.cost_source)
        if record.price_date is not None:
            attributes[semconv.USAGE_COST_DATE] = text(record.price_date)


def add_headers(attributes: dict[str, AttributeValue], provider: str, request_id: str | None, limits: Mapping[str, str] | None) -> None:
    """Add what an answer's headers told: lists, as the HTTP convention has them."""
    if request_id is not None:
        attributes[f"{semconv.RESPONSE_HEADER}{_REQUEST_IDS.get(provider, _REQUEST_ID)}"] = (text(request_id),)
    if limits:
        for name, value in limits.items():
            attributes[f"{semconv.RESPONSE_HEADER}{name}"] = (text(value),)


def _add_reply(attributes: dict[str, AttributeValue], reply: Reply, *, openai: bool) -> None:
    if reply.id is not None:
        attributes[semconv.RESPONSE_ID] = text(reply.id)
    if reply.model is not None:
        attributes[semconv.RESPONSE_MODEL] = text(reply.model)
    if reply.finish_reasons:
        attributes[semconv.RESPONSE_FINISH_REASONS] = tuple(text(reason) for reason in reply.finish_reasons[:128])
    if reply.service_tier is not None:
        attributes[semconv.OPENAI_RESPONSE_TIER if openai else semconv.OWN_RESPONSE_TIER] = text(reply.service_tier)
    if openai and reply.system_fingerprint is not None:
        attributes[semconv.OPENAI_FINGERPRINT] = text(reply.system_fingerprint)
    if reply.conversation_id is not None:
        attributes[semconv.CONVERSATION_ID] = text(reply.conversation_id)


def _add_grant(attributes: dict[str, AttributeValue], record: CallRecord) -> None:
    if record.granted is not None:
        attributes[semconv.LIMIT_GRANTED] = record.granted
    if record.output_cap is not None:  # found out only after the span had begun
        attributes[semconv.REQUEST_CHANGES] = tuple(text(change) for change in record.call.changes[:_MOST_CHANGES])
        if record.truncated_by_limit:
            attributes[semconv.LIMIT_TRUNCATED] = True


def _add_times(attributes: dict[str, AttributeValue], first_chunk_ns: int, first_content_ns: int | None) -> None:
    attributes[semconv.RESPONSE_FIRST_CHUNK] = first_chunk_ns / NANO
    if first_content_ns is not None:
        attributes[semconv.FIRST_CONTENT] = first_content_ns / NANO


def _add_unknown(attributes: dict[str, AttributeValue], record: CallRecord) -> None:
    """Add what is known of a call whose input and output nobody told: their sum, what it was charged, or whether a later look brings it."""
    if record.usage is not None:
        attributes[semconv.USAGE_TOTAL] = record.usage.total_tokens
        _add_other_measures(attributes, record.usage)
        if record.usage.source != "reported":
            attributes[semconv.USAGE_SOURCE] = record.usage.source
    if record.charged is not None:
        _add_charged(attributes, record.charged, record.charged_nano)
    elif record.reply is not None and record.reply.pending:
        attributes[semconv.USAGE_SOURCE] = PENDING
    elif record.call.job and record.status == "ok":
        attributes[semconv.USAGE_SOURCE] = UNREAD


def _add_charged(attributes: dict[str, AttributeValue], charged: Usage, cost_nano: int | None) -> None:
    attributes[semconv.CHARGED_INPUT] = charged.input_tokens
    attributes[semconv.CHARGED_OUTPUT] = charged.output_tokens
    if cost_nano is not None:
        attributes[semconv.CHARGED_COST] = cost_nano / NANO


def _add_usage(attributes: dict[str, AttributeValue], usage: Usage, operation: str, names: Convention) -> None:
    if usage.source != "reported":
        attributes[semconv.USAGE_SOURCE] = usage.source
        if usage.source == "reserved":
            _add_charged(attributes, usage, None)
            return  # the grant was charged, nobody knows what was used
    if not usage.total_tokens and usage.tokenless:
        _add_other_measures(attributes, usage)
        return  # measured in sound or characters: how many tokens that is nobody said
    attributes[semconv.USAGE_INPUT] = usage.input_tokens
    if usage.output_tokens or operation != semconv.EMBEDDINGS:
        attributes[semconv.USAGE_OUTPUT] = usage.output_tokens
    if usage.cached_input_tokens:
        attributes[semconv.USAGE_CACHE_READ] = usage.cached_input_tokens
    if usage.reasoning_tokens:
        attributes[semconv.USAGE_REASONING] = usage.reasoning_tokens
    _add_details(attributes, usage, names)


def _add_details(attributes: dict[str, AttributeValue], usage: Usage, names: Convention) -> None:
    if usage.cache_write_tokens:
        attributes.update(dict.fromkeys(names.cache_write, usage.cache_write_tokens))
        if usage.cache_write_1h_tokens:
            attributes[semconv.USAGE_CACHE_WRITE_1H] = usage.cache_write_1h_tokens
    if usage.rejected_prediction_tokens:
        attributes[semconv.USAGE_REJECTED] = usage.rejected_prediction_tokens
    if usage.audio_input_tokens or usage.audio_output_tokens or usage.image_input_tokens or usage.image_output_tokens:
        _add_modalities(attributes, usage, names)
    if usage.searches or usage.characters or usage.audio_ms:
        _add_other_measures(attributes, usage)


def _add_modalities(attributes: dict[str, AttributeValue], usage: Usage, names: Convention) -> None:
    if usage.audio_input_tokens:
        attributes.update(dict.fromkeys(names.audio_input, usage.audio_input_tokens))
    if usage.audio_output_tokens:
        attributes.update(dict.fromkeys(names.audio_output, usage.audio_output_tokens))
    if usage.image_input_tokens:
        attributes.update(dict.fromkeys(names.image_input, usage.image_input_tokens))
        if usage.cached_image_tokens:
            attributes.update(dict.fromkeys(names.image_cache_read, usage.cached_image_tokens))
    if usage.image_output_tokens:
        attributes.update(dict.fromkeys(names.image_output, usage.image_output_tokens))


def _add_other_measures(attributes: dict[str, AttributeValue], usage: Usage) -> None:
    if usage.searches:
        attributes[semconv.USAGE_SEARCHES] = usage.searches
    if usage.characters:
        attributes[semconv.USAGE_CHARACTERS] = usage.characters
    if usage.audio_ms:
        attributes[semconv.USAGE_AUDIO_LENGTH] = usage.audio_ms / 1_000
