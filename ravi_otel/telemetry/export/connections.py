"""Connections that can be broken off whatever they are at, and that take half a head of an answer for none."""

from __future__ import annotations

import socket
import threading
from http.client import HTTPResponse, RemoteDisconnected
from typing import Any, Final

from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool

_here = threading.local()


class Breaker:
    """Know the connection of one wire, and break it off from another thread."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None
        self._copy: socket.socket | None = None
        self.has_cut = False
        """Whether the request under way, or the last one, was broken off by us."""

    def begin(self) -> None:
        """Take what this thread connects from now on for ours."""
        self.has_cut = False
        _here.breaker = self

    def cut(self) -> None:
        """Break off what is under way: whoever reads or writes gets an error at once."""
        self.has_cut = True
        if (connected := self._socket) is not None:
            try:  # noqa: SIM105 - the reason
                socket.socket.shutdown(connected, socket.SHUT_RDWR)  # the plain one: that of TLS would take its state away from the reader
            except OSError:  # it is closed
                pass

    def forget(self) -> None:
        """Let go of what is known, as in a forked child."""
        self._hold(None, None)

    def connecting(self, plain: socket.socket) -> None:
        """Hold a copy of what a proxy or TLS are spoken over first: TLS takes the socket itself away."""
        copy = plain.dup()
        self._hold(copy, copy)

    def connected(self, by: Any) -> None:
        """Hold the connection; `by` is its socket, or TLS within the TLS of a proxy, which has one."""
        self._hold(by if isinstance(by, socket.socket) else getattr(by, "socket", None), None)

    def _hold(self, connected: socket.socket | None, copy: socket.socket | None) -> None:
        before, self._socket, self._copy = self._copy, connected, copy
        if before is not None:
            before.close()
        if self.has_cut:
            self.cut()


class _Lines:
    """Read the head of an answer line by line; one that has no end is no line."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def readline(self, size: int) -> bytes:
        line: bytes = self._stream.readline(size)
        if len(line) < size and not line.endswith(b"\n"):
            raise RemoteDisconnected("the answer ends within its head")
        return line

    def close(self) -> None:
        self._stream.close()


class _Answer(HTTPResponse):
    """Be an answer whose head has come whole: http.client takes the end of a connection for the end of the head."""

    def begin(self) -> None:
        stream: Any = self.fp
        self.fp: Any = _Lines(stream)
        try:
            super().begin()
        finally:
            if self.fp is not None:
                self.fp = stream


class _Http(HTTPConnection):
    response_class = _Answer

    def _new_conn(self) -> socket.socket:
        return _connecting(super()._new_conn())

    def connect(self) -> None:
        try:
            super().connect()
        finally:
            _connected(self)


class _Https(_Http, HTTPSConnection):
    """The same over TLS: what comes next in line for `_Http` is urllib3's class for it."""


class _HttpPool(HTTPConnectionPool):
    ConnectionCls = _Http  # pyright: ignore[reportAssignmentType]  # urllib3 types its own classes so that they do not fit


class _HttpsPool(HTTPSConnectionPool):
    ConnectionCls = _Https  # pyright: ignore[reportAssignmentType]  # the same


POOLS: Final = {"http": _HttpPool, "https": _HttpsPool}
"""Pools of such connections, as a PoolManager of urllib3 takes them."""


def _connecting(made: socket.socket) -> socket.socket:
    breaker: Breaker | None = getattr(_here, "breaker", None)
    if breaker is not None:
        breaker.connecting(made)
    return made


def _connected(connection: HTTPConnection) -> None:
    breaker: Breaker | None = getattr(_here, "breaker", None)
    if breaker is not None:
        breaker.connected(connection.sock)
