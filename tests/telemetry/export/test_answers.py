"""What becomes of a batch, by what a real collector answers."""

from __future__ import annotations

import logging
import socket

import pytest
from misbehaving import lost_reply, status
from opentelemetry import context
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from requests.sessions import Session


def test_what_a_collector_takes_arrives_once_and_in_order(collector, exporting):
    exports = exporting()
    exports.spans("one", "two", "three")
    assert exports.flush() is True
    exports.spans("four")
    exports.end()
    assert collector.received == ["one", "two", "three", "four"]
    assert exports.lost == {}


def test_one_connection_serves_many_requests(collector, exporting):
    exports = exporting()
    for number in range(3):
        exports.spans(f"span {number}")
        assert exports.flush() is True
    assert (collector.requests, collector.connections) == (3, 1)


@pytest.mark.parametrize("code", [429, 502, 503, 504])
def test_a_collector_that_is_busy_is_asked_again_and_gets_the_batch_once(collector, exporting, code):
    collector.answers.append(status(code, headers={"retry-after": "0"}))
    exports = exporting()
    exports.spans("one", "two")
    assert exports.flush() is False
    collector.wait(lambda: collector.received)
    assert exports.flush() is True
    assert collector.received == ["one", "two"]
    assert (collector.requests, exports.lost) == (2, {})


def test_nobody_is_asked_again_before_the_time_he_said(collector, exporting):
    collector.answers.append(status(503, headers={"retry-after": "100"}))
    exports = exporting()
    exports.spans("one")
    assert exports.flush() is False
    exports.spans("two")
    assert exports.flush() is False
    exports.end()
    assert (collector.requests, exports.lost) == (1, {"shutdown": 2})


@pytest.mark.parametrize("code", [302, 400, 401, 404, 500])
def test_what_is_refused_for_good_is_counted_and_not_sent_again(collector, exporting, code):
    collector.answers.append(status(code, headers={"location": f"{collector.url}/elsewhere"}))
    exports = exporting()
    exports.spans("one", "two")
    assert exports.flush() is False
    exports.spans("three")
    assert exports.flush() is True
    assert (collector.received, exports.lost, collector.requests) == (["three"], {"export_failed": 2}, 2)


def test_what_a_collector_takes_out_of_a_batch_is_counted(collector, exporting):
    response = ExportTraceServiceResponse()
    response.partial_success.rejected_spans = 2
    collector.answers.append(status(200, body=response.SerializeToString()))
    exports = exporting()
    exports.spans("one", "two", "three")
    assert exports.flush() is True
    assert exports.lost == {"rejected": 2}


def test_a_batch_too_large_for_the_collector_is_halved_until_it_fits(collector, exporting):
    collector.most_body = 2_000
    exports = exporting()
    sent = [f"span {number}" for number in range(64)]
    exports.spans(*sent, text="x" * 100)
    assert exports.flush() is True
    assert collector.received == sent
    assert exports.lost == {}


def test_one_span_too_large_for_the_collector_is_counted_and_the_others_arrive(collector, exporting):
    collector.most_body = 20_000
    exports = exporting()
    exports.spans("one", "two")
    exports.spans("large", text="x" * 30_000)
    exports.spans("three")
    assert exports.flush() is False
    exports.end()
    assert collector.received == ["one", "two", "three"]
    assert exports.lost == {"too_large": 1}


def test_one_span_of_65_mib_among_511_is_counted_and_never_encoded(collector, exporting):
    exports = exporting()
    exports.spans(*(f"span {number}" for number in range(255)))
    exports.spans("large", text="x" * (65 << 20))
    exports.spans(*(f"span {number}" for number in range(255, 510)))
    assert exports.flush() is True
    assert len(collector.received) == 510
    assert exports.lost == {"too_large": 1}


def test_more_than_one_request_may_hold_is_sent_in_several(collector, exporting):
    collector.most_body = 4 << 20
    exports = exporting()
    for number in range(6):
        exports.spans(f"span {number}", text="x" * 680_000)
    assert exports.flush() is True
    assert sorted(collector.received) == [f"span {number}" for number in range(6)]
    assert collector.requests > 1


def test_a_batch_whose_answer_is_lost_arrives_twice(collector, exporting):
    collector.answers.append(lost_reply())
    exports = exporting()
    exports.spans("one")
    exports.flush()
    collector.wait(lambda: len(collector.received) == 2)
    assert collector.received == ["one", "one"]
    assert exports.lost == {}


def test_an_answer_that_trickles_is_broken_off_and_the_batch_sent_again(collector, exporting):
    collector.answers.append(collector.trickle())
    exports = exporting(OTEL_EXPORTER_OTLP_TIMEOUT="0.1")
    exports.spans("one")
    exports.flush()
    collector.wait(lambda: collector.received)
    assert collector.received == ["one"]


def test_what_waits_while_nobody_listens_arrives_when_somebody_does(collector, exporting):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    exports = exporting(OTEL_EXPORTER_OTLP_ENDPOINT=f"http://127.0.0.1:{port}")
    exports.spans("one")
    assert exports.flush() is False
    exports.spans("two")
    exports.end()
    assert exports.lost == {"shutdown": 2}


def test_the_log_says_once_what_waits_and_why_and_names_no_secret(collector, exporting, caplog):
    collector.otherwise = status(503)
    exports = exporting(OTEL_EXPORTER_OTLP_HEADERS="api-key=hush", OTEL_EXPORTER_OTLP_ENDPOINT=collector.url.replace("//", "//me:hush@"))
    with caplog.at_level(logging.WARNING, "ravi_otel"):
        exports.spans("one")
        exports.flush()
        exports.spans("two")
        exports.flush()
        exports.end()
    said = [record.getMessage() for record in caplog.records if record.name == "ravi_otel"]
    assert said[-1] == "ravi-otel: telemetry was lost: 2 shutdown (the collector answered 503)"
    assert "hush" not in caplog.text
    assert len(said) <= 2


def test_every_other_telemetry_library_is_told_to_be_silent_about_our_requests(collector, exporting, monkeypatch):
    seen: list[object] = []
    original = Session.request

    def watched(self, *args, **kwargs):
        seen.append(context.get_value("suppress_instrumentation"))
        return original(self, *args, **kwargs)

    exports = exporting()
    monkeypatch.setattr(Session, "request", watched)
    exports.spans("one")
    assert exports.flush() is True
    assert seen == [True]


@pytest.mark.parametrize("signal", ["traces", "metrics", "logs"])
def test_nothing_is_sent_where_the_stock_exporter_is_asked_what_it_would_send(collector, exporting, monkeypatch, signal):
    seen: list[object] = []
    monkeypatch.setattr(Session, "send", lambda *args, **_kwargs: seen.append(args))
    exporting(signal)
    assert (seen, collector.connections) == ([], 0)
    assert context.get_value("suppress_instrumentation") is None


@pytest.mark.parametrize("signal", ["metrics", "logs"])
def test_metrics_and_log_records_go_the_same_way(collector, exporting, signal):
    collector.answers.append(status(503, headers={"retry-after": "0"}))
    exports = exporting(signal)
    if signal == "metrics":
        exports.provider.get_meter("tests").create_counter("counted").add(1)
    else:
        exports.provider.get_logger("tests").emit(body="counted")
    exports.end()
    assert collector.received == ["counted"]


def test_headers_and_compression_come_from_the_standard_variables(collector, exporting):
    exports = exporting(
        OTEL_EXPORTER_OTLP_HEADERS="api-key=all,other=1",
        OTEL_EXPORTER_OTLP_TRACES_HEADERS="api-key=traces%20only",
        OTEL_EXPORTER_OTLP_COMPRESSION="gzip",
    )
    exports.spans("one")
    assert exports.flush() is True
    assert collector.received == ["one"]
    (headers,) = collector.headers
    assert (headers["api-key"], headers["content-encoding"], headers.get("other")) == ("traces only", "gzip", None)
    assert headers["content-type"] == "application/x-protobuf"
