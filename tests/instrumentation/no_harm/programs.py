"""Write the programs: an operation, in a mode, with an odd request, read in some way."""

from __future__ import annotations

from typing import Any

import openai
from odd_requests import REQUESTS
from operations import Operation, find
from seen import closed, got, shown
from side_by_side import Program

MODES = ("plain", "with_raw_response", "with_streaming_response")


def method(client: Any, path: str, mode: str) -> Any:
    """Give a method of the client, or the variant of it that this mode has; AttributeError when there is none."""
    owner, _, name = path.rpartition(".")
    at = find(client, owner) if owner else client
    return getattr(at if mode == "plain" else getattr(at, mode), name)


def program(operation: Operation, mode: str, request: str, way: str) -> Program:
    async def run(client: Any) -> Any:
        call = method(client, operation.path, _mode(client, operation, mode))
        given = REQUESTS[request](operation.given(), operation.words)
        if given.get("stream_cls") == "Stream":
            kind = openai.AsyncStream if isinstance(client, openai.AsyncOpenAI) else openai.Stream
            given["stream_cls"] = kind[dict]  # type: ignore[index]  # of whichever colour
        made = await got(call(*operation.positional, **given))
        if operation.helper:
            return await _helped(made, way)
        if hasattr(made, "__aenter__") and not hasattr(type(made), "__stream__"):
            return await closed(made, way)
        if hasattr(made, "__enter__") and not hasattr(type(made), "__stream__"):
            return await closed(made, way)
        return await shown(made, way)

    return run


def _mode(client: Any, operation: Operation, mode: str) -> str:
    try:
        method(client, operation.path, mode)
    except AttributeError:
        return "plain"
    return mode


async def _helped(manager: Any, way: str) -> Any:
    """Use a stream helper; its events are compared, and what it puts together at the end."""
    seen: list[Any] = []
    most = {"whole": None, "some": 2, "pieces": 4, "nothing": 0}[way]
    if hasattr(manager, "__aenter__"):
        async with manager as stream:
            if most != 0:
                async for event in stream:
                    seen.append(await shown(event))
                    if len(seen) == most:
                        break
            final = await _final(stream) if most is None else None
    else:
        with manager as stream:
            if most != 0:
                for event in stream:
                    seen.append(await shown(event))
                    if len(seen) == most:
                        break
            final = await _final(stream) if most is None else None
    return type(manager), type(stream), seen, final


async def _final(stream: Any) -> Any:
    for name in ("get_final_completion", "get_final_response", "get_final_run"):
        if hasattr(stream, name):
            return await shown(await got(getattr(stream, name)()))
    return None
