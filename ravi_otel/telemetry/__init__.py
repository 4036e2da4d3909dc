"""Say what happened: spans, metrics and limit events under the OpenTelemetry GenAI names."""

from ravi_otel.telemetry.invocation import Telemetry, build
from ravi_otel.telemetry.pipeline import Pipeline
from ravi_otel.telemetry.private import Sink

__all__ = ["Pipeline", "Sink", "Telemetry", "build"]
