"""Say under which name Prometheus keeps a metric or an attribute that goes out by OTLP."""

from __future__ import annotations

from typing import Final

from ravi_otel._telemetry.names import METRICS

_SUFFIXES: Final = {"s": "seconds", "USD": "USD"}
"""Units that become part of a name; none in braces does, such as `{token}`, nor an empty one."""


def prometheus(metric: str) -> str:
    """Give the name of a metric, of a histogram without `_bucket`, `_sum` or `_count`; KeyError for a name that never goes out."""
    row = METRICS[metric]
    name = label(metric)
    suffix = _SUFFIXES.get(row.unit)
    if suffix is None and row.unit and not row.unit.startswith("{"):
        raise ValueError(f"{metric} has the unit {row.unit!r}, of which nobody has said here what Prometheus makes.")
    if suffix is not None and not name.endswith(f"_{suffix}"):
        name = f"{name}_{suffix}"
    return f"{name}_total" if row.kind == "counter" else name


def label(attribute: str) -> str:
    """Give the label of an attribute, which is also what Loki calls it."""
    return attribute.replace(".", "_")
