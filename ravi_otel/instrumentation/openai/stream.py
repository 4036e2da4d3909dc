"""Follow what is still open when the client returns: genuine streams, raw responses, each settled exactly once."""

from __future__ import annotations

import functools
import inspect
import json
import sys
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from types import AsyncGeneratorType, FrameType, GeneratorType
from typing import Any, Final, cast

from ravi_otel.hooks.guard import swallow
from ravi_otel.instrumentation.openai.endpoints.contract import Collector, Endpoint
from ravi_otel.policy.usage import Reply
from ravi_otel.runtime.late import drain, later, look_for
from ravi_otel.runtime.live import Ending, LiveCall

ABANDONED = "abandoned"
"""The `error.type` of a stream that was closed or dropped before its end."""

_CLOSERS: Final = ("close", "aclose")
_READERS: Final = ("read", "aread")

_MOST_FRAMES: Final = 100
_LOCKING: Final = (
    *("ravi_otel.enforcement", "ravi_otel.hooks", "ravi_otel.local", "ravi_otel.pricing", "ravi_otel.runtime.live", "ravi_otel.telemetry"),
    *("opentelemetry.context", "opentelemetry.exporter", "opentelemetry.metrics", "opentelemetry.sdk", "opentelemetry.trace"),
)
"""Modules that hold locks while they run, and do not run the user's code meanwhile."""

_open: set[Following] = set()
"""Keeps followers, and with them their weak references, alive until they end."""

look_for(_open)


def abandon_open() -> None:
    """Queue every stream that is still open; for the end of the process."""
    for following in list(_open):
        following.dropped()


class Following:
    """Follow one open result to whichever end comes first.

    A stream ends by exhaustion, an error, `close()`, a `with` block, cancellation, or being dropped. The last one is
    found by a weak reference's callback or a generator's finaliser, which take no lock: they queue the call for the
    next one to settle. Nothing here holds the stream or its response, or they would never be dropped.
    """

    __slots__ = ("_collector", "_endpoint", "_gone", "_live", "_over", "_pull", "_reading")

    def __init__(self, live: LiveCall, endpoint: Endpoint) -> None:
        self._live = live
        self._endpoint = endpoint
        self._collector: Collector = endpoint.collector(live.record.call)
        self._pull: weakref.ref[Any] | None = None
        self._gone: weakref.ref[Any] | None = None
        self._reading = False
        self._over = False

    # -- following ------------------------------------------------------------------------------------------------

    def stream(self, stream: Any) -> None:
        """Put ourselves between a client's stream and its iterator; the stream stays the genuine object."""
        self._between(stream)
        self.response(stream.response)

    def _between(self, stream: Any) -> None:
        source = stream._iterator  # noqa: SLF001 - the one place where both colours of stream can be followed
        follow: Any = self._follow_async(source) if hasattr(source, "__anext__") else self._follow(source)
        self._pull = weakref.ref(follow)
        stream._iterator = follow  # noqa: SLF001 - see above

    def response(self, response: Any) -> None:
        """Hear when the HTTP response is read, closed or dropped, by whoever does it."""
        for name in _CLOSERS:
            _stand_before(response, name, lambda: None, self.closed)
        for name in _READERS:
            _stand_before(response, name, self.reading, self.read)
        self._gone = weakref.ref(response, self._lost)
        _open.add(self)

    def _lost(self, _: object) -> None:
        self.dropped()

    def parsing(self, raw: Any) -> None:
        """Follow the stream a raw response makes when its user parses it, and its HTTP response if they never do."""
        parse = raw.parse
        self.response(raw.http_response)
        if inspect.iscoroutinefunction(parse):

            async def parsed_async(*args: Any, **kwargs: Any) -> Any:
                found = await parse(*args, **kwargs)
                return self._parsed(raw, found)

            raw.parse = parsed_async
            return

        def parsed(*args: Any, **kwargs: Any) -> Any:
            found = parse(*args, **kwargs)
            return self._parsed(raw, found)

        raw.parse = parsed

    def _parsed(self, raw: Any, found: Any) -> Any:
        try:
            _fields(raw).pop("parse", None)  # seen once is enough, and it holds `raw` in a cycle
            if self._pull is None and hasattr(cast("object", type(found)), "__stream__"):
                self._between(found)
        except Exception as error:  # noqa: BLE001 - the stream is the user's whatever we make of it
            swallow("stream", error)
        return found

    def _follow(self, source: Iterator[Any]) -> Iterator[Any]:
        add, began = self._collector.add, False
        try:
            for item in source:
                if not began:
                    began = self._begin()
                try:
                    add(item)
                except Exception as error:  # noqa: BLE001 - the chunk is the user's whatever we make of it
                    swallow("stream", error)
                yield item
        except GeneratorExit:
            self.dropped()
            raise
        except BaseException as error:
            self.failed(error)
            raise
        self.finished()

    async def _follow_async(self, source: AsyncIterator[Any]) -> AsyncIterator[Any]:
        add, began = self._collector.add, False
        try:
            async for item in source:
                if not began:
                    began = self._begin()
                try:
                    add(item)
                except Exception as error:  # noqa: BLE001 - the chunk is the user's whatever we make of it
                    swallow("stream", error)
                yield item
        except GeneratorExit:
            self.dropped()
            raise
        except BaseException as error:
            self.failed(error)
            raise
        self.finished()

    def _begin(self) -> bool:
        try:
            self._live.chunk()
        except Exception as error:  # noqa: BLE001 - the chunk is the user's whatever we make of it
            swallow("stream", error)
        return True

    # -- ending ---------------------------------------------------------------------------------------------------

    def _end(self) -> bool:
        over, self._over = self._over, True
        if over:
            return False
        _open.discard(self)
        response = None if self._gone is None else self._gone()
        if response is not None:
            for name in (*_CLOSERS, *_READERS):
                _step_aside(response, name)
        return True

    def finished(self) -> None:
        """Settle a stream that was read to its end."""
        if self._end():
            self._live.succeed(self._reply())

    def failed(self, error: BaseException) -> None:
        """Settle a stream that broke, with what came until then."""
        if self._end():
            reply = _cut(self._reply())
            self._live.fail(error, Ending(type(error).__qualname__, usage=reply.usage), reply)

    def reading(self) -> None:
        """Note that the body is being read whole: that closes the response before the body can be had."""
        self._reading = True

    def read(self, response: Any) -> None:
        """Note that the body was read, or failed to be."""
        self._reading = False
        self.closed(response)

    def closed(self, response: Any) -> None:
        """Settle when the response was closed; while our own iterator runs, that one will tell how it ended."""
        if self._reading or not response.is_closed:
            return
        if self._over or _running(self._pull):
            return
        if isinstance(sys.exc_info()[1], GeneratorExit):
            self.dropped()  # some generator closes it while being finalised
            return
        if not self._end():
            return
        later(self._abandoned if self._pull is not None else functools.partial(self._live.succeed, self._read(response)))
        if not _interrupting():
            drain()

    def dropped(self) -> None:
        """Queue a stream nobody holds any more; runs in finalisers and takes no lock."""
        if self._end():
            later(self._abandoned)

    def _abandoned(self) -> None:
        """Settle what was received; a stream closed after its last event is whole."""
        reply = self._reply()
        if self._collector.complete:
            self._live.succeed(reply)
        else:
            gone = GeneratorExit("the stream was closed or dropped before its end")
            self._live.fail(gone, Ending(ABANDONED, usage=reply.usage), _cut(reply))

    def _reply(self) -> Reply:
        try:
            return self._collector.reply()
        except Exception as error:  # noqa: BLE001 - a bug in reading is ours alone
            swallow("stream", error)
            return Reply()

    def _read(self, response: Any) -> Reply:
        """Read a body its user has read whole; unknown when they read it piece by piece."""
        try:
            return self._endpoint.reply(json.loads(response.content))
        except Exception:  # noqa: BLE001 - not read, not JSON, or gone: unknown
            return Reply()


def _stand_before(response: Any, name: str, before: Callable[[], None], after: Callable[[Any], None]) -> None:
    """Put a function of ours before one method of a response; it holds the response until it was closed."""
    method = getattr(response, name)

    def heard() -> Any:
        before()
        try:
            return method()
        finally:
            _tell(after, response)

    async def heard_async() -> Any:
        before()
        try:
            return await method()
        finally:
            _tell(after, response)

    ours: Any = heard_async if inspect.iscoroutinefunction(method) else heard
    ours.ravi_original = _fields(response).get(name)
    setattr(response, name, ours)


def _tell(after: Callable[[Any], None], response: Any) -> None:
    try:
        after(response)
    except Exception as error:  # noqa: BLE001 - the response is closed, and that is all its user asked for
        swallow("stream", error)


def _step_aside(response: Any, name: str) -> None:
    """Put back what stood there, unless somebody stands before us by now."""
    own = _fields(response)
    ours: Any = own.get(name)
    if hasattr(ours, "ravi_original"):
        if ours.ravi_original is None:
            del own[name]
        else:
            own[name] = ours.ravi_original


def _fields(value: Any) -> dict[str, Any]:
    return cast("dict[str, Any]", vars(value))


def _interrupting() -> bool:
    """Tell that whoever closes a stream may have come in between somebody who holds a lock that settling needs.

    A finaliser runs wherever the collector happens to start, and only the stack shows what it came upon.
    """
    frame: FrameType | None = inspect.currentframe()
    for _ in range(_MOST_FRAMES):
        if frame is None:
            return False
        if frame.f_code.co_name == "__del__" or str(frame.f_globals.get("__name__", "")).startswith(_LOCKING):
            return True
        frame = frame.f_back
    return False


def _running(held: weakref.ref[Any] | None) -> bool:
    iterator = None if held is None else held()
    if isinstance(iterator, GeneratorType):
        return iterator.gi_running
    return isinstance(iterator, AsyncGeneratorType) and iterator.ag_running


def _cut(reply: Reply) -> Reply:
    return replace(reply, finish_reasons=reply.finish_reasons or ("error",))


def observe_parser(parser: Callable[[Any], Any], saw: Callable[[Any], None]) -> Callable[[Any], Any]:
    """Look at what a post-parser is given, before it may refuse it."""

    @functools.wraps(parser)  # the client writes it into its debug log
    def observed(raw: Any) -> Any:
        saw(raw)
        return parser(raw)

    return observed
