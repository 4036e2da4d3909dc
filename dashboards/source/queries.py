"""Write the queries, each over the labels that its metric has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from dashboards.source.names import label, prometheus
from ravi_otel._telemetry import names

SERVICE: Final = "service_name"
ENVIRONMENT: Final = "deployment_environment_name"
AGENT: Final = label(names.AGENT_NAME)
MODEL: Final = label(names.REQUEST_MODEL)
PROVIDER: Final = label(names.PROVIDER_NAME)
OPERATION: Final = label(names.OPERATION_NAME)
ERROR: Final = label(names.ERROR_TYPE)
TOOL: Final = label(names.TOOL_NAME)
WORKFLOW: Final = label(names.WORKFLOW_NAME)
SCOPE: Final = label(names.LIMIT_SCOPE)
KIND: Final = label(names.LIMIT_KIND)
EVENT: Final = label(names.LIMIT_EVENT)
DECISION: Final = label(names.LIMIT_DECISION)
PRIORITY: Final = label(names.AGENT_PRIORITY)
SOURCE: Final = label(names.USAGE_SOURCE)
TENANT: Final = label(f"{names.TAG_PREFIX}tenant")
TEAM: Final = label(f"{names.TAG_PREFIX}team")

WHOSE: Final = label(names.LIMIT_SCOPE_NAME)
PER: Final = label(names.LIMIT_PER)
BY: Final = label(names.LIMIT_BY)
OF_LIMIT: Final = (SERVICE, ENVIRONMENT, SCOPE, WHOSE, KIND, PER, BY)
"""What tells one limit from another, of those that are told by name."""
OF_AGENT: Final = (SERVICE, ENVIRONMENT, AGENT, SCOPE, KIND)
"""What tells one limit from another, of those that are told by agent."""

NEAR_RULE: Final = 'ravi:near_limit:threshold{service_name=""}'
NEAR: Final = f"scalar(max({NEAR_RULE}) or vector(0.8))"
"""The share at which an alert tells a limit as near, as the rules have it; 0.8 in a Prometheus without our rules."""

RATE: Final = "$__rate_interval"
RANGE: Final = "$__range"
STEP: Final = "$__interval"
NOW: Final = "90s"

_TOLD: Final = (
    f"{prometheus(names.CALL_DURATION)}_count",
    f"{prometheus(names.INFERENCE_DURATION)}_count",
    f"{prometheus(names.AGENT_DURATION)}_count",
    prometheus(names.COST),
    prometheus(names.LIMIT_USED),
)
ANY_TOLD: Final = f'__name__=~"{"|".join(_TOLD)}"'
"""Of these a program that does anything tells one at each export."""

CALLS: Final = "gen_ai_client_(${convention:raw})_duration_seconds"
"""Calls under the names that services speak: the release's, or those of the convention's main branch."""
FIRST_CHUNKS: Final = "gen_ai_client_(${convention:raw})_time_to_first_chunk_seconds"
EACH_CHUNK: Final = "gen_ai_client_(${convention:raw})_time_per_output_chunk_seconds"

_BY_AGENT: Final = frozenset(
    {
        names.AGENT_DURATION,
        names.AGENT_ENDS,
        names.STEP_COUNT,
        names.HANDOFF_COUNT,
        names.GUARDRAIL_COUNT,
        names.AGENT_INFERENCE_CALLS,
        names.AGENT_TOOL_CALLS,
        names.COST,
        names.LIMIT_USED,
        names.LIMIT_THRESHOLD,
        names.LIMIT_FINAL_RATIO,
        names.LIMIT_EVENTS,
    }
)
_BY_MODEL: Final = frozenset(
    {names.COST, names.TOKEN_USAGE, names.INPUT_COUNT, names.OUTPUT_COUNT, names.CACHE_READ_COUNT}
    | {names.CACHE_WRITE_COUNT, names.REASONING_COUNT}
)
_WHERE: Final = (f'{SERVICE}=~"$service"', f'{ENVIRONMENT}=~"$environment"')


def of(metric: str, *where: str, part: str = "") -> str:
    """Select the series of a metric of ours, those of the variables alone; `part` is `_bucket`, `_sum` or `_count`."""
    matchers = [*_WHERE]
    if metric in _BY_AGENT:
        matchers.append(f'{AGENT}=~"$agent"')
    if metric in _BY_MODEL:
        matchers.append(f'{MODEL}=~"$model"')
    if metric == names.COST:
        matchers += [f'{TENANT}=~"$tenant"', f'{TEAM}=~"$team"']
    return f"{prometheus(metric)}{part}{{{','.join((*matchers, *where))}}}"


def calls(pattern: str, part: str, *where: str) -> str:
    """Select the series of model calls, under the names that the variable `convention` chooses."""
    matchers = (f'__name__=~"{pattern}{part}"', *_WHERE, f'{MODEL}=~"$model"', *where)
    return f"{{{','.join(matchers)}}}"


def spans(part: str, *where: str) -> str:
    """Select the collector's own metrics of spans, which know the agent of a call: `calls_total`, `duration_seconds_bucket`.

    A refused call has a span too, and was never sent: it is left out.
    """
    matchers = (*_WHERE, f'{AGENT}=~"$agent"', f'{MODEL}=~"$model"', 'span_kind="SPAN_KIND_CLIENT"', f'{OPERATION}!=""')
    sent = f'{ERROR}!~"ravi[.].+"'
    return f"traces_span_metrics_{part}{{{','.join((*matchers, sent, *where))}}}"


def total(expression: str, by: Sequence[str] = ()) -> str:
    """Sum, by some labels or to one figure."""
    return f"sum by ({', '.join(by)}) ({expression})" if by else f"sum({expression})"


def rate(selector: str, by: Sequence[str] = ()) -> str:
    """Give the rate a second, summed."""
    return total(f"rate({selector}[{RATE}])", by)


def _risen(selector: str, span: str) -> str:
    """Give by how much each series has risen in a span, exactly.

    `increase()` needs two samples of a series and guesses beyond them: a program of a few seconds would have spent nothing, or half as
    much again as it has. Each process has series of its own, which begin at 0; one that has begun anew counts from there. The hour is for
    what was not sent for a while, as when a collector was down: it is no new series when it comes back.
    """
    last = f"last_over_time({selector}[{span}])"
    return f"({last} - last_over_time({selector}[1h] offset {span}) >= 0) or {last}"


def moved(selector: str, by: Sequence[str] = ()) -> str:
    """Give by how much counters have risen in the time shown."""
    return total(_risen(selector, RANGE), by)


def stepped(selector: str, by: Sequence[str] = ()) -> str:
    """Give by how much counters have risen in each step of a graph: what happens once is in one bar, and bars add up."""
    return total(_risen(selector, STEP), by)


def now(selector: str) -> str:
    """Give a gauge while it is sent: otherwise it would be seen for five minutes after its program or scope has ended."""
    return f"last_over_time({selector}[{NOW}])"


def quantile(share: float, buckets: str, by: Sequence[str] = ()) -> str:
    """Give a quantile of a histogram over time, by some labels; nothing where nothing was measured, which would be NaN."""
    return f"histogram_quantile({share}, {rate(buckets, ('le', *by))}) >= 0"


def quantile_of_all(share: float, buckets: str, by: Sequence[str] = ()) -> str:
    """Give a quantile of all that a histogram has seen in the time shown."""
    return f"histogram_quantile({share}, {moved(buckets, ('le', *by))})"


def heard(metric: str, part: str = "") -> str:
    """Give when each service last told a metric, in seconds since 1970, by service and environment."""
    return f"max by ({SERVICE}, {ENVIRONMENT}) (timestamp({prometheus(metric)}{part}{{{','.join(_WHERE)}}}))"


def told(span: str = RANGE) -> str:
    """Give 0 where a program told anything in a span, and nothing where none did."""
    return f"0 * count(last_over_time({{{','.join((ANY_TOLD, *_WHERE))}}}[{span}]))"


def or_zero(expression: str, known: str | None = None) -> str:
    """Give 0 where nothing has been counted yet and something is `known`: a counter is not there before its first count.

    Without anything known there is no figure: that nobody has told of a refusal is not that nothing was refused.
    """
    return f"{expression} or {told() if known is None else known}"


def none_of(selector: str) -> str:
    """Give 0 where any of these series is known in the time shown."""
    return f"0 * count(last_over_time({selector}[{RANGE}]))"


def silent_for() -> str:
    """Give the seconds since each service that told something in the time shown was last heard of."""
    metrics = (
        (names.CALL_DURATION, "_count"),
        (names.INFERENCE_DURATION, "_count"),
        (names.WORKFLOW_DURATION, "_count"),
        (names.LIMIT_USED, ""),
    )
    each = " or ".join(f'label_replace({heard(metric, part)}, "told", "{prometheus(metric)}", "", "")' for metric, part in metrics)
    return f"time() - max by ({SERVICE}, {ENVIRONMENT}) (max_over_time(({each})[{RANGE}:1m]))"


def said(expression: str, name: str, text: str) -> str:
    """Give series without a label a text in its place: a legend would say "Value"."""
    return f'label_replace({expression}, "{name}", "{text}", "{name}", "")'


def ratio(part: str, whole: str) -> str:
    """Give a share, nothing where there is nothing to share."""
    return f"{part} / ({whole} > 0)"


_USED: Final = names.LIMIT_FULLEST_USED
_THRESHOLD: Final = names.LIMIT_FULLEST_THRESHOLD


def used() -> str:
    """Give used over limit of the fullest scopes by name, of each process."""
    return ratio(now(of(_USED)), now(of(_THRESHOLD)))


def used_by_agent() -> str:
    """Give used over limit of the fullest scope of each agent and kind, of any process."""
    return f"max by ({', '.join(OF_AGENT)}) ({ratio(now(of(names.LIMIT_USED)), now(of(names.LIMIT_THRESHOLD)))})"


def fullest(metric: str) -> str:
    """Give `metric` of that process in which a limit is fullest: the greatest use and the smallest limit may be two processes'."""
    of_limit = ", ".join(OF_LIMIT)
    worst = f"({used()} == on ({of_limit}) group_left () max by ({of_limit}) ({used()}))"
    return f"max by ({of_limit}) ({now(of(metric))} and {worst})"


def pace() -> str:
    """Give how much of each limit is used a second, by the last quarter of an hour; nothing where nothing is used."""
    return f"(deriv({of(_USED)}[15m]) > 0)"


def exhaustion() -> str:
    """Give the seconds until a limit is used up at the pace of the last quarter of an hour.

    Nothing where nothing is used, nor where it is used up already: that would hide the next one.
    """
    left = f"({now(of(_THRESHOLD))} - {now(of(_USED))} > 0)"
    return f"min by ({', '.join(OF_LIMIT)}) ({left} / {pace()})"


def refused(*where: str) -> str:
    """Select refusals that were meant: those of a limit that only observes let the call through."""
    return of(names.LIMIT_DENIED, f'{DECISION}!="observed"', *where)


EVENTS_TOLD: Final = (
    f"Each limit that came near or was exceeded, newest first: whose it is ({SCOPE}, {label(names.LIMIT_SCOPE_NAME)}), used, limit and "
    "the trace it happened in. Agent and run are told of limits within a run; a tenant's, session's or process's is of many, and its "
    "trace says whose call it was. An event with "
    f"{label(names.LIMIT_TRACKER)} is of a tracker that the program feeds itself: the scope is where it was fed, and has no such limit."
)
"""What the records of `limit_events` have."""


OF_SCOPES: Final = f'{label(names.LIMIT_TRACKER)}=""'
"""What leaves out events of trackers that programs feed themselves: no scope has their limits."""


def limit_events(*more: str) -> str:
    """Select the log records of limit events and no other: the same line may come a second time through a logging handler."""
    filters = ('event_name=~"ravi[.]limit[.].+"', f'{ENVIRONMENT}=~"$environment"', f'{AGENT}=~"$agent"', *more)
    return f'{{{SERVICE}=~"$service"}} | {" | ".join(filters)}'
