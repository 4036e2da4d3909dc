"""The tree of runs and agents without their calls."""

from __future__ import annotations

import contextvars
import io

import pytest
from recorded import Record

import ravi_otel
from ravi_otel import AgentPausedError, Priority, SpawnBudget
from ravi_otel._local.render import console, render, render_scopes


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


def shown(render_it, record, width=80):
    stream = io.StringIO()
    render_it(record, console(stream, width=width))
    return stream.getvalue()


@pytest.mark.parametrize("width", [40, 80])
def test_it_has_each_agent_with_its_priority_and_how_it_ended_and_no_call(record, width):
    text = shown(render_scopes, record, width)
    for words in ("run night", "agent lead", "agent digest", "background, paused, 1 refused", "agent rollback", "critical"):
        assert words in text
    assert "normal" not in text
    assert "look" not in text
    assert "tool calls" not in text


def test_the_whole_tree_has_the_priorities_too(record):
    text = shown(render, record)
    assert "background, paused" in text
    assert "tool look" in text


def test_of_nothing_it_says_so(record):
    assert shown(render_scopes, Record()) == "Nothing was recorded.\n"
