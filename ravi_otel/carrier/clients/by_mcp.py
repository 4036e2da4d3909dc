"""Decide what of ours a request over MCP takes along in its `_meta`: to a server that is listed by its name or host, and to no other.

2.x puts there what the propagators know of the context, when it writes a request, and so does one instrumentation of 1.x: so ours is
taken off where a request is written, and in 1.x, where nothing else comes in between, is in no context of a request that is sent.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, Final, cast

from opentelemetry import context as otel_context

from ravi_otel import _current
from ravi_otel._runtime.mcp_sessions import DISPATCHER, params_of, with_params
from ravi_otel._runtime.patching import Wraps, named_like
from ravi_otel.carrier.ambient import undressed
from ravi_otel.carrier.entries import without_ours
from ravi_otel.hooks._listeners import swallow

_BAGGAGE: Final = "baggage"
_META: Final = "_meta"
_SPREAD: Final = re.compile(r"(?:uberctx|ot-baggage|baggage)-ravi\.|ravi-", re.IGNORECASE)
"""Entries of older propagators, which make one of each, and those that only an answer has."""


class Installed:
    """Hold the wrapped methods of `mcp.client.session`; of 2.x a server's requests to its clients are written by the same one."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module
        self._wraps = Wraps()
        self._active = False

    def install(self) -> None:
        """Wrap what writes messages in 2.x, and what sends requests in 1.x."""
        dispatcher = getattr(self._module, DISPATCHER, None)
        if dispatcher is not None:
            self._wraps.wrap(dispatcher, "_write", self._write)
        else:
            session = self._module.ClientSession
            owner = next(kind for kind in session.__mro__ if "send_request" in vars(kind))
            self._wraps.wrap(owner, "send_request", self._send_request)
        self._active = True

    def remove(self) -> None:
        """Fall silent, and put the identical methods back."""
        self._active = False
        self._wraps.restore()

    # -- 2.x -----------------------------------------------------------------------------------------------------------

    def _write(self, wrapped: Callable[..., Any], _dispatcher: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not self._active:
            return wrapped(*args, **kwargs)
        message = args[0] if args else kwargs["message"]
        params: Any = getattr(message, "params", None)
        if not isinstance(params, Mapping):
            return wrapped(*args, **kwargs)
        given = cast("Mapping[str, Any]", params)
        meta = given.get(_META)
        kept = _kept(meta)
        if kept is not meta:
            changed = {name: value for name, value in given.items() if name != _META}
            if kept is not None:
                changed[_META] = kept
            message = message.model_copy(update={"params": changed})
        return wrapped(message, *args[1:]) if args else wrapped(**{**kwargs, "message": message})

    # -- 1.x -----------------------------------------------------------------------------------------------------------

    def _send_request(self, wrapped: Callable[..., Any], _session: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not self._active:
            return wrapped(*args, **kwargs)
        request = args[0] if args else kwargs["request"]
        current = otel_context.get_current()
        bare, kept = undressed(current), _without_ours(request)
        if bare is current and kept is request:
            return wrapped(*args, **kwargs)
        sent = wrapped(kept, *args[1:], **kwargs) if args else wrapped(**{**kwargs, "request": kept})
        return named_like(_inside(bare, sent), wrapped)


async def _inside(context: Any, sent: Any) -> Any:
    with _current.Attachment(context):
        return await sent


def _kept(meta: Any) -> Any:
    """Return `_meta` without anything of ours, the very same where it has nothing; None where nothing else is in it."""
    if not isinstance(meta, Mapping):
        return meta
    given = cast("Mapping[str, Any]", meta)
    try:
        baggage: Any = given.get(_BAGGAGE)
        kept = without_ours(baggage) if isinstance(baggage, str) else baggage
        spread = [name for name in given if _SPREAD.match(name)]
        if kept is baggage and not spread:
            return given
        left = {name: value for name, value in given.items() if name not in spread}
        if kept is not baggage:
            left[_BAGGAGE] = kept
        if left.get(_BAGGAGE, "") is None:
            del left[_BAGGAGE]
    except Exception as bug:  # noqa: BLE001 - the request goes out, without anything that may be ours
        swallow("carrier.outbound", bug)
        return {name: value for name, value in given.items() if name == "progressToken"} or None
    return left or None


def _without_ours(request: Any) -> Any:
    """Return a request of 1.x without anything of ours in what came with it."""
    params = params_of(request) if hasattr(getattr(request, "root", request), "params") else None
    meta: Any = getattr(params, "meta", None)
    given: Any = getattr(meta, "model_extra", None)
    kept = _kept(given)
    if kept is given or not given:
        return request
    dumped = {name: value for name, value in meta.model_dump(by_alias=True, exclude_none=True).items() if name not in given}
    return with_params(request, meta=meta.__class__.model_validate({**dumped, **(kept or {})}))
