"""Follow what is still open when the client returns: genuine streams, raw responses, each settled exactly once."""

from __future__ import annotations

import copy
import functools
import inspect
import sys
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from types import AsyncGeneratorType, FrameType, FunctionType, GeneratorType
from typing import Any, Final, cast

from ravi_otel._instrumentation.formats.fields import get
from ravi_otel._instrumentation.http.body import Body, content_of
from ravi_otel._instrumentation.http.changes import hide_usage
from ravi_otel._instrumentation.http.cutting import closing, shut, shut_async
from ravi_otel._instrumentation.http.ends import CLOSERS, ITERATORS, READERS, Ends
from ravi_otel._instrumentation.http.idle import UNREAD
from ravi_otel._instrumentation.http.standing import locals_of, named, put, running, stand_before, step_aside
from ravi_otel._runtime.state import STATE
from ravi_otel.hooks.guard import swallow

_LAST: Final = 2
"""What `_take` says of the event after which a stream is cut, besides True (hide it) and False."""


def _apart(stream: Any) -> Any:
    """Return the iterator of a stream's events, such that it does not hold the stream.

    The client's own is a generator of the stream's, so the two hold each other, and a stream that nobody else holds would be found by the
    next full collection, whenever that comes. The same generator of a copy reads from the same response.
    """
    source = stream._iterator  # noqa: SLF001 - the one place where both colours of stream can be followed
    frame: FrameType | None = getattr(source, "gi_frame", None) or getattr(source, "ag_frame", None)
    make: object = getattr(cast("object", type(stream)), "__stream__", None)
    if (
        frame is None
        or not isinstance(make, FunctionType)
        or frame.f_code is not make.__code__
        or frame.f_lineno != make.__code__.co_firstlineno
    ):
        return source  # another iterator than a stream of these clients makes, or one that was read already
    reader = copy.copy(stream)
    reader._iterator = None  # noqa: SLF001 - the generator that is left, and which holds the stream
    return reader.__stream__()


class Following(Ends):
    """Follow one open result to whichever end comes first.

    A stream ends by exhaustion, an error, `close()`, a `with` block, cancellation, being dropped, or idleness. That it was
    dropped is found by a weak reference's callback or a generator's finaliser, which take no lock: they queue the call for
    the next one to settle. Nothing here holds the stream or its response, or they would never be dropped.
    """

    __slots__ = ()

    # -- following ------------------------------------------------------------------------------------------------

    def stream(self, stream: Any) -> None:
        """Put ourselves between a client's stream and its iterator; the stream stays the genuine object."""
        self._between(stream)
        self.response(stream.response)

    def _between(self, stream: Any) -> None:
        source = _apart(stream)
        follow: Any = self._follow_async(source) if hasattr(source, "__anext__") else self._follow(source)
        self._pull = weakref.ref(named(follow, source), self._unreadable)
        self._streams = True
        stream._iterator = follow  # noqa: SLF001 - see above

    def read_by(self, helper: Any) -> None:
        """Look whether an object of the client's that reads this stream for the program is still held: it may be part of a cycle."""
        self._helper = weakref.ref(helper)
        if not self._over:
            UNREAD.add(self)

    def response(self, response: Any) -> None:
        """Hear when the HTTP response is read, closed or dropped, by whoever does it."""
        before = sys.getrefcount(response)
        for name in CLOSERS:
            stand_before(response, name, closing, self._after_closing)
        for name in READERS:
            stand_before(response, name, self.reading, self.read)
        for name in ITERATORS:
            self._stand_copying(response, name)
        self._ours = sys.getrefcount(response) - before
        self._gone = weakref.ref(response, self._lost)
        self._opened()

    def parsing(self, raw: Any) -> None:
        """Follow the stream a raw response makes when its user parses it, and its HTTP response if they never do."""
        self._streams = True
        if self._was_read(raw.http_response):
            return
        before = sys.getrefcount(raw)
        self._stand_parsing(raw)
        self._raw, self._raw_ours = weakref.ref(raw), sys.getrefcount(raw) - before
        self.response(raw.http_response)

    def _stand_parsing(self, raw: Any) -> None:
        parse = raw.parse
        if inspect.iscoroutinefunction(parse):

            async def parsed_async(*args: Any, **kwargs: Any) -> Any:
                found = await parse(*args, **kwargs)
                return self._parsed(raw, found)

            put(raw, "parse", parsed_async)
            return

        def parsed(*args: Any, **kwargs: Any) -> Any:
            found = parse(*args, **kwargs)
            return self._parsed(raw, found)

        put(raw, "parse", parsed)

    def _was_read(self, response: Any) -> bool:
        """Settle a stream whose bytes were all read before we had it, by a hook of the HTTP client's."""
        if get(response, "is_closed") is not True:
            return False
        self._body = content_of(response)
        if self._body is not None:
            self.finished()
        return self._over

    def _parsed(self, raw: Any, found: Any) -> Any:
        try:
            step_aside(raw, "parse")  # seen once is enough, and it holds `raw` in a cycle
            self._raw = None
            if self._pull is None and hasattr(cast("object", type(found)), "__stream__"):
                self._between(found)
                UNREAD.discard(self)
        except Exception as error:  # noqa: BLE001 - the stream is the user's whatever we make of it
            swallow("stream", error)
        return found

    def _follow(self, source: Iterator[Any]) -> Iterator[Any]:
        take, self._begun = self._take, True
        try:
            for item in source:
                verdict = take(item)
                if verdict:
                    if verdict is not _LAST:
                        continue
                    shut(self._response(), source)
                    if not (self._hides and hide_usage(item)):
                        yield item
                    break
                yield item
        except GeneratorExit:
            self._lost(None)
            raise
        except BaseException as error:
            ends_with = self._turned(error, self._settle)
            if ends_with is error:
                del ends_with  # whose traceback knows this frame
                raise
            if ends_with is not None:
                raise ends_with from error
            return
        ends_with = self._turned(None, self._settle)
        if ends_with is not None:
            raise ends_with

    async def _follow_async(self, source: AsyncIterator[Any]) -> AsyncIterator[Any]:
        take, self._begun = self._take, True
        try:
            async for item in source:
                verdict = take(item)
                if verdict:
                    if verdict is not _LAST:
                        continue
                    await shut_async(source, self._response())
                    if not (self._hides and hide_usage(item)):
                        yield item
                    break
                yield item
        except GeneratorExit:
            self._lost(None)
            raise
        except BaseException as error:
            ends_with = self._turned(error, self._settle)
            if ends_with is error:
                del ends_with  # whose traceback knows this frame
                raise
            if ends_with is not None:
                raise ends_with from error
            return
        ends_with = self._turned(None, self._settle)
        if ends_with is not None:
            raise ends_with

    def _take(self, item: Any) -> int:
        """Take in one event; True when the program must not see it, `_LAST` when it is the last before a cut."""
        try:
            heard = self._heard_ns = self._now()
            if self._watching:
                self._time()
            self._collector.add(item)
            if self._silent and self._collector.spoke:
                self._silent = False
                self._live.content(self._now())
            if heard >= self._look_ns:
                error = self._look()
                if error is not None and self._must_end(error):
                    return _LAST
        except Exception as error:  # noqa: BLE001 - the chunk is the user's whatever we make of it
            swallow("stream", error)
            if self._cut is not None:  # on the way
                self._settle_anyhow(self._cut)
                return _LAST
        return self._hides and hide_usage(item)

    def _time(self) -> None:
        self._watching = STATE.options.each_chunk
        self._live.chunk(self._now())

    # -- bytes its user reads by themselves -----------------------------------------------------------------------

    def _stand_copying(self, response: Any, name: str) -> None:
        method: Any = getattr(response, name, None)
        if method is None:
            return

        def copied(*args: Any, **kwargs: Any) -> Any:
            source = method(*args, **kwargs)
            try:
                return self._copying_of(source, response)
            except Exception as error:  # noqa: BLE001 - the bytes are the user's whatever we make of them
                swallow("stream", error)
                return source

        put(response, name, copied)

    def _copying_of(self, source: Any, response: Any) -> Any:
        if self._over or self._reading or running(self._pull):
            return source  # what is read whole, or event by event, is known by other means
        ours: Any = self._copy_async(source, response) if hasattr(source, "__anext__") else self._copy(source, response)
        if self._body is None:
            self._copying = weakref.ref(ours)
        return named(ours, source)

    def _copy(self, source: Any, response: Any) -> Iterator[bytes]:
        body = self._begin(response)
        settle = functools.partial(self._copied, body)
        try:
            for data in source:
                if self._keep(body, data):
                    shut(response, source)
                    yield data
                    break
                yield data
        except GeneratorExit:
            source.close()
            self._left(response)
            raise
        except BaseException as error:
            ends_with = self._turned(error, settle)
            if ends_with is error:
                del ends_with  # whose traceback knows this frame
                raise
            if ends_with is not None:
                raise ends_with from error
            return
        ends_with = self._turned(None, settle)
        if ends_with is not None:
            raise ends_with

    async def _copy_async(self, source: Any, response: Any) -> AsyncIterator[bytes]:
        body = self._begin(response)
        settle = functools.partial(self._copied, body)
        try:
            async for data in source:
                if self._keep(body, data):
                    await shut_async(source, response)
                    yield data
                    break
                yield data
        except GeneratorExit:
            await source.aclose()
            self._left(response)
            raise
        except BaseException as error:
            ends_with = self._turned(error, settle)
            if ends_with is error:
                del ends_with  # whose traceback knows this frame
                raise
            if ends_with is not None:
                raise ends_with from error
            return
        ends_with = self._turned(None, settle)
        if ends_with is not None:
            raise ends_with

    def _begin(self, response: Any) -> Body | None:
        """Begin a copy; None for a second reader, whom the HTTP library will refuse."""
        if self._body is not None:
            return None
        try:
            self._body = Body(response)
        except Exception as error:  # noqa: BLE001 - the bytes are the user's whatever we make of them
            swallow("stream", error)
        return self._body

    def _keep(self, body: Body | None, data: bytes) -> bool:
        """Take in some bytes; True when they are the last before a cut.

        The first are the first chunk, and when content first came is not told: nothing is parsed yet.
        """
        try:
            self._heard_ns = self._now()
            if body is not None and not self._over:
                if body.streamed and self._watching:
                    self._watching = False
                    self._live.chunk(self._now())
                body.add(data)
            return self._stopped and self._stop_at_once()
        except Exception as error:  # noqa: BLE001 - the bytes are the user's whatever we make of them
            swallow("stream", error)
        return False

    def _left(self, response: Any) -> None:
        """Note that somebody stopped reading the bytes half way: some HTTP libraries close the response then."""
        try:
            if response.is_closed:
                self.dropped()
        except Exception as error:  # noqa: BLE001 - whoever left asks for nothing of ours
            swallow("stream", error)

    def _copied(self, body: Body | None, error: BaseException | None) -> None:
        if error is None:
            self._whole(body)
        else:
            self._broke(error)

    def _whole(self, body: Body | None) -> None:
        if body is not None and self._end():
            body.ended = True
            self._live.answered(self._reply())


def helper_made(helper: Any) -> None:
    """Know a helper of the client's, such as what `chat.completions.stream()` gives, as the reader of the stream that it was made of."""
    iterator = get(get(helper, "_raw_stream"), "_iterator")
    following = locals_of(iterator).get("self") if isinstance(iterator, (GeneratorType, AsyncGeneratorType)) else None
    if isinstance(following, Following):
        following.read_by(helper)


def observe_parser(parser: Callable[[Any], Any], saw: Callable[[Any], None]) -> Callable[[Any], Any]:
    """Look at what a post-parser is given, before it may refuse it."""

    @functools.wraps(parser)  # the client writes it into its debug log
    def observed(raw: Any) -> Any:
        saw(raw)
        return parser(raw)

    return observed
