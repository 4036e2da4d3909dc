"""What the collector has taken arrives, though its stores were away and it was ended or killed meanwhile."""

from __future__ import annotations

import uuid

import httpx
import pytest
import yaml
from stack_process import wait_for
from stack_servers import running_stack
from told import gauge, send, span, trace_id

TRACES = 20


@pytest.mark.parametrize("how", ["ended", "killed"])
def test_what_was_taken_while_the_stores_were_away_arrives_after_a_restart(how: str):
    service = f"queue-{uuid.uuid4().hex[:8]}"
    traces = [trace_id() for _ in range(TRACES)]
    with running_stack(overlays=(), only=("collector", "jaeger", "prometheus")) as own:
        collector, stores = own.server("collector"), [own.server("jaeger"), own.server("prometheus")]
        for store in stores:
            store.kill()
        for trace in traces:
            send(own.otlp_http, service, "traces", spans=[span(trace)])
        send(own.otlp_http, service, "metrics", metrics=[gauge("told.before", 7.0)])
        collector.stop() if how == "ended" else collector.kill()
        collector.start()
        for store in stores:
            store.start()
        for trace in traces:
            wait_for(lambda trace=trace: own.jaeger(trace), f"trace {trace} in Jaeger")
        assert [len(own.jaeger(trace)) for trace in traces] == [1] * TRACES
        told = f'last_over_time(told_before{{service_name="{service}"}}[1h])'
        assert wait_for(lambda: own.value(told), told) == 7.0


def test_a_full_queue_refuses_so_that_the_program_sends_again_and_counts_it():
    service = f"full-{uuid.uuid4().hex[:8]}"
    with running_stack(overlays=(), only=("collector", "prometheus")) as own:
        derived = own.configs.path("collector", "/etc/otelcol/base.yaml")
        config = yaml.safe_load(derived.read_text())
        config["exporters"]["otlp_grpc/jaeger"]["sending_queue"] |= {"queue_size": 2_000, "batch": {"sizer": "bytes", "min_size": 1_000}}
        derived.write_text(yaml.safe_dump(config))
        own.server("collector").restart()

        def refused() -> bool:
            try:
                send(own.otlp_http, service, "traces", spans=[span(trace_id(), has={"filler": "x" * 500})])
            except AssertionError as error:
                return str(httpx.codes.SERVICE_UNAVAILABLE.value) in str(error)
            return False

        wait_for(refused, "a full queue")
        counted = 'otelcol_exporter_enqueue_failed_spans{exporter="otlp_grpc/jaeger"}'
        wait_for(lambda: (own.value(counted) or 0) > 0, counted)
