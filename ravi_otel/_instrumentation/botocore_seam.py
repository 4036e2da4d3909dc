"""Wrap the methods by which a client of boto3 sends a request to a model, before it is signed: urllib3 sees only the signed request.

`Endpoint.make_request` is one whole call, `_get_response` each of its attempts. A refusal raised below them would become an error of
botocore's, which may be retried.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from types import ModuleType
from typing import Any, ClassVar, Final
from urllib.parse import urlencode, urlsplit

from ravi_otel._instrumentation import urllib3_seam
from ravi_otel._instrumentation.formats.fields import count, get
from ravi_otel._instrumentation.http_seam import ERRORS, HTTP_CALL, MODEL_HOSTS, HttpCall, Outgoing
from ravi_otel._runtime.model_call import ModelCall, send_call
from ravi_otel._runtime.patching import Wraps
from ravi_otel.errors import RaviError
from ravi_otel.hooks._listeners import Guarded, from_signal, swallow
from ravi_otel.policy._usage import Reply

_PORTS: Final = {"https": 443, "http": 80}
_REQUEST: Final = 1
"""The position of the request among the arguments of `make_request`."""


class BotocoreCall(HttpCall):
    """A call that an endpoint of botocore sends."""

    layer: ClassVar[str] = "botocore"

    def write(self, body: Mapping[str, Any]) -> None:
        """See `HttpCall.write`."""
        self.written = json.dumps(body, separators=(",", ":")).encode()
        operation, request = self._args
        self._args = (operation, {**request, "body": self.written})

    def read(self, live: ModelCall, result: Any) -> Reply | None:
        """See `CallSender.read`."""
        answer, parsed = result
        status = answer.status_code
        if status >= ERRORS:
            self.end_without_answer(live, status)
            return None
        streamed = any(hasattr(value, "close") for value in parsed.values())  # a body or events, which the program reads later
        if streamed:
            return urllib3_seam.follow_response(self, live, answer.raw)
        return self.read_whole(live, answer.headers.get("content-type"), lambda: answer.content)

    def shut_down(self) -> None:
        """See `HttpCall.shut_down`."""
        urllib3_seam.shut_down(get(self.connection, "sock"))


class BotocoreSeam:
    """The wrapped methods of the endpoints."""

    def __init__(self, module: ModuleType) -> None:
        self._module: Any = module
        self._wraps = Wraps()
        self._active = False

    def install(self) -> None:
        """Wrap the method that sends a call, and the one that sends each attempt."""
        endpoint = self._module.Endpoint
        self._wraps.wrap(endpoint, "make_request", self._make_request)
        self._wraps.wrap(endpoint, "_get_response", self._attempt)
        self._active = True

    def remove(self) -> None:
        """Stop watching, and restore the original methods."""
        self._active = False
        self._wraps.restore()

    def _make_request(self, wrapped: Callable[..., Any], _endpoint: Any, args: Any, kwargs: Any) -> Any:
        call = None if not self._active or kwargs or len(args) <= _REQUEST else self._begin(wrapped, args)
        return wrapped(*args, **kwargs) if call is None else send_call(call.call, call)

    def _begin(self, wrapped: Callable[..., Any], args: Any) -> HttpCall | None:
        try:
            request = args[_REQUEST]
            url = urlsplit(str(request["url"]))
            to = MODEL_HOSTS.at(url.hostname, url.port or _PORTS.get(url.scheme))
            if to is None:
                return None
            query: Any = request.get("query_string")
            target = url.path + (f"?{urlencode(query)}" if query else "")
            body = request.get("body")
            content = body if isinstance(body, (bytes, bytearray, str)) else None
            out = Outgoing(to, str(request["method"]).upper(), target, content)
            return BotocoreCall.begin(out, partial(BotocoreCall, out, wrapped, args, {}))
        except Exception as bug:
            if isinstance(bug, RaviError) or from_signal(bug):
                raise
            swallow("prepare", bug)
            return None

    def _attempt(self, wrapped: Callable[..., Any], _endpoint: Any, args: Any, kwargs: Any) -> Any:
        call = HTTP_CALL.get()
        if not self._active or not isinstance(call, BotocoreCall) or not call.sends:
            return wrapped(*args, **kwargs)
        call.pass_down("attempt", call.last_status, call.last_error)
        result = wrapped(*args, **kwargs)
        with Guarded("answer"):  # our own bug never keeps an answer from its caller
            answer, error = result
            call.last_status = None if answer is None else count(get(answer[0], "status_code"))
            call.last_error = "" if error is None else type(error).__name__
        return result
