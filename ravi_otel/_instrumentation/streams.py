"""Follow what is still open when the client returns, streams and raw responses, sync and async, to whichever end comes first.

Each is settled exactly once, by whoever ends it first. One that must not go on is cut: `_check_limits` asks `charging.StreamLimits` for
a refusal after an event, `_cut_with` settles what came until then, and `_UntilEnd` raises the refusal where the program reads.
"""

from __future__ import annotations

import copy
import functools
import inspect
import sys
import weakref
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import AsyncGeneratorType, FrameType, FunctionType, GeneratorType, ModuleType, TracebackType
from typing import Any, Final, Protocol, cast

from ravi_otel._enforcement.ledger.account import DRAINS
from ravi_otel._enforcement.scope import Scope
from ravi_otel._forksafe import renew_in_child
from ravi_otel._instrumentation.formats.fields import class_of, get
from ravi_otel._instrumentation.formats.format import Collector, WireFormat, read_body, read_events
from ravi_otel._instrumentation.http_library import (
    BodyCopy,
    close_all,
    close_all_async,
    content_of,
    held_by_others,
    held_only_by_itself,
    interrupts_lock_holder,
    is_running,
    is_timeout,
    locals_of,
    name_like,
    references_from,
    replace_method,
    restore_methods,
    shut_down_response,
    surround_method,
    wait_for_shutdown,
)
from ravi_otel._runtime.charging import NEVER, StreamLimits, blame
from ravi_otel._runtime.inferred_tools import INFERRING
from ravi_otel._runtime.model_call import ModelCall, SendFailure
from ravi_otel._runtime.patching import Block, Wraps, ignore
from ravi_otel._runtime.state import STATE
from ravi_otel._runtime.stopping import ABANDONED, drain, follow_streams, later, look_soon, opened, why_over
from ravi_otel.errors import RaviError
from ravi_otel.hooks._listeners import Guarded, raise_from_signal, swallow
from ravi_otel.policy._limits import NANO
from ravi_otel.policy._usage import Reply, ToolUse

EARLY_NS: Final = 5_000_000
"""By how much an HTTP library's clock may be ahead of ours when a time-out that we set comes."""

IDLE: Final = "idle"
"""The `error.type` of a stream that nobody read for too long."""

LONGEST_IDLE_NS: Final = 300 * NANO
"""How long a stream may go unread."""

_CLOSERS: Final = ("close", "aclose")
_READERS: Final = ("read", "aread")
_ITERATORS: Final = ("iter_raw", "aiter_raw")

# -- what is open -------------------------------------------------------------------------------------------------------


class OpenResult(Protocol):
    """An open result that is followed: a stream, a raw response, or the session of a connection."""

    def dropped(self) -> None:
        """Queue its end; takes no lock."""

    def leave(self) -> None:
        """Forget it without an end: a forked child has it from its parent, who will end it."""

    def idle_ns(self) -> int:
        """Return how long it may still go unread, and end it when that is over."""
        ...


OPEN: Final[set[OpenResult]] = set()
"""Keeps what follows, and with it its weak references, alive until the end."""

UNREAD: Final[set[FollowedStream]] = set()
"""Those of them whose end nothing tells: no iterator of ours is there to be dropped, and the response is part of a cycle."""


def abandon_open() -> None:
    """Queue the end of everything that is still open; for the end of the process."""
    for each in list(OPEN):
        _guarded(each.dropped)


def _look_at_unread() -> None:
    for each in list(UNREAD):
        _guarded(each.look)


class _IdleSweep:
    """The sweep for idle streams, which knows when the first can be idle and runs no sooner."""

    def __init__(self) -> None:
        self._clock: object = None
        self._due_ns = 0

    def run(self) -> None:
        """End what is idle; as cheap as reading a clock until something can be."""
        if not OPEN:
            return
        clock = STATE.engine.clock
        now = clock.monotonic_ns()
        if clock is self._clock and now < self._due_ns:
            return
        self._clock, self._due_ns = clock, now + LONGEST_IDLE_NS
        for each in list(OPEN):
            self._due_ns = min(self._due_ns, now + each.idle_ns())


follow_streams(OPEN, _IdleSweep().run, _look_at_unread)


@renew_in_child
def _leave_to_parent() -> None:
    for each in list(OPEN):
        each.leave()
    OPEN.clear()
    UNREAD.clear()


# -- one of them --------------------------------------------------------------------------------------------------------


class FollowedStream:
    """Follow one open result of a call to whichever end comes first.

    A stream ends by exhaustion, an error, `close()`, a `with` block, cancellation, being dropped, or idleness. That it was
    dropped is found by a weak reference's callback or a generator's finaliser, which take no lock: they queue the call for
    the next one to settle. Nothing here holds the stream or its response, or they would never be dropped.
    """

    __slots__ = (
        *("__weakref__", "_begun", "_body", "_collector", "_byte_iterator", "_cut", "_drained", "_format", "_heard_ns"),
        *("_helper", "_hides_usage", "_limits", "_live", "_now", "_over", "_event_iterator", "_raw", "_raw_references"),
        *("_reading", "_references", "_response_ref", "_silent", "_stopped", "_streams", "_timed"),
    )

    def __init__(self, live: ModelCall, wire_format: WireFormat, *, hides_usage: bool = False) -> None:
        self._live = live
        self._format = wire_format
        self._hides_usage = hides_usage
        self._collector: Collector = wire_format.collector(live.record.call)
        self._timed = False  # its first chunk came
        self._silent = True  # none of its content came yet
        self._event_iterator: weakref.ref[Any] | None = None  # our iterator of events
        self._begun = False  # something was read from it
        self._byte_iterator: weakref.ref[Any] | None = None  # our iterator of bytes
        self._response_ref: weakref.ref[Any] | None = None
        self._references = 0  # references to the response that are there because of us
        self._helper: weakref.ref[Any] | None = None  # the client's object that reads the stream for the program
        self._raw: weakref.ref[Any] | None = None  # the raw response, until it is parsed
        self._raw_references = 0
        self._body: BodyCopy | None = None
        self._streams = False
        self._reading = False
        self._over = False
        self._limits: StreamLimits | None = live.stream_limits(self._collector)
        self._stopped = False  # its scope was closed or cancelled, or its time is up
        self._cut: RaviError | None = None  # what it was cut with
        self._now = live.scope.engine.clock.monotonic_ns
        self._heard_ns = self._now()
        self._drained = -1  # what `DRAINS` said when the limits were last looked at

    # -- following ----------------------------------------------------------------------------------------------------

    @classmethod
    def begin(cls, live: ModelCall, result: Any, wire_format: WireFormat, *, hides_usage: bool = False) -> bool:
        """Follow what the client returned if it is still open; False when it is complete. `hides_usage` keeps it from the program."""
        kind = class_of(result)
        if hasattr(kind, "__stream__"):
            cls(live, wire_format, hides_usage=hides_usage).follow(result)
            return True
        if not is_raw_response(result):
            if len(COMPLETE) < _MOST_KEPT:
                COMPLETE.add(kind)
            return False
        if get(result, "_is_sse_stream") or get(result, "_stream"):
            cls(live, wire_format).follow_parsing(result)
            return True
        if get(result.http_response, "is_closed") is False:
            cls(live, wire_format).follow_response(result.http_response)
            return True
        return False

    def follow(self, stream: Any) -> None:
        """Put ourselves between a client's stream and its iterator; the stream stays the genuine object."""
        self._replace_iterator(stream)
        self.follow_response(stream.response, (hasattr(stream, "__anext__"),))

    def follow_response(self, response: Any, awaited: Sequence[bool] = (False, True)) -> None:
        """Observe when the HTTP response is read, closed or dropped, by whoever does it.

        `awaited` says which of its methods are observed: plain ones (False), awaited ones (True), or both where that is not known.
        """
        before = sys.getrefcount(response)
        for awaits in awaited:
            surround_method(response, _CLOSERS[awaits], self._closing, awaits=awaits)
            surround_method(response, _READERS[awaits], self._reading_whole, awaits=awaits)
            self._observe_iterator(response, _ITERATORS[awaits])
        self._references = sys.getrefcount(response) - before
        self._response_ref = weakref.ref(response, self._lost)
        self._opened()

    def follow_parsing(self, raw: Any) -> None:
        """Follow the stream a raw response makes when its user parses it, and its HTTP response if they never do."""
        self._streams = True
        if self._was_read(raw.http_response):
            return
        before = sys.getrefcount(raw)
        surround_method(raw, "parse", self._parsing, awaits=inspect.iscoroutinefunction(raw.parse))
        self._raw, self._raw_references = weakref.ref(raw), sys.getrefcount(raw) - before
        self.follow_response(raw.http_response)

    @contextmanager
    def _parsing(self, raw: Any, _args: object, _kwargs: object) -> Generator[Callable[[Any], None]]:
        yield functools.partial(_guarded, self._parsed, raw)

    def read_by(self, helper: Any) -> None:
        """Check whether an object of the client's that reads this stream for the program is still held: it may be part of a cycle."""
        self._helper = weakref.ref(helper)
        if not self._over:
            UNREAD.add(self)

    def _replace_iterator(self, stream: Any) -> None:
        source = _detached_iterator(stream)
        follow: Any = self._follow_async(source) if hasattr(source, "__anext__") else self._follow(source)
        self._event_iterator = weakref.ref(name_like(follow, source), self._iterator_gone)
        self._streams = True
        stream._iterator = follow  # noqa: SLF001 - the one place where sync and async streams can be followed

    def _was_read(self, response: Any) -> bool:
        """Settle a stream whose bytes were all read before we had it, by a hook of the HTTP client's."""
        if get(response, "is_closed") is not True:
            return False
        self._body = content_of(response)
        if self._body is not None:
            self._settle()
        return self._over

    def _parsed(self, raw: Any, found: Any) -> None:
        restore_methods(raw, "parse")  # seen once is enough, and it holds `raw` in a cycle
        self._raw = None
        if self._event_iterator is None and hasattr(class_of(found), "__stream__"):
            self._replace_iterator(found)
            UNREAD.discard(self)

    def _opened(self) -> None:
        """Be found by whoever stops something or looks for what is idle, from here to the end."""
        OPEN.add(self)
        if self._event_iterator is None:
            UNREAD.add(self)
        opened()
        if self._live.record.call.offers_tools and not self._over:
            INFERRING.follow(self._live.scope, self._live.record, self)
        if self._live.scope.is_over():  # just now
            self.stop()

    # -- events -------------------------------------------------------------------------------------------------------

    def _follow(self, source: Iterator[Any]) -> Iterator[Any]:
        self._begun = True
        with _UntilEnd(self, self._settle, self.dropped):
            for item in source:
                if self._add_event(item):
                    yield item
                    continue
                is_last = self._check_limits()
                if is_last:
                    close_all(self._response(), source)
                if not (self._hides_usage and hide_usage(item)):
                    yield item
                if is_last:
                    break

    async def _follow_async(self, source: AsyncIterator[Any]) -> AsyncIterator[Any]:
        self._begun = True
        with _UntilEnd(self, self._settle, self.dropped):
            async for item in source:
                if self._add_event(item):
                    yield item
                    continue
                is_last = self._check_limits()
                if is_last:
                    await close_all_async(source, self._response())
                if not (self._hides_usage and hide_usage(item)):
                    yield item
                if is_last:
                    break

    def _add_event(self, event: Any) -> bool:
        """Add one event to what came; return whether it is only more text, for which no limit has to be looked at."""
        try:
            self._heard_ns = self._now()
            if self._collector.add(event) and not self._stopped and self._drained == DRAINS.count:
                if self._hides_usage:  # it has none: only the field is there because we asked
                    event.__pydantic_fields_set__.discard("usage")
                return True
        except Exception as error:  # noqa: BLE001 - the chunk is the user's whatever we make of it
            swallow("stream", error)
        self._drained = DRAINS.count  # before the look, so that what drains during it is seen at the next event
        return False

    def _check_limits(self) -> bool:
        """Hold what came until now to the limits; return whether the stream was cut, and ends with the latest event."""
        try:
            if not self._timed or STATE.options.each_chunk:
                self._timed = True
                self._live.chunk(self._heard_ns)
            if self._silent and self._collector.spoke:
                self._silent = False
                self._live.content(self._heard_ns)
            error = self._why_stopped() if self._stopped else None if self._limits is None else self._limits.refusal()
            if error is not None and self._cut_unless_complete(error):
                return True
            if not self._silent and not STATE.options.each_chunk:
                self._collector.be_quiet_until(NEVER if self._limits is None else self._limits.until)
        except Exception as error:  # noqa: BLE001 - the chunk is the user's whatever we make of it
            swallow("stream", error)
            if self._cut is not None:  # on the way
                self._settle_anyhow(self._cut)
                return True
        return False

    # -- bytes its user reads without us --------------------------------------------------------------------------------

    def _observe_iterator(self, response: Any, name: str) -> None:
        method: Any = getattr(response, name, None)
        if method is None:
            return

        def copied(*args: Any, **kwargs: Any) -> Any:
            source = method(*args, **kwargs)
            try:
                if self._over or self._reading or is_running(self._event_iterator):
                    return source  # what is read whole, or event by event, is known by other means
                ours: Any = self._copy_async(source, response) if hasattr(source, "__anext__") else self._copy(source, response)
                if self._body is None:
                    self._byte_iterator = weakref.ref(ours)
                return name_like(ours, source)
            except Exception as error:  # noqa: BLE001 - the bytes are the user's whatever we make of them
                swallow("stream", error)
                return source

        replace_method(response, name, copied)

    def _copy(self, source: Any, response: Any) -> Iterator[bytes]:
        body = self._begin_copy(response)
        with _UntilEnd(self, functools.partial(self._copied, body), functools.partial(self._left, response)):
            try:
                for data in source:
                    is_last = self._keep(body, data)
                    if is_last:
                        close_all(response, source)
                    yield data
                    if is_last:
                        break
            except GeneratorExit:
                source.close()
                raise

    async def _copy_async(self, source: Any, response: Any) -> AsyncIterator[bytes]:
        body = self._begin_copy(response)
        with _UntilEnd(self, functools.partial(self._copied, body), functools.partial(self._left, response)):
            try:
                async for data in source:
                    is_last = self._keep(body, data)
                    if is_last:
                        await close_all_async(source, response)
                    yield data
                    if is_last:
                        break
            except GeneratorExit:
                await source.aclose()
                raise

    def _begin_copy(self, response: Any) -> BodyCopy | None:
        """Begin a copy; None for a second reader, whom the HTTP library will refuse."""
        if self._body is not None:
            return None
        with Guarded("stream"):  # the bytes are the user's whatever we make of them
            self._body = BodyCopy(response)
        return self._body

    def _keep(self, body: BodyCopy | None, data: bytes) -> bool:
        """Take in some bytes; True when they are the last before a cut.

        The first are the first chunk, and when content first came is not recorded: nothing is parsed yet.
        """
        try:
            self._heard_ns = self._now()
            if body is not None and not self._over:
                if body.streamed and not self._timed:
                    self._timed = True
                    self._live.chunk(self._heard_ns)
                body.add(data)
            # What was stopped is cut, unless it is whole.
            return self._stopped and (self._cut is not None or self._cut_unless_complete(self._why_stopped()))
        except Exception as error:  # noqa: BLE001 - the bytes are the user's whatever we make of them
            swallow("stream", error)
        return False

    def _left(self, response: Any) -> None:
        """Note that somebody stopped reading the bytes half way: some HTTP libraries close the response then."""
        if response.is_closed:
            self.dropped()

    def _copied(self, body: BodyCopy | None, error: BaseException | None) -> None:
        if error is not None:
            self._broke(error)
        elif body is not None:
            body.ended = True
            self._settle()

    # -- cutting ------------------------------------------------------------------------------------------------------

    @property
    def scope(self) -> Scope:
        """See `InFlight.scope`."""
        return self._live.scope

    def asks(self) -> tuple[Sequence[ToolUse], int]:
        """See `inferred_tools.Stream.asks`."""
        return self._collector.tool_uses, self._heard_ns

    def stop(self) -> None:
        """Cut it at its next piece, and wake whoever waits for one; see `InFlight.stop`."""
        if self._stopped or self._over:
            return
        self._stopped = True
        # One that is whole is not waited for either: only what it used is still to come, and that may never.
        response = self._response()
        if response is not None and (self._streams or is_running(self._byte_iterator)) and not self._reading:
            shut_down_response(response)

    def _response(self) -> Any:
        return None if self._response_ref is None else self._response_ref()

    def _why_stopped(self) -> RaviError:
        return why_over(self._live.scope, self._live.record)

    def _cut_unless_complete(self, error: RaviError) -> bool:
        """Cut and settle it, with `error` as its end, unless it is complete: a finished answer wins. Return whether it was cut."""
        return not self._over and not self._collector.complete and self._cut_with(error)

    def _cut_with(self, error: RaviError) -> bool:
        if not self._end():
            return False
        self._cut = error
        with Guarded("stream"):  # it is settled all the same
            blame(self._live.record, error, None if self._limits is None else self._collector.text)
        self._fail(error, type(error).__qualname__, self._reply())
        return True

    def end_reading(self, error: BaseException | None, settle: Callable[[BaseException | None], None]) -> BaseException | None:
        """Settle it, because its reader came to the end or failed with `error`; raises nothing but what a signal's handler raises.

        Return what the reader is to raise: its own `error`, our refusal where we caused that, or None where the answer is whole.
        """
        try:
            if error is None or isinstance(error, Exception):
                late = self._deadline_behind(error)
                if (self._stopped or late is not None) and not self._over:
                    if self._collector.complete:
                        error = None
                    else:
                        self._cut_with(late or why_over(self._live.scope, self._live.record))
                if self._cut is not None:
                    return self._cut
            settle(error)
        except BaseException as bug:
            error = error if self._cut is None else self._cut
            self._settle_anyhow(error)
            if not isinstance(bug, Exception):  # a signal's
                raise
            swallow("stream", bug)  # it ends as the client would end it
        return error

    def _deadline_behind(self, error: BaseException | None) -> RaviError | None:
        """Return the deadline that a time-out of the HTTP library was: it may come before whoever looks at the clocks does."""
        if error is None or self._stopped or self._over or not is_timeout(error):
            return None
        return self._live.scope.overdue(self._live.record, EARLY_NS)

    def _settle_anyhow(self, error: BaseException | None) -> None:
        """Settle at what was held what a bug of ours kept from being settled; nothing of what was."""
        self._over = True
        OPEN.discard(self)
        UNREAD.discard(self)
        with Guarded("settle"):  # the same bug, perhaps
            if error is None:
                self._live.answered(Reply())
            else:
                self._live.fail(error, SendFailure(type(error).__qualname__), Reply())

    # -- ending -------------------------------------------------------------------------------------------------------

    def _end(self) -> bool:
        over, self._over = self._over, True
        if over:
            return False
        OPEN.discard(self)
        UNREAD.discard(self)
        with Guarded("stream"):  # it is settled all the same
            response = self._response()
            if response is not None:
                restore_methods(response, *_CLOSERS, *_READERS, *_ITERATORS)
        return True

    def _settle(self, error: BaseException | None = None) -> None:
        """Settle a stream that was read to its end, or that broke, with what came until then."""
        if not self._end():
            return
        if error is None:
            self._live.answered(self._reply())
        else:
            self._fail(error, type(error).__qualname__, self._reply())

    def _reading_whole(self, response: Any, args: object, kwargs: object) -> Block | None:
        return None if args or kwargs else self._read_whole(response)  # it takes none, and says so

    @contextmanager
    def _read_whole(self, response: Any) -> Generator[Callable[[Any], None]]:
        """Settle a body that is read whole: that closes the response before the body can be had."""
        self._reading = True
        try:
            yield ignore
        except BaseException as error:
            self._reading = False
            _guarded(self._broke, error)
            raise
        self._reading = False
        _guarded(self.closed, response)

    def _broke(self, error: BaseException) -> None:
        if not isinstance(error, RuntimeError):  # read twice, or by a sync method of an async response: nothing of the answer's
            self._settle(error)

    @contextmanager
    def _closing(self, response: Any, _args: object, _kwargs: object) -> Generator[Callable[[Any], None]]:
        _guarded(wait_for_shutdown)
        try:
            yield ignore
        finally:
            _guarded(self.closed, response)

    def closed(self, response: Any) -> None:
        """Settle when the response was closed; while an iterator of ours runs, that one will tell how it ended."""
        if self._over or self._reading or not response.is_closed or is_running(self._event_iterator) or is_running(self._byte_iterator):
            return
        if isinstance(sys.exc_info()[1], GeneratorExit):
            self.dropped()  # some generator closes it while being finalised
            return
        if not self._end():
            return
        later(functools.partial(self._settle_closed, whole=self._is_whole(response)))
        if not interrupts_lock_holder():
            drain()

    def _is_whole(self, response: Any) -> bool:
        """Whether nothing is missing, or that cannot be known: only events say by themselves that they are the last."""
        if not self._begun and self._body is None:
            self._body = content_of(response)
            if self._body is not None:
                return True
        return not (self._streams or (self._body is not None and self._body.streamed))

    def dropped(self) -> None:
        """Queue a stream nobody holds any more; runs in finalisers and takes no lock."""
        if self._end():
            self._live.ended_ns = self._heard_ns
            later(self._settle_closed)

    def _lost(self, _: object) -> None:
        _guarded(self.dropped)

    def _iterator_gone(self, _: object) -> None:
        """Note that a stream is gone; one that was never read may have left its response to somebody."""
        if self._begun:
            self._lost(None)
        elif not self._over:
            UNREAD.add(self)
            look_soon()

    def look(self) -> None:
        """Queue its end if nobody can read it any more.

        References are counted, as both we and some HTTP libraries make a response part of a cycle.
        """
        if self._over or self._response_ref is None:
            return
        helper = None if self._helper is None else self._helper()
        if helper is not None and self._helper is not None:
            ours = self._references if self._begun else self._references + self._through(helper)
            del helper
            if is_running(self._event_iterator) or not held_only_by_itself(self._helper):
                return
            if self._begun or not held_by_others(self._response_ref, ours):
                self.dropped()
            return
        ours, raw = self._references, None if self._raw is None else self._raw()
        if raw is not None and self._raw is not None:
            ours += references_from(raw, self._response())
            del raw
            if held_by_others(self._raw, self._raw_references):
                return
        if not held_by_others(self._response_ref, ours):
            self.dropped()

    def _through(self, helper: Any) -> int:
        """Return how many references to the response there are because a helper has a stream that was not read."""
        response, stream = self._response(), get(helper, "_raw_stream")
        reader = locals_of(locals_of(None if self._event_iterator is None else self._event_iterator()).get("source")).get("self")
        return sum(references_from(each, response) for each in (helper, stream, *(() if reader is stream else (reader,))))

    def leave(self) -> None:
        """See `OpenResult.leave`."""
        self._over = True

    def idle_ns(self) -> int:
        """See `OpenResult.idle_ns`; one that waits for its next event is read."""
        if is_running(self._event_iterator) or is_running(self._byte_iterator):
            return LONGEST_IDLE_NS
        left = self._heard_ns + LONGEST_IDLE_NS - self._now()
        if left > 0:
            return left
        if self._end():
            self._live.ended_ns = self._heard_ns
            self._fail(GeneratorExit(f"the stream was not read for {LONGEST_IDLE_NS // NANO} s"), IDLE, self._reply(), at_grant=True)
        return LONGEST_IDLE_NS

    def _settle_closed(self, *, whole: bool = False) -> None:
        """Settle what was received; a stream closed after its last event is whole."""
        reply = self._reply()
        if whole or self._collector.complete:
            self._live.answered(reply)
        else:
            self._fail(GeneratorExit("the stream was closed or dropped before its end"), ABANDONED, reply)

    def _fail(self, error: BaseException, error_type: str, reply: Reply, *, at_grant: bool = False) -> None:
        reply = replace(reply, finish_reasons=reply.finish_reasons or ("error",))
        self._live.fail(error, SendFailure(error_type, usage=reply.usage, at_grant=at_grant), reply)

    def _reply(self) -> Reply:
        """Return what came; nothing of a body that was not kept, or is no JSON."""
        body, self._body = self._body, None
        try:
            if body is None:
                return read_events(self._collector, self._live.record.call) if self._streams else Reply()
            if not body.streamed:
                if not body.whole:
                    return Reply()  # what it would have reported further on is unknown, and may be asked for again
                return read_body(self._format, body.content, self._live.record.call)
            for event in body.events():
                self._collector.add(event)
            return body.scaled(read_events(self._collector, self._live.record.call))
        except Exception as error:  # noqa: BLE001 - a bug in reading is ours alone
            swallow("stream", error)
            return Reply()


def _guarded(act: Callable[..., None], *args: Any) -> None:
    with Guarded("stream"):  # whoever reads, closes or drops a stream asks for nothing of ours
        act(*args)


class _UntilEnd:
    """Settle a stream at the end of the block that reads it, and end the block with what the stream ends with."""

    __slots__ = ("_dropped", "_settle", "_stream")

    def __init__(self, stream: FollowedStream, settle: Callable[[BaseException | None], None], dropped: Callable[[], None]) -> None:
        self._stream = stream
        self._settle = settle
        self._dropped = dropped

    def __enter__(self) -> None:
        """Begin to read."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> bool:
        if isinstance(error, GeneratorExit):
            _guarded(self._dropped)
            return False
        ends_with = self._stream.end_reading(error, self._settle)
        if ends_with is None:
            return True
        try:
            if ends_with is error:
                return False
            if error is None:
                raise ends_with
            raise ends_with from error
        finally:
            del ends_with, error  # whose tracebacks know this frame


def _detached_iterator(stream: Any) -> Any:
    """Return the iterator of a stream's events, such that it does not hold the stream.

    The client's own is a generator of the stream's, so the two hold each other, and a stream that nobody else holds would be found by the
    next full collection, whenever that comes. The same generator of a copy reads from the same response.
    """
    source = stream._iterator  # noqa: SLF001 - the one place where sync and async streams can be followed
    frame: FrameType | None = getattr(source, "gi_frame", None) or getattr(source, "ag_frame", None)
    make: object = getattr(class_of(stream), "__stream__", None)
    if (
        frame is None
        or not isinstance(make, FunctionType)
        or frame.f_code is not make.__code__
        or frame.f_lineno != make.__code__.co_firstlineno
    ):
        return source  # another iterator than a stream of these clients makes, or one that was read already
    reader = _copied(stream)
    reader._iterator = None  # noqa: SLF001 - the generator that is left, and which holds the stream
    return reader.__stream__()


_COPYING: Final = ("__copy__", "__reduce_ex__", "__reduce__", "__getstate__", "__setstate__", "__getnewargs_ex__", "__getnewargs__")
_plain: Final[set[type]] = set()
"""Classes of streams whose objects are nothing but their fields."""


def _copied(stream: Any) -> Any:
    """Return what `copy.copy` would, at a fifth of its cost for what has fields alone."""
    kind = class_of(stream)
    if kind not in _plain:
        known = {name for each in kind.__mro__ for name in vars(each) if each is not object}
        if not known.isdisjoint(_COPYING) or any(vars(each).get("__slots__") for each in kind.__mro__):
            return copy.copy(stream)
        if len(_plain) < _MOST_KEPT:
            _plain.add(kind)
    found = object.__new__(kind)
    fields = cast("dict[str, Any]", vars(stream))
    vars(found).update(fields)
    return found


# -- what the client returned -------------------------------------------------------------------------------------------

_MOST_KEPT: Final = 256
COMPLETE: Final[set[type]] = set()
"""Classes seen to be neither a stream nor a raw response: a model's class is slow to say that it lacks something."""


def is_raw_response(result: Any) -> bool:
    """Whether it is a raw response; its class tells, as a provider may answer a model with any field names it likes."""
    kind = class_of(result)
    return hasattr(kind, "parse") and hasattr(kind, "http_request")


class StreamHelpers:
    """The wrapped constructors of the classes of one module whose objects read a stream for the program."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module
        self._wraps = Wraps()
        self._active = False

    def install(self) -> None:
        """Wrap every class that the module itself defines and that iterates by a generator of its own."""
        for kind in list(vars(self._module).values()):
            if isinstance(kind, type) and kind.__module__ == self._module.__name__ and {"__init__", "__stream__"} <= vars(kind).keys():
                self._wraps.wrap(kind, "__init__", self._made)
        self._active = True

    def remove(self) -> None:
        """Fall silent, and put the identical methods back."""
        self._active = False
        self._wraps.restore()

    def _made(self, wrapped: Any, helper: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        wrapped(*args, **kwargs)
        if not self._active:
            return
        with Guarded("helper"):  # the helper is the program's whatever we make of it
            iterator = get(get(helper, "_raw_stream"), "_iterator")
            followed = locals_of(iterator).get("self") if isinstance(iterator, (GeneratorType, AsyncGeneratorType)) else None
            if isinstance(followed, FollowedStream):
                followed.read_by(helper)


def hide_usage(chunk: Any) -> bool:
    """Take the usage out of a chunk as if it had not been asked for; True for the chunk that would not have come at all."""
    # Nearly every chunk is the client's and has none; this stands between the network and the user.
    try:
        if chunk.usage is None:
            chunk.__pydantic_fields_set__.discard("usage")
            return False
    except Exception as error:  # noqa: BLE001 - of another kind: looked at with care below
        raise_from_signal(error)
    return _hide(chunk)


def _hide(chunk: Any) -> bool:
    try:
        found = get(chunk, "usage")
        if found is not None and not get(chunk, "choices"):
            return True
        if type(chunk) is dict:
            cast("dict[str, Any]", chunk).pop("usage", None)
            return False
        if found is not None:
            chunk.usage = None
        fields_set = getattr(chunk, "__pydantic_fields_set__", None)
        if fields_set is not None:
            fields_set.discard("usage")
    except Exception as error:  # noqa: BLE001 - the chunk is the user's, with the usage in it at worst
        swallow("hide", error)
    return False
