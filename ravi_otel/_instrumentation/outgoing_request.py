"""A request as a client is about to send it: what it asks for, and the changes to it that counting and limits need.

A stream is asked for its usage, an answer is capped by a strict limit, time-outs shrink to the time that is left. The caller's own options
and mappings stay as they are: what is changed is changed in copies.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, cast

from ravi_otel._enforcement import errors_text
from ravi_otel._enforcement.errors_text import owned
from ravi_otel._enforcement.scope import Scope
from ravi_otel._instrumentation.client_profile import ClientProfile, described_afterwards
from ravi_otel._instrumentation.formats.fields import body_of, get
from ravi_otel._instrumentation.formats.format import Request, WireFormat
from ravi_otel._runtime.inferred_tools import INFERRING
from ravi_otel._runtime.model_call import ModelCall
from ravi_otel._runtime.state import STATE
from ravi_otel._telemetry.redaction import is_redacting
from ravi_otel.hooks._listeners import Guarded, swallow
from ravi_otel.policy._limits import NANO
from ravi_otel.policy._usage import Call

INCLUDE_USAGE: Final = "include_usage"
TIMEOUT: Final = "timeout"
"""What these changes to a request are called on the span (`Call.changes`)."""

EARLY_NS: Final = 5_000_000
"""By how much an HTTP library's clock may be ahead of ours when a time-out that we set comes."""

_SHORTEST_S: Final = 0.001
"""The least that a part of an attempt is given: with 0 a socket does not wait at all, which is no time-out but an error of its own."""

_STREAM_OPTIONS: Final = "stream_options"
_RAW: Final = "x-stainless-raw-response"
_ON_OWN_DATA: Final = "data_sources"
"""Azure's searches over one's own data refuse `stream_options`."""

_TIMEOUT_PARTS: Final = ("connect", "read", "write", "pool")
_PACKAGES: Final = frozenset({"openai", "anthropic", "groq"})
_SLACK: Final = 256
"""Bytes by which the client's own additions make a body longer."""


class OutgoingRequest:
    """A client's request options, what was read of them, and what was changed; it can be sized for strict limits (`Sizing`)."""

    __slots__ = ("_request", "call", "format", "hides_usage", "options")

    def __init__(self, options: Any, call: Call, wire_format: WireFormat, request: Request | None) -> None:
        self.options = options
        """What is sent: the caller's object until something is changed."""
        self.call = call
        self.format = wire_format
        self.hides_usage = False
        """Whether the stream was asked for its usage by us, so that the program must not see it."""
        self._request = request  # None for what could not be read

    @classmethod
    def read(cls, profile: ClientProfile, client: Any, options: Any, *, stream: bool) -> OutgoingRequest:
        """Read what a client is about to send; raises whatever reading it raises."""
        path, method = str(options.url), str(options.method).upper()
        given: Any = options.json_data
        merges = options.extra_json is not None or type(given) is not dict  # else it goes out as it is, and nobody writes to it
        body: Mapping[str, Any] = body_of(given, options.extra_json, get(options, "content")) if merges else options.json_data
        host = profile.host_of(client, STATE.options.providers)
        wire_format = profile.format_for(method, path, host.base, "" if host.assumed else host.provider)
        request = Request(method, path, body, host, stream, options.files)
        call = wire_format.call(request)
        if INFERRING.waiting:
            with Guarded("results"):  # the call is counted all the same
                call.tool_results = tuple(filter(None, wire_format.tool_results(request)))
        if STATE.options.content and not is_redacting():
            with Guarded("asked"):  # what cannot be captured is still counted, priced and limited
                call.content = wire_format.asked(request)
        return cls(options, call, wire_format, request)

    def leave_span_to(self, profile: ClientProfile, client: Any) -> None:
        """Note who else makes a span for this call, the client itself or another instrumentation."""
        makes = False
        if profile.own_span is not None:
            self.options, makes = profile.own_span(client, self.options)
        self.call.told_elsewhere = "span" if makes else "call" if described_afterwards(self.call.endpoint) else None

    # -- usage of streams ---------------------------------------------------------------------------------------------

    def ask_for_usage(self, profile: ClientProfile, client: Any, cast_to: object) -> None:
        """Have the stream report its usage, and hide from the program that it does, where that is possible and allowed."""
        if self._request is None or not STATE.options.include_usage or not self.format.usage_on_request:
            return
        host, listed = self._request.host, STATE.options.usage_hosts
        named = listed and ((host.address or "").lower() in listed or f"{host.address}:{host.port}".lower() in listed)
        if (named or profile.asks_usage(client)) and self._may_ask_for_usage(profile.package, cast_to):
            self._write({_STREAM_OPTIONS: {**cast("Mapping[str, Any]", self._body.get(_STREAM_OPTIONS) or {}), INCLUDE_USAGE: True}})
            self.hides_usage = True
            self.call.changes = (INCLUDE_USAGE,)

    def _may_ask_for_usage(self, package: str, cast_to: object) -> bool:
        """Whether the stream can be asked for its usage, and nobody will see that it was.

        Not where the program said itself what it wants, where the answer's bytes are its own, or where events become objects in
        which nothing can be hidden: only those of the client's `package` and plain JSON can be cleared.
        """
        options, body = self.options, self._body
        if not isinstance(options.json_data, Mapping) or _ON_OWN_DATA in body or _returns_bytes(options):
            return False
        asked = body.get(_STREAM_OPTIONS)
        if asked is not None and (not isinstance(asked, Mapping) or INCLUDE_USAGE in asked):
            return False
        if cast_to is object or cast_to is dict:
            return True
        module = getattr(cast_to, "__module__", None)
        known = getattr(cast_to, "model_fields", None)
        return isinstance(module, str) and module.partition(".")[0] == package and isinstance(known, Mapping) and "usage" in known

    def _write(self, fields: Mapping[str, Any]) -> None:
        """Send with other values of these fields: `extra_json` is merged over `json_data`, so that is where they win; else in the body."""
        changed, extra = copy.copy(self.options), self.options.extra_json
        if isinstance(extra, Mapping):
            changed.extra_json = {**cast("Mapping[str, Any]", extra), **fields}
        else:
            changed.json_data = {**self.options.json_data, **fields}
        self.options = changed

    @property
    def _body(self) -> Mapping[str, Any]:
        return {} if self._request is None else self._request.body

    # -- strict limits ------------------------------------------------------------------------------------------------

    def bound(self) -> None:
        """Write on the call how large its input can be, or what hides that; what we fail to read has no bound either."""
        call = self.call
        if self._request is None:
            return
        try:
            self.format.bound(self._request, call)
            if call.least_cap and call.output_cap != 0 and not self._can_cap():
                call.unbounded, call.least_cap = "a body of the program's own bytes", 0
        except Exception as error:  # noqa: BLE001 - our own bug loosens no strict limit
            swallow("bound", error)
            call.unbounded = call.unbounded or "what could not be read"

    def _can_cap(self) -> bool:
        """Whether the body is a mapping the client writes, and not bytes of the program's own."""
        options = self.options
        return isinstance(options.json_data, Mapping) or (options.json_data is None and isinstance(options.extra_json, Mapping))

    def cap(self, tokens: int) -> None:
        """Cap the output, whatever the caller's fields say."""
        if self._request is not None:
            self._write(self.format.cap(self._request, tokens))

    def refuse_grown(self, live: ModelCall, client: Any, built: Any) -> None:
        """Raise BudgetExhaustedError where a class derived from the client made the request more than what strict limits hold.

        What the client's own classes send is what we read; it is not looked at again.
        """
        package = str(getattr(getattr(client, "_prepare_options", None), "__module__", "")).partition(".")[0]
        plan, call = live.scope.plan, live.record.call
        strict = (account for account in plan.accounts() if account.strict and not account.observe and not plan.sets_aside(account))
        account = next((account for account in strict if account.limit.on_unbounded != "admit"), None)
        if self._request is None or package in _PACKAGES or account is None or call.input_bound is None:
            return
        fits = False
        with Guarded("grown"):  # our own bug loosens no strict limit
            fits = self._fits(replace(self._request, body=json.loads(built.content)), call, live.record.output_cap)
        if not fits:
            call.unbounded, call.least_cap = f"a request that {type(client).__name__[:64]}._prepare_options enlarges", 0
            raise owned(errors_text.unbounded(account, call), account)

    def _fits(self, request: Request, call: Call, output_cap: int | None) -> bool:
        goes = self.format.call(request)
        self.format.bound(request, goes)
        cap = call.output_cap if output_cap is None else output_cap
        if goes.input_bound is None or call.input_bound is None or goes.input_bound > call.input_bound + _SLACK:
            return False
        if cap is None or not goes.turn:
            return True
        return goes.output_cap is not None and goes.output_cap * goes.choices <= cap * call.choices

    # -- time-outs ----------------------------------------------------------------------------------------------------

    def shorten_timeouts(self, built: Any, scope: Scope) -> bool:
        """Let no part of an attempt wait longer than the time that is left; whether that was less than the caller's own time-out.

        Nothing that is sent changes. A request without time-outs of its own, made by no client that we know, stays as it is.
        """
        left = scope.left_ns()
        own = None if left is None else built.extensions.get(TIMEOUT)
        if left is None or not isinstance(own, dict):
            return False
        left_s, parts = max(_SHORTEST_S, left / NANO), cast("dict[str, Any]", own)
        known = {part: parts.get(part) for part in _TIMEOUT_PARTS}
        if not all(found is None or isinstance(found, (int, float)) for found in known.values()):
            return False  # text, perhaps: what becomes of it is between the caller and the HTTP library
        if all(found is not None and found <= left_s for found in known.values()):
            return False
        shorter = {part: left_s if found is None else min(found, left_s) for part, found in known.items()}
        built.extensions = {**built.extensions, TIMEOUT: {**parts, **shorter}}
        if TIMEOUT not in self.call.changes:
            self.call.changes = (*self.call.changes, TIMEOUT)
        return True


def _returns_bytes(options: Any) -> bool:
    """Whether the user gets the answer's bytes, in which nothing can be hidden."""
    keys = getattr(options.headers, "keys", None)
    return callable(keys) and any(str(name).lower() == _RAW for name in list[Any](options.headers))


def shortest_pause(wait_s: Any, scope: Scope) -> Any:
    """Return the pause before a retry, no longer than the time that is left: past it the retry will be refused."""
    if not isinstance(wait_s, (int, float)):
        return wait_s
    if scope.is_over():
        return 0.0
    left = scope.left_ns()
    return wait_s if left is None else min(wait_s, (left + EARLY_NS) / NANO)


def hide_usage(chunk: Any) -> bool:
    """Take the usage out of a chunk as if it had not been asked for; True for the chunk that would not have come at all."""
    # Nearly every chunk is the client's and has none; this stands between the network and the user.
    try:
        if chunk.usage is None:
            chunk.__pydantic_fields_set__.discard("usage")
            return False
    except Exception:  # noqa: BLE001, S110 - of another kind: looked at with care below
        pass
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
