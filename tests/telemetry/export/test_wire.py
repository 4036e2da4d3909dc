"""What is read from an answer's headers and body."""

from __future__ import annotations

import time
from email.utils import formatdate

import pytest
from misbehaving import status
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from ravi_otel.telemetry.export.wire import LONGEST_WAIT_S, bounded_s, rejected, retry_after_s


@pytest.mark.parametrize("value", ["0", "-5", "nan", "inf", "soon", "", "Wed, 21 Oct 2015 07:28:00 GMT", None])
def test_a_retry_after_that_is_no_time_to_come_says_nothing(value):
    assert retry_after_s(value) is None


def test_a_retry_after_is_read_as_seconds_or_a_date_and_bounded():
    assert (retry_after_s("2"), retry_after_s("1e9"), bounded_s(0.5)) == (2.0, LONGEST_WAIT_S, 0.5)
    assert retry_after_s(formatdate(time.time() + 1e6, usegmt=True)) == LONGEST_WAIT_S


@pytest.mark.parametrize("asked", ["0", "1"])
def test_a_server_that_asks_for_less_than_our_own_pause_does_not_shorten_it(collector, exporting, monkeypatch, asked):
    monkeypatch.setattr("random.uniform", lambda low, _high: 1_000.0 if low < 1 else 1.0)
    collector.otherwise = status(503, headers={"retry-after": asked})
    exports = exporting()
    exports.spans("one")
    assert exports.flush() is False
    assert exports._exports._packer.lanes[0]._again_s > time.monotonic() + 100


def test_what_was_taken_out_is_counted_however_long_the_message_beside_it_is(collector, exporting):
    response = ExportTraceServiceResponse()
    response.partial_success.rejected_spans = 300
    response.partial_success.error_message = "m" * 70_000
    collector.answers.append(status(200, body=response.SerializeToString()))
    exports = exporting()
    exports.spans(*(f"span {number}" for number in range(400)))
    assert exports.flush() is True
    assert exports.lost == {"rejected": 300}


@pytest.mark.parametrize(
    "body", [b"\x0a", b"\x0a\xff", b"\x0a\xff\x7f\x08", b"\x0a\xff\x7f\x08" + b"\xff" * 20, b"\x0a\xff\x7f\x12\x05", b"<html>"]
)
def test_a_body_that_is_none_takes_out_nothing(body):
    assert rejected("traces", body) == 0


def test_a_count_below_zero_takes_out_nothing():
    response = ExportTraceServiceResponse()
    response.partial_success.rejected_spans = -1
    response.partial_success.error_message = "m" * 70_000
    assert rejected("traces", response.SerializeToString()[:65_536]) == 0


@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
@pytest.mark.parametrize("value", ["inf", "nan", "-1", "0", "1e9"])
def test_a_timeout_that_no_request_can_have_is_named_and_replaced(exporting, caplog, protocol, value):
    exports = exporting(OTEL_EXPORTER_OTLP_TIMEOUT=value, OTEL_EXPORTER_OTLP_PROTOCOL=protocol)
    assert exports._exports._packer.lanes[0]._wire.timeout_s == 10.0
    (said,) = [record.getMessage() for record in caplog.records if record.name == "ravi_otel"]
    assert said == f"ravi-otel: OTEL_EXPORTER_OTLP_TIMEOUT={value!r} cannot be: give seconds above 0 and up to 3600; 10 are used"


def test_a_collector_that_is_well_takes_what_is_sent_whatever_the_timeout_says(collector, exporting):
    exports = exporting(OTEL_EXPORTER_OTLP_TIMEOUT="inf")
    exports.spans("one")
    assert exports.flush() is True
    assert collector.received == ["one"]
