"""The same over gRPC, against real servers of it."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest
from google.protobuf.any_pb2 import Any as AnyMessage
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status
from misbehaving import Exporting, names


class GrpcCollector(grpc.GenericRpcHandler):
    """Take OTLP over gRPC; `errors` are given in turn, then all is taken."""

    def __init__(self) -> None:
        self.errors: deque[tuple[grpc.StatusCode, str, tuple[tuple[str, bytes], ...]]] = deque()
        self.received: list[str] = []
        self.metadata: list[dict[str, str]] = []
        self._changed = threading.Condition()
        self._server = grpc.server(ThreadPoolExecutor(4), handlers=[self], options=[("grpc.max_receive_message_length", 4 << 10)])
        self.url = f"http://127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()

    def service(self, handler_call_details: Any) -> Any:
        self.metadata.append(dict(handler_call_details.invocation_metadata))
        signal = {"trace": "traces", "metrics": "metrics", "logs": "logs"}[handler_call_details.method.split(".")[3]]

        def export(body: bytes, context: Any) -> bytes:
            if self.errors:
                code, details, trailing = self.errors.popleft()
                context.set_trailing_metadata(trailing)
                context.abort(code, details)
            with self._changed:
                self.received += names(signal, body)
                self._changed.notify_all()
            return b""

        return grpc.unary_unary_rpc_method_handler(export)

    def wait(self, until: Callable[[], object]) -> None:
        with self._changed:
            assert self._changed.wait_for(until, 20), self.received

    def close(self) -> None:
        self._server.stop(None).wait()


@pytest.fixture
def over_grpc(exporting) -> Iterator[tuple[GrpcCollector, Callable[..., Exporting]]]:
    server = GrpcCollector()
    yield server, lambda **env: exporting(OTEL_EXPORTER_OTLP_ENDPOINT=server.url, OTEL_EXPORTER_OTLP_PROTOCOL="grpc", **env)
    server.close()


def retry_in(seconds: int) -> tuple[tuple[str, bytes], ...]:
    detail = AnyMessage()
    info = RetryInfo()
    info.retry_delay.seconds = seconds
    detail.Pack(info)
    return (("grpc-status-details-bin", Status(details=[detail]).SerializeToString()),)


def test_spans_arrive_with_the_headers_of_the_standard_variables(over_grpc):
    server, exporting = over_grpc
    exports = exporting(OTEL_EXPORTER_OTLP_HEADERS="api-key=hush", OTEL_EXPORTER_OTLP_COMPRESSION="gzip")
    exports.spans("one", "two")
    assert exports.flush() is True
    assert (server.received, exports.lost) == (["one", "two"], {})
    assert server.metadata[0]["api-key"] == "hush"


def test_a_message_larger_than_the_server_takes_is_halved_and_one_span_too_large_is_counted(over_grpc):
    server, exporting = over_grpc
    exports = exporting()
    exports.spans("one", "two", text="x" * 500)
    exports.spans("large", text="x" * 5_000)
    exports.spans("three", text="x" * 500)
    exports.end()
    assert (server.received, exports.lost) == (["one", "two", "three"], {"too_large": 1})


@pytest.mark.parametrize("code", [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED])
def test_a_server_that_is_busy_is_asked_again(over_grpc, code):
    server, exporting = over_grpc
    server.errors.append((code, "busy", retry_in(0)))
    exports = exporting()
    exports.spans("one")
    assert exports.flush() is False
    server.wait(lambda: server.received)
    assert (server.received, exports.lost) == (["one"], {})


def test_what_a_server_refuses_for_good_is_counted(over_grpc):
    server, exporting = over_grpc
    server.errors.append((grpc.StatusCode.INVALID_ARGUMENT, "no", ()))
    exports = exporting()
    exports.spans("one")
    assert exports.flush() is False
    assert (server.received, exports.lost) == ([], {"export_failed": 1})


def test_a_server_that_wants_to_be_left_alone_for_long_is(over_grpc):
    server, exporting = over_grpc
    server.errors.append((grpc.StatusCode.UNAVAILABLE, "later", retry_in(100)))
    exports = exporting()
    exports.spans("one")
    exports.flush()
    exports.end()
    assert (len(server.metadata), exports.lost) == (1, {"shutdown": 1})


@pytest.mark.parametrize("signal", ["metrics", "logs"])
def test_metrics_and_log_records_go_over_grpc_too(over_grpc, signal, exporting):
    server, _ = over_grpc
    exports = exporting(signal, OTEL_EXPORTER_OTLP_ENDPOINT=server.url, OTEL_EXPORTER_OTLP_PROTOCOL="grpc")
    if signal == "metrics":
        exports.provider.get_meter("tests").create_counter("counted").add(1)
    else:
        exports.provider.get_logger("tests").emit(body="counted")
    exports.end()
    assert server.received == ["counted"]


def test_a_compression_that_grpc_does_not_know_is_said(over_grpc, caplog, exporting):
    server, _ = over_grpc
    with pytest.raises(KeyError):
        exporting(OTEL_EXPORTER_OTLP_ENDPOINT=server.url, OTEL_EXPORTER_OTLP_PROTOCOL="grpc", OTEL_EXPORTER_OTLP_COMPRESSION="zip")
    assert "traces are not exported" in caplog.text
    assert "OTEL_EXPORTER_OTLP_COMPRESSION" in caplog.text
