"""Clients of every package, for conversations with tools."""

from __future__ import annotations

import contextvars
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import groq
import pytest

import ravi_otel

sys.path.insert(0, str(Path(__file__).parent))

from tool_talks import Heard, Talk

SISTERS: dict[tuple[str, str], Any] = {
    ("anthropic", "sync"): anthropic.Anthropic,
    ("anthropic", "async"): anthropic.AsyncAnthropic,
    ("groq", "sync"): groq.Groq,
    ("groq", "async"): groq.AsyncGroq,
}


@pytest.fixture(scope="session")
def sister(stage: Any, clients: Any) -> Iterator[Any]:
    made: dict[tuple[str, str], Any] = {}

    def of(package: str, colour: str) -> Any:
        at = package, colour
        if at not in made:
            made[at] = SISTERS[at](base_url=stage.server.url, api_key="k", max_retries=0)
        return made[at]

    yield of
    for (_, colour), client in made.items():
        if colour == "sync":
            client.close()
        else:
            clients.loop.run(client.close())


@pytest.fixture
def talk(stage: Any, clients: Any, sister: Any, colour: str) -> Any:
    """Begin a conversation over one of the APIs, with a script of answers."""

    def begin(kind: type[Talk], *answers: Any) -> Talk:
        url = stage.play(*answers)
        client = clients.make(colour, url, max_retries=0) if kind.package == "openai" else sister(kind.package, colour)
        return kind(client)

    return begin


@pytest.fixture
def play(clients: Any, colour: str) -> Any:
    """Run a program written once, in either colour."""
    if colour == "sync":
        return lambda program: clients.run(colour, program)
    return lambda program: clients.loop.run(program, context=contextvars.copy_context())


@pytest.fixture
def heard() -> Iterator[Heard]:
    heard = Heard()
    with ravi_otel.instrument() as handle:
        handle.listen(heard)
        yield heard
