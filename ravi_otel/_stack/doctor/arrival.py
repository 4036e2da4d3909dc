"""Look for what was sent at the other end: the span in Jaeger, the metric in Prometheus, the log record in Loki."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Final
from urllib.parse import urlencode

from ravi_otel._http import UnansweredError
from ravi_otel._stack.doctor.asking import get_json, listed
from ravi_otel._stack.doctor.finding import Asked, Finding, broken, left_out, well
from ravi_otel._stack.doctor.local_stack import Stack
from ravi_otel._stack.doctor.probe import METRIC, SERVICE, Trip

_EVERY_S: Final = 0.1
_MARGIN_S: Final = 0.3
_FAIR_S: Final = 5.0
"""How long a store may take before it is held against it: a second or two are usual, more just after its start."""

_WINDOW_NS: Final = 600 * 10**9
_WHERE: Final = {
    "traces": ("jaeger", "the span", "Jaeger"),
    "metrics": ("prometheus", "the metric", "Prometheus"),
    "logs": ("loki", "the log record", "Loki"),
}
_LOST: Final = "See `docker logs ravi-otel-collector-1` for what the collector could not pass on, and try a longer --timeout."
_TAILS: Final = "the collector samples by tail, and may decide later whether it keeps it; the shipped production overlay keeps it at once"
_TAILS_S: Final = 3.0
"""How long after it was sent a span is looked for behind a collector that may not keep it: the shipped overlay passes it on at once."""


def look_for(trip: Trip, stack: Stack, asked: Asked) -> Iterator[Finding]:
    """Look for each signal that was acknowledged, all in turn, until it is there or time is over; say how long each took."""
    questions: dict[str, Callable[[], bool]] = {
        "traces": lambda: _is_in_jaeger(trip, stack, asked),
        "metrics": lambda: _is_in_prometheus(trip, stack, asked),
        "logs": lambda: _is_in_loki(trip, stack, asked),
    }
    waiting = {signal: ask for signal, ask in questions.items() if signal in trip.taken and stack.is_ready(_WHERE[signal][0])}
    late = set(waiting)
    while waiting:
        for signal in tuple(waiting):
            if _is_there(waiting[signal]):
                del waiting[signal]
                late.discard(signal)
                yield well(
                    f"arrival.{signal}",
                    f"{_WHERE[signal][1]} was in {_WHERE[signal][2]} {time.monotonic() - trip.sent_s:,.1f} s after it was sent",
                )
        if asked.left_s() <= _MARGIN_S or (set(waiting) == {"traces"} and _may_be_let_go(trip, stack)):
            break
        if waiting:
            time.sleep(_EVERY_S)
    for signal in questions:
        if signal in late:
            yield _missed(signal, trip, stack)
        elif signal in trip.taken and not stack.is_ready(_WHERE[signal][0]):
            yield left_out(f"arrival.{signal}", f"{_WHERE[signal][1]} was not looked for, as {_WHERE[signal][2]} does not answer")


def _may_be_let_go(trip: Trip, stack: Stack) -> bool:
    return stack.samples_tails and time.monotonic() - trip.sent_s > _TAILS_S


def _missed(signal: str, trip: Trip, stack: Stack) -> Finding:
    _, what, where = _WHERE[signal]
    if signal == "traces" and stack.samples_tails:
        return left_out("arrival.traces", f"{what} ({trip.trace_id}) is not in {where} yet: {_TAILS}")
    waited_s = time.monotonic() - trip.sent_s
    said = f"{what} was acknowledged, and is not in {where} {waited_s:,.1f} s later"
    if waited_s < _FAIR_S:
        return left_out(f"arrival.{signal}", f"{said}: too short a time to tell", "Try a longer --timeout.")
    return broken(f"arrival.{signal}", said, _LOST)


def _is_there(ask: Callable[[], bool]) -> bool:
    try:
        return ask()
    except UnansweredError:  # Jaeger says 404 until it has the trace
        return False


def _is_in_jaeger(trip: Trip, stack: Stack, asked: Asked) -> bool:
    return bool(listed(get_json(stack.port("JAEGER"), f"/api/traces/{trip.trace_id}", asked), "data"))


def _is_in_prometheus(trip: Trip, stack: Stack, asked: Asked) -> bool:
    query = f'{{__name__=~"{METRIC.replace(".", "_")}(_ratio)?",service_instance_id="{trip.instance}"}}'
    found = get_json(stack.port("PROMETHEUS"), f"/api/v1/query?{urlencode({'query': query})}", asked)
    return bool(listed(found, "data", "result"))


def _is_in_loki(trip: Trip, stack: Stack, asked: Asked) -> bool:
    now_ns = time.time_ns()
    words = {
        "query": f'{{service_name="{SERVICE}"}} | trace_id="{trip.trace_id}"',
        "start": now_ns - _WINDOW_NS,
        "end": now_ns + _WINDOW_NS,
        "limit": 1,
    }
    return bool(listed(get_json(stack.port("LOKI"), f"/loki/api/v1/query_range?{urlencode(words)}", asked), "data", "result"))
