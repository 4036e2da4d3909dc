"""Ask a server one thing over HTTP, and wait no longer than agreed for the whole of its answer."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, Final

from ravi_otel._http import UnansweredError, send
from ravi_otel._stack.doctor.finding import Asked
from ravi_otel._stack.ports import HOST

_PATIENCE_S: Final = 3.0
_MOST_READ: Final = 4_000_000
_OK: Final = 200


@contextmanager
def cut_after(connected: socket.socket, seconds: float) -> Generator[None]:
    """Break a connection off when that takes longer: a server that answers byte by byte keeps to every other time-out."""
    timer = threading.Timer(seconds, _cut, (connected,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def get(port: int, path: str, asked: Asked) -> bytes:
    """Give the body of an answer with status 200 of a server on this machine; UnansweredError."""
    answer = send(f"http://{HOST}:{port}{path}", timeout_s=asked.left_s(_PATIENCE_S), most_bytes=_MOST_READ, direct=True)
    if answer.status != _OK:
        raise UnansweredError(f"it answered {answer.status}")
    if not answer.whole:
        raise UnansweredError("its answer does not end")
    return answer.body


def get_json(port: int, path: str, asked: Asked) -> Any:
    """Give the JSON of an answer; UnansweredError."""
    try:
        return json.loads(get(port, path, asked))
    except (ValueError, RecursionError):
        raise UnansweredError("its answer is no JSON") from None


def within(document: Any, *path: str | int) -> Any:
    """Give what is at a path of a document of anybody's; None where there is nothing."""
    for step in path:
        if isinstance(step, int):
            document = document[step] if isinstance(document, list) and len(document) > step else None  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]  # JSON of anybody's
        else:
            document = document.get(step) if isinstance(document, dict) else None  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]  # JSON of anybody's
    return document  # pyright: ignore[reportUnknownVariableType]  # JSON of anybody's


def listed(document: Any, *path: str | int) -> list[Any]:
    """Give the list at a path of a document of anybody's; an empty one where there is none."""
    found = within(document, *path)
    return found if isinstance(found, list) else []  # pyright: ignore[reportUnknownVariableType]  # JSON of anybody's


def _cut(connected: socket.socket) -> None:
    with contextlib.suppress(OSError):
        socket.socket.shutdown(connected, socket.SHUT_RDWR)  # the plain one: that of TLS would take its state away from the reader
