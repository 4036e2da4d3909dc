"""List the metrics that are not ours, and where each comes from.

A counter of the collector ends in `_total` or not, by how its own telemetry is read: both are asked for.
"""

from __future__ import annotations

from typing import Final

_SIGNALS: Final = ("spans", "metric_points", "log_records")

EXPORTER: Final = "opentelemetry-collector, exporter/exporterhelper/metadata.yaml"
RECEIVER: Final = "opentelemetry-collector, receiver/receiverhelper/metadata.yaml"
SERVICE: Final = "opentelemetry-collector, service/metadata.yaml"
LIMITER: Final = "opentelemetry-collector, processor/memorylimiterprocessor/metadata.yaml"
SAMPLING: Final = "opentelemetry-collector-contrib, processor/tailsamplingprocessor/metadata.yaml"
SPAN_METRICS: Final = "the connector span_metrics in collector/otelcol/base.yaml, before any sampling"
PROMETHEUS: Final = "prometheus, its own /metrics"
RULES: Final = "prometheus, written by every alert rule that is pending or fires"
THRESHOLDS: Final = "prometheus, recorded by collector/prometheus/rules/thresholds.yaml"
ALERTMANAGER: Final = "alertmanager, its own /metrics"

_COUNTERS: Final = {
    **{f"otelcol_receiver_{what}_{signal}": RECEIVER for what in ("accepted", "refused", "failed") for signal in _SIGNALS},
    **{f"otelcol_exporter_{what}_{signal}": EXPORTER for what in ("sent", "send_failed", "enqueue_failed") for signal in _SIGNALS},
    **{f"otelcol_processor_memory_limiter_refused_{signal}": LIMITER for signal in _SIGNALS},
    "otelcol_processor_tail_sampling_global_count_traces_sampled": SAMPLING,
    "otelcol_process_cpu_seconds": SERVICE,
}

NAMES: Final[dict[str, str]] = {
    **_COUNTERS,
    **{f"{name}_total": source for name, source in _COUNTERS.items()},
    "traces_span_metrics_calls_total": SPAN_METRICS,
    "traces_span_metrics_duration_seconds_bucket": SPAN_METRICS,
    "otelcol_exporter_queue_size": EXPORTER,
    "otelcol_exporter_queue_capacity": EXPORTER,
    "otelcol_processor_tail_sampling_sampling_traces_on_memory": SAMPLING,
    "otelcol_process_memory_rss": SERVICE,
    "otelcol_process_memory_rss_bytes": SERVICE,
    "up": "prometheus, written for every target it scrapes",
    "ALERTS": RULES,
    "ravi:near_limit:threshold": THRESHOLDS,
    "alertmanager_notification_requests_failed_total": ALERTMANAGER,
    "alertmanager_notifications_failed_total": ALERTMANAGER,
    "prometheus_rule_evaluation_failures_total": PROMETHEUS,
    "prometheus_rule_group_iterations_missed_total": PROMETHEUS,
    "prometheus_rule_group_last_duration_seconds": PROMETHEUS,
    "prometheus_rule_group_interval_seconds": PROMETHEUS,
    "prometheus_notifications_dropped_total": PROMETHEUS,
    "prometheus_notifications_errors_total": PROMETHEUS,
    "prometheus_notifications_queue_length": PROMETHEUS,
    "prometheus_tsdb_out_of_order_samples_total": PROMETHEUS,
    "prometheus_tsdb_too_old_samples_total": PROMETHEUS,
    "prometheus_tsdb_head_series": PROMETHEUS,
    "prometheus_tsdb_exemplar_exemplars_in_storage": PROMETHEUS,
}


def counter(name: str) -> str:
    """Give the pattern of a collector's counter, with `_total` and without."""
    if name not in _COUNTERS:
        raise KeyError(name)
    return f"{name}(_total)?"


def counters(what: str) -> dict[str, str]:
    """Give the patterns of a collector's counters of the three signals, such as `exporter_sent`, by what they count.

    One by one: a rate drops the name, and three names of the same labels would then be one series thrice, which is an error.
    """
    return {signal.replace("_", " "): counter(f"otelcol_{what}_{signal}") for signal in _SIGNALS}
