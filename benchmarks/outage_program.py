"""Be a program that ends spans, exported by us or by the stock SDK; print what it saw as one line of JSON.

    python benchmarks/outage_program.py ours|stock RATE SECONDS COUNT SIZE [LARGEST]

With a RATE, that many spans a second for SECONDS; else COUNT spans at once. SIZE characters of text are on each, and
LARGEST on the middle one; a negative SIZE is that of a prompt, which is told as a model call tells it. With
OUTAGE_SIGNALS=all a metric and a log record are exported besides.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import resource
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

from ravi_otel._telemetry.content import Content, as_text
from ravi_otel.policy._usage import Asked

PEAK = "VmHWM:"
NOW = "VmRSS:"


def memory_mb(line: str) -> float:
    """Read this process's memory."""
    for each in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if each.startswith(line):
            return int(each.split()[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


class Counting:
    """Be the counter of lost telemetry, read in this process."""

    def __init__(self) -> None:
        self.reasons: Counter[str] = Counter()

    def add(self, amount: int, attributes: dict[str, str]) -> None:
        """Count."""
        self.reasons[attributes["ravi.telemetry.reason"]] += amount


def ours(counting: Counting) -> Any:
    """Export as we do to OTEL_EXPORTER_OTLP_ENDPOINT, and give a tracer."""
    from ravi_otel._telemetry import Pipeline  # noqa: PLC0415 - the other way must not load it

    signals = Pipeline().signals()
    signals.instruments.counters["ravi.review.decisions"].add(1)
    signals.instruments.counters["ravi.telemetry.dropped"] = counting  # type: ignore[assignment]  # read here, and not from what a collector got
    signals.logger.emit(body="began")
    return signals.tracer


def stock() -> Any:
    """Export as the SDK does by itself."""
    from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter  # noqa: PLC0415 - the other way has its own
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter  # noqa: PLC0415 - the same
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415 - the same
    from opentelemetry.sdk._logs import LoggerProvider  # noqa: PLC0415 - the same
    from opentelemetry.sdk._logs.export import BatchLogRecordProcessor  # noqa: PLC0415 - the same
    from opentelemetry.sdk.metrics import MeterProvider  # noqa: PLC0415 - the same
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader  # noqa: PLC0415 - the same
    from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415 - the same
    from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415 - the same

    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    if os.environ.get("OUTAGE_SIGNALS") == "all":
        MeterProvider([PeriodicExportingMetricReader(OTLPMetricExporter())]).get_meter("outage").create_counter("began").add(1)
        logs = LoggerProvider()
        logs.add_log_record_processor(BatchLogRecordProcessor(OTLPLogExporter()))
        logs.get_logger("outage").emit(body="began")
    return provider.get_tracer("outage")


def text_of(size: int) -> str:
    """Make a text, or what is told of a prompt."""
    if size >= 0:
        return "p" * size
    asked = Asked(messages=[{"role": "user", "parts": [{"type": "text", "content": "p" * -size}]}])
    return next(iter(as_text(Content(on_spans=True).asked(asked)).values()))


def main() -> None:
    """Run."""
    kind, rate, seconds, count, size, *largest = sys.argv[1], *map(float, sys.argv[2:])
    told: dict[str, Any] = {}
    counting = Counting()
    if os.environ.get("OUTAGE_SIGNALS") != "all":
        os.environ |= {"OTEL_METRICS_EXPORTER": "none", "OTEL_LOGS_EXPORTER": "none"}
    out = os.fdopen(os.dup(1), "w")

    def report() -> None:
        # The high-water mark only rises: what the exporter took while the program worked and while it ended.
        out.write(json.dumps({**told, "peak": memory_mb(PEAK) - told["before"], "counted": dict(counting.reasons)}) + "\n")
        out.flush()

    atexit.register(report)  # first in, last out
    tracer = ours(counting) if kind == "ours" else stock()
    total = int(rate * seconds) if rate else int(count)
    took: list[int] = []
    gc.collect()
    told["before"] = memory_mb(NOW)
    threading.Event().wait(0.1)
    began = time.monotonic()
    for number in range(total):
        text = text_of(int(largest[0] if largest and number == total // 2 else size))
        span = tracer.start_span("call", attributes={"n": number, "text": text})
        start = time.perf_counter_ns()
        span.end()
        took.append(time.perf_counter_ns() - start)
        if rate:
            time.sleep(max(0.0, began + (number + 1) / rate - time.monotonic()))
    took.sort()
    told.update(total=total, p50=took[len(took) // 2] / 1e3, p99=took[int(len(took) * 0.99)] / 1e3, ended=time.time())


main()
