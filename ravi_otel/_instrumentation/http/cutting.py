"""Cut what is open: close its connection, and wake whoever is blocked reading from it, from any thread."""

from __future__ import annotations

import socket
from contextlib import suppress
from typing import Any, Final

from ravi_otel._forksafe import ForkLock

_HTTP_2: Final = (b"HTTP/2", b"HTTP/2.0")


_gate: Final = ForkLock()
"""Lets no connection go back to its pool between being found open and being shut down: there it is somebody else's.

It may be passed again by the thread that is in it: a finaliser that closes a response runs wherever it likes. Nothing is waited for in it.
"""


def closing() -> None:
    """Wait until nobody is shutting down a connection; right before a response is closed."""
    with _gate.own:
        pass


def interrupt(response: Any) -> bool:
    """Shut down the connection of an open response, so that whoever waits for more of it is woken by its end; True when it was.

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


def shut(*held: Any) -> None:
    """Close what a cut stream was read from; whatever that raises, it is cut."""
    for each in held:
        with suppress(Exception):
            each.close()


async def shut_async(*held: Any) -> None:
    """Close what a cut stream was read from; whatever that raises, it is cut."""
    for each in held:
        with suppress(Exception):
            await each.aclose()
