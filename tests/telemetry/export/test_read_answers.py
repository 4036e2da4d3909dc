"""What is read from an answer's headers and body."""

from __future__ import annotations

import time
from email.utils import formatdate

import pytest
from misbehaving import status
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from ravi_otel._http import seconds_until
from ravi_otel._telemetry.export.sender import LONGEST_WAIT_S


@pytest.mark.parametrize("value", ["nan", "inf", "soon", "", None])
def test_a_retry_after_that_is_no_time_says_nothing(value):
    assert seconds_until(value) is None


def test_a_retry_after_is_read_as_seconds_or_a_date():
    assert (seconds_until("2"), (seconds_until("Wed, 21 Oct 2015 07:28:00 GMT") or 0) < 0) == (2.0, True)
    assert (seconds_until(formatdate(time.time() + 1e6, usegmt=True)) or 0) > 9e5


@pytest.mark.parametrize(("asked", "least_s", "most_s"), [("0", 100, 10_000), ("1", 100, 10_000), ("5000", 200, LONGEST_WAIT_S)])
def test_how_long_nobody_is_asked_is_what_he_says_within_bounds_and_no_less_than_our_own_pause(
    collector, exporting, monkeypatch, asked, least_s, most_s
):
    pause = 1_000.0 if least_s == 100 else 1.0
    monkeypatch.setattr("random.uniform", lambda _low, _high: pause)
    collector.otherwise = status(503, headers={"retry-after": asked})
    exports = exporting()
    exports.spans("one")
    assert exports.flush() is False
    assert least_s < exports._exports.queues[0].due_s() - time.monotonic() < most_s


def test_what_was_taken_out_is_counted_however_long_the_message_beside_it_is(collector, exporting):
    response = ExportTraceServiceResponse()
    response.partial_success.rejected_spans = 300
    response.partial_success.error_message = "m" * 70_000
    collector.answers.append(status(200, body=response.SerializeToString()))
    exports = exporting()
    exports.spans(*(f"span {number}" for number in range(400)))
    assert exports.flush() is True
    assert exports.lost == {"rejected": 300}


@pytest.mark.parametrize("body", [b"\x0a", b"\x0a\xff", b"\x0a\xff\x7f\x08" + b"\xff" * 20, b"<html>"])
def test_a_body_that_is_none_takes_out_nothing(collector, exporting, body):
    collector.answers.append(status(200, body=body))
    exports = exporting()
    exports.spans("one")
    assert (exports.flush(), exports.lost) == (True, {})


def test_a_count_below_zero_takes_out_nothing(collector, exporting):
    response = ExportTraceServiceResponse()
    response.partial_success.rejected_spans = -1
    collector.answers.append(status(200, body=response.SerializeToString()))
    exports = exporting()
    exports.spans("one")
    assert (exports.flush(), exports.lost) == (True, {})


@pytest.mark.parametrize("value", ["inf", "nan", "-1", "0", "1e9"])
def test_a_collector_that_is_well_takes_what_is_sent_whatever_the_timeout_says(collector, exporting, value):
    exports = exporting(OTEL_EXPORTER_OTLP_TIMEOUT=value)
    exports.spans("one")
    assert exports.flush() is True
    assert collector.received == ["one"]
