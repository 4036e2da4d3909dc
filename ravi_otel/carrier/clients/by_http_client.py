"""Wrap what writes requests for requests and urllib3, and for whoever else goes through it: the standard library's `http.client`."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from functools import partial
from types import ModuleType
from typing import Any, Final

from ravi_otel._flow import run_sync
from ravi_otel._runtime.patching import Wraps
from ravi_otel.carrier.clients.rewriting import Edit, Field, Going, Rewriting, going, origin_of
from ravi_otel.hooks._listeners import swallow

_BETWEEN: Final = b": "
_TARGET: Final = 1
"""The second word of a request's first line."""

_BEGUN: Final[ContextVar[tuple[Any, Edit] | None]] = ContextVar("ravi-otel-begun", default=None)
"""The connection that is about to send what a loan goes with."""


class Installed:
    """Hold the wrapped methods of one module."""

    def __init__(self, rewriting: Rewriting, module: ModuleType) -> None:
        self._rewriting = rewriting
        self._module = module
        self._wraps = Wraps()
        self._active = False

    def install(self) -> None:
        """Wrap the end of a request's headers, the sending of them, and the beginning of its answer."""
        owner = self._module.HTTPConnection
        self._wraps.wrap(owner, "endheaders", self._end_headers)
        self._wraps.wrap(owner, "send", self._send)
        self._wraps.wrap(owner, "getresponse", self._get_response)
        self._active = True

    def remove(self) -> None:
        """Fall silent, and put the identical methods back."""
        self._active = False
        self._wraps.restore()

    def _end_headers(self, wrapped: Callable[..., Any], connection: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        edit: Edit | None = None
        if self._active:
            try:
                edit = self._rewrite(connection)
            except Exception as bug:  # noqa: BLE001 - what stands in a connection's place need not have what one has
                swallow("carrier.outbound", bug)
        if edit is None or edit.lent is None:
            return wrapped(*args, **kwargs)
        token = _BEGUN.set((connection, edit))
        try:
            return wrapped(*args, **kwargs)
        finally:
            _BEGUN.reset(token)

    def _send(self, wrapped: Callable[..., Any], connection: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        begun = _BEGUN.get()
        if begun is not None and begun[0] is connection and connection.sock is None and connection.auto_open:
            try:
                connection.connect()  # as the method itself begins
            except BaseException:
                begun[1].unsend()
                raise
        return wrapped(*args, **kwargs)

    def _get_response(self, wrapped: Callable[..., Any], connection: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        response = wrapped(*args, **kwargs)
        if self._active:
            try:
                run_sync(self._rewriting.returns(_fields(response), partial(_answering, connection)))
            except Exception as bug:  # noqa: BLE001 - nor need an answer: it is the program's as it is
                swallow("carrier.return", bug)
            except BaseException:  # a signal: nobody gets the answer, whose body would be the next one's beginning
                connection.close()
                raise
        return response

    def _rewrite(self, connection: Any) -> Edit | None:
        """Change the lines that wait to be sent; the first of them is no header."""
        lines: list[bytes] = connection._buffer  # noqa: SLF001 - the only place that holds them, the same since Python 3.0
        if not lines:
            return None
        fields = [_split(line) for line in lines[1:]]
        edit = self._rewriting.edit(fields, partial(_going, connection, lines[0]))
        if edit is not None:
            kept = [line for place, line in enumerate(lines[1:]) if place not in edit.drop]
            lines[1:] = [*kept, *(name + _BETWEEN + value for name, value in edit.add)]
        return edit


def _split(line: bytes) -> Field:
    name, _, value = line.partition(b":")
    return name, value.strip()


def _fields(response: Any) -> list[Field]:
    return [(name.encode("latin-1", "replace"), str(value).encode("latin-1", "replace")) for name, value in response.msg.items()]


def _peer(connection: Any) -> str:
    scheme = "https" if getattr(connection, "default_port", None) == 443 else "http"  # noqa: PLR2004 - the class's own default
    tunnelled = connection._tunnel_host  # noqa: SLF001 - whom a proxy hands the connection on to: nothing else tells
    if tunnelled:
        return origin_of(scheme, tunnelled, connection._tunnel_port)  # noqa: SLF001 - the same
    return origin_of(scheme, connection.host, connection.port)


def _going(connection: Any, first: bytes) -> Going:
    words = first.decode("latin-1").split(" ")
    return going(_peer(connection), words[0], words[_TARGET] if len(words) > _TARGET else "")


def _answering(connection: Any) -> Going:
    return Going(_peer(connection))
