"""What a process tells of its open runs, agents and blocks is what they are and have used, and what nobody knows is null."""

import contextvars
import gc
import os
import threading

import pytest
from live_actors import limit
from openai import OpenAI

import ravi_otel
from ravi_otel import Priority, SpawnBudget
from ravi_otel._enforcement.engine import Engine
from ravi_otel._local.live import open_scopes as _open_scopes
from ravi_otel._local.live.server import Live
from ravi_otel._runtime.state import STATE
from ravi_otel.errors import BudgetExhaustedError
from ravi_otel.hooks._listeners import Listeners
from ravi_otel.testing import ScriptedLLM, Text


def test_it_tells_the_tree_with_each_agents_place_and_priority(ask_it):
    worker = ravi_otel.agent("worker", agent_id="w-1", priority=Priority.HIGH)
    with (
        ravi_otel.run("desk") as run,
        ravi_otel.agent("boss"),
        worker,
        ravi_otel.handoff("night"),
        ravi_otel.apply_limits([], name="piece"),
    ):
        state = ask_it().state()
    (told,) = state.runs
    assert (told.run_id, told.name, told.status, state.pid) == (run.id, "desk", "open", os.getpid())
    tree = [(scope.kind, scope.name, scope.agent_id, scope.depth, scope.priority) for scope in told.scopes]
    assert tree == [
        ("run", "desk", None, 0, None),
        ("agent", "boss", "boss", 0, "normal"),
        ("agent", "worker", "w-1", 1, "high"),
        ("handoff", "night", "w-1", 1, None),
        ("block", "piece", "w-1", 1, None),
    ]
    assert [scope.parent_id for scope in told.scopes] == [None, *(scope.scope_id for scope in told.scopes[:-1])]


def test_runs_of_one_process_are_told_apart_and_an_inner_ones_parent_is_in_the_outer(ask_it):
    with ravi_otel.run("outer") as outer, ravi_otel.run("inner") as inner, ravi_otel.agent("a"):
        state = ask_it().state()
    assert [(run.run_id, len(run.scopes)) for run in state.runs] == [(outer.id, 1), (inner.id, 2)]
    assert state.runs[1].scopes[0].parent_id == state.runs[0].scopes[0].scope_id


def test_agents_outside_any_run_are_told_under_none(ask_it):
    with ravi_otel.agent("alone"):
        (run,) = ask_it().state().runs
    assert (run.run_id, [scope.name for scope in run.scopes]) == (None, ["alone"])


def test_spend_is_read_when_it_is_asked_for(client, ask_it):
    @ravi_otel.tool
    def look():
        return "there"

    with ravi_otel.run("r"), ravi_otel.agent("a"):
        client()
        look()
        run, agent = ask_it().state().runs[0].scopes
    for scope in (run, agent):
        assert (scope.input_tokens, scope.output_tokens, scope.requests, scope.tool_calls) == (100, 50, 1, 1)
        assert scope.cost_usd == pytest.approx(0.15)
    assert agent.last_event == "tool look ok"
    assert 0 <= agent.last_event_age_s <= agent.age_s


def test_a_cost_that_nobody_knows_is_none(client, ask_it):
    with ravi_otel.run("r"):
        client(model="nobody-knows-this-one")
        assert ask_it().state().runs[0].scopes[0].cost_usd is None


def test_what_is_known_of_a_cost_is_the_least_of_it_after_a_call_without_a_price(client, ask_it):
    with ravi_otel.run("r", limits=[ravi_otel.cost_limit(1.0, on_unpriced="warn"), "tokens=1M"]):
        client()
        before = ask_it().state().runs[0].scopes[0]
        client(model="nobody-knows-this-one")
        after = ask_it().state().runs[0].scopes[0]
    (cost, tokens), (known,) = after.limits, [each for each in before.limits if each.kind == "cost"]
    assert (known.text, known.share, known.nearness, before.uncosted) == ("$0.15 of $1.00", "15 %", "ok", 0)
    assert (cost.text, cost.share, cost.nearness, after.uncosted) == ("≥$0.15 of $1.00", "≥15 %", "unknown", 1)
    assert (tokens.text, tokens.nearness) == ("300 of 1,000,000", "ok")


def test_a_limit_that_what_is_known_has_spent_is_spent_whatever_is_not_known(client, ask_it):
    with ravi_otel.run("r", limits=[ravi_otel.cost_limit(0.15, on_unpriced="warn")]):
        client(model="nobody-knows-this-one")
        client()
        (cost,) = ask_it().state().runs[0].scopes[0].limits
    assert (cost.nearness, cost.share, cost.at_least) == ("refused", "100 %", True)


def test_a_cost_at_an_assumed_providers_rates_is_told_as_such_of_all_that_pay_for_it(client, ask_it):
    with ravi_otel.run("r", limits=["cost=$1", "tokens=1M"]), ravi_otel.agent("boss"):
        with ravi_otel.agent("worker"):
            client(model="gpt-4.1-mini")  # its address is nobody's that we know, so its price is a guess
        with ravi_otel.agent("other"):
            client()
            told = {scope.name: scope for scope in ask_it().state().runs[0].scopes}
    assert {name: scope.is_cost_rough for name, scope in told.items()} == {"r": True, "boss": False, "other": False}
    cost, tokens = sorted(told["r"].limits, key=lambda limit: limit.kind)
    assert cost.text == "~$0.1501 of $1.00"
    assert tokens.text == "300 of 1,000,000"


def test_what_is_counted_by_us_is_told_as_such_in_tokens_and_in_cost(live, ask_it):
    with (
        ScriptedLLM(lambda _: Text("a b c d e f g h", usage=None)) as silent,
        OpenAI(base_url=silent.base_url, api_key="any", max_retries=0, timeout=20) as client,
        ravi_otel.run("r", limits=["cost=$1", "tokens=1M"]),
    ):
        with client.chat.completions.create(
            model="gpt-4o-mini", messages=[{"role": "user", "content": "hi"}], max_tokens=20, stream=True
        ) as stream:
            for _ in stream:
                pass
        (scope,) = ask_it().state().runs[0].scopes
    assert scope.estimated == 1
    assert scope.is_cost_rough
    assert [limit.text[0] for limit in scope.limits] == ["~", "~"]


def test_the_rate_is_of_calls_that_ended_lately_and_counts_as_their_cost_does(client, ask_it):
    with ravi_otel.run("r"), ravi_otel.agent("boss"):
        with ravi_otel.agent("worker"):
            client()
            rates = {scope.name: scope.tokens_per_s for scope in ask_it().state().runs[0].scopes}
        after = {scope.name: scope.tokens_per_s for scope in ask_it().state().runs[0].scopes}
    assert rates["r"] == rates["worker"] > 0
    assert rates["boss"] == after["boss"] == 0
    assert after["r"] > 0  # what an agent did that has ended by now


def test_the_rate_is_unknown_while_the_first_call_is_in_flight(ask_it, live):
    with ScriptedLLM(lambda _: Text("ok")) as held:
        held.hold()
        with OpenAI(base_url=held.base_url, api_key="any", max_retries=0, timeout=20) as client, ravi_otel.run("r"):
            call = threading.Thread(
                target=client.chat.completions.create, kwargs={"model": "gpt-4o-mini", "messages": [{"role": "user", "content": "hi"}]}
            )
            call.start()
            held.wait_for(1)
            scope = ask_it().state().runs[0].scopes[0]
            held.release()
            call.join(20)
    assert (scope.tokens_per_s, scope.last_event) == (None, "calls gpt-4o-mini")


def test_while_a_call_is_in_flight_what_is_known_is_the_least_of_a_cost_of_all_that_pay_for_it(ask_it, live):
    asked = {"model": "gpt-4o-mini", "messages": [{"role": "user", "content": "hi"}]}
    with (
        ScriptedLLM(lambda _: Text("ok", usage=(100, 50))) as held,
        OpenAI(base_url=held.base_url, api_key="any", max_retries=0, timeout=20) as client,
        ravi_otel.run("r"),
        ravi_otel.agent("boss"),
    ):
        context = contextvars.copy_context()
        client.chat.completions.create(**asked)
        before = ask_it().state().runs[0].scopes
        held.hold()
        call = threading.Thread(target=context.run, args=(lambda: client.chat.completions.create(**asked),))
        call.start()
        held.wait_for(2)
        during = ask_it().state().runs[0].scopes
        held.release()
        call.join(20)
        after = ask_it().state().runs[0].scopes
    told = [[scope.is_cost_partial for scope in scopes] for scopes in (before, during, after)]
    assert told == [[False, False], [True, True], [False, False]]


def test_a_limit_tells_who_set_it_and_a_refusal_that_its_limit_was_raised_and_not_tried_yet(client, ask_it):
    def told(name):
        return next(scope for scope in ask_it().state().runs[0].scopes if scope.name == name)

    with ravi_otel.run("r", limits=["requests=40"]) as run, ravi_otel.agent("a", limits=["requests=1"]) as agent:
        client()
        with pytest.raises(BudgetExhaustedError):
            client()
        assert (told("a").last_refusal is None, told("a").is_raised) == (False, False)
        run.set_limit("requests", 50)
        assert not told("a").is_raised  # another limit than the one that said no
        agent.set_limit("requests", 3)
        assert told("a").is_raised
        assert [limit.set_text for limit in told("a").limits] == ["1 there, set since by the program"]
        client()
        assert (told("a").last_refusal, told("a").is_raised) == (None, False)


@pytest.mark.parametrize(
    ("call", "expected"),
    [((20, 10, 40), 40.0), ((20, 20, 40), 20.0), ((5, 10, 40), 0.0), ((20, 0, 7), 7.0), ((5, 0, 7), 0.0)],
    ids=["all of it", "half of it", "none of it", "no time", "no time, and long ago"],
)
def test_a_call_counts_by_how_much_of_it_was_in_the_window(call, expected):
    assert _open_scopes._share(call, 10) == expected


def test_limits_are_told_in_their_public_units_and_the_slots_of_a_run_too(client, ask_it):
    limits = ["tokens=1000", "cost=3usd", "tool.search=5"]
    with ravi_otel.run("r", limits=limits, spawn_budget=SpawnBudget(4)), ravi_otel.agent("a"):
        client()
        told = {limit.kind: limit for limit in ask_it().state().runs[0].scopes[0].limits}
    assert {kind: (limit.used, limit.limit, limit.unit) for kind, limit in told.items()} == {
        "tokens": (150, 1000, "{token}"),
        "cost": (0.15, 3.0, "USD"),
        "tool.search": (0, 5, "{call}"),
        "agents": (1, 4, "{agent}"),
    }
    assert told["tokens"].ratio == 0.15


def test_a_wait_a_pause_and_a_cancellation_are_told(ask_it):
    with ravi_otel.run("r", spawn_budget=SpawnBudget(2)) as run, ravi_otel.agent("root"), ravi_otel.agent("low", priority=Priority.LOW):
        with run.waiting("approval"):
            assert ask_it().state().runs[0].scopes[0].status == "waiting"
        run.scope.spawn.pause("low")
        run.cancel()
        told = ask_it().state().runs[0]
    assert (told.status, told.scopes[-1].status) == ("cancelled", "paused")


def test_what_a_program_reports_is_the_last_that_was_heard_of_it(ask_it):
    with ravi_otel.run("r") as run:
        run.report("reading page 3 of 9")
        assert ask_it().state().runs[0].scopes[0].last_event == "reading page 3 of 9"


def test_what_was_closed_is_told_no_more_and_who_was_around_tells_how_it_ended(ask_it):
    with ravi_otel.run("r"):
        with ravi_otel.agent("a"):
            pass
        (scope,) = ask_it().state().runs[0].scopes
    assert scope.last_event == "agent a ok"
    assert ask_it().state().runs == ()


def test_a_scope_that_is_dropped_open_is_forgotten(store):
    watch = Live(store).scopes
    watch.renew(lambda: None)
    STATE.install(Engine(listeners=Listeners([watch])), ())
    try:
        contextvars.copy_context().run(ravi_otel.apply_limits([], name="dropped").__enter__)
        gc.collect()
        assert watch.state().runs == ()
    finally:
        STATE.install(Engine(), ())


def test_beyond_its_bound_it_says_how_many_are_left_out(live, monkeypatch):
    monkeypatch.setattr(_open_scopes, "MOST_SCOPES", 5)
    blocks = [(contextvars.copy_context(), ravi_otel.apply_limits([], name=str(number))) for number in range(8)]
    for context, block in blocks:
        context.run(block.__enter__)
    state = live.scopes.state()
    assert (len(state.runs[0].scopes), state.left_out) == (5, 3)
    for context, block in reversed(blocks):
        context.run(block.__exit__, None, None, None)
    state = live.scopes.state()
    assert (state.runs, state.left_out) == ((), 0)


def test_a_text_is_cut_and_else_told_as_it_is_escape_sequences_too(ask_it):
    with ravi_otel.run("r"):
        ravi_otel.report_progress("\x1b[2J" + "x" * 400)
        told = ask_it().state().runs[0].scopes[-1].last_event
    assert (len(told), told[:4], told[-1]) == (256, "\x1b[2J", "…")


def test_an_agent_that_was_closed_and_one_that_was_cancelled_are_said_to_be(ask_it):
    with ravi_otel.run("r"), ravi_otel.agent("boss"), ravi_otel.agent("one") as one, ravi_otel.agent("two") as two:
        session = ask_it()
        session.command("cancel", one.scope.facts.scope_id)
        two.close()
        told = {scope.name: scope.status for scope in session.state().runs[0].scopes}
    assert told == {"r": "open", "boss": "open", "one": "cancelled", "two": "closed"}


def test_a_run_whose_generator_was_dropped_is_not_shown_any_more(ask_it):
    def stream():
        with ravi_otel.run("dropped"):
            yield 1
            yield 2

    chunks = stream()
    next(chunks)
    session = ask_it()
    assert [run.name for run in session.state().runs] == ["dropped"]
    chunks.close()
    assert session.state().runs == ()


def test_of_very_many_limits_the_fullest_are_told_and_how_many_are_left_out(ask_it):
    with ravi_otel.run("r", limits=[f"charge.k{number}=100" for number in range(60)], spawn_budget=SpawnBudget(3)) as run:
        ravi_otel.current_scope().charge("k59", 50)
        known = ask_it().state().runs[0].scopes[0]
        kinds = [limit.kind for limit in known.limits]
        assert (len(kinds), kinds[:2], known.limits_left_out) == (50, ["k59", "agents"], len(run.limits) - 50)


def test_of_few_limits_none_is_left_out(ask_it):
    with ravi_otel.run("r", limits=["requests=2", "tokens=5"]):
        known = ask_it().state().runs[0].scopes[0]
        assert (len(known.limits), known.limits_left_out) == (2, 0)


@pytest.mark.parametrize(
    ("changes", "left"),
    [
        ({"used": 0.3}, "$0.20"),
        ({"used": 0.3, "held": 0.05}, "$0.15"),
        ({"used": 0.3, "at_least": True}, "≤$0.20"),
        ({"used": 0.3, "at_least": True, "estimated": True}, "≤~$0.20"),
        ({"used": 0.5, "at_least": True, "estimated": True}, "$0"),
        ({"used": 0.7}, "$0"),
        ({"used": float("nan")}, "?"),
    ],
)
def test_what_is_left_of_a_limit_is_at_most_what_is_known_to_be(changes, left):
    assert limit("cost", of=0.5, **changes).left_text == left
