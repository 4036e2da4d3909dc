"""Emit what happened: spans, metrics and limit events under the OpenTelemetry GenAI names."""

import typing as _typing

from ravi_otel._lazy import lazy_names as _lazy_names

if _typing.TYPE_CHECKING:
    from ravi_otel._telemetry.providers import Pipeline, Sink
    from ravi_otel._telemetry.telemetry import Telemetry

__all__ = ["Pipeline", "Sink", "Telemetry"]

_HOMES = {"providers": ("Pipeline", "Sink"), "telemetry": ("Telemetry",)}
"""Module → the names that live in it: who needs a name alone loads no more than the table of names."""

__getattr__, __dir__ = _lazy_names(__name__, _HOMES)
