"""Write down everything a program can see of a result, a stream, a response or an exception."""

from __future__ import annotations

import gc
import inspect
import re
from typing import Any

import pydantic

ADDRESS = re.compile(r"0x[0-9a-f]+")
WAYS = ("whole", "some", "pieces", "nothing")
"""How a program may read what it was given: to its end, a little, as bytes piece by piece, or not at all."""

_ELAPSED = {"_elapsed"}
_HEARD = {"_elapsed", "__getstate__", "close", "aclose", "read", "aread", "iter_raw", "aiter_raw"}
"""What may stand on a response as its own: ours stands before these methods until it is closed, and then is gone."""


async def got(value: Any) -> Any:
    """Await what a client of the other colour gives as it is."""
    return await value if inspect.isawaitable(value) else value


def told(error: BaseException | None, depth: int = 3) -> Any:
    """Tell of an exception and of those behind it."""
    if error is None or depth == 0:
        return None
    fields = sorted((key, repr(value)) for key, value in vars(error).items() if not key.startswith("_"))
    return {
        "type": type(error),
        "text": ADDRESS.sub("0x", str(error)),
        "args": ADDRESS.sub("0x", repr(error.args)),
        "cause": told(error.__cause__, depth - 1),
        "context": told(error.__context__, depth - 1),
        "suppressed": error.__suppress_context__,
        "fields": ADDRESS.sub("0x", repr(fields)),
        "notes": getattr(error, "__notes__", None),
    }


async def shown(value: Any, way: str = "whole") -> Any:
    """Tell of a result; what is open is read in this way."""
    kind = type(value)
    if hasattr(kind, "__stream__"):
        return kind, value.response.status_code, await _stream(value, way)
    if hasattr(kind, "http_request"):
        return await _raw(value, way)
    if isinstance(value, pydantic.BaseModel):
        return kind, ADDRESS.sub("0x", repr(value)), sorted(value.model_fields_set), getattr(value, "_request_id", None), await _page(value)
    if hasattr(kind, "iter_bytes") and hasattr(value, "response"):
        return kind, await _pieces(value) if way == "pieces" else value.content, value.response.is_closed
    return kind, ADDRESS.sub("0x", repr(value))


async def _page(value: Any) -> Any:
    return value.has_next_page() if hasattr(value, "has_next_page") else None


async def _stream(stream: Any, way: str) -> list[Any]:
    seen: list[Any] = []
    try:
        if way == "pieces":
            if hasattr(stream, "__aenter__"):
                async with stream:
                    await _items(stream, seen, 2)
            else:
                with stream:
                    await _items(stream, seen, 2)
        elif way != "nothing":
            await _items(stream, seen, 2 if way == "some" else None)
            if way == "some":
                await got(stream.close())
    except Exception as error:
        seen.append(told(error))
    seen.append(stream.response.is_closed)
    return seen


async def _items(stream: Any, seen: list[Any], most: int | None) -> None:
    if hasattr(stream, "__aiter__"):
        async for item in stream:
            seen.append(await shown(item))
            if len(seen) == most:
                return
    else:
        for item in stream:
            seen.append(await shown(item))
            if len(seen) == most:
                return


async def _raw(response: Any, way: str) -> Any:
    seen: list[Any] = [type(response), response.status_code, sorted(response.headers.items()), response.retries_taken]
    try:
        if way == "pieces" and hasattr(response, "iter_lines"):
            seen.append(await _pieces(response))
        elif way == "some":
            text = response.text
            seen.append(await got(text()) if callable(text) else text)
        elif way != "nothing":
            seen.append(await shown(await got(response.parse()), way))
            seen.append(await shown(await got(response.parse()), way))
    except Exception as error:
        seen.append(told(error))
    fields = sorted(key for key in vars(response.http_response) if key not in (_ELAPSED if response.is_closed else _HEARD))
    ours = {"parse", "__getstate__"} if "parse" in vars(response) else set()  # until it is called, ours stands there
    return [*seen, response.is_closed, fields, sorted(vars(response).keys() - ours)]


async def _pieces(response: Any) -> list[Any]:
    found: Any = response.iter_bytes(7)
    return [piece async for piece in found] if hasattr(found, "__aiter__") else list(found)


async def closed(manager: Any, way: str) -> Any:
    """Enter what `with_streaming_response` gives, and tell what is seen inside and after it."""
    if hasattr(manager, "__aenter__"):
        async with manager as response:
            seen = await shown(response, way)
    else:
        with manager as response:
            seen = await shown(response, way)
    return seen, response.is_closed


def forget() -> None:
    """Have collected what the programs dropped."""
    gc.collect()
