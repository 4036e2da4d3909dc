"""The tree of agents: how each ended, and what it was allowed."""

from __future__ import annotations

import contextvars
import io

import pytest
from recorded import Record

import ravi_otel
from ravi_otel import AgentPausedError, Priority, SpawnBudget
from ravi_otel._local.render import console, render


@ravi_otel.tool
def look() -> None:
    """Be a tool, which is refused to a paused agent."""


def roll_back():
    with ravi_otel.agent("rollback", priority=Priority.CRITICAL):
        pass


@pytest.fixture
def record():
    record = Record()
    with ravi_otel.instrument() as instrumentation:
        instrumentation.listen(record)
        with ravi_otel.run("night", limits=["tool_calls=9"], spawn_budget=SpawnBudget(2)), ravi_otel.agent("lead"):
            look()
            beside = contextvars.copy_context()
            with pytest.raises(AgentPausedError), ravi_otel.agent("digest", priority=Priority.BACKGROUND):  # noqa: PT012 - what pauses it
                beside.run(roll_back)
                look()
    return record


def shown(record, width=80):
    stream = io.StringIO()
    render(record, console(stream, width=width))
    return stream.getvalue()


@pytest.mark.parametrize("width", [40, 80])
def test_it_has_each_agent_with_its_priority_and_how_it_ended(record, width):
    text = shown(record, width)
    for words in ("run night", "agent lead", "agent digest", "background, paused, 1 refused", "agent rollback", "critical", "tool look"):
        assert words in text
    assert "normal" not in text


def test_of_nothing_it_says_so(record):
    assert shown(Record()) == "Nothing was recorded.\n"
