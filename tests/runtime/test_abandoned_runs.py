"""Runs and agents that were entered and then dropped, so that nobody can leave them: they end by themselves, and grow no program."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import json
import os
import threading

import pytest
from recorded import Record, as_json

import ravi_otel
from ravi_otel._enforcement.scope import Scope
from ravi_otel._runtime.stopping import drain
from ravi_otel.testing import Capture

MANY = 500


def in_a_context_of_its_own(work, *args):
    contextvars.Context().run(work, *args)


def opened(limits=(), **names):
    ravi_otel.run("dropped", limits=limits, **names).__enter__()
    ravi_otel.agent("worker").__enter__()
    ravi_otel.current_scope().charge("rows", 3)


def settled():
    """Have found what was dropped, and what only that still referred to."""
    for _ in range(3):
        gc.collect()
        drain()
    gc.collect()


def living():
    return sum(isinstance(one, Scope) and one.facts.run_name == "dropped" for one in gc.get_objects())


@pytest.fixture
def capture():
    with Capture() as captured:
        yield captured


@pytest.fixture
def told(capture):
    given = {name: getattr(capture, name) for name in ("tracer_provider", "meter_provider", "logger_provider")}
    with ravi_otel.instrument(**given):
        yield capture


@pytest.mark.parametrize("limits", [(), ("tokens=1M", "charge.rows=10", "time=1h")], ids=["without limits", "limited"])
@pytest.mark.parametrize("with_telemetry", [True, False])
def test_runs_that_were_dropped_are_freed(request, with_telemetry, limits):
    if with_telemetry:
        request.getfixturevalue("told")
    for _ in range(MANY):
        in_a_context_of_its_own(opened, limits)
    settled()
    assert living() == 0


def test_a_record_keeps_none_of_them_and_shows_how_they_ended():
    def work():
        opened(("charge.rows=10",))
        with ravi_otel.agent("helper"):  # which closes, and was inside what does not
            pass

    record = Record()
    with ravi_otel.instrument() as handle:
        handle.listen(record)
        in_a_context_of_its_own(work)
        settled()
        assert living() == 0
    document = json.loads(as_json(record))
    ends = [(node["name"], node["status"], node["stop_reason"]) for node in document["nodes"] if node["type"] in ("run", "agent")]
    assert ends == [("dropped", "error", "abandoned"), ("worker", "error", "abandoned"), ("helper", "ok", "success")]
    assert [(limit["limit"], limit["used"]) for limit in document["limits"]] == [("rows", 3)]


def test_what_was_charged_in_them_stays_with_the_session_the_tenant_and_the_process(told):
    names = {"session_id": "chat", "tenant_id": "acme"}
    around = ("session.charge.rows=100", "tenant.charge.rows=100")
    before = ravi_otel.current_scope().stats().charged.get("rows", 0)
    for _ in range(5):
        in_a_context_of_its_own(lambda: opened(around, **names))
    settled()
    with ravi_otel.run("next", limits=around, **names) as run:
        assert {str(each.scope): (each.used, each.held) for each in run.limits} == {"session": (15, 0), "tenant": (15, 0)}
    assert ravi_otel.current_scope().stats().charged["rows"] - before == 15


def test_they_say_that_they_were_abandoned(told):
    in_a_context_of_its_own(opened)
    settled()
    ends = [(span.name, span.attributes["ravi.stop_reason"], span.attributes["error.type"]) for span in told.spans()]
    assert ends == [("invoke_agent worker", "abandoned", "abandoned"), ("invoke_workflow dropped", "abandoned", "abandoned")]
    assert [point.attributes["ravi.stop_reason"] for point in told.metric("ravi.run.ends")] == ["abandoned"]


def test_hooks_hear_of_their_end_once(told):
    heard = []
    hooks = ravi_otel.HookManager()
    hooks.register("flow_end", lambda context: heard.append((context["status"], context["stop_reason"])))
    in_a_context_of_its_own(lambda: ravi_otel.run("dropped", hooks=hooks).__enter__())
    settled()
    assert heard == [("error", "abandoned")]


def test_gauges_show_them_no_more(told):
    in_a_context_of_its_own(opened, ("charge.rows=10",))
    gc.collect()
    told.clear()
    assert told.metric("ravi.limit.used") == []


def test_a_slot_that_a_dropped_agent_had_is_free_again(told):
    with ravi_otel.run("team", spawn_budget=ravi_otel.SpawnBudget(max_agents=2)), ravi_otel.agent("root"):
        contextvars.copy_context().run(ravi_otel.agent("first").__enter__)
        settled()
        with ravi_otel.agent("second") as second:
            assert second.status == "open"


def test_a_run_whose_handle_somebody_has_is_not_ended(told):
    run = ravi_otel.run("dropped")
    in_a_context_of_its_own(run.__enter__)
    settled()
    assert run.status == "open"
    run.__exit__(None, None, None)
    assert (run.status, len(told.spans())) == ("ok", 1)


@pytest.mark.anyio
async def test_a_run_with_a_task_inside_is_not_ended_before_that(told):
    go_on, seen = asyncio.Event(), []

    async def inside():
        await go_on.wait()
        scope = ravi_otel.current_scope()
        seen.append((scope.facts.run_name, scope.status))

    def begin():
        ravi_otel.run("dropped").__enter__()
        return asyncio.get_running_loop().create_task(inside())

    task = contextvars.Context().run(begin)
    await asyncio.sleep(0)
    settled()
    assert told.spans() == []
    go_on.set()
    await task
    assert seen == [("dropped", "open")]
    del task
    await asyncio.sleep(0)
    settled()
    assert len(told.spans()) == 1


def test_a_run_with_a_thread_inside_is_not_ended_before_that(told):
    go_on, seen = threading.Event(), []

    def inside():
        go_on.wait(20)
        seen.append(ravi_otel.current_scope().status)

    def begin():
        ravi_otel.run("dropped").__enter__()
        thread = threading.Thread(target=inside)
        thread.start()
        return thread

    thread = contextvars.Context().run(begin)
    settled()
    assert told.spans() == []
    go_on.set()
    thread.join()
    del thread
    settled()
    assert (seen, len(told.spans())) == (["open"], 1)


def test_a_run_that_a_living_generator_holds_is_not_ended(told):
    def steps():
        with ravi_otel.run("dropped") as run:
            yield run.status
            yield run.status

    generator = steps()
    in_a_context_of_its_own(next, generator)
    settled()
    assert (next(generator), told.spans()) == ("open", [])
    assert list(generator) == []


def test_the_tree_of_a_run_says_which_of_its_agents_were_dropped(told):
    with ravi_otel.run("team") as team:
        contextvars.copy_context().run(ravi_otel.agent("worker").__enter__)
        gc.collect()
        assert "'worker' · error" in team.tree()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_ends_no_run_of_its_parent(told):
    run = ravi_otel.run("dropped")
    in_a_context_of_its_own(run.__enter__)
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            del run
            settled()
            status = len(told.spans())
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    run.__exit__(None, None, None)
