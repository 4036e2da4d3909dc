"""Wrap what opens a connection, sends over it, receives from it and closes it; the connection stays the genuine object.

Followed are the session as a whole, and each response that is asked for or begun on it.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import AsyncIterable, Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from types import ModuleType
from typing import Any, ClassVar, Final, cast
from weakref import WeakKeyDictionary, finalize

from ravi_otel._forksafe import renew_in_child
from ravi_otel._instrumentation.client_profile import profile_of
from ravi_otel._instrumentation.formats.fields import class_of, get, items, text
from ravi_otel._instrumentation.formats.format import Collector, Host, shaped
from ravi_otel._instrumentation.formats.format import code as plain_code
from ravi_otel._instrumentation.formats.media import transcript_usage
from ravi_otel._instrumentation.formats.realtime import CREATES, DECISION, LESSENS, LIVE, RESPONSES, TERMINAL, Conversation, dialect_of
from ravi_otel._instrumentation.formats.responses import usage as responses_usage
from ravi_otel._instrumentation.streams import LONGEST_IDLE_NS, OPEN
from ravi_otel._runtime.model_call import ModelCall, SendFailure, send_call, send_call_async
from ravi_otel._runtime.patching import Block, Wraps, ignore, named_like, wrapper_of
from ravi_otel._runtime.state import STATE
from ravi_otel._runtime.stopping import ABANDONED, drain, later, opened
from ravi_otel._runtime.unwrapped_calls import begin_unasked, check_going_on
from ravi_otel.errors import RaviError
from ravi_otel.hooks._listeners import Guarded, swallow
from ravi_otel.policy._usage import Call, Reply

_Args = tuple[Any, ...]
_Kwargs = dict[str, Any]

_CLOSED: Final = "ConnectionClosed"
_CLOSED_WELL: Final = "ConnectionClosedOK"
_LONGEST_S: Final = 31 * 86_400
_BUSY: Final = "conversation_already_has_active_response"
_BYTES_PER_TOKEN: Final = 4
_BYTES: Final = (bytes, bytearray, memoryview)


# -- what a program sends -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Unread:
    """Stand for a message that may ask for anything; `size` is about how many tokens it has, 0 where that cannot be told."""

    size: int


def read_message(given: Any) -> Mapping[str, Any] | Unread | None:
    """Read JSON text, whole or in fragments, a mapping or a model; None is for what asks for nothing, or cannot be sent.

    Fragments that an iterator makes can be had only once, and are left to whoever sends them: `Unread`, like text that
    Python takes for no JSON, since the other side may read it differently.
    """
    if isinstance(given, (list, tuple)):
        given = _joined(cast("Sequence[Any]", given))
    if isinstance(given, (str, *_BYTES)):
        return _parsed(cast("str | bytes | bytearray | memoryview[int]", given))
    if not isinstance(given, Mapping) and hasattr(given, "to_dict"):
        try:
            given = given.to_dict()
        except Exception:  # noqa: BLE001 - what its own class cannot write is the client's to refuse
            return None
    if isinstance(given, Mapping):
        return cast("Mapping[str, Any]", given)
    return Unread(0) if isinstance(given, (Iterable, AsyncIterable)) else None


def _joined(parts: Sequence[Any]) -> Any:
    """Return fragments as the one message they are; None when there are none, or of several kinds, which no socket sends."""
    if parts and all(isinstance(part, str) for part in parts):
        return "".join(parts)
    return b"".join(parts) if parts and all(isinstance(part, _BYTES) for part in parts) else None


def _parsed(data: str | bytes | bytearray | memoryview[int]) -> Mapping[str, Any] | Unread | None:
    size = len(data) // _BYTES_PER_TOKEN
    try:
        if isinstance(data, str):
            found = json.loads(data.removeprefix("\ufeff"))
        else:
            found = json.loads(data if isinstance(data, (bytes, bytearray)) else bytes(data))
    except (ValueError, RecursionError):
        return Unread(size)
    return cast("Mapping[str, Any]", found) if isinstance(found, dict) else None


# -- one connection -----------------------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class Turn:
    """One response, from the message that asks for it on; that is sent as any call is (`_runtime.model_call.CallSender`).

    `channel` is the lane it comes in where there are several, `event_id` the asking message's, `message` sends that.
    """

    session: Session
    call: Call
    collector: Collector
    channel: str | None = None
    event_id: str | None = None
    decides: bool = False
    live: ModelCall | None = None
    silent: bool = True
    message: Any = None

    def bound(self) -> None:
        """See `Sizing.bound`: the provider keeps what was said on the connection, and the message goes out as it is."""
        self.call.unbounded, self.call.least_cap = f"{self.call.endpoint} over a connection", 0

    def send(self, live: ModelCall | None) -> Any:
        """See `CallSender.send`."""
        return self._begin(live)()

    async def send_async(self, live: ModelCall | None) -> Any:
        """See `CallSender.send_async`."""
        return await self._begin(live)()

    def _begin(self, live: ModelCall | None) -> Any:
        if live is not None:
            live.sent()
        self.live = live
        self.session.pend(self)  # before it leaves: the answer may come in another thread at once
        message, self.message = self.message, None  # which holds the connection
        return message

    def read(self, live: ModelCall, result: Any) -> None:  # noqa: ARG002 - the protocol's
        """See `CallSender.read`; the response comes later, as events."""
        self.session.watch(self)

    def read_failure(self, live: ModelCall, error: BaseException) -> SendFailure:  # noqa: ARG002 - the protocol's
        """See `CallSender.read_failure`; a send that was cancelled may have left all the same."""
        self.session.forget(self)
        return SendFailure(type(error).__qualname__, sent=not isinstance(error, Exception))


class Session:
    """One connection from its opening to whichever end comes first, with every response on it.

    Its lock guards the lists alone: nothing is settled or told while it is held, and no finaliser takes it.
    """

    __slots__ = ("__weakref__", "_lanes", "_live", "_lock", "_pending", "_running", "_seconds", "conversation", "id", "over")

    def __init__(self, conversation: Conversation, live: ModelCall) -> None:
        self.conversation = conversation
        self.over = False
        self.id: str | None = None
        self._live = live
        self._lock = threading.RLock()
        self._pending: list[Turn] = []  # asked for, not begun yet
        self._running: dict[tuple[str | None, str | None], Turn] = {}
        self._lanes: dict[str | None, tuple[str | None, str | None]] = {}  # the latest response of each lane
        self._seconds: float = 0.0

    # -- what the program sends -----------------------------------------------------------------------------------

    def check(self) -> None:
        """Raise when no more may be sent on it; the refusal is told on the session's span."""
        check_going_on(STATE.locate()[0], self._live.record)

    def unread(self, size: int) -> Turn:
        """Take a message nobody could read for one that asks for a response, of about so many tokens."""
        turn = self.asking({}, decides=False)
        turn.call.input_estimate += size
        return turn

    def asking(self, event: Mapping[str, Any], *, decides: bool) -> Turn:
        """Read a message that asks for a response."""
        call = self.conversation.call(event, decides=decides)
        return Turn(self, call, self.conversation.collector(call), text(event, "stream_id"), text(event, "event_id"), decides)

    def pend(self, turn: Turn) -> None:
        """Expect its response from here on: the message is about to be sent."""
        with self._lock:
            self._pending.append(turn)

    def forget(self, turn: Turn) -> None:
        """Expect it no more: the message could not be sent."""
        self._take(lambda one: one is turn)

    def _take(self, is_meant: Callable[[Turn], bool]) -> Turn | None:
        """Expect the oldest response that is meant no more, and return it."""
        with self._lock:
            turn = next(filter(is_meant, self._pending), None)
            if turn is not None:
                self._pending.remove(turn)
        return turn

    # -- what the provider sends ----------------------------------------------------------------------------------

    def received(self, message: Any) -> None:
        """Take in one message, which may be anything."""
        if self.over:
            return
        try:
            event = json.loads(message)
        except (ValueError, TypeError, RecursionError):
            return
        self.heard(event)

    def heard(self, event: Any) -> None:
        """Take in one event; it may be anything."""
        if not isinstance(event, dict):
            return
        told = cast("dict[str, Any]", event)
        kind = text(told, "type") or ""
        if kind == "response.event":
            inner = told.get("event")
            self._responded(inner, text(inner, "type") or "", text(told, "delegation_id"))
        elif kind.startswith("response."):
            self._responded(told, kind, text(told, "stream_id"))
        elif kind in self._readers:
            self._readers[kind](self, told)

    def _responded(self, event: Any, kind: str, channel: str | None) -> None:
        told = get(event, "response")
        name = text(told, "id") or text(event, "response_id")
        with self._lock:
            key = (name, channel) if name is not None else self._lanes.get(channel, (None, channel))
            turn = self._running.get(key)
        if turn is None:
            if kind != "response.created" and kind not in TERMINAL:
                return
            turn = self._begun(key, channel)
        self._follow(turn, event)
        if kind in TERMINAL:
            self._finished(key, turn, told)

    def _begun(self, key: tuple[str | None, str | None], channel: str | None) -> Turn:
        """Find the message that asked for a response, the oldest of its lane; without one the provider began by itself."""
        turn = self._take(lambda one: not one.decides and one.channel in (None, channel))
        if turn is None:
            call = self.conversation.call({})
            turn = Turn(self, call, self.conversation.collector(call), channel, live=begin_unasked(self._live.scope, call))
        with self._lock:
            self._running[key] = turn
            self._lanes[channel] = key
        return turn

    def _follow(self, turn: Turn, event: Any) -> None:
        live = turn.live
        if live is None:
            return
        if live.record.first_chunk_ns is None or STATE.options.each_chunk:
            live.chunk(live.scope.engine.clock.monotonic_ns())
        turn.collector.add(event)
        if turn.silent and turn.collector.spoke:
            turn.silent = False
            live.content(live.scope.engine.clock.monotonic_ns())

    def _finished(self, key: tuple[str | None, str | None], turn: Turn, told: Any) -> None:
        with self._lock:
            self._running.pop(key, None)
            if self._lanes.get(key[1]) == key:
                del self._lanes[key[1]]
        reply = turn.collector.reply()
        reply.model = reply.model or text(told, "model") or self._own_model()
        if reply.usage is not None and self.conversation.dialect not in (RESPONSES, LIVE):
            self.conversation.context = reply.usage.total_tokens  # it begins with all of this the next time
            self.conversation.said.clear()
        if turn.live is not None:
            turn.live.answered(shaped(reply))

    def _own_model(self) -> str | None:
        return None if self.conversation.dialect in (RESPONSES, LIVE) else self.conversation.model

    def _refused(self, event: Mapping[str, Any]) -> None:
        """End the response that an error is about, if it can be told which one."""
        error = event.get("error")
        code = text(error, "code") or text(event, "code") or text(error, "type") or "error"
        turn = self._meant(event, error, code)
        if turn is not None and turn.live is not None:
            turn.live.fail(RuntimeError(plain_code(code)), SendFailure(plain_code(code), billed=False))

    def _meant(self, event: Mapping[str, Any], error: Any, code: str) -> Turn | None:
        named = text(error, "event_id") or text(event, "client_event_id")
        lane = text(event, "stream_id")
        speaks_of_it = self.conversation.dialect == RESPONSES or code == _BUSY or (text(error, "param") or "").startswith("response")
        if named is not None:
            return self._take(lambda one: one.event_id == named)
        found = self._take(lambda one: speaks_of_it and one.channel == lane)
        if found is None and self.conversation.dialect == RESPONSES:
            with self._lock:
                return self._running.pop(self._lanes.pop(lane, (None, None)), None)
        return found

    def _transcribed(self, event: Mapping[str, Any]) -> None:
        live = begin_unasked(
            self._live.scope, self.conversation.besides("audio.transcriptions", self.conversation.transcriber), request=False
        )
        live.answered(Reply(model=self.conversation.transcriber, usage=transcript_usage(event.get("usage")), answers=1))

    def _decided(self, event: Mapping[str, Any]) -> None:
        told = get(event.get("event"), "decision")
        by_itself = event.get("trigger_id") is not None or event.get("delegation_id") is not None
        turn = None if by_itself else self._take(lambda one: one.decides)
        live = begin_unasked(self._live.scope, self.conversation.call({}, decides=True)) if turn is None else turn.live
        if live is not None:
            size = len(items(told, "answers"))
            reply = Reply(id=text(told, "id"), model=text(told, "model"), usage=responses_usage(get(told, "usage")), answers=size)
            live.answered(shaped(reply))

    def _configured(self, event: Mapping[str, Any]) -> None:
        session = event.get("session")
        if session is not None:
            self.id = text(session, "id") or self.id
            self.conversation.adopt(session)
        seconds = get(event.get("usage"), "seconds")
        if isinstance(seconds, (int, float)) and not isinstance(seconds, bool) and 0 < seconds <= _LONGEST_S:  # no NaN is
            self._seconds = max(self._seconds, float(seconds))

    _readers: ClassVar[Mapping[str, Callable[[Any, Mapping[str, Any]], None]]] = {
        "error": _refused,
        "conversation.item.input_audio_transcription.completed": _transcribed,
        "decision.event": _decided,
        **dict.fromkeys(("session.created", "session.updated", "session.started", "session.closed"), _configured),
        "session.usage.updated": _configured,
    }
    """What reads an event that is of no response."""

    # -- how it ends ----------------------------------------------------------------------------------------------

    def broke(self, connection: Any, error: Exception) -> None:
        """Note that nothing more can be received: it ends, unless the client will open another connection for it."""
        names = {kind.__name__ for kind in type(error).__mro__}
        if _CLOSED not in names:
            return
        comes_back = getattr(connection, "_make_ws", None) is not None and getattr(connection, "_on_reconnecting", None) is not None
        self.lost(error)
        if not comes_back or getattr(connection, "_intentionally_closed", False):
            self.end(None if _CLOSED_WELL in names else error)

    def close(self, error: BaseException | None = None) -> None:
        """End it; later, where a coroutine that was dropped is being finalised, which must take no lock."""
        if isinstance(sys.exc_info()[1], GeneratorExit):
            self.dropped()
        else:
            _guarded(self.end, error)

    def lost(self, error: BaseException | None = None) -> None:
        """End every response that is on its way: the connection that it would have come over is gone."""
        with self._lock:
            turns = [*self._pending, *self._running.values()]
            self._pending.clear()
            self._running.clear()
            self._lanes.clear()
        for turn in turns:
            self._lose(turn, error)

    def _lose(self, turn: Turn, error: BaseException | None) -> None:
        if turn.live is None:
            return
        try:
            told = turn.collector.reply()
            told = shaped(replace(told, finish_reasons=told.finish_reasons or ("error",), pending=False))
        except Exception as bug:  # noqa: BLE001 - a bug in reading is ours alone
            swallow("sockets", bug)
            told = Reply()
        cause = error or GeneratorExit("the connection was closed before the response was whole")
        kind = ABANDONED if error is None else type(error).__qualname__
        turn.live.fail(cause, SendFailure(kind, usage=told.usage), told)

    def watch(self, turn: Turn) -> None:
        """See that a response which was asked for while the connection was being closed ends too."""
        if self.over:
            self.forget(turn)
            self._lose(turn, None)

    def dropped(self) -> None:
        """Queue the end of a session whose connection nobody holds any more; runs in finalisers and takes no lock."""
        if not self.over:
            later(partial(self.end, GeneratorExit("the connection was dropped before it was closed")))

    def leave(self) -> None:
        """See `OpenResult.leave`."""
        self.over = True

    def idle_ns(self) -> int:
        """See `OpenResult.idle_ns`; a connection may be silent for as long as its program likes."""
        return LONGEST_IDLE_NS

    def end(self, error: BaseException | None = None) -> None:
        """End the session and what is still open on it, once.

        What a program raises inside a `with` of its own is no failure of the session: it was closed, and ended well.
        """
        with self._lock:
            over, self.over = self.over, True
        if over:
            return
        OPEN.discard(self)
        self.lost(error if isinstance(error, Exception) else None)
        if self._seconds > 0:  # what a live session took by itself is charged, whatever else was asked on it
            live = begin_unasked(self._live.scope, self.conversation.besides(LIVE, self.conversation.model), request=False)
            used = transcript_usage({"seconds": self._seconds})
            live.answered(shaped(Reply(conversation_id=self.id, model=self.conversation.model, usage=used)))
        reply = shaped(Reply(conversation_id=self.id, model=self.conversation.model))
        if error is None:
            self._live.answered(reply)
        else:
            kind = type(error).__qualname__ if isinstance(error, Exception) else ABANDONED
            self._live.fail(error, SendFailure(kind), reply)


# -- the open sessions --------------------------------------------------------------------------------------------------


_by_connection: WeakKeyDictionary[Any, Session] = WeakKeyDictionary()
_lock = threading.RLock()


def follow(session: Session, connection: Any) -> None:
    """Have `session` end when its connection is dropped, if nothing ends it before; nothing here holds the connection."""
    with _lock:
        _by_connection[connection] = session
    OPEN.add(session)
    opened()
    finalize(connection, session.dropped).atexit = False


def session_of(connection: Any) -> Session | None:
    """Return the session of a connection that was opened under our eyes."""
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


# -- the wrappers -------------------------------------------------------------------------------------------------------


class _Queued:
    """What a manager was given to send before it is entered: each message with what it was granted."""

    __slots__ = ("messages",)

    def __init__(self) -> None:
        self.messages: list[tuple[Mapping[str, Any], ModelCall | None]] = []

    def lost(self) -> None:
        """Give back what is held for messages that were never sent; runs in a finaliser and takes no lock."""
        held = [live for _, live in self.messages if live is not None]
        self.messages.clear()
        for live in held:
            later(partial(live.fail, GeneratorExit("the connection was never opened"), SendFailure(ABANDONED, sent=False)))


class SocketSeam:
    """Hold the wrappers and their switch; inert when off, even where somebody wrapped over us."""

    __slots__ = ("_queued", "_wraps", "active")

    def __init__(self) -> None:
        self.active = False
        self._wraps = Wraps()
        self._queued: WeakKeyDictionary[Any, _Queued] = WeakKeyDictionary()

    # -- finding the classes --------------------------------------------------------------------------------------

    def wrap_pair(self, manager: type, connection: type) -> None:
        """Wrap the methods of a connection and of what opens it, where they are defined: several connections may share them."""
        awaits = hasattr(manager, "__aenter__")
        for kind, name, block_of in (
            (manager, "__aenter__" if awaits else "__enter__", self.opening),
            (manager, "enter", self.opening),
            (connection, "recv_bytes", self.receiving),
            (connection, "close", self.closing),
        ):
            self._wrap(kind, name, wrapper_of(block_of, awaits=awaits))
        if "send" in vars(manager):
            self._wrap(manager, "send", self.queue)
        sending = self.send_async if awaits else self.send
        send: Any = vars(connection)["send"]
        raw = "send_raw" if hasattr(connection, "send_raw") else None
        if raw is not None:
            self._wrap(connection, raw, sending)
        if raw is None or raw not in getattr(send, "__code__", send).co_names:
            self._wrap(connection, "send", sending)

    def _wrap(self, kind: type, name: str, wrapper: Any) -> None:
        self._wraps.wrap(next(cls for cls in kind.__mro__ if name in vars(cls)), name, wrapper)

    def remove(self) -> None:
        """Fall silent, end what is still open, and put the identical methods back."""
        self.active = False
        abandon_sessions()
        self._wraps.restore()

    # -- opening --------------------------------------------------------------------------------------------------

    @contextmanager
    def opening(self, manager: Any, _args: _Args, _kwargs: _Kwargs) -> Generator[Callable[[Any], None]]:
        """Go around what opens a connection: `__enter__`, `__aenter__` and `enter` of its manager."""
        session = self._begin(manager)
        if session is None:
            yield ignore
            return
        try:
            yield partial(_guarded, follow, session)
        except BaseException as error:
            session.close(error)
            raise

    def _begin(self, manager: Any) -> Session | None:
        try:
            client = _own(manager, "client")
            if not self.active or not STATE.options.concerns(client):
                return None
            conversation = _conversation_of(manager, client)
            live = ModelCall.start_admitted(conversation.whole())
            if live is None:
                return None
            session = Session(conversation, live)
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
            session.conversation.sent(kind, event)
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
        event, live, client = _message_of(args, kwargs), None, _own(manager, "client")
        # The manager writes the JSON itself, so that anything but an event is its to refuse.
        if not self.active or not isinstance(event, Mapping) or not STATE.options.concerns(client):
            return wrapped(*args, **kwargs)
        with Guarded("sockets", RaviError):  # our own bug never stops a message
            kind = text(event, "type")
            if kind in CREATES:
                conversation = _conversation_of(manager, client)
                for earlier, _ in self._queue_of(manager).messages:
                    conversation.sent(text(earlier, "type"), earlier)
                live = ModelCall.start_admitted(conversation.call(event, decides=kind == DECISION))
            elif kind not in LESSENS:
                check_going_on(STATE.locate()[0], None)
        try:
            result = wrapped(*args, **kwargs)
        except BaseException as error:
            if live is not None:
                _guarded(live.fail, error, SendFailure(type(error).__qualname__, sent=False))
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
        turn = None if session is None else _checked(wrapped, args, kwargs, session)
        return wrapped(*args, **kwargs) if turn is None else send_call(turn.call, turn)

    def send_async(self, wrapped: Callable[..., Any], connection: Any, args: _Args, kwargs: _Kwargs) -> Any:
        """Wrap what an awaiting connection sends a message with."""
        return named_like(self._send(wrapped, connection, args, kwargs), wrapped)

    async def _send(self, wrapped: Callable[..., Any], connection: Any, args: _Args, kwargs: _Kwargs) -> Any:
        session = session_of(connection) if self.active else None
        turn = None if session is None else _checked(wrapped, args, kwargs, session)
        return await (wrapped(*args, **kwargs) if turn is None else send_call_async(turn.call, turn))

    # -- receiving and closing ------------------------------------------------------------------------------------

    def receiving(self, connection: Any, _args: _Args, _kwargs: _Kwargs) -> Block | None:
        """Go around `recv_bytes` of a connection, which every other way to receive goes through."""
        session = session_of(connection)
        return None if session is None else _received(session, connection)

    @contextmanager
    def closing(self, connection: Any, _args: _Args, _kwargs: _Kwargs) -> Generator[Callable[[Any], None]]:
        """Go around `close` of a connection."""
        try:
            yield ignore
        finally:
            session = session_of(connection)
            if session is not None and not session.over:
                session.close()


SEAM: Final = SocketSeam()
"""The one of the process: modules share classes."""

_MANAGER: Final = "ConnectionManager"


class ConnectionClasses:
    """The classes of WebSocket connections that one module of the client defines."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module
        self._wrapped = False

    def install(self) -> None:
        """Wrap each of them, with what opens it."""
        SEAM.active = True
        for found in list(vars(self._module).values()):
            if isinstance(found, type) and found.__module__ == self._module.__name__ and found.__name__.endswith(_MANAGER):
                SEAM.wrap_pair(found, getattr(self._module, found.__name__.removesuffix("Manager")))
        self._wrapped = True

    def remove(self) -> None:
        """Put back those of all modules; nothing where these could not be wrapped."""
        if self._wrapped:
            SEAM.remove()


@contextmanager
def _received(session: Session, connection: Any) -> Generator[Callable[[Any], None]]:
    try:
        yield partial(_guarded, session.received)
    except Exception as error:
        _guarded(session.broke, connection, error)
        raise


def _checked(wrapped: Callable[..., Any], args: _Args, kwargs: _Kwargs, session: Session) -> Turn | None:
    """Read a message before it is sent; None when it asks for no response, and may go as it is."""
    turn: Turn | None = None
    with Guarded("sockets", RaviError):  # our own bug never stops a message
        event = _message_of(args, kwargs)
        kind = text(event, "type")
        if isinstance(event, Unread):
            turn = session.unread(event.size)
        elif event is not None and kind in CREATES:
            turn = session.asking(event, decides=kind == DECISION)
        elif kind not in LESSENS:
            session.check()
            if event is not None:
                session.conversation.sent(kind, event)
    if turn is not None:
        turn.message = partial(wrapped, *args, **kwargs)
    return turn


def _message_of(args: _Args, kwargs: _Kwargs) -> Mapping[str, Any] | Unread | None:
    return read_message(args[0] if args else next(iter(kwargs.values()), None))


def _conversation_of(manager: Any, client: Any) -> Conversation:
    model = _own(manager, "model")
    named = model if isinstance(model, str) else None
    return Conversation(dialect_of(type(manager).__module__), _host(client), named, STATE.options.content)


def _host(client: Any) -> Host:
    named, profile = STATE.options.providers, profile_of("openai")
    url = getattr(client, "websocket_base_url", None)
    if url is None:
        return profile.host_of(client, named)
    return profile.host_at(type(client.base_url)(str(url)), class_of(client), named)


def _own(manager: Any, name: str) -> Any:
    """Read a private field of a manager, whose name its class is part of."""
    return getattr(manager, f"_{type(manager).__name__}__{name}", None)


def _guarded(act: Callable[..., object], *args: Any) -> None:
    with Guarded("sockets"):  # our own bug never reaches the program's connection
        act(*args)
