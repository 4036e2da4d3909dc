"""Read what a message used: Anthropic tells fresh, cached and cache-written input apart, and the sum of them nowhere."""

from __future__ import annotations

from typing import Any, Final

from ravi_otel.instrumentation.formats.fields import MOST, count, get, items, text, total_only
from ravi_otel.policy.usage import Usage

_APART: Final = frozenset({"advisor_message", "compaction"})
"""Steps of a call whose tokens are not in the figures of the whole."""

_STOPS: Final = {
    "end_turn": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "content_filter",
    "stop_sequence": "stop",
    "tool_use": "tool_calls",
}


def finish_reason(stop: str | None) -> str | None:
    """Give the convention's word for a stop reason; one it has no word for stays as it is."""
    return None if stop is None else _STOPS.get(stop, stop)


def usage(found: Any, before: Any = None) -> Usage | None:
    """Read a usage object; what it leaves out is taken from `before`, which came earlier in the stream.

    None when it tells no input or no output, or more than can be true. Hosts with this API may tell their sum alone.
    """
    fresh, made = _told(found, before, "input_tokens"), _told(found, before, "output_tokens")
    if fresh is None or made is None:
        return total_only(found, before)
    cached = _told(found, before, "cache_read_input_tokens") or 0
    created = _part(found, before, "cache_creation")
    hour = count(get(created, "ephemeral_1h_input_tokens")) or 0
    written = _told(found, before, "cache_creation_input_tokens")
    if written is None:
        written = hour + (count(get(created, "ephemeral_5m_input_tokens")) or 0)
    thoughts = count(get(_part(found, before, "output_tokens_details"), "thinking_tokens")) or 0
    for step in items(found, "iterations"):
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
        searches=count(get(_part(found, before, "server_tool_use"), "web_search_requests")) or 0,
    )


def _told(found: Any, before: Any, name: str) -> int | None:
    told = count(get(found, name))
    return count(get(before, name)) if told is None else told


def _part(found: Any, before: Any, name: str) -> Any:
    told = get(found, name)
    return get(before, name) if told is None else told
