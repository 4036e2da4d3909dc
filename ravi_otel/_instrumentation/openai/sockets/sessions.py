"""Find each session by its connection; what is open is kept with every other open result."""

from __future__ import annotations

import threading
from typing import Any
from weakref import WeakKeyDictionary, finalize

from ravi_otel._forksafe import renew_in_child
from ravi_otel._instrumentation.openai.sockets.session import Session
from ravi_otel._instrumentation.streams import OPEN
from ravi_otel._runtime.late import drain, opened

_by_connection: WeakKeyDictionary[Any, Session] = WeakKeyDictionary()
_lock = threading.RLock()


def follow(connection: Any, session: Session) -> None:
    """Have `session` end when its connection is dropped, if nothing ends it before; nothing here holds the connection."""
    with _lock:
        _by_connection[connection] = session
    OPEN.add(session)
    opened()
    finalize(connection, session.dropped).atexit = False


def session_of(connection: Any) -> Session | None:
    """Give the session of a connection that was opened under our eyes."""
    return _by_connection.get(connection)


def abandon_sessions() -> None:
    """End every session that is still open, and no other open result."""
    for followed in list(OPEN):
        if isinstance(followed, Session):
            followed.dropped()
    drain()


@renew_in_child
def _leave_to_the_parent() -> None:
    """Forget, in a forked child, which session is whose: `idle` has left each to its parent."""
    global _lock  # noqa: PLW0603 - another thread of the parent may have held it at the fork
    _lock = threading.RLock()
    _by_connection.clear()
