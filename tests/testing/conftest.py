from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import openai
import pytest

from ravi_otel.testing import Script, ScriptedLLM

MESSAGES: list[Any] = [{"role": "user", "content": "Where is my order?"}]
CHAT: dict[str, Any] = {"model": "gpt-4o-mini", "messages": MESSAGES}


@pytest.fixture
def serve() -> Iterator[Callable[..., tuple[ScriptedLLM, openai.OpenAI]]]:
    """Start a scripted server and give it with a client that talks to it."""
    with ExitStack() as stack:

        def start(script: Script, **options: Any) -> tuple[ScriptedLLM, openai.OpenAI]:
            server = stack.enter_context(ScriptedLLM(script))
            settings = {"max_retries": 0, **options}
            return server, stack.enter_context(openai.OpenAI(base_url=server.base_url, api_key="any", **settings))

        yield start


@pytest.fixture
def chat() -> dict[str, Any]:
    return {**CHAT}
