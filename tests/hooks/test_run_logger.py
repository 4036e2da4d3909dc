"""What a RunLogger keeps, and that it says what it no longer has."""

from concurrent.futures import ThreadPoolExecutor

import pytest

import ravi_otel
from ravi_otel import HookEvent, HookManager, RunLogger


def test_it_keeps_every_event_in_order_with_its_context(client, ask, hooks, log):
    with ravi_otel.run("r", hooks=hooks) as run:
        ask(client)
    assert [one.event for one in log] == [HookEvent.FLOW_START, HookEvent.LLM_START, HookEvent.LLM_END, HookEvent.FLOW_END]
    assert {one.context["run_id"] for one in log.events} == {run.id}
    assert [one.at for one in log] == sorted(one.at for one in log)


@pytest.mark.parametrize("event", HookEvent)
def test_it_hears_each_event_there_is(hooks, log, event):
    hooks.emit(event, {"n": 1})
    assert [(one.event, one.context) for one in log] == [(event, {"n": 1})]


def test_it_keeps_the_last_ones_and_counts_those_that_are_gone(hooks):
    log = RunLogger(hooks, max_events=3)
    for number in range(5):
        hooks.emit(HookEvent.REVIEW, {"n": number})
    assert [one.context["n"] for one in log] == [2, 3, 4]
    assert (len(log), log.dropped) == (3, 2)
    log.clear()
    assert (len(log), log.dropped) == (0, 0)


def test_it_counts_exactly_whatever_the_threads(hooks):
    log = RunLogger(hooks, max_events=10)
    with ThreadPoolExecutor(8) as pool:
        for _ in range(300):
            pool.submit(hooks.emit, HookEvent.REVIEW)
    assert (len(log), log.dropped) == (10, 290)


def test_it_is_attached_to_a_manager_once_and_to_as_many_as_one_likes():
    one, other = HookManager(), HookManager()
    log = RunLogger().attach(one).attach(one).register(other)
    one.emit(HookEvent.REVIEW)
    other.emit(HookEvent.REVIEW)
    assert len(log) == 2


def test_what_it_keeps_cannot_be_changed(hooks, log):
    hooks.emit(HookEvent.REVIEW, {"n": [1]})
    with pytest.raises(TypeError, match="read-only"):
        log.events[0].context["n"] = 2


@pytest.mark.parametrize("most", [0, -1, True, 1.5, "10", None])
def test_how_many_it_keeps_is_a_whole_number(most):
    with pytest.raises(ravi_otel.ConfigurationError, match=r"RunLogger\(max_events\)=.* must be a whole number from 1"):
        RunLogger(max_events=most)
