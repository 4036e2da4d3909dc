"""What a server may say over HTTP, and what of it is read, kept and believed."""

from __future__ import annotations

import gzip
import tracemalloc

import pytest
from misbehaving import status
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

from ravi_otel.telemetry.export.http_wire import HttpWire


@pytest.fixture
def wire(collector, monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
    made = HttpWire("traces", OTLPSpanExporter, ())
    yield made
    made.close()


def test_of_an_answer_that_sends_us_elsewhere_nothing_is_inflated(collector, wire):
    bomb = gzip.compress(bytes(16 << 20))
    collector.otherwise = status(302, headers={"location": f"{collector.url}/elsewhere", "content-encoding": "gzip"}, body=bomb)
    tracemalloc.start()
    try:
        answer = wire.send(b"", 5.0)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (answer.verdict, answer.why, collector.requests) == ("never", "the collector answered 302", 1)
    assert most < 4 << 20
