"""What each outcome does past its limit: to calls, streams, tools and charges, in either colour (enforcement §7)."""

import logging

import pytest

import ravi_otel
from ravi_otel import BudgetExhaustedError
from ravi_otel._enforcement import ending
from ravi_otel.testing import Text


@ravi_otel.tool
def search():
    return "found"


@ravi_otel.tool
async def asearch():
    return "found"


def call(client, ask):
    return ask(client)


async def acall(client, ask):
    return await ask(client)


def stream(client, ask):
    return [chunk for chunk in ask(client, stream=True)]  # noqa: C416 - both colours alike


async def astream(client, ask):
    return [chunk async for chunk in await ask(client, stream=True)]


def tool(client, ask):
    return search()


async def atool(client, ask):
    return await asearch()


def charge(client, ask):
    return ravi_otel.current_scope().charge("rows", 5)


async def acharge(client, ask):
    return ravi_otel.current_scope().charge("rows", 5)


ACTS = {
    "call": (call, acall, "requests=0", "limit_requests"),
    "stream": (stream, astream, "tokens=0", "limit_tokens"),
    "tool": (tool, atool, "tool.search=0", "limit_tool_calls"),
    "charge": (charge, acharge, "charge.rows=4", "limit_custom"),
}
ENDS = {
    "raise": ("raises", "error"),
    "stop": ("swallows", "stopped"),
    "final": ("swallows", "stopped"),
    "deny_tool": ("raises", "error"),
    "pause": ("swallows", "paused"),
    "ask": ("raises", "error"),
    "observe": ("goes on", "ok"),
}
"""What the scope that owns the limit does with the refusal, and the status it ends with."""
CASES = [(act, outcome) for act in ACTS for outcome in ENDS if outcome != "final" or act in ("call", "stream")]
"""Nothing can be kept back of tools and of kinds of one's own."""


@pytest.mark.parametrize(("act", "outcome"), CASES)
def test_the_act_raises_and_the_owner_does_as_it_was_told(client, ask, outcome, act):
    do, _, limit, reason = ACTS[act]
    what, status = ENDS[outcome]
    caught = raised = None
    try:
        with ravi_otel.run("r", limits=[f"{limit}:on={outcome}"]) as run:
            try:
                do(client, ask)
            except BudgetExhaustedError as error:
                caught = error
                raise
    except BudgetExhaustedError as error:
        raised = error
    assert (caught is None) is (what == "goes on")
    assert raised is (caught if what == "raises" else None)
    assert (run.status, run.stop_reason) == (status, "success" if what == "goes on" else reason)


@pytest.mark.anyio
@pytest.mark.parametrize(("act", "outcome"), CASES)
async def test_and_in_the_other_colour(aclient, ask, outcome, act):
    _, do, limit, reason = ACTS[act]
    what, status = ENDS[outcome]
    limit = limit.replace("search", "asearch")
    raised = False
    try:
        async with ravi_otel.run("r", limits=[f"{limit}:on={outcome}"]) as run:
            await do(aclient, ask)
    except BudgetExhaustedError:
        raised = True
    assert raised is (what == "raises")
    assert (run.status, run.stop_reason) == (status, "success" if what == "goes on" else reason)


@pytest.mark.parametrize("outcome", ["stop", "final", "pause"])
def test_a_decorated_function_gives_none(client, ask, outcome):
    @ravi_otel.run("r", limits=[f"requests=0:on={outcome}"])
    def work():
        return ask(client)

    assert work() is None


@pytest.mark.parametrize("outcome", ["stop", "pause"])
def test_only_the_owner_swallows(client, ask, outcome):
    with ravi_otel.run("r", limits=[f"requests=0:on={outcome}"]) as run:
        with ravi_otel.agent("a") as agent:
            ask(client)
        pytest.fail("the run went on")
    assert (agent.status, run.status) == ("error", ENDS[outcome][1])


@pytest.mark.parametrize("outcome", ["stop", "pause", "final"])
def test_what_a_cut_stream_had_said_is_kept(stage, client, ask, outcome):
    stage.answer = Text("word " * 400, chunks=100)
    with ravi_otel.run("r", limits=[f"output_tokens=100:on={outcome}"]) as run:
        for _ in ask(client, stream=True):
            pass
    assert run.status == ENDS[outcome][1]
    assert run.partial
    assert ("word " * 400).startswith(run.partial)


def test_without_a_stream_nothing_is_kept(client, ask):
    with ravi_otel.run("r", limits=["requests=0:on=stop"]) as run:
        ask(client)
    assert run.partial is None


def test_a_paused_run_goes_on_under_a_higher_limit(stage, client, ask):
    with ravi_otel.run("r", limits=["requests=2:on=pause"]) as run:
        while True:
            ask(client)
    assert (run.status, stage.sent) == ("paused", 2)
    with ravi_otel.run("r", limits=["requests=3:on=pause"], resume=run.snapshot().to_json()) as again:
        while True:
            ask(client)
    assert (again.id, again.status, stage.sent, again.stats().requests) == (run.id, "paused", 3, 3)


def test_time_pauses_too(on_clock):
    with ravi_otel.run("r", limits=["time=5:on=pause"]) as run:
        on_clock.advance(6)
        run.scope.checkpoint()
    assert (run.status, run.stop_reason) == ("paused", "limit_time")


def test_to_ask_is_told_with_the_event(client, ask, heard):
    with pytest.raises(BudgetExhaustedError), ravi_otel.run("r", limits=["requests=0:on=ask"]):
        ask(client)
    assert [(event.event, event.decision) for event in heard.limits] == [("limit_exceeded", "ask")]


@pytest.mark.parametrize(("outcome", "words"), [("final", 'acts as "stop"'), ("deny_tool", 'acts as "raise"')])
def test_what_needs_a_loop_of_ours_is_said_once(client, ask, caplog, monkeypatch, outcome, words):
    monkeypatch.setattr(ending, "_said", set())
    caplog.set_level(logging.WARNING, "ravi_otel")
    for _ in range(3):
        try:
            with ravi_otel.run("r", limits=[f"requests=0:on={outcome}"]):
                ask(client)
        except BudgetExhaustedError:
            pass
    said = [record.getMessage() for record in caplog.records if "on_exceed" in record.getMessage()]
    assert len(said) == 1
    assert words in said[0]


def test_a_denied_tool_leaves_the_program_going_on(client):
    with ravi_otel.run("r", limits=["tool.search=1:on=deny_tool"]) as run:
        results = []
        for _ in range(3):
            try:
                results.append(search())
            except BudgetExhaustedError as error:
                results.append(f"refused: {error.limit_kind}")
    assert results == ["found", "refused: tool.search", "refused: tool.search"]
    assert (run.status, run.stats().refused) == ("ok", 2)


def test_a_charge_is_counted_without_a_limit():
    with ravi_otel.run("r") as run, ravi_otel.agent("a") as agent:
        agent.scope.charge("rows", 5)
        agent.scope.charge("rows", 7)
    assert agent.stats().charged == run.stats().charged == {"rows": 12}


def test_what_was_refused_is_not_counted_as_charged():
    with ravi_otel.run("r", limits=["charge.rows=5:on=stop"]) as run:
        run.scope.charge("rows", 6)
    assert run.stats().charged == {}


def test_kinds_without_end_are_counted_together():
    with ravi_otel.run("r") as run:
        for number in range(1_002):
            run.scope.charge(f"kind {number}", 1)
    assert (len(run.stats().charged), run.stats().charged["_other"]) == (1_001, 2)
