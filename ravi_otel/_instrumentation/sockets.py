"""Find the classes of WebSocket connections in each version of the client, when the program imports them."""

from __future__ import annotations

import importlib
import logging
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, cast

from ravi_otel._extras import load
from ravi_otel._instrumentation.sync_async import wrapper_of
from ravi_otel._runtime.patching import IMPORTS, Wraps

if TYPE_CHECKING:
    from ravi_otel._instrumentation.socket_seam import SocketSeam

_log = logging.getLogger("ravi_otel")
_ROOM: Final = "openai.resources"
_MODULES: Final = tuple(
    f"{_ROOM}.{name}"
    for name in (
        "responses.responses",
        "beta.responses.responses",
        "realtime.realtime",
        "beta.realtime.realtime",
        "realtime.translations.translations",
        "live.live",
        "live.sideband",
        "live.forks",
    )
)
_MANAGER: Final = "ConnectionManager"


class Sockets:
    """Wrap the connection classes of each module when, and only when, the program imports it; one of these for ever.

    What follows a connection is imported with the first of these modules, not before.
    """

    def __init__(self) -> None:
        self._made: SocketSeam | None = None
        self._active = False
        self._wraps = Wraps()
        self._owners: set[tuple[type, str]] = set()

    def install(self) -> None:
        """Wrap what is imported now, and whatever is imported later, each copy of it; what is wrapped already stays."""
        self._active = True
        if self._made is not None:
            self._made.active = True
        for name in _MODULES:
            IMPORTS.watch(name, self._wrap)
            if name in sys.modules:
                self._wrap(importlib.import_module(name))  # waits for another thread that is importing it right now

    def remove(self) -> None:
        """End the spans of connections that are still open, fall silent, and put the identical methods back."""
        for name in _MODULES:
            IMPORTS.forget(name, self._wrap)
        self._active = False
        if self._made is not None:
            self._made.active = False
        self.abandon()
        self._wraps.restore()
        self._owners.clear()

    def abandon(self) -> None:
        """End every session that is still open, because the process ends or nobody watches any longer."""
        if self._made is not None:
            load("ravi_otel._instrumentation.socket_seam").abandon_sessions()

    @property
    def _seam(self) -> SocketSeam:
        """The wrappers themselves, made with the first connection class."""
        made = self._made
        if made is None:
            made = self._made = cast("SocketSeam", load("ravi_otel._instrumentation.socket_seam").SocketSeam())
            made.active = self._active
        return made

    def _wrap(self, module: ModuleType) -> None:
        try:
            for found in list(vars(module).values()):
                if isinstance(found, type) and found.__module__ == module.__name__ and found.__name__.endswith(_MANAGER):
                    name = found.__name__.removesuffix("Manager")
                    self._wrap_pair(found, cast("type", getattr(module, name)))
        except (AttributeError, KeyError) as error:
            _log.error(
                "ravi-otel: the WebSocket connections of this version of openai cannot be instrumented (%r is missing in %s), so they are "
                "neither counted nor refused.",
                str(error),
                module.__name__,
            )

    def _wrap_pair(self, manager: type, connection: type) -> None:
        seam, awaits = self._seam, hasattr(manager, "__aenter__")
        sending = seam.send_async if awaits else seam.send
        for kind, name, block_of in (
            (manager, "__aenter__" if awaits else "__enter__", seam.opening),
            (manager, "enter", seam.opening),
            (connection, "recv_bytes", seam.receiving),
            (connection, "close", seam.closing),
        ):
            self._once(kind, name, wrapper_of(block_of, awaits=awaits))
        if "send" in vars(manager):
            self._once(manager, "send", seam.queue)
        send: Any = vars(connection)["send"]
        raw = "send_raw" if hasattr(connection, "send_raw") else None
        if raw is not None:
            self._once(connection, raw, sending)
        if raw is None or raw not in getattr(send, "__code__", send).co_names:
            self._once(connection, "send", sending)

    def _once(self, kind: type, name: str, wrapper: Any) -> None:
        """Wrap a method where it is defined: several connections may share it."""
        owner = next(cls for cls in kind.__mro__ if name in vars(cls))
        if (owner, name) not in self._owners:
            self._owners.add((owner, name))
            self._wraps.wrap(owner, name, wrapper)
