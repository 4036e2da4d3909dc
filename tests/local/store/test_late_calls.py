"""Calls that end after their run was closed: what they used reaches the stored run's table."""

from __future__ import annotations

import contextvars
import io
import threading

import pytest

import ravi_otel
from ravi_otel import token_limit
from ravi_otel.local import console, render
from ravi_otel.local.store.reading import read_run
from ravi_otel.testing import Text

CHAT = {"model": "gpt-4o-mini", "messages": [{"role": "user", "content": "Where is my order?"}], "max_tokens": 100}


def left(desk, *, limits, agent=(), answered=True, **run):
    """Leave a run while a call in it waits for its answer, let it come, and store it all; without `answered`, store it before that."""
    working = desk.working(Text("x", usage=(500, 60)))
    with working as client:
        working.server.hold()
        with ravi_otel.run("left", limits=limits, **run), ravi_otel.agent("lead", limits=agent):
            call = threading.Thread(target=contextvars.copy_context().run, args=(client.chat.completions.create,), kwargs=CHAT)
            call.start()
            working.server.wait_for(1)
        stored = None if answered else desk.keep()
        working.server.release()
        call.join(10)
        assert not call.is_alive()
    return read_run(stored or desk.keep())


def table(record):
    return {reading.limit.label: (reading.used, reading.held) for branch in record.branches() for reading in branch.view.readings()}


def shown(record):
    out = io.StringIO()
    render(record, console(out, width=120))
    return out.getvalue()


@pytest.mark.parametrize("admission", ["estimate", "strict", "after"])
def test_what_a_call_used_after_its_run_was_closed_reaches_the_table(desk, admission):
    record = left(desk, limits=[token_limit(50_000, admission=admission)], agent=["output_tokens=5k"])
    assert table(record) == {"tokens": (560, 0), "output_tokens": (60, 0)}
    assert "not heard of" not in shown(record)


def test_it_reaches_the_table_of_a_run_that_is_the_stored_run(desk):
    assert table(left(desk, limits=["tokens=50k"], run_id=desk.run.run_id)) == {"tokens": (560, 0)}


def test_a_share_that_settles_late_does_too(desk):
    working = desk.working(Text("x", usage=(500, 60)))
    with working as client:
        working.server.hold()
        with ravi_otel.run("left", limits=["tokens=50k"]), ravi_otel.agent("child", share=0.5):
            call = threading.Thread(target=contextvars.copy_context().run, args=(client.chat.completions.create,), kwargs=CHAT)
            call.start()
            working.server.wait_for(1)
        working.server.release()
        call.join(10)
        assert not call.is_alive()
    run, agent = [branch for branch in read_run(desk.keep()).branches() if branch.view.readings()]
    assert [(reading.used, reading.held) for branch in (run, agent) for reading in branch.view.readings()] == [(560, 0), (560, 0)]


def test_a_table_says_what_was_held_when_the_run_was_closed_and_never_settled(desk):
    record = left(desk, limits=["tokens=50k"], answered=False)
    assert table(record)["tokens"][1] > 0
    assert "Held in what was closed: by calls that had not ended then, and were not heard of since." in shown(record)


def test_calls_that_end_in_time_say_nothing_more_of_limits(desk):
    with desk.working(Text("x", usage=(5, 6))) as client, ravi_otel.run("r", limits=["tokens=50k"]), ravi_otel.agent("lead"):
        client.chat.completions.create(**CHAT)
    (chat,) = [span for span in desk.capture.spans() if span.name.startswith("chat")]
    assert [event.name for event in chat.events] == []
