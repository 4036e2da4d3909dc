"""Know the variables that we read, and those of OpenTelemetry that matter, so that a name written wrong is seen."""

from __future__ import annotations

import difflib
from collections.abc import Collection
from typing import Final

from ravi_otel.policy._limits import Kind

_SIGNALS: Final = ("TRACES", "METRICS", "LOGS")
_OTLP: Final = ("ENDPOINT", "PROTOCOL", "HEADERS", "TIMEOUT", "COMPRESSION", "CERTIFICATE", "CLIENT_CERTIFICATE", "CLIENT_KEY", "INSECURE")

OURS: Final = frozenset(
    {
        *(f"RAVI_LIMIT_{kind.upper()}" for kind in Kind),
        "RAVI_ADMISSION",
        "RAVI_ALLOW_UNSEEN",
        "RAVI_APPROVALS",
        "RAVI_CARRY_AS",
        "RAVI_CARRY_BAGGAGE",
        "RAVI_CARRY_KEYS",
        "RAVI_CARRY_TO",
        "RAVI_CARRY_TRUST",
        "RAVI_CONTENT_BYTES",
        "RAVI_CONTENT_TEXT_BYTES",
        "RAVI_DETAIL",
        "RAVI_ENFORCEMENT",
        "RAVI_EXPORT_SPOOL",
        "RAVI_EXPORT_SPOOL_AGE_S",
        "RAVI_EXPORT_SPOOL_BYTES",
        "RAVI_FOOTERS",
        "RAVI_FRAMEWORKS",
        "RAVI_INCLUDE_USAGE",
        "RAVI_JAEGER_URL",
        "RAVI_LAUNCH",
        "RAVI_LAUNCH_FD",
        "RAVI_LAUNCH_SITE",
        "RAVI_LEASE_S",
        "RAVI_LEDGER",
        "RAVI_LIMIT_LOG",
        "RAVI_LIVE",
        "RAVI_POLICY",
        "RAVI_PROFILE",
        "RAVI_FORMATS",
        "RAVI_PROVIDERS",
        "RAVI_RAISE_BUGS",
        "RAVI_REDACT",
        "RAVI_SHORTEN_TIMEOUTS",
        "RAVI_SIGTERM",
        "RAVI_STEP_SPANS",
        "RAVI_STORE",
        "RAVI_TIME_PER_OUTPUT_CHUNK",
        "RAVI_USAGE_HOSTS",
        "RAVI_WARN_AT",
    }
)
"""Every variable of ours that a program reads; those of the stack's servers are in its `.env`."""

STANDARD: Final = frozenset(
    {
        *(f"OTEL_EXPORTER_OTLP_{name}" for name in _OTLP),
        *(f"OTEL_EXPORTER_OTLP_{signal}_{name}" for signal in _SIGNALS for name in _OTLP),
        *(f"OTEL_{signal}_EXPORTER" for signal in _SIGNALS),
        *(f"OTEL_{kind}_{name}" for kind in ("BSP", "BLRP") for name in ("SCHEDULE_DELAY", "MAX_QUEUE_SIZE", "MAX_EXPORT_BATCH_SIZE")),
        "OTEL_BLRP_EXPORT_TIMEOUT",
        "OTEL_BSP_EXPORT_TIMEOUT",
        "OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION",
        "OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE",
        "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT",
        "OTEL_METRICS_EXEMPLAR_FILTER",
        "OTEL_METRIC_EXPORT_INTERVAL",
        "OTEL_METRIC_EXPORT_TIMEOUT",
        "OTEL_PROPAGATORS",
        "OTEL_RESOURCE_ATTRIBUTES",
        "OTEL_SDK_DISABLED",
        "OTEL_SEMCONV_STABILITY_OPT_IN",
        "OTEL_SERVICE_NAME",
        "OTEL_TRACES_SAMPLER",
        "OTEL_TRACES_SAMPLER_ARG",
    }
)
"""Variables of OpenTelemetry that say where telemetry goes and what it says; it has more, so that only a near miss is told."""

_PREFIX: Final = "RAVI_"
_LIMITING: Final = frozenset({"RAVI_LEDGER", "RAVI_POLICY"})
_SENDING: Final = ("_ENDPOINT", "_HEADERS", "_PROTOCOL", "_CERTIFICATE", "_CLIENT_KEY")
_NEAR_OURS: Final = 0.75
_NEAR_STANDARD: Final = 0.88
_LONGEST: Final = 80


def meant(name: str, known: Collection[str]) -> str | None:
    """Give the variable that a name of ours was meant to be; None when none is near."""
    stems = {each.removeprefix(_PREFIX): each for each in known}
    stem = name.upper().removeprefix(_PREFIX)
    ending = [each for each in stems if each.endswith(f"_{stem}")]
    close = ending[0] if len(ending) == 1 else _near(stem, stems, _NEAR_OURS)  # RAVI_SPOOL is RAVI_EXPORT_SPOOL
    return stems[close] if close else None


def is_weighty(name: str) -> bool:
    """Tell whether telemetry would be lost, or a limit not kept, where this variable is written wrong and so not read."""
    return name in _LIMITING or name.endswith(_SENDING)


def nearly(name: str) -> str | None:
    """Give the variable of OpenTelemetry that a name nearly is; None for one that is right, or for no near miss."""
    if name in STANDARD:
        return None
    return _near(name, STANDARD, _NEAR_STANDARD)


def _near(name: str, known: Collection[str], cutoff: float) -> str | None:
    if len(name) > _LONGEST:
        return None
    close = difflib.get_close_matches(name.upper(), sorted(known), n=1, cutoff=cutoff)
    return close[0] if close else None
