"""Say what happened: spans, metrics and limit events under the OpenTelemetry GenAI names."""

from ravi_otel._telemetry.invocation import Telemetry, build
from ravi_otel._telemetry.pipeline import Pipeline
from ravi_otel._telemetry.private import Sink

__all__ = ["Pipeline", "Sink", "Telemetry", "build"]
