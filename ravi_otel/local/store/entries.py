"""Turn stored spans back into what they were made from: calls, tools, limit events, limits."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, Literal, cast, get_args

from ravi_otel._runtime.background_calls import FETCHES
from ravi_otel._telemetry import names
from ravi_otel._telemetry.model_calls import PENDING
from ravi_otel.errors import RaviError
from ravi_otel.hooks._events import LimitEvent, LimitReading, Phase, Status
from ravi_otel.local._record import Leaf
from ravi_otel.local.store.spans import Attributes, Span, SpanEvent, number_of, text_of
from ravi_otel.local.store.sums import Entry
from ravi_otel.policy._limits import CLOCKS, NANO, Kind, Limit, ScopeKind
from ravi_otel.policy._usage import Usage, UsageSource

_STATUSES: Final = frozenset(get_args(Status))
_PHASES: Final = frozenset(get_args(Phase))
_SOURCES: Final = frozenset(get_args(UsageSource))
_SCOPES: Final = frozenset(ScopeKind)
_MOST_NAMES: Final = 16
_MOST_SECONDS: Final = 1e9


def status_of(span: Span) -> Status:
    """Say how what the span tells of ended."""
    stated = span.text(names.STATUS)
    if stated in _STATUSES:
        return cast("Status", stated)
    return "error" if span.failed else "ok"


def entry_of(span: Span) -> Entry | None:
    """Read a call or tool; None for a span that is neither."""
    operation = span.text(names.OPERATION_NAME)
    if operation == names.EXECUTE_TOOL:
        return Entry(_leaf(span, "tool", span.text(names.TOOL_NAME), "tool"))
    if operation is None and not span.client:
        return None
    return _call(span, operation)


def _call(span: Span, operation: str | None) -> Entry:
    leaf = _leaf(span, "call", span.text(names.RESPONSE_MODEL) or span.text(names.REQUEST_MODEL), operation or span.name)
    leaf.stream = span.attributes.get(names.REQUEST_STREAM) is True
    leaf.usage = _usage(span)
    look = operation == FETCHES
    leaf.generative = operation is not None and (not look or leaf.usage is not None)
    leaf.pending = span.text(names.USAGE_SOURCE) == PENDING
    leaf.cost_nano = span.nano(names.USAGE_COST)
    leaf.cost_source = span.text(names.USAGE_COST_SOURCE)
    leaf.retries = span.count(names.RETRY_COUNT) or 0
    requests = span.count(names.REQUEST_COUNT)
    if leaf.status == "refused":
        return Entry(leaf)
    leaf.sent = requests != 0
    charged = _tokens(span, names.CHARGED_INPUT, names.CHARGED_OUTPUT, "estimated") if leaf.usage is None else None
    return Entry(leaf, 0 if look else 1 if requests is None else requests, charged, span.nano(names.CHARGED_COST))


def _leaf(span: Span, what: Literal["call", "tool"], name: str | None, operation: str) -> Leaf:
    status = status_of(span)
    return Leaf(
        what,
        name,
        operation,
        span.start_ns,
        status=status,
        duration_ns=span.duration_ns,
        sent=status != "refused",
        decision=span.text(names.LIMIT_DECISION),
        error_type=span.text(names.ERROR_TYPE),
        limit_kind=span.text(names.LIMIT_KIND),
        limit_scope=span.text(names.LIMIT_SCOPE),
        reason=span.text(names.LIMIT_REASON),
        refusal=(span.message or None) if status == "refused" else None,
    )


def _usage(span: Span) -> Usage | None:
    stated = span.text(names.USAGE_SOURCE) or "reported"
    source = cast("UsageSource", stated if stated in _SOURCES else "estimated")
    if source == "reserved":
        return _tokens(span, names.CHARGED_INPUT, names.CHARGED_OUTPUT, source)
    total = span.count(names.USAGE_TOTAL)
    if total:
        return Usage(total_tokens=total, source=source)
    return _tokens(span, names.USAGE_INPUT, names.USAGE_OUTPUT, source)


def _tokens(span: Span, given: str, taken: str, source: UsageSource) -> Usage | None:
    tokens_in, tokens_out = span.count(given), span.count(taken)
    sound, characters, searches = _milliseconds(span), span.count(names.USAGE_CHARACTERS) or 0, span.count(names.USAGE_SEARCHES) or 0
    if tokens_in is None and tokens_out is None and not (sound or characters or searches):
        return None
    return Usage(
        tokens_in or 0,
        tokens_out or 0,
        cached_input_tokens=span.count(names.USAGE_CACHE_READ) or 0,
        cache_write_tokens=_either(span, names.USAGE_CACHE_CREATION, names.USAGE_CACHE_WRITE),
        reasoning_tokens=span.count(names.USAGE_REASONING) or 0,
        audio_input_tokens=_either(span, names.OWN_AUDIO_INPUT, names.USAGE_AUDIO_INPUT),
        audio_output_tokens=_either(span, names.OWN_AUDIO_OUTPUT, names.USAGE_AUDIO_OUTPUT),
        source=source,
        cache_write_1h_tokens=span.count(names.USAGE_CACHE_WRITE_1H) or 0,
        image_input_tokens=_either(span, names.OWN_IMAGE_INPUT, names.USAGE_IMAGE_INPUT),
        cached_image_tokens=_either(span, names.OWN_IMAGE_CACHE_READ, names.USAGE_IMAGE_CACHE_READ),
        image_output_tokens=_either(span, names.OWN_IMAGE_OUTPUT, names.USAGE_IMAGE_OUTPUT),
        rejected_prediction_tokens=span.count(names.USAGE_REJECTED) or 0,
        audio_ms=sound,
        characters=characters,
        searches=searches,
    )


def _milliseconds(span: Span) -> int:
    seconds = number_of(span.attributes, names.USAGE_AUDIO_LENGTH)
    return round(seconds * 1_000) if seconds is not None and 0 < seconds < _MOST_SECONDS else 0


def _either(span: Span, released: str, latest: str) -> int:
    """Read a count that the conventions have under two names; what was told under both is one."""
    return span.count(released) or span.count(latest) or 0


# -- limits ---------------------------------------------------------------------------------------------------------


def event_of(event: SpanEvent) -> LimitEvent | None:
    """Read a limit event; None for another event, or one that names no scope we know."""
    kinds: Mapping[str, Literal["limit_nearing", "limit_exceeded"]] = {
        names.NEARING_EVENT: "limit_nearing",
        names.EXCEEDED_EVENT: "limit_exceeded",
    }
    told, said = kinds.get(event.name), event.attributes
    scope = text_of(said, names.LIMIT_SCOPE)
    if told is None or scope not in _SCOPES:
        return None
    phase = text_of(said, names.LIMIT_PHASE)
    return LimitEvent(
        event=told,
        limit_kind=text_of(said, names.LIMIT_KIND) or "",
        scope=ScopeKind(scope),
        scope_id=text_of(said, names.LIMIT_SCOPE_ID) or "",
        scope_name=text_of(said, names.LIMIT_SCOPE_NAME),
        agent_name=text_of(said, names.AGENT_NAME),
        agent_id=text_of(said, names.AGENT_ID),
        run_id=text_of(said, names.RUN_ID),
        session_id=text_of(said, names.SESSION_ID),
        threshold=_amount(said, names.LIMIT_THRESHOLD),
        used=_amount(said, names.LIMIT_USED),
        held=_amount(said, names.LIMIT_HELD),
        remaining=_amount(said, names.LIMIT_REMAINING),
        exceeded_by=_amount(said, names.LIMIT_EXCEEDED_BY),
        ratio=_amount(said, names.LIMIT_RATIO),
        phase=cast("Phase", phase if phase in _PHASES else "settle"),
        decision=text_of(said, names.LIMIT_DECISION) or "",
        enforcement=text_of(said, names.LIMIT_ENFORCEMENT) or "",
        per=text_of(said, names.LIMIT_PER),
        window=text_of(said, names.LIMIT_WINDOW),
        by=text_of(said, names.LIMIT_BY),
        counted_for=text_of(said, names.LIMIT_COUNTED_FOR),
        requested=number_of(said, names.LIMIT_REQUESTED),
        tracker=text_of(said, names.LIMIT_TRACKER),
    )


def _amount(said: Attributes, key: str) -> float:
    found = number_of(said, key)
    return math.nan if found is None else found


def state_of(event: SpanEvent, scope: ScopeKind, name: str | None) -> LimitReading | None:
    """Read where a limit of a run or agent stood when that closed, or a call in it that ended later; None for another event."""
    if event.name != names.STATE_EVENT:
        return None
    said = event.attributes
    figures = {field: number_of(said, key) for field, key in _STATE.items()}
    found = _reading(text_of(said, names.LIMIT_LABEL), figures, _names(said.get(names.LIMIT_EVENTS)), scope, name)
    return _renewed(found, *(text_of(said, key) for key in _RENEWED.values()))


_RENEWED: Final = {
    "per": names.LIMIT_PER,
    "window": names.LIMIT_WINDOW,
    "by": names.LIMIT_BY,
    "counted_for": names.LIMIT_COUNTED_FOR,
}
_STATE: Final = {
    "threshold": names.LIMIT_THRESHOLD,
    "used": names.LIMIT_USED,
    "held": names.LIMIT_HELD,
    "remaining": names.LIMIT_REMAINING,
    "ratio": names.LIMIT_RATIO,
    "denied": names.LIMIT_DENIED,
}


def budget_of(stored: Mapping[str, Any]) -> LimitReading | None:
    """Read one of a manifest's budgets, in the shape of `limits` in `as_json`; None when it has another shape."""
    scope, name, label = stored.get("scope"), stored.get("scope_name"), stored.get("limit")
    if not isinstance(scope, str) or scope not in _SCOPES or not isinstance(label, str):
        return None
    figures = {field: number_of(cast("Attributes", stored), field) for field in _STATE}
    found = _reading(label, figures, _names(stored.get("events")), ScopeKind(scope), name if isinstance(name, str) else None)
    return _renewed(found, *(text_of(cast("Attributes", stored), field) for field in _RENEWED))


def _renewed(
    found: LimitReading | None, per: str | None, window: str | None, by: str | None, counted_for: str | None
) -> LimitReading | None:
    """Say of which window a reading is, and whose, where that is told and can be."""
    if found is None or (per is None and by is None):
        return found
    try:
        return replace(found, limit=replace(found.limit, per=per, by=by), window=window, counted_for=counted_for)
    except RaviError:
        return found


def _reading(
    label: str | None, figures: Mapping[str, float | None], events: tuple[str, ...], scope: ScopeKind, name: str | None
) -> LimitReading | None:
    limit = _limit(label or "", figures["threshold"])
    if limit is None:
        return None
    used, held, remaining = figures["used"], figures["held"], figures["remaining"]
    return LimitReading(
        limit=limit,
        scope=scope,
        scope_name=name,
        used=_known(used),
        held=_known(held),
        remaining=math.nan if remaining is None else remaining,  # below 0 where a limit was passed
        ratio=_known(figures["ratio"]),
        denied=max(0, int(figures["denied"] or 0)),
        events=events,
    )


def _known(value: float | None) -> float:
    return math.nan if value is None or value < 0 else value


def _limit(label: str, threshold: float | None) -> Limit | None:
    """Build the limit a label stands for: `tokens`, `tool.search`, `tokens@researcher`."""
    what, _, agent = label.partition("@")
    detail = what.removeprefix("tool.") if what.startswith("tool.") else None
    kind = str(Kind.TOOL_CALLS) if detail is not None else what
    if threshold is None:
        return None
    inner = round(threshold * NANO) if kind == Kind.COST or kind in CLOCKS else round(threshold)
    try:
        return Limit(kind=kind, value=inner, detail=detail, agent=agent or None)
    except RaviError:
        return None


def _names(found: object) -> tuple[str, ...]:
    if not isinstance(found, (list, tuple)):
        return ()
    return tuple(each for each in cast("list[object]", found)[:_MOST_NAMES] if isinstance(each, str))
