"""Open this process's socket at its first work, in a thread of ours, and take it away at its end.

Only where a store is: under `ravi-otel run`, or with `RAVI_STORE`. `RAVI_LIVE=off` keeps it shut.
"""

from __future__ import annotations

import atexit
import logging
import os
import socket
import threading
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Final

from ravi_otel._forksafe import renew_in_child, without_signals
from ravi_otel.errors import RaviError
from ravi_otel.hooks._listeners import swallow
from ravi_otel.local.live.client import sweep
from ravi_otel.local.live.commands import answer
from ravi_otel.local.live.peers import Peer
from ravi_otel.local.live.place import announce, make
from ravi_otel.local.live.server import Server
from ravi_otel.local.live.watching import Watch
from ravi_otel.local.store.directory import Store
from ravi_otel.policy._checks import switch

VARIABLE: Final = "RAVI_LIVE"
_log = logging.getLogger("ravi_otel")


class Live:
    """Be the live view of this process: a listener that knows what is open, and the server that tells."""

    def __init__(self, store: Path) -> None:
        self._store = store
        self._server: Server | None = None
        self._stopped = False
        self._pid = os.getpid()
        self.watch = Watch(self.begin, stop)

    def begin(self) -> None:
        """Open the socket, in a thread: nothing of it is done on the way of whoever works."""
        self._pid = os.getpid()
        try:
            with without_signals():
                threading.Thread(target=self._live, name="ravi-otel-live", daemon=True).start()
        except RuntimeError:  # the interpreter is ending, or has no room: it is not to be watched
            return

    def _live(self) -> None:
        try:
            with ExitStack() as opened:
                server = self._open(opened)
                if server is not None:
                    server.serve()
        except Exception as error:  # noqa: BLE001 - our own bug never reaches the program
            swallow("live", error)

    def _open(self, opened: ExitStack) -> Server | None:
        """Listen, unless that is impossible or nobody may watch any more; `opened` closes and removes what was made on the way."""
        try:
            store = Store.open(self._store).root
            entry = make(store)
            opened.callback(entry.remove)
            server = self._server = Server(entry, partial(_answer, self.watch))  # known before it listens: a fork may come meanwhile
            opened.callback(server.drop)
            announce(entry)
            server.open()
        except (OSError, RaviError) as error:
            _log.info("ravi-otel: this process cannot be watched live: %s", error)
            return None
        sweep(store)
        return None if self._stopped else server  # meanwhile

    def stop(self) -> None:
        """Take the socket away; the thread ends by itself. Nothing is waited for."""
        self._stopped = True
        server, self._server = self._server, None
        if server is not None and self._pid == os.getpid():
            server.entry.remove()
            server.stop()

    def renew(self) -> None:
        """Begin anew in a forked child: the socket and its scopes are the parent's, and the child opens its own when it works."""
        server, self._server = self._server, None
        if server is not None:
            server.drop()
        self.watch.renew(_nothing if self._stopped else self.begin)


def _nothing() -> None:
    """Begin nothing: it was stopped."""


def _answer(watch: Watch, line: bytes, peer: Peer) -> bytes:
    return answer(line, watch, peer)


_now: dict[Path, Live] = {}


def listeners(store: Path | None = None) -> tuple[Watch, ...]:
    """Give what is to be told of all that happens; nothing where nobody may watch, or the system knows no such sockets.

    Without `store` it is the one that the environment names. Never raises.
    """
    if not switch(os.environ, VARIABLE, default=True, safe=False) or not hasattr(socket, "AF_UNIX"):
        return ()
    try:
        place = Store.place() if store is None else store
    except RaviError:  # who keeps the store says so
        return ()
    known = _now.get(place)
    if known is None:
        stop()
        known = _now[place] = Live(place)
    return (known.watch,)


def stop() -> None:
    """Let nobody watch any more: at the end of the process."""
    while _now:
        _now.popitem()[1].stop()


@renew_in_child
def _renew() -> None:
    for each in list(_now.values()):
        each.renew()


atexit.register(stop)
