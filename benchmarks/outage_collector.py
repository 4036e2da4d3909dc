"""Receive OTLP over HTTP on loopback, decode it, and be down, hung, slow or failing at command."""

from __future__ import annotations

import contextlib
import gzip
import socket
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, Literal

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

Mode = Literal["up", "hang", "trickle", "503", "429", "400", "lost reply"]

MOST_BODY: Final = 20 * 1024 * 1024
"""What the collector takes unless it is told otherwise."""


class Collector:
    """Count the spans by their attribute `n`; `down` closes the port, `up` opens the same one again."""

    def __init__(self) -> None:
        self.seen: Counter[int] = Counter()
        self.requests = 0
        self.mode: Mode = "up"
        self.over = threading.Event()
        self._lock = threading.Lock()
        self._server: ThreadingHTTPServer | None = None
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port: int = free.getsockname()[1]

    @property
    def url(self) -> str:
        """Give the endpoint."""
        return f"http://127.0.0.1:{self.port}"

    def up(self) -> None:
        """Listen."""
        self._server = _Server(("127.0.0.1", self.port), self)
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def down(self) -> None:
        """Close the port and every connection."""
        if self._server is not None:
            server, self._server = self._server, None
            server.shutdown()
            server.server_close()

    def take(self, body: bytes) -> None:
        """Count the spans of a request."""
        with self._lock:
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                for scope in resource.scope_spans:
                    self.seen.update(each.value.int_value for span in scope.spans for each in span.attributes if each.key == "n")


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, address: tuple[str, int], collector: Collector) -> None:
        self.collector = collector
        self._open: set[Any] = set()
        super().__init__(address, _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        self._open.add(request)
        super().process_request(request, client_address)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a client that has gone: that is what is measured."""

    def shutdown_request(self, request: Any) -> None:
        self._open.discard(request)
        super().shutdown_request(request)

    def server_close(self) -> None:
        super().server_close()
        for request in list(self._open):
            with contextlib.suppress(OSError):
                request.shutdown(socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        assert isinstance(self.server, _Server)
        collector = self.server.collector
        mode = collector.mode
        collector.requests += 1
        length = int(self.headers.get("content-length", 0))
        if length > MOST_BODY:
            self._answer(413)
            self.close_connection = True
            return
        body = self.rfile.read(length)
        if mode == "hang":
            collector.over.wait()
        elif mode == "trickle":
            self._trickle(collector)
        elif mode in ("503", "429", "400"):
            self._answer(int(mode))
        else:
            if self.path.endswith("/v1/traces"):
                collector.take(gzip.decompress(body) if self.headers.get("content-encoding") == "gzip" else body)
            if mode == "lost reply":
                self.close_connection = True
                self.connection.shutdown(socket.SHUT_RDWR)
            else:
                self._answer(200)

    def _answer(self, status: int) -> None:
        self.send_response(status)
        self.send_header("content-length", "0")
        self.end_headers()

    def _trickle(self, collector: Collector) -> None:
        for byte in b"HTTP/1.1 200 OK\r\nx-padding: " + b"." * 10_000:
            if collector.over.is_set():
                return
            with contextlib.suppress(OSError):
                self.wfile.write(bytes([byte]))
            time.sleep(0.2)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base's name
        pass
