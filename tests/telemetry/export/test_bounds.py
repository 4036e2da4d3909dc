"""What may wait, and how requests are cut."""

from __future__ import annotations

import os
import threading

import pytest
from misbehaving import names, status
from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from ravi_otel.telemetry.export import parcel as parcels
from ravi_otel.telemetry.export import settings
from ravi_otel.telemetry.export.bell import Bell
from ravi_otel.telemetry.export.intake import Intake
from ravi_otel.telemetry.export.parcel import Parcel, halves, pack, pack_metrics


def intake(most_items: int = 10, most_bytes: int = 1_000) -> Intake:
    return Intake(most_items, most_bytes, batch_items=4, batch_bytes=500, delay_s=5, ring=lambda: None)


def test_no_more_wait_than_the_count_allows():
    queue = intake(most_items=2)
    assert [queue.put("item", 1) for _ in range(3)] == ["taken", "taken", "queue_full"]


def test_no_more_wait_than_the_bytes_allow_and_room_is_made_by_taking():
    queue = intake()
    assert [queue.put("item", 400) for _ in range(3)] == ["taken", "taken", "queue_full"]
    assert (queue.take(), queue.put("item", 400)) == (["item"], "taken")
    assert queue.put("item", 1_001) == "too_large"


def test_a_batch_is_taken_in_order_and_when_it_is_due():
    queue = intake()
    assert queue.due_s() is None
    for number in range(5):
        queue.put(number, 1)
    assert queue.due_s() == 0.0
    assert queue.take() == [0, 1, 2, 3]
    assert (queue.due_s() or 0.0) > 0
    assert (queue.take(), queue.take(), queue.due_s()) == ([4], [], None)


def test_a_bell_that_rang_is_heard_once_and_rings_inside_its_own_ringing():
    bell = Bell()
    bell.ring()
    bell.ring()
    assert (bell.wait(None), bell.wait(0)) == (True, False)
    threading.Timer(0, bell.ring).start()
    assert bell.wait(20) is True


def test_memory_holds_the_newest_batches_and_counts_the_oldest_that_go(collector, exporting, monkeypatch):
    monkeypatch.setattr("ravi_otel.telemetry.export.exports._ENCODED_BYTES", {"traces": 3_000})
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


def test_one_span_that_cannot_be_encoded_takes_no_other_with_it():
    def encode(items):
        if "bad" in items:
            raise TypeError
        return encode_metrics(metrics(len(items)))

    lost: list[int] = []
    packed = pack("metrics", ["a", "bad", "b", "c"], encode, lost.append)
    assert (sum(each.items for each in packed), lost) == (3, [1])


def metrics(points: int, size: int = 1):
    reader = InMemoryMetricReader()
    counter = MeterProvider([reader], shutdown_on_exit=False).get_meter("tests").create_counter("counted")
    for number in range(points):
        counter.add(1, {"number": number, "text": "x" * size})
    return reader.get_metrics_data()


def test_a_metric_of_many_points_is_cut_between_them(monkeypatch):
    monkeypatch.setattr(parcels, "MOST_BYTES", 1_000)
    whole = encode_metrics(metrics(40, size=50))
    pieces = pack_metrics(whole)
    found = [point for piece in pieces for point in points(piece)]
    assert sorted(found) == list(range(40))
    assert all(len(piece.body) <= 1_000 for piece in pieces)
    assert [len(points(piece)) for piece in pieces] == [piece.items for piece in pieces]


def points(piece: Parcel) -> list[int]:
    message = parcels.ExportMetricsServiceRequest.FromString(piece.body)
    (metric,) = message.resource_metrics[0].scope_metrics[0].metrics
    assert metric.sum.is_monotonic
    return [each.value.int_value for point in metric.sum.data_points for each in point.attributes if each.key == "number"]


def test_halves_keep_resource_and_scope_and_every_record_once():
    message = parcels.ExportLogsServiceRequest()
    for scope in ("a", "b"):
        group = message.resource_logs.add()
        group.resource.attributes.add(key="service.name").value.string_value = scope
        made = group.scope_logs.add()
        made.scope.name = scope
        for number in range(3):
            made.log_records.add().body.string_value = f"{scope}{number}"
    left, right = halves(Parcel("logs", message.SerializeToString(), 6, 1))
    assert (names("logs", left.body), names("logs", right.body)) == (["a0", "a1", "a2"], ["b0", "b1", "b2"])
    (only,) = parcels.ExportLogsServiceRequest.FromString(left.body).resource_logs
    assert (only.resource.attributes[0].value.string_value, only.scope_logs[0].scope.name) == ("a", "a")
    with pytest.raises(ValueError, match="is no request of logs"):
        halves(Parcel("logs", b"\xff", 6, 1))


def test_settings_that_make_no_sense_are_said_and_the_defaults_hold(monkeypatch, caplog):
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "many")
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "-1")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
    found = settings.batching("traces")
    assert (found.most_items, found.batch_items, found.delay_s) == (2_048, 512, 0.1)
    assert "OTEL_BSP_MAX_QUEUE_SIZE='many' is no number from 1 up; 2048 is used" in caplog.text


def test_a_batch_is_never_larger_than_the_queue(monkeypatch):
    monkeypatch.setenv("OTEL_BLRP_MAX_QUEUE_SIZE", "10")
    assert settings.batching("logs").batch_items == 10


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
