"""Wrap what opens a connection, sends over it, receives from it and closes it; the connection stays the genuine object."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final
from weakref import WeakKeyDictionary, finalize

from ravi_otel._instrumentation.formats.fields import class_of, text
from ravi_otel._instrumentation.formats.format import Host
from ravi_otel._instrumentation.openai import PROFILE
from ravi_otel._instrumentation.openai.sockets.asking import Unread, read_message
from ravi_otel._instrumentation.openai.sockets.dialects import CREATES, DECISION, LESSENS, Setting, dialect_of
from ravi_otel._instrumentation.openai.sockets.session import Session, Turn
from ravi_otel._instrumentation.openai.sockets.sessions import follow, session_of
from ravi_otel._instrumentation.streams import ABANDONED
from ravi_otel._runtime.late import later
from ravi_otel._runtime.model_call import Ending, ModelCall, send_call, send_call_async
from ravi_otel._runtime.state import STATE
from ravi_otel._runtime.unasked import check_going_on
from ravi_otel.errors import RaviError
from ravi_otel.hooks.guard import swallow
from ravi_otel.policy.usage import Reply

_CLOSED: Final = "ConnectionClosed"
_CLOSED_WELL: Final = "ConnectionClosedOK"

_Args = tuple[Any, ...]
_Kwargs = dict[str, Any]


class SocketWire:
    """Send one message that asks for a response, over the connection it was given to."""

    __slots__ = ("_args", "_kwargs", "_session", "_turn", "_wrapped")

    def __init__(self, wrapped: Callable[..., Any], args: _Args, kwargs: _Kwargs, session: Session, turn: Turn) -> None:
        self._wrapped = wrapped
        self._args = args
        self._kwargs = kwargs
        self._session = session
        self._turn = turn

    def bound(self) -> None:
        """See `Sizing.bound`: the provider keeps what was said on the connection, and the message goes out as it is."""
        self._turn.call.unbounded, self._turn.call.least_cap = f"{self._turn.call.endpoint} over a connection", 0

    def send(self, live: ModelCall | None) -> Any:
        """See `Transport.send`."""
        self._begin(live)
        return self._wrapped(*self._args, **self._kwargs)

    async def send_async(self, live: ModelCall | None) -> Any:
        """See `Transport.send_async`."""
        self._begin(live)
        return await self._wrapped(*self._args, **self._kwargs)

    def _begin(self, live: ModelCall | None) -> None:
        if live is not None:
            live.sent()
        self._turn.live = live
        self._session.pend(self._turn)  # before it leaves: the answer may come in another thread at once

    def watch(self, live: ModelCall, result: Any) -> bool:  # noqa: ARG002 - the protocol's
        """See `Transport.watch`; the response comes later, as events."""
        self._session.watch(self._turn)
        return True

    def reply(self, result: Any) -> Reply:  # noqa: ARG002 - the protocol's
        """See `Transport.reply`."""
        return Reply()

    def ending(self, live: ModelCall, error: BaseException) -> Ending:  # noqa: ARG002 - the protocol's
        """See `Transport.ending`; a send that was cancelled may have left all the same."""
        self._session.forget(self._turn)
        return Ending(type(error).__qualname__, sent=not isinstance(error, Exception))


class _Queued:
    """Hold what a manager was given to send before it is entered: each message with what it was granted."""

    __slots__ = ("messages",)

    def __init__(self) -> None:
        self.messages: list[tuple[Mapping[str, Any], ModelCall | None]] = []

    def lost(self) -> None:
        """Give back what is held for messages that were never sent; runs in a finaliser and takes no lock."""
        held = [live for _, live in self.messages if live is not None]
        self.messages.clear()
        for live in held:
            later(partial(live.fail, GeneratorExit("the connection was never opened"), Ending(ABANDONED, sent=False)))


class SocketSeam:
    """Hold the wrappers' switch; inert when off, even where somebody wrapped over us."""

    __slots__ = ("_queued", "active")

    def __init__(self) -> None:
        self.active = False
        self._queued: WeakKeyDictionary[Any, _Queued] = WeakKeyDictionary()

    # -- opening --------------------------------------------------------------------------------------------------

    def enter(self, wrapped: Callable[..., Any], manager: Any, args: _Args, kwargs: _Kwargs) -> Any:
        """Wrap `__enter__` and `enter` of a connection manager."""
        session = self._begin(manager)
        if session is None:
            return wrapped(*args, **kwargs)
        try:
            connection = wrapped(*args, **kwargs)
        except BaseException as error:
            _over(session, error)
            raise
        _guarded(follow, connection, session)
        return connection

    def enter_async(self, wrapped: Callable[..., Any], manager: Any, args: _Args, kwargs: _Kwargs) -> Any:
        """Wrap `__aenter__` and `enter` of a connection manager."""
        return _named(self._enter(wrapped, manager, args, kwargs), wrapped)

    async def _enter(self, wrapped: Callable[..., Any], manager: Any, args: _Args, kwargs: _Kwargs) -> Any:
        session = self._begin(manager)
        if session is None:
            return await wrapped(*args, **kwargs)
        try:
            connection = await wrapped(*args, **kwargs)
        except BaseException as error:
            _over(session, error)
            raise
        _guarded(follow, connection, session)
        return connection

    def _begin(self, manager: Any) -> Session | None:
        try:
            client = _own(manager, "client")
            if not self.active or not STATE.options.concerns(client):
                return None
            setting = _setting(manager, client)
            live = ModelCall.hold(setting.whole())
            if live is None:
                return None
            session = Session(setting, live)
            self._take_over(manager, session)
        except RaviError:
            raise
        except Exception as error:  # noqa: BLE001 - our own bug never keeps a connection from opening
            swallow("sockets", error)
            return None
        return session

    def _take_over(self, manager: Any, session: Session) -> None:
        queued = self._queued.pop(manager, None)
        for event, live in [] if queued is None else queued.messages:
            kind = text(event, "type")
            session.setting.sent(kind, event)
            if live is not None:
                turn = session.asking(event, decides=kind == DECISION)
                turn.call, turn.live = live.record.call, live
                live.sent()
                session.pend(turn)
        if queued is not None:
            queued.messages.clear()

    # -- sending --------------------------------------------------------------------------------------------------

    def queue(self, wrapped: Callable[..., Any], manager: Any, args: _Args, kwargs: _Kwargs) -> Any:
        """Wrap a manager's `send`, which keeps a message until the connection is open: what it asks for is held from now on."""
        event, live = _queued(args, kwargs), None
        client = _own(manager, "client")
        if not self.active or event is None or not STATE.options.concerns(client):
            return wrapped(*args, **kwargs)
        try:
            kind = text(event, "type")
            if kind in CREATES:
                setting = _setting(manager, client)
                for earlier, _ in self._queue_of(manager).messages:
                    setting.sent(text(earlier, "type"), earlier)
                live = ModelCall.hold(setting.call(event, decides=kind == DECISION))
            elif kind not in LESSENS:
                check_going_on(STATE.locate()[0], None)
        except RaviError:
            raise
        except Exception as error:  # noqa: BLE001 - our own bug never stops a message
            swallow("sockets", error)
        try:
            result = wrapped(*args, **kwargs)
        except BaseException as error:
            if live is not None:
                _guarded(live.fail, error, Ending(type(error).__qualname__, sent=False))
            raise
        self._queue_of(manager).messages.append((event, live))
        return result

    def _queue_of(self, manager: Any) -> _Queued:
        found = self._queued.get(manager)
        if found is None:
            found = self._queued[manager] = _Queued()
            finalize(manager, found.lost).atexit = False
        return found

    def send(self, wrapped: Callable[..., Any], connection: Any, args: _Args, kwargs: _Kwargs) -> Any:
        """Wrap what a blocking connection sends a message with."""
        session = session_of(connection) if self.active else None
        wire = None if session is None else _checked(wrapped, args, kwargs, session)
        if wire is None:
            return wrapped(*args, **kwargs)
        return send_call(wire[1].call, wire[0])

    def send_async(self, wrapped: Callable[..., Any], connection: Any, args: _Args, kwargs: _Kwargs) -> Any:
        """Wrap what an awaiting connection sends a message with."""
        return _named(self._send(wrapped, connection, args, kwargs), wrapped)

    async def _send(self, wrapped: Callable[..., Any], connection: Any, args: _Args, kwargs: _Kwargs) -> Any:
        session = session_of(connection) if self.active else None
        wire = None if session is None else _checked(wrapped, args, kwargs, session)
        if wire is None:
            return await wrapped(*args, **kwargs)
        return await send_call_async(wire[1].call, wire[0])

    # -- receiving and closing ------------------------------------------------------------------------------------

    def receive(self, wrapped: Callable[..., Any], connection: Any, args: _Args, kwargs: _Kwargs) -> Any:
        """Wrap `recv_bytes` of a blocking connection, which every other way to receive goes through."""
        session = session_of(connection)
        if session is None:
            return wrapped(*args, **kwargs)
        try:
            message = wrapped(*args, **kwargs)
        except Exception as error:
            _guarded(_broke, connection, session, error)
            raise
        _guarded(_hear, session, message)
        return message

    def receive_async(self, wrapped: Callable[..., Any], connection: Any, args: _Args, kwargs: _Kwargs) -> Any:
        """Wrap `recv_bytes` of an awaiting connection."""
        return _named(self._receive(wrapped, connection, args, kwargs), wrapped)

    async def _receive(self, wrapped: Callable[..., Any], connection: Any, args: _Args, kwargs: _Kwargs) -> Any:
        session = session_of(connection)
        if session is None:
            return await wrapped(*args, **kwargs)
        try:
            message = await wrapped(*args, **kwargs)
        except Exception as error:
            _guarded(_broke, connection, session, error)
            raise
        _guarded(_hear, session, message)
        return message

    def close(self, wrapped: Callable[..., Any], connection: Any, args: _Args, kwargs: _Kwargs) -> Any:
        """Wrap `close` of a blocking connection."""
        try:
            return wrapped(*args, **kwargs)
        finally:
            _end(connection)

    def close_async(self, wrapped: Callable[..., Any], connection: Any, args: _Args, kwargs: _Kwargs) -> Any:
        """Wrap `close` of an awaiting connection."""
        return _named(self._close(wrapped, connection, args, kwargs), wrapped)

    async def _close(self, wrapped: Callable[..., Any], connection: Any, args: _Args, kwargs: _Kwargs) -> Any:
        try:
            return await wrapped(*args, **kwargs)
        finally:
            _end(connection)


def _named(coroutine: Any, wrapped: Callable[..., Any]) -> Any:
    """Call a coroutine like the method it stands for, which is what "never awaited" names."""
    coroutine.__name__, coroutine.__qualname__ = wrapped.__name__, wrapped.__qualname__
    return coroutine


def _end(connection: Any) -> None:
    session = session_of(connection)
    if session is not None and not session.over:
        _over(session, None)


def _over(session: Session, error: BaseException | None) -> None:
    """End a session; later, where a coroutine that was dropped is being finalised, which must take no lock."""
    if isinstance(sys.exc_info()[1], GeneratorExit):
        session.dropped()
    else:
        _guarded(session.end, error)


def _checked(wrapped: Callable[..., Any], args: _Args, kwargs: _Kwargs, session: Session) -> tuple[SocketWire, Turn] | None:
    """Read a message before it is sent; None when it asks for no response, and may go as it is."""
    try:
        event = read_message(args[0] if args else next(iter(kwargs.values()), None))
        if isinstance(event, Unread):
            turn = session.unread(event.size)
            return SocketWire(wrapped, args, kwargs, session, turn), turn
        kind = None if event is None else text(event, "type")
        if event is not None and kind in CREATES:
            turn = session.asking(event, decides=kind == DECISION)
            return SocketWire(wrapped, args, kwargs, session, turn), turn
        if kind not in LESSENS:
            session.check()
            if event is not None:
                session.setting.sent(kind, event)
    except RaviError:
        raise
    except Exception as error:  # noqa: BLE001 - our own bug never stops a message
        swallow("sockets", error)
    return None


def _queued(args: _Args, kwargs: _Kwargs) -> Mapping[str, Any] | None:
    """Read what a manager is given: it writes the JSON itself, so that anything but an event is its to refuse."""
    event = read_message(args[0] if args else next(iter(kwargs.values()), None))
    return None if isinstance(event, Unread) else event


def _hear(session: Session, message: Any) -> None:
    if session.over:
        return
    try:
        event = json.loads(message)
    except (ValueError, TypeError, RecursionError):
        return
    session.heard(event)


def _broke(connection: Any, session: Session, error: Exception) -> None:
    """Note that nothing more can be received: the session ends, unless the client will open another connection for it."""
    names = {kind.__name__ for kind in type(error).__mro__}
    if _CLOSED not in names:
        return
    comes_back = getattr(connection, "_make_ws", None) is not None and getattr(connection, "_on_reconnecting", None) is not None
    if comes_back and not getattr(connection, "_intentionally_closed", False):
        session.lost(error)
    else:
        session.lost(error)
        session.end(None if _CLOSED_WELL in names else error)


def _setting(manager: Any, client: Any) -> Setting:
    model = _own(manager, "model")
    return Setting(dialect_of(type(manager).__module__), _host(client), model if isinstance(model, str) else None)


def _host(client: Any) -> Host:
    named = STATE.options.providers
    url = getattr(client, "websocket_base_url", None)
    if url is None:
        return PROFILE.host_of(client, named)
    return PROFILE.host_at(type(client.base_url)(str(url)), class_of(client), named)


def _own(manager: Any, name: str) -> Any:
    """Read a private field of a manager, whose name its class is part of."""
    return getattr(manager, f"_{type(manager).__name__}__{name}", None)


def _guarded(act: Callable[..., object], *args: Any) -> None:
    try:
        act(*args)
    except Exception as error:  # noqa: BLE001 - our own bug never reaches the program's connection
        swallow("sockets", error)
