"""What a server may say over HTTP, and what of it is read, kept and believed."""

from __future__ import annotations

import gzip
import threading
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


def test_cookies_of_a_server_are_neither_kept_nor_sent_back(collector, wire):
    collector.otherwise = status(200, headers={"set-cookie": "session=1; Path=/"})
    assert [wire.send(b"", 5.0).verdict for _ in range(2)] == ["sent", "sent"]
    assert [headers.get("cookie") for headers in collector.headers] == [None, None]


def test_a_cookie_among_the_headers_that_were_asked_for_is_sent(collector, monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "cookie=tenant%3Done")
    collector.otherwise = status(200, headers={"set-cookie": "session=1; Path=/"})
    wire = HttpWire("traces", OTLPSpanExporter, ())
    assert [wire.send(b"", 5.0).verdict for _ in range(2)] == ["sent", "sent"]
    wire.close()
    assert [headers.get("cookie") for headers in collector.headers] == ["tenant=one", "tenant=one"]


def test_a_forked_child_waits_for_no_lock_that_its_parent_held(collector, wire):
    """The session's jar is locked by another thread, as a fork finds it while an answer is read."""
    answers = []
    with wire._session.cookies._cookies_lock:
        wire.renew()
        sending = threading.Thread(target=lambda: answers.append(wire.send(b"", 5.0).verdict), daemon=True)
        sending.start()
        sending.join(5.0)
    assert answers == ["sent"]
