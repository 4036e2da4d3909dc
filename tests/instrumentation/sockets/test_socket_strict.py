"""A strict limit refuses what is asked over a connection: the provider keeps what was said on it."""

from __future__ import annotations

from typing import Any

import pytest
from talking import CREATE, QUIET, Talk, got, play

import ravi_otel
from ravi_otel.errors import BudgetExhaustedError
from ravi_otel.testing import Capture
from ravi_otel.testing._sockets import ScriptedSocket

pytestmark = QUIET


def test_what_is_asked_over_a_connection_is_refused_under_a_strict_limit(instrumented: Capture, clients: Any, colour: str) -> None:
    async def program(talk: Talk) -> None:
        connection = await talk.realtime()
        with pytest.raises(BudgetExhaustedError, match="realtime over a connection cannot be capped") as refused:
            await got(connection.send(CREATE))
        assert refused.value.reason == "unbounded_input"
        await got(connection.close())

    with ScriptedSocket() as server, ravi_otel.run("r", limits=["tokens=1M:admission=strict"]):
        play(clients, colour, server, program)
        assert not server.received
