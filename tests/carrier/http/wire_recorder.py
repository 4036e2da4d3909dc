"""Be a host, a proxy, or both, that keeps the very bytes of each request's head and answers what it is told to."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

OK = b"HTTP/1.1 200 OK\r\n%sContent-Length: 2\r\nConnection: close\r\n\r\nok"


class Recorder:
    """Listen on a loopback port of its own; `heads` holds what came, `answer` what each next request is answered, or a list of such."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._socket.getsockname()[1]
        self.host = f"127.0.0.1:{self.port}"
        self.url = f"http://{self.host}"
        self.heads: list[bytes] = []
        self.answers: list[bytes] = []
        threading.Thread(target=self._serve, daemon=True).start()

    def headers(self, name: str, at: int = -1) -> list[str]:
        """Give the values of a header in one head."""
        lines = self.heads[at].decode("latin-1").split("\r\n")[1:]
        return [line.partition(":")[2].strip() for line in lines if line.partition(":")[0].lower() == name]

    def redirect(self, to: str) -> None:
        """Send the next request on, in a way that keeps its method."""
        self.answers.append(b"HTTP/1.1 307 Moved\r\nLocation: %s\r\nContent-Length: 0\r\nConnection: close\r\n\r\n" % to.encode())

    def tell(self, header: bytes) -> None:
        """Put a header line on the next answer."""
        self.answers.append(OK % (header + b"\r\n"))

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            self._heard(connection)

    def _heard(self, connection: socket.socket) -> None:
        data = b""
        while b"\r\n\r\n" not in data:
            piece = connection.recv(65_536)
            if not piece:
                return
            data += piece
        self.heads.append(data.partition(b"\r\n\r\n")[0])
        connection.sendall(self.answers.pop(0) if self.answers else OK % b"")


@contextlib.contextmanager
def recording() -> Iterator[Recorder]:
    recorder = Recorder()
    try:
        yield recorder
    finally:
        recorder.close()
