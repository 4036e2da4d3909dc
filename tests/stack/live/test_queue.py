"""What the collector has taken arrives, though its stores were away and it was ended or killed meanwhile."""

from __future__ import annotations

import uuid

import pytest
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
