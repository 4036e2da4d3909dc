from __future__ import annotations

from ravi_otel.testing import Capture


def test_spans_are_there_as_soon_as_they_end():
    with Capture({"service.name": "desk"}) as capture:
        with capture.tracer_provider.get_tracer("t").start_as_current_span("outer"):
            assert capture.spans() == []
        assert [span.name for span in capture.spans("outer")] == ["outer"]
        assert capture.spans("outer")[0].resource.attributes["service.name"] == "desk"
        assert capture.spans("other") == []


def test_a_counter_adds_up_over_several_readings():
    with Capture() as capture:
        counter = capture.meter_provider.get_meter("t").create_counter("c", unit="USD")
        counter.add(1, {"agent": "a"})
        assert [point.value for point in capture.metric("c")] == [1]
        counter.add(2, {"agent": "a"})
        counter.add(5, {"agent": "b"})
        assert {point.attributes["agent"]: point.value for point in capture.metric("c")} == {"a": 3, "b": 5}
        assert capture.metric("c")[0].unit == "USD"
        assert capture.metric("none") == []


def test_a_histogram_has_count_sum_and_range():
    with Capture() as capture:
        histogram = capture.meter_provider.get_meter("t").create_histogram("h")
        histogram.record(2)
        capture.metric("h")
        histogram.record(8)
        (point,) = capture.metric("h")
        assert (point.count, point.sum, point.minimum, point.maximum) == (2, 10, 2, 8)


def test_gauges_and_up_down_counters_show_their_state():
    with Capture() as capture:
        meter = capture.meter_provider.get_meter("t")
        active = meter.create_up_down_counter("active")
        level = meter.create_gauge("level")
        active.add(3)
        level.set(1)
        capture.metric("active")
        active.add(-1)
        level.set(7)
        assert [point.value for point in capture.metric("active")] == [2]
        assert [point.value for point in capture.metric("level")] == [7]


def test_events_carry_their_span():
    with Capture() as capture:
        with capture.tracer_provider.get_tracer("t").start_as_current_span("s"):
            capture.logger_provider.get_logger("t").emit(event_name="limit", attributes={"kind": "token"}, body="near")
        capture.logger_provider.get_logger("t").emit(event_name="other")
        (event,) = capture.events("limit")
        span = capture.spans()[0].context
        assert (event.attributes["kind"], event.body) == ("token", "near")
        assert (event.trace_id, event.span_id) == (f"{span.trace_id:032x}", f"{span.span_id:016x}")
        assert [found.span_id for found in capture.events()] == [event.span_id, None]


def test_clear_forgets_everything_so_far():
    with Capture() as capture:
        counter = capture.meter_provider.get_meter("t").create_counter("c")
        counter.add(5)
        capture.tracer_provider.get_tracer("t").start_span("s").end()
        capture.logger_provider.get_logger("t").emit(event_name="e")
        capture.clear()
        assert (capture.spans(), capture.metric("c"), capture.events()) == ([], [], [])
        counter.add(2)
        assert [point.value for point in capture.metric("c")] == [2]
        assert capture.metric_names() == ["c"]
