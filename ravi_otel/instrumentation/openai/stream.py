"""Follow what is still open when the client returns: genuine streams, raw responses, each settled exactly once."""

from __future__ import annotations

import inspect
import json
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from types import AsyncGeneratorType, GeneratorType
from typing import Any

from ravi_otel.hooks.guard import swallow
from ravi_otel.instrumentation.openai.endpoints.contract import Collector, Endpoint
from ravi_otel.policy.usage import Reply
from ravi_otel.runtime.call import Ending, LiveCall, orphan

ABANDONED = "abandoned"
"""The `error.type` of a stream that was closed or dropped before its end."""


class Following:
    """Follow one open result to whichever end comes first.

    A stream ends by exhaustion, an error, `close()`, a `with` block, cancellation, or being dropped. The last one is
    found by a finaliser, which takes no lock: it queues the call for the next one to settle.
    """

    __slots__ = ("__weakref__", "_collector", "_endpoint", "_live", "_over", "_pulling")

    def __init__(self, live: LiveCall, endpoint: Endpoint) -> None:
        self._live = live
        self._endpoint = endpoint
        self._collector: Collector = endpoint.collector(live.record.call)
        self._pulling: Any = None
        self._over = False

    # -- following ------------------------------------------------------------------------------------------------

    def stream(self, stream: Any) -> None:
        """Put ourselves between a client's stream and its iterator; the stream stays the genuine object."""
        self._between(stream)
        self.response(stream.response)
        weakref.finalize(stream, Following.dropped, self)

    def _between(self, stream: Any) -> None:
        source = stream._iterator  # noqa: SLF001 - the one place where both colours of stream can be followed
        follow = self._follow_async if hasattr(source, "__anext__") else self._follow
        self._pulling = stream._iterator = follow(source)  # noqa: SLF001 - see above

    def response(self, response: Any) -> None:
        """Hear when the HTTP response is closed, by whoever closes it."""
        if inspect.iscoroutinefunction(getattr(response, "aclose", None)):
            aclose = response.aclose

            async def heard_aclose() -> None:
                await aclose()
                self.closed(response)

            response.aclose = heard_aclose
        close = response.close

        def heard_close() -> None:
            close()
            self.closed(response)

        response.close = heard_close

    def parsing(self, raw: Any) -> None:
        """Follow the stream a raw response makes when its user parses it, and its HTTP response if they never do."""
        parse = raw.parse
        self.response(raw.http_response)
        weakref.finalize(raw, Following.dropped, self)

        if inspect.iscoroutinefunction(parse):

            async def parsed_async(*args: Any, **kwargs: Any) -> Any:
                return self._parsed(await parse(*args, **kwargs))

            raw.parse = parsed_async
            return

        def parsed(*args: Any, **kwargs: Any) -> Any:
            return self._parsed(parse(*args, **kwargs))

        raw.parse = parsed

    def _parsed(self, found: Any) -> Any:
        if self._pulling is None and hasattr(found, "_iterator"):
            try:
                self._between(found)
            except Exception as error:  # noqa: BLE001 - the stream is the user's whatever we make of it
                swallow("stream", error)
        return found

    def _follow(self, source: Iterator[Any]) -> Iterator[Any]:
        take = self._first
        try:
            for item in source:
                take(item)
                take = self._take
                yield item
        except GeneratorExit:
            self.dropped()
            raise
        except BaseException as error:
            self.failed(error)
            raise
        self.finished()

    async def _follow_async(self, source: AsyncIterator[Any]) -> AsyncIterator[Any]:
        take = self._first
        try:
            async for item in source:
                take(item)
                take = self._take
                yield item
        except GeneratorExit:
            self.dropped()
            raise
        except BaseException as error:
            self.failed(error)
            raise
        self.finished()

    def _first(self, item: Any) -> None:
        self._live.chunk()
        self._take(item)

    def _take(self, item: Any) -> None:
        try:
            self._collector.add(item)
        except Exception as error:  # noqa: BLE001 - the chunk is the user's whatever we make of it
            swallow("stream", error)

    # -- ending ---------------------------------------------------------------------------------------------------

    def _end(self) -> bool:
        over, self._over = self._over, True
        return not over

    def finished(self) -> None:
        """Settle a stream that was read to its end."""
        if self._end():
            self._live.succeed(self._reply())

    def failed(self, error: BaseException) -> None:
        """Settle a stream that broke, with what came until then."""
        if self._end():
            reply = _cut(self._reply())
            self._live.fail(error, Ending(type(error).__qualname__, usage=reply.usage), reply)

    def closed(self, response: Any) -> None:
        """Settle when the response was closed; while our own iterator runs, that one will tell how it ended."""
        if self._over or _running(self._pulling):
            return
        if self._pulling is None:
            if self._end():
                self._live.succeed(self._read(response))
        elif self._collector.complete:
            self.finished()
        elif self._end():
            reply = _cut(self._reply())
            self._live.fail(GeneratorExit("the stream was closed before its end"), Ending(ABANDONED, usage=reply.usage), reply)

    def dropped(self) -> None:
        """Queue a stream nobody holds any more; runs in finalisers and takes no lock."""
        if self._end():
            reply = self._reply()
            orphan(
                self._live,
                reply if self._collector.complete else _cut(reply),
                Ending(ABANDONED, usage=reply.usage),
                self._collector.complete,
            )

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


def _running(iterator: Any) -> bool:
    if isinstance(iterator, GeneratorType):
        return iterator.gi_running
    return isinstance(iterator, AsyncGeneratorType) and iterator.ag_running


def _cut(reply: Reply) -> Reply:
    return replace(reply, finish_reasons=reply.finish_reasons or ("error",))


def observe_parser(parser: Callable[[Any], Any], saw: Callable[[Any], None]) -> Callable[[Any], Any]:
    """Look at what a post-parser is given, before it may refuse it."""

    def observed(raw: Any) -> Any:
        saw(raw)
        return parser(raw)

    return observed
