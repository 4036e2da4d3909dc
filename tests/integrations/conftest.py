"""A small framework of the tests' own, followed by an adapter as the real ones are; `make frameworks` has the real ones."""

import sys
from pathlib import Path
from types import ModuleType

import pytest
from openai import OpenAI

import ravi_otel
from ravi_otel.testing import ScriptedLLM, Text

sys.path.insert(0, str(Path(__file__).parent))

from made_framework import Following, MadeAgent, MadeTool


@pytest.fixture
def followed():
    """Give the adapter, installed."""
    module = ModuleType("made")
    module.MadeAgent, module.MadeTool = MadeAgent, MadeTool
    adapter = Following(module)
    with ravi_otel.instrument():
        adapter.install()
        yield adapter
        adapter.remove()


@pytest.fixture
def ask():
    """Give what makes one call of a model, of 200 tokens."""
    with ScriptedLLM(lambda _request: Text("ok", usage=(100, 100))) as server:
        client = OpenAI(base_url=server.base_url, api_key="any", max_retries=0)
        yield lambda: client.chat.completions.create(model="gpt-4o-mini", messages=[{"role": "user", "content": "hi"}])
        client.close()
