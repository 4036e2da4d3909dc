"""What may wait, and how requests are cut."""

from __future__ import annotations

import os
import threading

from misbehaving import Answer, names, status
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from ravi_otel._telemetry.export import sender as senders
from ravi_otel._telemetry.export.sender import Batch, encode_points, halves


def test_no_more_spans_wait_than_the_queue_holds_and_each_that_does_not_fit_is_counted(collector, exporting):
    exports = exporting(OTEL_BSP_MAX_QUEUE_SIZE="3", OTEL_BSP_MAX_EXPORT_BATCH_SIZE="3", OTEL_BSP_SCHEDULE_DELAY="100000")
    collector.otherwise = status(503, headers={"retry-after": "100"})
    for number in range(50):
        exports.spans(f"span {number}")
    exports.end()
    assert exports.lost.total() == 50


def test_room_is_made_by_sending(collector, exporting):
    exports = exporting(OTEL_BSP_MAX_QUEUE_SIZE="3", OTEL_BSP_MAX_EXPORT_BATCH_SIZE="3")
    for number in range(20):
        exports.spans(f"span {number}", text="x" * 3_000_000)
        assert exports.flush() is True
    assert (len(collector.received), exports.lost) == (20, {})


def test_large_spans_do_not_wait_for_a_batch_to_be_full(collector, exporting):
    exports = exporting(OTEL_BSP_SCHEDULE_DELAY="100000")
    exports.spans("one", "two", text="x" * 2_000_000)
    collector.wait(lambda: len(collector.received) == 2)
    assert exports.lost == {}


def test_memory_holds_the_newest_batches_and_counts_the_oldest_that_go(collector, exporting, monkeypatch):
    monkeypatch.setattr("ravi_otel._telemetry.export.processor._ENCODED_BYTES", {"traces": 3_000})
    collector.otherwise = status(503, headers={"retry-after": "100"})
    exports = exporting()
    for number in range(4):
        exports.spans(f"span {number}", text="x" * 800)
        exports.flush()
    assert exports.lost["queue_full"] >= 1
    exports.end()
    assert exports.lost["queue_full"] + exports.lost["shutdown"] == 4


def test_spans_of_a_megabyte_are_counted_when_they_are_more_than_memory_may_hold(collector, exporting):
    collector.otherwise = status(503, headers={"retry-after": "100"})
    exports = exporting()
    for number in range(100):
        exports.spans(f"span {number}", text="x" * 1_000_000)
    exports.end()
    assert exports.lost["queue_full"] + exports.lost["shutdown"] == 100
    assert exports.lost["queue_full"] >= 70


def test_one_record_that_cannot_be_encoded_takes_no_other_with_it(collector, exporting):
    exports = exporting("logs")
    logger = exports.provider.get_logger("tests")
    for body in ["one", {"an": object()}, "two"]:
        logger.emit(body=body)
    assert exports.flush() is True
    assert (collector.received, exports.lost) == (["one", "two"], {"malformed": 1})


def metrics(points: int, size: int = 1):
    reader = InMemoryMetricReader()
    counter = MeterProvider([reader], shutdown_on_exit=False).get_meter("tests").create_counter("counted")
    for number in range(points):
        counter.add(1, {"number": number, "text": "x" * size})
    return reader.get_metrics_data()


def test_a_metric_of_many_points_is_cut_between_them(monkeypatch):
    monkeypatch.setattr(senders, "MOST_BYTES", 1_000)
    pieces = encode_points(metrics(40, size=50))
    found = [point for piece in pieces for point in points(piece)]
    assert sorted(found) == list(range(40))
    assert all(len(piece.body) <= 1_000 for piece in pieces)
    assert [len(points(piece)) for piece in pieces] == [piece.items for piece in pieces]


def points(piece: Batch) -> list[int]:
    message = ExportMetricsServiceRequest.FromString(piece.body)
    (metric,) = message.resource_metrics[0].scope_metrics[0].metrics
    assert metric.sum.is_monotonic
    return [each.value.int_value for point in metric.sum.data_points for each in point.attributes if each.key == "number"]


def test_halves_keep_resource_and_scope_and_every_record_once():
    message = ExportLogsServiceRequest()
    for scope in ("a", "b"):
        group = message.resource_logs.add()
        group.resource.attributes.add(key="service.name").value.string_value = scope
        made = group.scope_logs.add()
        made.scope.name = scope
        for number in range(3):
            made.log_records.add().body.string_value = f"{scope}{number}"
    left, right = halves(Batch("logs", message.SerializeToString(), 6, 1))
    assert (names("logs", left.body), names("logs", right.body)) == (["a0", "a1", "a2"], ["b0", "b1", "b2"])
    only, _ = ExportLogsServiceRequest.FromString(left.body).resource_logs
    assert (only.resource.attributes[0].value.string_value, only.scope_logs[0].scope.name) == ("a", "a")
    damaged = Batch("logs", b"\xff", 6, 1)
    assert halves(damaged) == [damaged]


def test_a_forked_child_sends_its_own_spans_and_none_of_its_parents(collector, exporting, spool):
    exports = exporting(RAVI_EXPORT_SPOOL=str(spool), OTEL_BSP_SCHEDULE_DELAY="100000")
    exports.spans("parent's")
    child = os.fork()
    if child == 0:
        try:
            exports.spans("child's")
            os._exit(0 if exports.flush() else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert collector.received == ["child's"]
    assert exports.flush() is True
    assert collector.received == ["child's", "parent's"]


def test_what_came_while_a_slow_collector_answered_goes_in_one_request(collector, exporting):
    going = threading.Event()
    collector.answers.append(Answer(True, lambda handler: (going.wait(20), status(200).give(handler))))
    exports = exporting(OTEL_BSP_MAX_EXPORT_BATCH_SIZE="1")
    exports.spans("one")
    collector.wait(lambda: collector.requests == 1)
    exports.spans("two", "three", "four")
    assert exports.flush(0.2) is False
    going.set()
    assert exports.flush() is True
    assert (collector.received, collector.requests) == (["one", "two", "three", "four"], 2)
