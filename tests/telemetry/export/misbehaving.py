"""Real collectors on loopback that misbehave at command, and providers of ours that export."""

from __future__ import annotations

import contextlib
import gzip
import ssl
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from ravi_otel._telemetry import providers


class Answer(NamedTuple):
    """Say whether the collector keeps what is in a request, and how it answers."""

    keeps: bool
    give: Callable[[BaseHTTPRequestHandler], object]


def names(path: str, body: bytes) -> list[str]:
    """List what a request holds: names of spans and metrics, bodies of log records."""
    if path.endswith("traces"):
        spans = ExportTraceServiceRequest.FromString(body)
        return [span.name for group in spans.resource_spans for scope in group.scope_spans for span in scope.spans]
    if path.endswith("logs"):
        logs = ExportLogsServiceRequest.FromString(body)
        return [record.body.string_value for group in logs.resource_logs for scope in group.scope_logs for record in scope.log_records]
    found = ExportMetricsServiceRequest.FromString(body)
    return [metric.name for group in found.resource_metrics for scope in group.scope_metrics for metric in scope.metrics]


def status(code: int, *, headers: dict[str, str] | None = None, body: bytes = b"") -> Answer:
    """Answer with a status; what came with a 2xx is kept."""

    def give(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(code)
        for name, value in {"content-length": str(len(body)), **(headers or {})}.items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(body)

    return Answer(200 <= code < 300, give)


def lost_reply() -> Answer:
    """Keep what came, and end the connection without a word."""
    return Answer(True, lambda handler: setattr(handler, "close_connection", True))


class Collector:
    """Take OTLP over HTTP: `answers` are given in turn, then `otherwise` for good. `received` are names, in order."""

    def __init__(self, context: ssl.SSLContext | None = None) -> None:
        self.answers: deque[Answer] = deque()
        self.otherwise: Answer = status(200)
        self.most_body = 1 << 40
        self.received: list[str] = []
        self.headers: list[dict[str, str]] = []
        self.connections = 0
        self.over = threading.Event()
        self._changed = threading.Condition()
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.collector = self
        if context is not None:
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True, do_handshake_on_connect=False)
        self.url = f"http{'' if context is None else 's'}://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    @property
    def requests(self) -> int:
        return len(self.headers)

    def wait(self, until: Callable[[], object], timeout_s: float = 20.0) -> None:
        """Wait until it is so after a request; fails when it never is."""
        with self._changed:
            assert self._changed.wait_for(until, timeout_s), (self.received, self.requests)

    def handle(self, handler: BaseHTTPRequestHandler) -> None:
        body = handler.rfile.read(int(handler.headers["content-length"]))
        with self._changed:
            self.headers.append({name.lower(): value for name, value in handler.headers.items()})
            answer = self.answers.popleft() if self.answers else self.otherwise
        if len(body) > self.most_body:
            answer = status(413)
        plain = gzip.decompress(body) if handler.headers.get("content-encoding") == "gzip" else body
        with self._changed:
            self.received += names(handler.path, plain) if answer.keeps else []
            self._changed.notify_all()
        answer.give(handler)

    def trickle(self, first: bytes = b"") -> Answer:
        """Send `first`, and then an answer that never ends, byte by byte, until the client goes away."""
        return Answer(False, lambda handler: self._trickle(handler, first))

    def _trickle(self, handler: BaseHTTPRequestHandler, first: bytes) -> None:
        try:
            handler.wfile.write(first)
            while not self.over.wait(0.02):
                handler.wfile.write(b"H")
        except OSError:
            pass
        handler.close_connection = True

    def close(self) -> None:
        self.over.set()
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    collector: Collector


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def handle(self) -> None:
        self.server.collector.connections += 1
        with contextlib.suppress(OSError):  # a client that does not trust us, or that goes away
            super().handle()

    def do_POST(self) -> None:
        self.server.collector.handle(self)

    def log_message(self, *args: Any) -> None:
        pass


class Exporting:
    """Be one provider of ours, what it has lost by reason, and the means to fill and end it."""

    def __init__(self, signal: str) -> None:
        self.lost: Counter[str] = Counter()
        built = providers.build([signal], [signal], None, lambda reason, amount: self.lost.update({reason: amount}))
        self.provider = built.providers[signal]
        self._exports = built.exports
        self._tracer: Any = self.provider.get_tracer("tests") if signal == "traces" else None

    def spans(self, *called: str, **attributes: Any) -> None:
        for name in called:
            self._tracer.start_span(name, attributes=attributes).end()

    def flush(self, timeout_s: float = 20.0) -> bool:
        return bool(self.provider.force_flush(int(timeout_s * 1_000)))

    def end(self, within_s: float = 20.0) -> None:
        self._exports.end_by(time.monotonic() + within_s)
        self.provider.shutdown()
        self._exports.finish()
