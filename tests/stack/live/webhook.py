"""A receiver of Alertmanager's notifications: a real HTTP server that keeps what it was told."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from stack_process import wait_for


class Webhook:
    """Record every notification in `notes`, as Alertmanager sent it, with `path` added; answers 200 unless `status` is changed."""

    def __init__(self) -> None:
        self.status = 200
        self._notes: list[dict[str, Any]] = []
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, name="webhook")
        self._thread.start()

    @property
    def port(self) -> int:
        return self._server.server_address[1]

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def notes(self) -> list[dict[str, Any]]:
        with self._lock:
            return list(self._notes)

    def told(self, alertname: str, status: str = "firing", **labels: str) -> dict[str, Any] | None:
        """Give the last alert of this name, status (firing or resolved) and labels that was told, None for none yet."""
        wanted = {"alertname": alertname} | labels
        for note in reversed(self.notes):
            for alert in note["alerts"]:
                if alert["status"] == status and wanted.items() <= alert["labels"].items():
                    return alert
        return None

    def wait_for(self, alertname: str, status: str = "firing", within_s: float = 120.0, **labels: str) -> dict[str, Any]:
        """Give that alert, once it was told."""
        told = wait_for(lambda: self.told(alertname, status, **labels), f"{alertname} {status} {labels} at the webhook", within_s)
        assert told is not None
        return told

    def clear(self) -> None:
        with self._lock:
            self._notes.clear()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        webhook = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                note = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with webhook._lock:
                    webhook._notes.append(note | {"path": self.path})
                self.send_response(webhook.status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Keep the tests' output for the tests."""

        return Handler
