"""Ask a served page over real HTTP: as a browser does, as somebody who is none, and byte by byte."""

from __future__ import annotations

import http.client
import json
import socket

from page_stage import Served

JSON = {"content-type": "application/json"}


class Client:
    """Ask as a browser would, or as somebody who is none."""

    def __init__(self, served: Served) -> None:
        self.served = served
        self.cookie: str | None = None

    def __call__(self, path, method="GET", body=None, host=None, **headers):
        connection = http.client.HTTPConnection("127.0.0.1", self.served.port, timeout=10)
        known = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
        for each in [f"127.0.0.1:{self.served.port}"] if host is None else host:
            connection.putheader("Host", each)
        if self.cookie is not None:
            connection.putheader("Cookie", self.cookie)
        data = b"" if body is None else json.dumps(body).encode()
        for name, value in {**known, "content-length": str(len(data))}.items():
            connection.putheader(name, value)
        connection.endheaders(data)
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        return answer.status, dict(answer.getheaders()), text

    def arrive(self):
        status, headers, _ = self(f"/?token={self.served.access.token}")
        assert status == 303
        self.cookie = headers["set-cookie"].partition(";")[0]
        return headers

    def token(self):
        return json.loads(self("/api/session")[2])["token"]

    def change(self, path="/api/commands", body=None, **headers):
        told = {"origin": self.served.origin, "x_ravi_token": self.token(), **JSON, **headers}
        asked = {"process": "p", "scope": "s", "op": "cancel"} if body is None else body
        return self(path, "POST", asked, **{name: value for name, value in told.items() if value is not None})


def raw(served: Served, head: str, body: bytes = b"", *, close: bool = True) -> bytes:
    """Send these bytes, and return all that comes back; with `close` the answer is to be the last."""
    with socket.create_connection(("127.0.0.1", served.port), timeout=20) as connection:
        more = "Connection: close\r\n" if close else ""
        connection.sendall(f"{head}{more}\r\n".encode("latin-1") + body)
        answer = b""
        while piece := connection.recv(65_536):
            answer += piece
        return answer
