"""Shut down the connection of a request or an open response from any thread, so that whoever is blocked reading from it is woken.

What finds the connection of a request is private to the HTTP library's pool (httpcore and its like) and looked up only when a call is
stopped. Where something else carries the request, while it still connects, and on a connection that several share (HTTP/2), nothing is
done: the call then ends by its own time-outs.
"""

from __future__ import annotations

import socket
from contextlib import suppress
from typing import Any, Final

from ravi_otel._forksafe import ForkLock
from ravi_otel._instrumentation.formats.fields import get

_HTTP_2: Final = (b"HTTP/2", b"HTTP/2.0")
_LONGEST_WAIT_S: Final = 0.1
_DEEPEST: Final = 4
"""A connection, the tunnel it may be in, and what speaks HTTP on it."""

_gate: Final = ForkLock()
"""Lets no connection go back to its pool between being found open and being shut down: there it is somebody else's.

It may be passed again by the thread that is in it: a finaliser that closes a response runs wherever it likes. Nothing is waited for in it.
"""


def wait_for_shutdown() -> None:
    """Wait until nobody is shutting down a connection; right before a response is closed."""
    with _gate.own:
        pass


def shut_down_response(response: Any) -> bool:
    """Shut down the connection of an open response, so that whoever waits for more of it is woken by its end; whether that was done.

    Nothing happens to one that is closed, to one that shares its connection with others (HTTP/2), or where there is no socket.
    """
    with _gate.own:
        try:
            if response.is_closed or response.extensions.get("http_version") in _HTTP_2:
                return False
            found = response.extensions["network_stream"].get_extra_info("socket")
            # By a copy: an encrypted socket that is shut down itself goes on in plain text.
            twin = socket.fromfd(found.fileno(), found.family, found.type)
        except Exception:  # noqa: BLE001 - another transport, or gone by now: it ends at its next piece
            return False
        with twin, suppress(OSError):
            twin.shutdown(socket.SHUT_RDWR)
            return True
    return False


def shut_down_request(client: Any, request: Any) -> bool:
    """Shut down the connection that carries `request` for `client`; False when it cannot be found.

    The thread that reads there is told that the server hung up. The pool's lock is held meanwhile, so that the connection
    cannot become somebody else's; the pool may hand on one that is free before it has forgotten the request it was on.
    """
    pool = _pool_of(client, request)
    lock = get(get(pool, "_optional_thread_lock"), "_lock")
    if lock is None or not lock.acquire(timeout=_LONGEST_WAIT_S):
        return False
    try:
        connection = _connection_of(request, tuple(get(pool, "_requests") or ()))
        found = None if connection is None else _socket_of(connection)
        if found is None:
            return False
        with suppress(OSError):  # the other side was faster
            socket.socket.shutdown(found, socket.SHUT_RDWR)  # not TLS's own, which takes its state from under the reader
        return True
    finally:
        lock.release()


def _pool_of(client: Any, request: Any) -> Any:
    choose: Any = get(get(client, "_client"), "_transport_for_url")
    return get(choose(request.url), "_pool") if callable(choose) else None


def _connection_of(request: Any, queued: tuple[Any, ...]) -> Any:
    """Return the connection that carries `request` and nothing else; None once it was answered, and may carry another's by now."""
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


def close_all(*held: Any) -> None:
    """Close what a cut stream was read from; whatever that raises, it is cut."""
    for each in held:
        with suppress(Exception):
            each.close()


async def close_all_async(*held: Any) -> None:
    """Close what a cut stream was read from; whatever that raises, it is cut."""
    for each in held:
        with suppress(Exception):
            await each.aclose()
