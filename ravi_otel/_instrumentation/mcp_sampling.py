"""Have what a client's callbacks do belong to the tool call that the server was serving when it asked.

A server may ask the client for a model's answer, a person's, or for its roots while it runs a tool. The SDK calls back from its own task
that reads messages, which was started with the session and knows nothing of the run that called the tool.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, Final, cast

from ravi_otel._runtime.mcp_sessions import CALLBACKS, LINK, McpServer, method_of, params_of
from ravi_otel._runtime.patching import Wraps, named_like
from ravi_otel.hooks._listeners import Guarded

_META: Final = "_meta"


class Callbacks:
    """Hold the wrapped method of `mcp.client.session` by which a server's request reaches a callback of the program's."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module
        self._wraps = Wraps()
        self._active = False

    def install(self) -> None:
        """Wrap what answers a server's requests: in 2.x it is given the message's parameters, in 1.x what is to answer it."""
        session = self._module.ClientSession
        if "_on_request" in vars(session):
            self._wraps.wrap(session, "_on_request", self._on_request)
        else:
            self._wraps.wrap(session, "_received_request", self._received_request)
        self._active = True

    def remove(self) -> None:
        """Fall silent, and put the identical method back."""
        self._active = False
        self._wraps.restore()

    def _on_request(self, wrapped: Callable[..., Any], session: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._active and len(args) == 3 and args[1] in CALLBACKS:  # noqa: PLR2004 - whose request, method and parameters
            with Guarded("mcp"):
                params, meta = _split(args[2])
                call = McpServer.of(session).call_of(meta)
                if call is not None:
                    return named_like(call.run(wrapped, args[0], args[1], params), wrapped)
        return wrapped(*args, **kwargs)

    def _received_request(self, wrapped: Callable[..., Any], session: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        responder = args[0] if args else kwargs.get("responder")
        request: Any = getattr(responder, "request", None)
        if self._active and method_of(request) in CALLBACKS:
            with Guarded("mcp"):
                found: Any = getattr(getattr(params_of(request), "meta", None), "model_extra", None)
                meta = cast("dict[str, Any]", found) if isinstance(found, dict) else {}
                call = McpServer.of(session).call_of(meta)
                meta.pop(LINK, None)
                if call is not None:
                    return named_like(call.run(wrapped, *args, **kwargs), wrapped)
        return wrapped(*args, **kwargs)


def _split(params: Any) -> tuple[Any, Mapping[str, Any]]:
    """Return a request's parameters without what of ours says whose it is, and its `_meta` with it."""
    given = cast("Mapping[str, Any]", params if isinstance(params, Mapping) else {})
    meta = cast("Mapping[str, Any]", given.get(_META) if isinstance(given.get(_META), Mapping) else {})
    if LINK not in meta:
        return cast("Any", params), meta
    left = {name: value for name, value in meta.items() if name != LINK}
    changed = {name: value for name, value in given.items() if name != _META}
    return ({**changed, _META: left} if left else changed), meta
