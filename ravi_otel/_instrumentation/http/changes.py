"""Make the changes to a request that counting needs: a stream is asked for its usage, an answer is capped by a strict limit."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, Final, cast

from ravi_otel._instrumentation.formats.fields import get
from ravi_otel.hooks.guard import swallow

INCLUDE_USAGE: Final = "include_usage"
"""What the change is called on the span."""

_RAW: Final = "x-stainless-raw-response"
_FIELD: Final = "stream_options"
_ON_OWN_DATA: Final = "data_sources"
"""Azure's searches over one's own data refuse the option."""


def is_raw(options: Any) -> bool:
    """Tell that the user gets the answer's bytes, in which nothing can be hidden."""
    keys = getattr(options.headers, "keys", None)
    return callable(keys) and any(str(name).lower() == _RAW for name in list[Any](options.headers))


def may_ask(options: Any, cast_to: object, body: Mapping[str, Any], package: str) -> bool:
    """Tell that a stream of this request can be asked for its usage, and that nobody will see that it was.

    Not where the program said itself what it wants, where the answer's bytes are its own, or where events become objects in
    which nothing can be hidden: only those of the client's `package` and plain JSON can be cleared.
    """
    if not isinstance(options.json_data, Mapping) or _ON_OWN_DATA in body or is_raw(options):
        return False
    asked = body.get(_FIELD)
    if asked is not None and (not isinstance(asked, Mapping) or INCLUDE_USAGE in asked):
        return False
    if cast_to is object or cast_to is dict:
        return True
    module = getattr(cast_to, "__module__", None)
    known = getattr(cast_to, "model_fields", None)
    return isinstance(module, str) and module.partition(".")[0] == package and isinstance(known, Mapping) and "usage" in known


def with_usage(options: Any, body: Mapping[str, Any]) -> Any:
    """Give a copy of the options whose stream tells its usage; the caller's own object and mappings stay as they are."""
    asked = {**cast("Mapping[str, Any]", body.get(_FIELD) or {}), INCLUDE_USAGE: True}
    changed = copy.copy(options)
    extra = options.extra_json
    if isinstance(extra, Mapping) and _FIELD in extra:
        changed.extra_json = {**cast("Mapping[str, Any]", extra), _FIELD: asked}
    else:
        changed.json_data = {**options.json_data, _FIELD: asked}
    return changed


def can_cap(options: Any) -> bool:
    """Tell that the body is a mapping the client writes, and not bytes of the program's own."""
    return isinstance(options.json_data, Mapping) or (options.json_data is None and isinstance(options.extra_json, Mapping))


def with_cap(options: Any, fields: Mapping[str, int]) -> Any:
    """Give a copy of the options whose body has these fields, whatever the caller's say; his own mappings stay as they are.

    `extra_json` is merged over `json_data`, so that is where they win; where there is none, in the body itself.
    """
    changed = copy.copy(options)
    extra = options.extra_json
    if isinstance(extra, Mapping):
        changed.extra_json = {**cast("Mapping[str, Any]", extra), **fields}
    else:
        changed.json_data = {**options.json_data, **fields}
    return changed


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
        told = getattr(chunk, "__pydantic_fields_set__", None)
        if told is not None:
            told.discard("usage")
    except Exception as error:  # noqa: BLE001 - the chunk is the user's, with the usage in it at worst
        swallow("hide", error)
    return False
