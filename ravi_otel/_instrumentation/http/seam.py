"""Wrap the one funnel every HTTP call of the client goes through, and nothing else of HTTP.

Methods of the base classes that generated clients share, the same from openai 1.66 to 3.x: `request` in both colours is the
logical call, `_build_request` each attempt, `_calculate_retry_timeout` the pause between two, `_process_response` in both
colours the answer before the client reads it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from ravi_otel._flow import run_async, run_sync
from ravi_otel._instrumentation.formats.fields import body_of, get
from ravi_otel._instrumentation.formats.format import Request, WireFormat
from ravi_otel._instrumentation.http.around import Around
from ravi_otel._instrumentation.http.capping import Sized
from ravi_otel._instrumentation.http.changes import may_ask, with_cap
from ravi_otel._instrumentation.http.coexistence import told_afterwards
from ravi_otel._instrumentation.http.hosts import host_of
from ravi_otel._instrumentation.http.vendor import Vendor
from ravi_otel._instrumentation.http.wire import SENDING, HttpWire
from ravi_otel._runtime.call import walk
from ravi_otel._runtime.inferring import INFERRING
from ravi_otel._runtime.state import STATE
from ravi_otel._telemetry.redaction import is_redacting
from ravi_otel.errors import RaviError
from ravi_otel.hooks.guard import swallow
from ravi_otel.policy.usage import Call


class Seam:
    """Hold the wrappers' switch; inert when off, even where somebody wrapped over us."""

    __slots__ = ("_around", "_nobody", "_vendor", "active")

    def __init__(self, vendor: Vendor) -> None:
        self._vendor = vendor
        self._around = Around()
        # Made beforehand: what a request that could not be read is sent with must not fail in turn.
        self._nobody = (
            Call(operation="request", endpoint="request", provider=vendor.provider, provider_assumed=True, unread=True),
            vendor.format_for("POST", "request", "", ""),
        )
        self.active = False

    def request(self, wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Wrap `SyncAPIClient.request`."""
        if not self.active or _is_wrong(args, kwargs) or not STATE.options.concerns(instance):
            return wrapped(*args, **kwargs)
        wire = self._prepare(wrapped, instance, args, kwargs)
        return run_sync(walk(wire.call, wire, blocking=True))

    def request_async(self, wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Wrap `AsyncAPIClient.request`; gives the coroutine, as the method itself does."""
        if not self.active or _is_wrong(args, kwargs) or not STATE.options.concerns(instance):
            return wrapped(*args, **kwargs)
        wire = self._prepare(wrapped, instance, args, kwargs)
        coroutine: Any = run_async(walk(wire.call, wire, blocking=False))
        coroutine.__name__, coroutine.__qualname__ = wrapped.__name__, wrapped.__qualname__  # what "never awaited" names
        return coroutine

    def build(self, wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Wrap `BaseClient._build_request`."""
        wire = SENDING.get()
        if wire is None:
            return self._build_around(wrapped, instance, args, kwargs)
        try:
            wire.attempt()
        except RaviError as refusal:
            raise refusal from wire.failed  # why there was a retry at all
        except Exception as error:  # noqa: BLE001 - our own bug never stops an attempt
            swallow("attempt", error)
        request = wrapped(*args, **kwargs)
        wire.built(request, instance)
        return request

    def pause(self, wrapped: Callable[..., Any], _instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Wrap `BaseClient._calculate_retry_timeout`, which runs while the failed attempt's error is being handled."""
        wait_s = wrapped(*args, **kwargs)
        wire = SENDING.get()
        if wire is not None:
            try:
                wait_s = wire.back_off(wait_s)
                wire.retrying(wait_s, sys.exc_info()[1])
            except Exception as error:  # noqa: BLE001 - our own bug never stops a retry
                swallow("retry", error)
        return wait_s

    def answer(self, wrapped: Callable[..., Any], _instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Wrap `_process_response` of either colour, whose coroutine is given as it is."""
        wire = SENDING.get()
        try:
            (self._around if wire is None else wire).answered(kwargs["response"])
        except Exception as error:  # noqa: BLE001 - our own bug never keeps an answer from its caller
            swallow("answer", error)
        return wrapped(*args, **kwargs)

    def _build_around(self, wrapped: Callable[..., Any], client: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Build the request of a call that did not come through `request` as we wrapped it."""
        way = None
        if self.active and STATE.options.concerns(client):
            try:
                options = args[0] if args else kwargs["options"]
                request, endpoint = self._read(client, options, stream=get(options.json_data, "stream") is True)
                call = _described(request, endpoint)
                way = self._around.begin(call, endpoint, Sized(endpoint, request, call, options), first=not kwargs.get("retries_taken"))
                cap = None if way is None else way.live.record.output_cap
                if cap is not None:
                    options = with_cap(options, endpoint.cap(request, cap))
                    args, kwargs = ((options, *args[1:]), kwargs) if args else (args, {**kwargs, "options": options})
            except RaviError:
                raise
            except Exception as error:  # noqa: BLE001 - our own bug never stops a request
                swallow("around", error)
        try:
            built = wrapped(*args, **kwargs)
        except BaseException as error:
            if way is not None:
                way.refused(error)
            raise
        if way is not None:
            self._around.sent(built, way)
        return built

    def _read(self, client: Any, options: Any, *, stream: bool) -> tuple[Request, WireFormat]:
        path, method = str(options.url), str(options.method).upper()
        body = body_of(options.json_data, options.extra_json, get(options, "content"))
        host = host_of(client, self._vendor, STATE.options.providers)
        endpoint = self._vendor.format_for(method, path, host.base, "" if host.assumed else host.provider)
        return Request(method, path, body, host, stream, options.files), endpoint

    def _prepare(self, wrapped: Callable[..., Any], client: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> HttpWire:
        """Read a request before it is sent; what cannot be read is still counted as a request."""
        try:
            options = args[1] if len(args) > 1 else kwargs["options"]
            chosen, stream = STATE.options, bool(kwargs.get("stream"))
            request, endpoint = self._read(client, options, stream=stream)
            call = _described(request, endpoint)
            sent, tells = self._vendor.own_span(client, options)
            call.told_elsewhere = "span" if tells else "call" if told_afterwards(call.endpoint) else None
            wire = HttpWire(wrapped, args, kwargs, call, endpoint, request)
            if sent is not options:
                wire.send_with(sent)
                options = sent
            if callable(options.post_parser):
                wire.observe_parser(options)
            if stream and chosen.include_usage and endpoint.usage_on_request:
                _ask_for_usage(wire, self._vendor, client, options, request)
        except Exception as error:  # noqa: BLE001 - our own bug never reaches the user's call
            swallow("prepare", error)
            return HttpWire(wrapped, args, kwargs, *self._nobody)
        return wire


def _is_wrong(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Tell a call without options, which raises the client's own TypeError."""
    return len(args) < 2 and "options" not in kwargs  # noqa: PLR2004 - the second parameter


def _described(request: Request, endpoint: WireFormat) -> Call:
    call = endpoint.call(request)
    if INFERRING.waiting:
        try:
            call.tool_results = endpoint.tool_results(request)
        except Exception as error:  # noqa: BLE001 - the call is counted all the same
            swallow("results", error)
    if STATE.options.content and not is_redacting():
        try:
            call.content = endpoint.asked(request)
        except Exception as error:  # noqa: BLE001 - what cannot be told is still counted, priced and limited
            swallow("asked", error)
    return call


def _ask_for_usage(wire: HttpWire, vendor: Vendor, client: Any, options: Any, request: Request) -> None:
    host = request.host
    listed = STATE.options.usage_hosts
    named = listed and ((host.address or "").lower() in listed or f"{host.address}:{host.port}".lower() in listed)
    if (named or vendor.asks_usage(client)) and may_ask(options, wire.cast_to, request.body, vendor.package):
        wire.ask_for_usage(request.body)
