"""Write programs that talk over a socket once for both colours, and what the server answers them."""

from __future__ import annotations

import importlib.util
import inspect
from typing import Any

import pytest

from ravi_otel._runtime.stopping import drain
from ravi_otel.testing import Capture
from ravi_otel.testing._sockets import Incoming, Played, ScriptedSocket

HAS_RESPONSES = hasattr(importlib.import_module("openai.resources.responses.responses").Responses, "connect")
USER = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hello"}]}
SESSION = {
    "type": "session.created",
    "event_id": "event_s",
    "session": {"id": "sess_1", "object": "realtime.session", "model": "gpt-realtime"},
}
CREATE = {"type": "response.create"}
QUIET = pytest.mark.filterwarnings("ignore:connect\\(\\) must be used:DeprecationWarning")  # the client's own call of websockets 17
HAS_LIVE = importlib.util.find_spec("openai.resources.live") is not None
needs_live = pytest.mark.skipif(not HAS_LIVE, reason="this version has no live.connect()")
needs_responses = pytest.mark.skipif(not HAS_RESPONSES, reason="this version has no responses.connect()")


def manager_class(colour: str) -> Any:
    name = "openai.resources.realtime.realtime" if HAS_RESPONSES else "openai.resources.beta.realtime.realtime"
    return getattr(importlib.import_module(name), "RealtimeConnectionManager" if colour == "sync" else "AsyncRealtimeConnectionManager")


async def got(value: Any) -> Any:
    """Await what a client of the other colour gives as it is."""
    return await value if inspect.isawaitable(value) else value


class Talk:
    """Write a program once for both colours."""

    def __init__(self, clients: Any, colour: str, server: ScriptedSocket) -> None:
        address = server.base_url
        self.client = clients.make(colour, address, websocket_base_url=address.replace("http", "ws"))

    async def realtime(self) -> Any:
        room = self.client.realtime if HAS_RESPONSES else self.client.beta.realtime
        return await got(room.connect(model="gpt-realtime").enter())

    async def responses(self) -> Any:
        return await got(self.client.responses.connect().enter())


async def until(connection: Any, kind: str, times: int = 1) -> list[Any]:
    seen: list[Any] = []
    while times:
        event = await got(connection.recv())
        seen.append(event)
        times -= getattr(event, "type", None) == kind
    return seen


def answering(*played: Played) -> Any:
    left = [list(one) for one in played]

    def script(message: Incoming) -> Played:
        if message.event.get("type") not in ("response.create", "input_audio_buffer.commit"):
            return ()
        return (left.pop(0) if len(left) > 1 else left[0]) if left else ()

    return script


def play(clients: Any, colour: str, server: ScriptedSocket, program: Any) -> Any:
    return clients.run(colour, program(Talk(clients, colour, server)))


def spans(capture: Capture, operation: str) -> list[Any]:
    drain()
    return [span for span in capture.spans() if (span.attributes or {}).get("gen_ai.operation.name") == operation]
