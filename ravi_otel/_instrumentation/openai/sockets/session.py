"""Follow one connection: the session as a whole, and each response that is asked for or begun on it."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, cast

from ravi_otel._instrumentation.formats.field_shapes import code as plain_code
from ravi_otel._instrumentation.formats.field_shapes import shaped
from ravi_otel._instrumentation.formats.fields import get, items, text
from ravi_otel._instrumentation.formats.format import Collector
from ravi_otel._instrumentation.formats.media import transcript_usage
from ravi_otel._instrumentation.formats.responses import usage as responses_usage
from ravi_otel._instrumentation.openai.sockets.dialects import LIVE, RESPONSES, Setting
from ravi_otel._instrumentation.openai.sockets.words import TERMINAL
from ravi_otel._instrumentation.streams import ABANDONED, LONGEST_IDLE_NS, OPEN
from ravi_otel._runtime.late import later
from ravi_otel._runtime.model_call import Ending, ModelCall
from ravi_otel._runtime.state import STATE
from ravi_otel._runtime.unasked import begin_unasked, check_going_on
from ravi_otel.hooks.guard import swallow
from ravi_otel.policy.usage import Call, Reply

_TRANSCRIBED: Final = "conversation.item.input_audio_transcription.completed"
_CONFIGURED: Final = frozenset({"session.created", "session.updated", "session.started", "session.closed"})
_LONGEST_S: Final = 31 * 86_400
_BUSY: Final = "conversation_already_has_active_response"


@dataclass(slots=True, eq=False)
class Turn:
    """Be one response on its way: `channel` is the lane it comes in where there are several, `event_id` the asking message's."""

    call: Call
    collector: Collector
    channel: str | None = None
    event_id: str | None = None
    decides: bool = False
    live: ModelCall | None = None
    silent: bool = True


class Session:
    """Be one connection from its opening to whichever end comes first, with every response on it.

    Its lock guards the lists alone: nothing is settled or told while it is held, and no finaliser takes it.
    """

    __slots__ = ("__weakref__", "_lanes", "_live", "_lock", "_pending", "_running", "_seconds", "id", "over", "setting")

    def __init__(self, setting: Setting, live: ModelCall) -> None:
        self.setting = setting
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
        call = self.setting.call(event, decides=decides)
        return Turn(call, self.setting.collector(call), text(event, "stream_id"), text(event, "event_id"), decides)

    def pend(self, turn: Turn) -> None:
        """Expect its response from here on: the message is about to be sent."""
        with self._lock:
            self._pending.append(turn)

    def forget(self, turn: Turn) -> None:
        """Expect it no more: the message could not be sent."""
        with self._lock:
            if turn in self._pending:
                self._pending.remove(turn)

    # -- what the provider sends ----------------------------------------------------------------------------------

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
        elif kind == "error":
            self._refused(told)
        elif kind == _TRANSCRIBED:
            self._transcribed(told)
        elif kind == "decision.event":
            self._decided(told)
        elif kind in _CONFIGURED or kind == "session.usage.updated":
            self._configured(told)

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
        with self._lock:
            turn = next((one for one in self._pending if not one.decides and one.channel in (None, channel)), None)
            if turn is not None:
                self._pending.remove(turn)
        if turn is None:
            call = self.setting.call({})
            turn = Turn(call, self.setting.collector(call), channel)
            turn.live = begin_unasked(self._live.scope, call)
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
        if reply.usage is not None and self.setting.dialect not in (RESPONSES, LIVE):
            self.setting.context = reply.usage.total_tokens  # it begins with all of this the next time
            self.setting.said.clear()
        if turn.live is not None:
            turn.live.answered(shaped(reply))

    def _own_model(self) -> str | None:
        return None if self.setting.dialect in (RESPONSES, LIVE) else self.setting.model

    def _refused(self, event: Mapping[str, Any]) -> None:
        """End the response that an error is about, if it can be told which one."""
        error = event.get("error")
        code = text(error, "code") or text(event, "code") or text(error, "type") or "error"
        turn = self._meant(event, error, code)
        if turn is not None and turn.live is not None:
            turn.live.fail(RuntimeError(plain_code(code)), Ending(plain_code(code), billed=False))

    def _meant(self, event: Mapping[str, Any], error: Any, code: str) -> Turn | None:
        named = text(error, "event_id") or text(event, "client_event_id")
        lane = text(event, "stream_id")
        speaks_of_it = self.setting.dialect == RESPONSES or code == _BUSY or (text(error, "param") or "").startswith("response")
        with self._lock:
            if named is not None:
                found = next((one for one in self._pending if one.event_id == named), None)
            else:
                found = next((one for one in self._pending if speaks_of_it and one.channel == lane), None)
            if found is not None:
                self._pending.remove(found)
            elif named is None and self.setting.dialect == RESPONSES:
                found = self._running.pop(self._lanes.pop(lane, (None, None)), None)
        return found

    def _transcribed(self, event: Mapping[str, Any]) -> None:
        live = begin_unasked(self._live.scope, self.setting.besides("audio.transcriptions", self.setting.transcriber), request=False)
        live.answered(Reply(model=self.setting.transcriber, usage=transcript_usage(event.get("usage")), answers=1))

    def _decided(self, event: Mapping[str, Any]) -> None:
        told = get(event.get("event"), "decision")
        by_itself = event.get("trigger_id") is not None or event.get("delegation_id") is not None
        with self._lock:
            turn = None if by_itself else next((one for one in self._pending if one.decides), None)
            if turn is not None:
                self._pending.remove(turn)
        live = begin_unasked(self._live.scope, self.setting.call({}, decides=True)) if turn is None else turn.live
        if live is not None:
            size = len(items(told, "answers"))
            reply = Reply(id=text(told, "id"), model=text(told, "model"), usage=responses_usage(get(told, "usage")), answers=size)
            live.answered(shaped(reply))

    def _configured(self, event: Mapping[str, Any]) -> None:
        session = event.get("session")
        if session is not None:
            self.id = text(session, "id") or self.id
            self.setting.adopt(session)
        seconds = get(event.get("usage"), "seconds")
        if isinstance(seconds, (int, float)) and not isinstance(seconds, bool) and 0 < seconds <= _LONGEST_S:  # no NaN is
            self._seconds = max(self._seconds, float(seconds))

    # -- how it ends ----------------------------------------------------------------------------------------------

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
        turn.live.fail(cause, Ending(kind, usage=told.usage), told)

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
        self._charge_time()
        reply = shaped(Reply(conversation_id=self.id, model=self.setting.model))
        if error is None:
            self._live.answered(reply)
        else:
            kind = type(error).__qualname__ if isinstance(error, Exception) else ABANDONED
            self._live.fail(error, Ending(kind), reply)

    def _charge_time(self) -> None:
        """Charge what a live session took by itself: its time, whatever else was asked on it."""
        if self._seconds > 0:
            live = begin_unasked(self._live.scope, self.setting.besides(LIVE, self.setting.model), request=False)
            used = transcript_usage({"seconds": self._seconds})
            live.answered(shaped(Reply(conversation_id=self.id, model=self.setting.model, usage=used)))
