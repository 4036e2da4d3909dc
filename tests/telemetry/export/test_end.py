"""What is said and counted at the end, when there was no time for the end."""

from __future__ import annotations

import threading

import pytest
from misbehaving import status

from ravi_otel._telemetry import providers
from ravi_otel._telemetry.export import spool as spool_module
from ravi_otel._telemetry.providers import Pipeline


@pytest.fixture
def pipeline(collector, monkeypatch):
    for name, value in {"ENDPOINT": collector.url, "TIMEOUT": "20"}.items():
        monkeypatch.setenv(f"OTEL_EXPORTER_OTLP_{name}", value)
    monkeypatch.setenv("OTEL_METRICS_EXPORTER", "none")
    monkeypatch.setenv("OTEL_LOGS_EXPORTER", "none")
    return Pipeline()


def spans(pipeline: Pipeline, amount: int) -> None:
    tracer = pipeline.signals().tracer
    assert tracer is not None
    for _ in range(amount):
        tracer.start_span("one").end()


def test_what_a_disk_that_hangs_does_not_take_by_the_end_is_said(collector, pipeline, spool, monkeypatch, caplog):
    collector.otherwise = status(503)
    monkeypatch.setenv("RAVI_EXPORT_SPOOL", str(spool))
    going = threading.Event()
    monkeypatch.setattr(spool_module, "_write", lambda *_: going.wait(20))
    spans(pipeline, 600)
    assert pipeline.shutdown(0.8) is False
    going.set()
    assert "telemetry was lost: 600 shutdown" in caplog.text


def test_what_is_lost_is_said_also_where_the_end_is_cut_by_a_second_interrupt(collector, pipeline, monkeypatch, caplog):
    collector.otherwise = collector.trickle()

    def interrupted(*_):
        collector.wait(lambda: collector.requests)
        raise KeyboardInterrupt

    spans(pipeline, 5)
    monkeypatch.setattr(providers, "close", interrupted)
    with pytest.raises(KeyboardInterrupt):
        pipeline.shutdown()
    assert "telemetry was lost: 5 shutdown" in caplog.text


def test_of_what_is_lost_while_a_collector_hangs_at_the_end_the_cause_is_said(collector, pipeline, caplog):
    collector.otherwise = collector.trickle()
    spans(pipeline, 5)
    assert pipeline.shutdown(0.8) is False
    assert "telemetry was lost: 5 shutdown (the collector did not answer in time)" in caplog.text
