"""Wrap the one funnel every HTTP call of the client goes through, and nothing else of HTTP.

Four methods of the client's base classes, the same from 1.66 to 3.x: `request` in both colours is the logical call,
`_build_request` each attempt, `_calculate_retry_timeout` the pause between two.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar
from typing import Any, Final

from ravi_otel._flow import Step, run_async, run_sync
from ravi_otel.errors import RaviError
from ravi_otel.hooks.guard import swallow
from ravi_otel.hooks.records import RetryRecord
from ravi_otel.instrumentation.openai.endpoints.contract import Endpoint, Request
from ravi_otel.instrumentation.openai.endpoints.registry import endpoint_for
from ravi_otel.instrumentation.openai.failures import ending_of, retry_of
from ravi_otel.instrumentation.openai.fields import body_of, get
from ravi_otel.instrumentation.openai.hosts import host_of
from ravi_otel.instrumentation.openai.results import read, watch
from ravi_otel.instrumentation.openai.stream import observe_parser
from ravi_otel.policy.usage import Call, Reply
from ravi_otel.runtime.call import walk
from ravi_otel.runtime.live import Ending, LiveCall
from ravi_otel.runtime.wrapping import Wraps

_FALLBACK: Final = Call(operation="request", endpoint="request", provider="openai", provider_assumed=True, unread=True)
_FALLBACK_ENDPOINT: Final = endpoint_for("POST", "request")


class HttpWire:
    """Send one call over the client it was made on."""

    __slots__ = ("_args", "_builds", "_endpoint", "_kwargs", "_live", "_request", "_seen", "_wrapped", "call", "failed")

    def __init__(self, wrapped: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], call: Call, endpoint: Endpoint) -> None:
        self._wrapped = wrapped
        self._args = args
        self._kwargs = kwargs
        self._endpoint = endpoint
        self._live: LiveCall | None = None
        self._seen: Any = None
        self._builds = 0
        self._request: object = None
        self.call = call
        self.failed: BaseException | None = None

    # -- what the runtime asks (`runtime.call.Wire`) --------------------------------------------------------------

    def step(self, live: LiveCall | None) -> Step:
        """See `Wire.step`."""
        self._live = live
        return Step(self._send, self._send_async)

    def watch(self, live: LiveCall, result: Any) -> bool:
        """See `Wire.watch`."""
        return watch(live, result, self._endpoint)

    def reply(self, result: Any) -> Reply:
        """See `Wire.reply`."""
        return read(result, self._endpoint)

    def ending(self, live: LiveCall, error: BaseException) -> Ending:
        """See `Wire.ending`."""
        seen = None if self._seen is None else read(self._seen, self._endpoint)
        return ending_of(error, built=self._request if live.built else None, seen=seen)

    def _send(self) -> Any:
        token = _in_flight.set(self)
        try:
            return self._wrapped(*self._args, **self._kwargs)
        finally:
            self._live = None
            _in_flight.reset(token)

    async def _send_async(self) -> Any:
        token = _in_flight.set(self)
        try:
            return await self._wrapped(*self._args, **self._kwargs)
        finally:
            self._live = None
            with suppress(ValueError):  # a coroutine that is finalised in another context than it ran in
                _in_flight.reset(token)

    # -- what the other two hooks tell ----------------------------------------------------------------------------

    def attempt(self) -> None:
        """Ask whether one more attempt may be sent; we count them, since a subclass may not tell the client's own count."""
        before, self._builds = self._builds, self._builds + 1
        if self._live is not None:
            self._live.attempt(before)

    def built(self, request: object) -> None:
        """Note that an attempt's request was built: from here on bytes may leave."""
        self._request = request
        if self._live is not None:
            self._live.built = True

    def retrying(self, wait_s: Any, error: BaseException | None) -> None:
        """Note that an attempt failed."""
        self.failed = error
        if self._live is not None:
            failed = retry_of(error, self._request)
            waits = wait_s if isinstance(wait_s, (int, float)) else None
            number = len(self._live.record.retries) + 1
            self._live.retrying(RetryRecord(number, failed.status, waits, failed.error_type), sent=failed.sent)

    def observe_parser(self, options: Any) -> None:
        """Send with a copy of the options whose post-parser we hear; the caller's object stays as it is."""
        heard = copy.copy(options)
        heard.post_parser = observe_parser(options.post_parser, self.saw)
        if len(self._args) > 1:
            self._args = (self._args[0], heard, *self._args[2:])
        else:
            self._kwargs = {**self._kwargs, "options": heard}

    def saw(self, raw: Any) -> None:
        """Keep the answer a post-parser is about to judge."""
        self._seen = raw


_in_flight: ContextVar[HttpWire | None] = ContextVar("ravi-otel-in-flight", default=None)


class Seam:
    """Hold the wrappers' switch; inert when off, even where somebody wrapped over us."""

    __slots__ = ("active",)

    def __init__(self) -> None:
        self.active = False

    def request(self, wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Wrap `SyncAPIClient.request`."""
        if not self.active or _is_wrong(args, kwargs):
            return wrapped(*args, **kwargs)
        wire = _prepare(wrapped, instance, args, kwargs)
        return run_sync(walk(wire.call, wire, blocking=True))

    def request_async(self, wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Wrap `AsyncAPIClient.request`; gives the coroutine, as the method itself does."""
        if not self.active or _is_wrong(args, kwargs):
            return wrapped(*args, **kwargs)
        wire = _prepare(wrapped, instance, args, kwargs)
        coroutine: Any = run_async(walk(wire.call, wire, blocking=False))
        coroutine.__name__, coroutine.__qualname__ = wrapped.__name__, wrapped.__qualname__  # what "never awaited" names
        return coroutine

    def build(self, wrapped: Callable[..., Any], _instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Wrap `BaseClient._build_request`."""
        wire = _in_flight.get()
        if wire is None:
            return wrapped(*args, **kwargs)
        try:
            wire.attempt()
        except RaviError as refusal:
            raise refusal from wire.failed  # why there was a retry at all
        except Exception as error:  # noqa: BLE001 - our own bug never stops an attempt
            swallow("attempt", error)
        request = wrapped(*args, **kwargs)
        wire.built(request)
        return request

    def pause(self, wrapped: Callable[..., Any], _instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Wrap `BaseClient._calculate_retry_timeout`, which runs while the failed attempt's error is being handled."""
        wait_s = wrapped(*args, **kwargs)
        wire = _in_flight.get()
        if wire is not None:
            try:
                wire.retrying(wait_s, sys.exc_info()[1])
            except Exception as error:  # noqa: BLE001 - our own bug never stops a retry
                swallow("retry", error)
        return wait_s


def _is_wrong(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Tell a call without options, which raises the client's own TypeError."""
    return len(args) < 2 and "options" not in kwargs  # noqa: PLR2004 - the second parameter


def _prepare(wrapped: Callable[..., Any], client: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> HttpWire:
    """Read a request before it is sent; what cannot be read is still counted as a request."""
    try:
        options = args[1] if len(args) > 1 else kwargs["options"]
        path, method = str(options.url), str(options.method).upper()
        body = body_of(options.json_data, options.extra_json, get(options, "content"))
        stream = bool(kwargs.get("stream"))
        host = host_of(client)
        endpoint = endpoint_for(method, path, host.base)
        call = endpoint.call(Request(method, path, body, host, stream))
        wire = HttpWire(wrapped, args, kwargs, call, endpoint)
        if callable(options.post_parser):
            wire.observe_parser(options)
    except Exception as error:  # noqa: BLE001 - our own bug never reaches the user's call
        swallow("prepare", error)
        return HttpWire(wrapped, args, kwargs, _FALLBACK, _FALLBACK_ENDPOINT)
    return wire


class Installed:
    """Hold the wrapped methods of one client package."""

    def __init__(self) -> None:
        self._seam = Seam()
        self._wraps = Wraps()

    def install(self, base_client: Any) -> None:
        """Wrap the four methods of the client's base module."""
        seam = self._seam
        self._wraps.wrap(base_client.SyncAPIClient, "request", seam.request)
        self._wraps.wrap(base_client.AsyncAPIClient, "request", seam.request_async)
        self._wraps.wrap(base_client.BaseClient, "_build_request", seam.build)
        self._wraps.wrap(base_client.BaseClient, "_calculate_retry_timeout", seam.pause)
        seam.active = True

    def remove(self) -> None:
        """Fall silent, and put the identical methods back."""
        self._seam.active = False
        self._wraps.restore()
