"""Run a redis-server for one benchmark: on a free port of loopback, with nothing written to disk."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator


@contextlib.contextmanager
def redis_alone(url: str | None = None) -> Iterator[str]:
    """Give the URL of a server that ends with the block; or `url` itself, if there is one."""
    if url is not None:
        yield url
        return
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    with tempfile.TemporaryDirectory() as directory:
        command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", directory]
        server = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        try:
            _wait_for(port)
            yield f"redis://127.0.0.1:{port}/0?timeout_s=5"
        finally:
            server.terminate()
            server.wait()


def _wait_for(port: int) -> None:
    until = time.monotonic() + 10.0
    while True:
        try:
            with socket.create_connection(("127.0.0.1", port), 1.0):
                return
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.02)
