"""End what a thread waits for that has sent a request and hears nothing: shut down the one connection the request is on.

What it needs is private to the HTTP library's pool (httpcore and its like) and looked up only when a call is stopped. Where
something else carries the request, while it still connects, and on a connection that several share (HTTP/2), nothing is done:
the call then ends by its own time-outs.
"""

from __future__ import annotations

import contextlib
import socket
from typing import Any, Final

from ravi_otel._instrumentation.formats.fields import get

_PATIENCE_S: Final = 0.1
_DEEPEST: Final = 4
"""A connection, the tunnel it may be in, and what speaks HTTP on it."""


def shut_down(client: Any, request: Any) -> bool:
    """Shut down the connection that carries `request` for `client`; False when it cannot be found. Call it from any thread.

    The thread that reads there is told that the server hung up. The pool's lock is held meanwhile, so that the connection
    cannot become somebody else's; the pool may hand on one that is free before it has forgotten the request it was on.
    """
    pool = _pool_of(client, request)
    lock = get(get(pool, "_optional_thread_lock"), "_lock")
    if lock is None or not lock.acquire(timeout=_PATIENCE_S):
        return False
    try:
        connection = _connection_of(request, tuple(get(pool, "_requests") or ()))
        found = None if connection is None else _socket_of(connection)
        if found is None:
            return False
        with contextlib.suppress(OSError):  # the other side was faster
            socket.socket.shutdown(found, socket.SHUT_RDWR)  # not TLS's own, which takes its state from under the reader
        return True
    finally:
        lock.release()


def _pool_of(client: Any, request: Any) -> Any:
    choose: Any = get(get(client, "_client"), "_transport_for_url")
    return get(choose(request.url), "_pool") if callable(choose) else None


def _connection_of(request: Any, queued: tuple[Any, ...]) -> Any:
    """Give the connection that carries `request` and nothing else; None once it was answered, and may carry another's by now."""
    waiting = [one for one in queued if get(get(one, "request"), "extensions") is request.extensions]
    connection = get(waiting[0], "connection") if len(waiting) == 1 else None
    if connection is None or sum(get(one, "connection") is connection for one in queued) > 1:
        return None
    is_idle: Any = get(connection, "is_idle")
    return None if callable(is_idle) and is_idle() else connection


def _socket_of(connection: Any) -> Any:
    for _ in range(_DEEPEST):
        if get(connection, "_h2_state") is not None:
            return None
        stream: Any = get(connection, "_network_stream")
        if stream is not None:
            found = stream.get_extra_info("socket")
            return found if isinstance(found, socket.socket) else None
        connection = get(connection, "_connection")
    return None
