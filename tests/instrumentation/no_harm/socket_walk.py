"""Open every WebSocket the client has against a real server, ask for one answer, and close it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import openai
from client_walk import arguments
from operations import find
from seen import got

from ravi_otel.testing._sockets import Incoming, ScriptedSocket, realtime_events, responses_events

_MOST_EVENTS = 20
_ENDS = ("response.done", "response.completed")


def script_for(path: str) -> Any:
    """Answer what asks for a response in the words of this connection."""

    def script(told: Incoming) -> Any:
        return responses_events() if "responses" in path else realtime_events()

    return script


def client_of(colour: str, url: str) -> Any:
    kind = openai.OpenAI if colour == "sync" else openai.AsyncOpenAI
    return kind(base_url=url, websocket_base_url=url.replace("http://", "ws://"), api_key="any")


async def opened(colour: str, path: str) -> None:
    """Open, ask, hear the answer, close."""
    with ScriptedSocket(script_for(path)) as server:
        method = find(client_of(colour, server.base_url), path)
        manager = method(**arguments(method), **({"model": "gpt-realtime"} if path == "realtime.connect" else {}))
        if colour == "async":
            async with manager as connection:
                await _asks(connection, path)
        else:
            with manager as connection:
                await _asks(connection, path)


async def _asks(connection: Any, path: str) -> None:
    await got(connection.send(_question(path)))
    for _ in range(_MOST_EVENTS):
        event = await got(connection.recv())
        if getattr(event, "type", None) in _ENDS:
            return


def _question(path: str) -> Mapping[str, Any]:
    if "responses" in path:
        return {"type": "response.create", "model": "gpt-4o-mini", "input": "Hi"}
    return {"type": "response.create"}
