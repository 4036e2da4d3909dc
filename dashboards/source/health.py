"""The dashboard of the telemetry itself: what is lost, unknown or stuck on its way, from the program to the rules."""

from __future__ import annotations

from typing import Any

from dashboards.source import foreign as f
from dashboards.source import panels as p
from dashboards.source import queries as q
from dashboards.source.board import HEALTH, Board
from dashboards.source.names import label
from ravi_otel._telemetry import names

_DROPPED = q.of(names.DROPPED)
_DROP_REASON = label(names.DROP_REASON)
_FAULT = label(names.HOOK_FAULT)
_CARRIER_REASON = label(names.CARRIER_REASON)
_OURS = 'job="collector"'
"""Jaeger is a collector too, and counts under the same names what ours has sent it."""
_QUEUE_SIZE = f"otelcol_exporter_queue_size{{{_OURS}}}"
_QUEUE_CAPACITY = f"otelcol_exporter_queue_capacity{{{_OURS}}}"
_QUEUE = f"{_QUEUE_SIZE} / ({_QUEUE_CAPACITY} > 0)"
_SAMPLED = f.counter("otelcol_processor_tail_sampling_global_count_traces_sampled")
_UNDELIVERED = {
    "alertmanager_notification_requests_failed_total": "attempts that failed",
    "alertmanager_notifications_failed_total": "given up",
}
_ANSWERS = f"0 * count(up{{{_OURS}}} == 1)"
"""A collector that answers and does not know a counter has counted nothing."""
_SILENT_S = 180
"""Three exports of a program that sends each minute."""
_BY_EXPORTER = "{{exporter}} {{data_type}}"


def make() -> Board:
    """Make the dashboard."""
    board = Board(
        HEALTH,
        "Ravi / Telemetry health",
        "Can the other dashboards be believed: what was lost in programs, what waits or fails in the collector, and whether rules are "
        "worked out.",
    )
    silent, *lost = _lost()
    board.first("Now", *heard(), *_now(), silent, _targets(), lost[0])
    board.row("In programs: what was lost", *lost[1:])
    board.row("In programs: what limits do not know", *_unknown())
    board.row("In the collector", *_collector())
    board.row("In Prometheus and Alertmanager", *_rules(), *_alerts(), *_samples())
    return board


def _named(pattern: str, *where: str) -> str:
    matchers = (f'__name__=~"{pattern}"', _OURS, *where)
    return f"{{{','.join(matchers)}}}"


def _rate(pattern: str, by: tuple[str, ...]) -> str:
    return q.rate(_named(pattern), by)


def _told(what: str, by: tuple[str, ...], legend: str) -> list[p.Query]:
    """Tell the rates of a collector's counters, one query for each signal."""
    return [p.series(_rate(pattern, by), legend.format(signal)) for signal, pattern in f.counters(what).items()]


def _lost_by(what: str) -> str:
    return " + ".join(f"({q.or_zero(q.moved(_named(pattern)), _ANSWERS)})" for pattern in f.counters(what).values())


def heard(to: p.Link | None = None) -> list[p.Figure]:
    """Make the two figures that say whether the others can be believed: who does not answer, and who says nothing any more."""
    silent = q.silent_for()
    made = [
        p.figure(
            "Targets down",
            "Servers of the stack that Prometheus does not reach now: collector, stores, Alertmanager. What they hold is not shown, and "
            "what is sent to them waits in the collector's queue. No data: Prometheus itself does not answer, or asks nobody.",
            "none",
            p.reading("count(up == 0) or 0 * count(up)"),
            steps=p.ANY_IS_BAD,
            width=3,
            scraped=True,
        ),
        p.figure(
            "Services silent",
            f"Services that told something in the time shown and nothing in the last {_SILENT_S // 60} minutes: ended, or cut off. "
            "No data: no program has told anything in that time.",
            "none",
            p.reading(f"count({silent} > {_SILENT_S}) or 0 * count({silent})"),
            steps=p.ANY_IS_ODD,
            width=3,
        ),
    ]
    return made if to is None else [figure.data_links([to]) for figure in made]


def _now() -> list[p.Figure]:
    return [
        p.figure(
            "Lost in programs",
            "Spans, points and records that programs could not keep or send, in the time shown. The row below says why.",
            "none",
            p.reading(q.or_zero(q.moved(_DROPPED))),
            steps=p.ANY_IS_BAD,
            decimals=0,
            width=3,
        ),
        p.figure(
            "Store errors",
            "Failures of the store of counters, in the time shown. Limits that are shared are then held by what its setting says: "
            "refused, passed or counted alone.",
            "none",
            p.reading(q.or_zero(q.moved(q.of(names.LIMIT_STORE_ERRORS)))),
            steps=p.ANY_IS_BAD,
            decimals=0,
            width=3,
        ),
        p.figure(
            "Unpriced calls",
            "Calls in the time shown whose model has no known price: they are missing in every sum of money.",
            "none",
            p.reading(q.or_zero(q.moved(q.of(names.LIMIT_UNPRICED)))),
            steps=p.ANY_IS_ODD,
            decimals=0,
            width=3,
        ),
        p.figure(
            "Fullest queue",
            "The fullest sending queue of a collector. At 100 % it refuses, and programs begin to lose.",
            "percentunit",
            p.reading(f"max({_QUEUE})"),
            steps=((None, "green"), (0.5, "orange"), (0.8, "red")),
            width=3,
            scraped=True,
        ),
        p.figure(
            "Lost in the collector",
            "What a collector's exporters gave up or could not queue, in the time shown.",
            "none",
            p.reading(f"{_lost_by('exporter_send_failed')} + {_lost_by('exporter_enqueue_failed')}"),
            scraped=True,
            steps=p.ANY_IS_BAD,
            decimals=0,
            width=3,
        ),
        p.figure(
            "Rules that fail",
            "Times that a rule could not be worked out, in the time shown. While one fails, its alert is silent.",
            "none",
            p.reading(q.moved("prometheus_rule_evaluation_failures_total")),
            scraped=True,
            steps=p.ANY_IS_BAD,
            decimals=0,
            width=3,
        ),
    ]


def _lost() -> list[Any]:
    silent = p.rows(
        "When services were last heard of",
        "Each service that told something in the time shown, and how long ago that was, the longest first. One that has ended is silent "
        "too: whether it should have is what you know, and what RaviServiceSilent guesses.",
        "s",
        [p.column(q.silent_for())],
        {q.SERVICE: "Service", q.ENVIRONMENT: "Environment", "Value": "Silent for"},
        width=8,
        worst="Silent for",
    ).height(10)
    p.widened(silent, {"Silent for": 120})
    p.dressed(silent, "Silent for", "s", ((None, "green"), (_SILENT_S, "orange")))
    return [
        silent,
        p.lines(
            "Lost, by reason",
            "Items that a program lost: queue_full and shutdown where the collector is away or slow, export_failed and rejected where "
            "it refused.",
            "none",
            p.series(q.stepped(_DROPPED, (q.SERVICE, _DROP_REASON)), f"{{{{{q.SERVICE}}}}} {{{{{_DROP_REASON}}}}}"),
            bars=True,
        ),
        p.lines(
            "Faults of hooks",
            "By fault: raised, slow, late, lost. They change nothing in the run.",
            "none",
            p.series(q.stepped(q.of(names.HOOK_ERRORS), (q.SERVICE, _FAULT)), f"{{{{{q.SERVICE}}}}} {{{{{_FAULT}}}}}"),
            bars=True,
        ),
    ]


def _unknown() -> list[p.Lines]:
    return [
        p.lines(
            "Store errors over time",
            "Failures of the store of counters, by program. Where it stays, see the runbook of RaviStoreDegraded.",
            "none",
            p.series(q.stepped(q.of(names.LIMIT_STORE_ERRORS), (q.SERVICE,)), f"{{{{{q.SERVICE}}}}}"),
            bars=True,
        ),
        p.lines(
            "Unpriced and unscoped calls",
            "Calls without a known price, and calls outside every scope, which no limit of a run can hold.",
            "none",
            p.series(q.stepped(q.of(names.LIMIT_UNPRICED), (q.SERVICE,)), f"unpriced {{{{{q.SERVICE}}}}}"),
            p.series(q.stepped(q.of(names.LIMIT_UNSCOPED), (q.SERVICE,)), f"unscoped {{{{{q.SERVICE}}}}}"),
            bars=True,
        ),
        p.lines(
            "Budgets from others that were not believed",
            "What another process sent along with a request and nobody believed, by reason: a wrong signature is a wrong key or an attack.",
            "none",
            p.series(
                q.stepped(q.of(names.CARRIER_REJECTED), (q.SERVICE, _CARRIER_REASON)), f"{{{{{q.SERVICE}}}}} {{{{{_CARRIER_REASON}}}}}"
            ),
            bars=True,
        ),
    ]


def _collector() -> list[p.Lines]:
    receiver = ("receiver", "transport")
    return [
        p.lines(
            "Sending queue, used of capacity",
            "By exporter. A queue that stays full is a backend that is down or too slow. It is on disk: what is in it survives a "
            "restart. Dashed: 50 % and 80 %.",
            "percentunit",
            p.series(f"max by (exporter, data_type) ({_QUEUE})", _BY_EXPORTER),
            steps=((None, "green"), (0.5, "orange"), (0.8, "red")),
            scraped=True,
        ),
        p.lines(
            "Sending queue, waiting and capacity",
            "What waits, and how much may, by exporter: in bytes, as our collector counts its queues. Another one may count requests or "
            "items.",
            "bytes",
            p.series(f"max by (exporter, data_type) ({_QUEUE_SIZE})", f"{_BY_EXPORTER}: waiting"),
            p.series(f"max by (exporter, data_type) ({_QUEUE_CAPACITY})", f"{_BY_EXPORTER}: capacity"),
            scraped=True,
        ),
        p.lines(
            "Given up by exporters",
            "Items a second that an exporter gave up sending, or that its full queue refused. What is being tried again is not among them.",
            "none",
            *_told("exporter_send_failed", ("exporter",), "{{{{exporter}}}}: {} given up"),
            *_told("exporter_enqueue_failed", ("exporter",), "{{{{exporter}}}}: queue full for {}"),
            bars=True,
            scraped=True,
        ),
        p.lines(
            "Received",
            "Spans, points and records a second that a collector took in, by receiver.",
            "none",
            *_told("receiver_accepted", receiver, "{{{{receiver}}}} {{{{transport}}}}: {}"),
            scraped=True,
        ),
        p.lines(
            "Refused and failed at the door",
            "Items a second that a receiver or the memory limiter sent back. Programs try again, and lose what does not fit into their "
            "queues.",
            "none",
            *_told("receiver_refused", receiver, "{{{{receiver}}}} {{{{transport}}}}: {} refused"),
            *_told("receiver_failed", receiver, "{{{{receiver}}}} {{{{transport}}}}: {} failed"),
            *_told("processor_memory_limiter_refused", ("processor",), "{{{{processor}}}}: {} refused"),
            bars=True,
            scraped=True,
        ),
        p.lines(
            "Sent",
            "Spans, points and records a second that arrived at a backend, by exporter.",
            "none",
            *_told("exporter_sent", ("exporter",), "{{{{exporter}}}}: {}"),
            scraped=True,
        ),
        p.lines(
            "Traces kept and left out by sampling",
            "Traces a second, by decision. Errors and traces with a limit event are always kept; metrics are counted before sampling.",
            "none",
            *(
                p.series(q.rate(_named(_SAMPLED, f'sampled="{sampled}"')), legend)
                for sampled, legend in (("true", "kept"), ("false", "let go"))
            ),
            scraped=True,
        ),
        p.lines(
            "Traces that wait for a decision",
            "Traces in the memory of the sampler. At most 50,000 (num_traces, in production.yaml) wait: what comes beyond that is let go "
            "before it is decided, errors too. Dashed: half of them.",
            "short",
            p.series(f"sum({_named('otelcol_processor_tail_sampling_sampling_traces_on_memory')})", "in memory"),
            steps=((None, "green"), (25_000, "orange"), (50_000, "red")),
            scraped=True,
        ),
        p.lines(
            "Memory of the collector",
            "Resident memory. Near its limit the memory limiter refuses.",
            "bytes",
            p.series(f"max by (instance) ({_named('otelcol_process_memory_rss(_bytes)?')})", "{{instance}}"),
            scraped=True,
        ),
        p.lines(
            "Processor time of the collector",
            "Cores in use by the collector.",
            "none",
            p.series(_rate(f.counter("otelcol_process_cpu_seconds"), ("instance",)), "{{instance}}"),
            scraped=True,
        ),
    ]


def _group(expression: str) -> str:
    """Leave of a group's name the group, without the path of its file."""
    return f'label_replace({expression}, "rule_group", "$1", "rule_group", ".*;(.+)")'


def _rules() -> list[p.Lines]:
    return [
        p.lines(
            "Rules that fail or are late",
            "A second: rules that could not be worked out, and rounds of a group that were left out because the one before took too long.",
            "none",
            p.series(
                _group("sum by (rule_group) (rate(prometheus_rule_evaluation_failures_total[$__rate_interval]))"), "fails: {{rule_group}}"
            ),
            p.series(
                _group("sum by (rule_group) (rate(prometheus_rule_group_iterations_missed_total[$__rate_interval]))"),
                "left out: {{rule_group}}",
            ),
            scraped=True,
            width=12,
        ),
        p.lines(
            "Time for rules, of their interval",
            "How much of its interval a group of rules takes. At 100 % rounds are left out.",
            "percentunit",
            p.series(
                _group("max by (rule_group) (prometheus_rule_group_last_duration_seconds / (prometheus_rule_group_interval_seconds > 0))"),
                "{{rule_group}}",
            ),
            steps=((None, "green"), (0.5, "orange"), (1.0, "red")),
            scraped=True,
            width=12,
        ),
    ]


def _targets() -> p.Lines:
    return p.lines(
        "Targets that answer",
        "1 where Prometheus reaches what it scrapes, 0 where it does not. Programs are not among them: they send.",
        "none",
        p.series("min by (job, instance) (up)", "{{job}} {{instance}}"),
        scraped=True,
    )


def _alerts() -> list[p.Lines]:
    return [
        p.lines(
            "Alerts on their way to Alertmanager",
            "Alerts a second that were dropped or could not be delivered, and how many wait.",
            "none",
            p.series("sum(rate(prometheus_notifications_dropped_total[$__rate_interval]))", "dropped"),
            p.series("sum by (alertmanager) (rate(prometheus_notifications_errors_total[$__rate_interval]))", "errors: {{alertmanager}}"),
            p.series("sum(prometheus_notifications_queue_length)", "waiting"),
            width=12,
            scraped=True,
        ),
        p.lines(
            "Messages of Alertmanager that did not arrive",
            "How many attempts failed, and how many messages were given up, by way: webhook, email, slack. While there are any, nobody is "
            "told that way: is its receiver up, and its address in alertmanager.yaml right?",
            "none",
            *(p.series(q.stepped(metric), f"all: {what}") for metric, what in _UNDELIVERED.items()),
            *(
                p.series(f"{q.stepped(metric, ('integration',))} > 0", f"{{{{integration}}}}: {what}")
                for metric, what in _UNDELIVERED.items()
            ),
            width=12,
            scraped=True,
        ),
    ]


def _samples() -> list[p.Lines]:
    return [
        p.lines(
            "Samples that came too late",
            "A second: out of order, which is taken within the window that is set, and too old, which is lost.",
            "none",
            p.series("sum(rate(prometheus_tsdb_out_of_order_samples_total[$__rate_interval]))", "out of order"),
            p.series("sum(rate(prometheus_tsdb_too_old_samples_total[$__rate_interval]))", "too old"),
            width=12,
            scraped=True,
        ),
        p.lines(
            "Series and exemplars",
            "How many series are kept in memory, and how many exemplars, which lead from a point to its trace. Series that only grow "
            "are a label with too many values.",
            "none",
            p.series("sum(prometheus_tsdb_head_series)", "series"),
            p.series("sum(prometheus_tsdb_exemplar_exemplars_in_storage)", "exemplars"),
            width=12,
            scraped=True,
        ),
    ]
