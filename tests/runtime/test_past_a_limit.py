"""What happens past a limit, with unknown prices, in shadow mode, and when limits change (enforcement §4, §7)."""

import ast
import re
from functools import partial

import pytest

import ravi_otel
from ravi_otel import BudgetExhaustedError, ConfigurationError, ExecutionBudget, ExecutionTracker, cost_limit, request_limit
from ravi_otel.testing import Text


def used(handle):
    return {reading.limit.label: reading.used for reading in handle.limits}


# What happens past a limit


def test_stop_is_swallowed_by_the_scope_that_owns_the_limit(client, ask):
    after = []
    with ravi_otel.run("r", limits=["requests=1:on=stop"]) as run:
        with ravi_otel.agent("a") as agent:
            ask(client)
            ask(client)
            after.append("agent")
        after.append("run")
    assert (run.status, run.stop_reason, after) == ("stopped", "limit_requests", [])
    assert (agent.status, agent.stop_reason) == ("error", "limit_requests")


def test_stop_leaves_other_errors_alone(client, ask):
    with pytest.raises(KeyError), ravi_otel.run("r", limits=["requests=1:on=stop"]) as run:
        raise KeyError
    assert run.stop_reason == "error"


def test_exhaustion_is_never_told_as_success(client, ask):
    with pytest.raises(BudgetExhaustedError), ravi_otel.run("r", limits=["requests=0"]) as run:
        ask(client)
    assert (run.status, run.stop_reason) == ("error", "limit_requests")


def test_a_block_that_catches_swallows_its_own_breach(client, ask):
    with ravi_otel.run("r"):
        with ravi_otel.apply_limits([request_limit(1)], catch=True) as block:
            ask(client)
            ask(client)
            pytest.fail("it went on")
        ask(client)
    assert block.limits[0].denied == 1


def test_a_block_that_catches_lets_the_breach_of_others_pass(client, ask):
    with (  # noqa: PT012 - the block must end by it
        pytest.raises(BudgetExhaustedError, match="run 'r'"),
        ravi_otel.run("r", limits=["requests=1"]),
        ravi_otel.apply_limits([request_limit(5)], catch=True),
    ):
        ask(client)
        ask(client)


def test_a_block_that_catches_lets_the_breach_of_an_inner_one_pass(client, ask):
    with (
        pytest.raises(BudgetExhaustedError),
        ravi_otel.apply_limits([request_limit(9)], catch=True),
        ravi_otel.apply_limits([request_limit(0)], name="inner"),
    ):
        ask(client)


# Cost and price


def test_a_model_without_a_price_is_refused_under_a_cost_limit(stage, client, ask, heard):
    with (
        ravi_otel.run("r", limits=[cost_limit(1)]),
        pytest.raises(BudgetExhaustedError, match=r"no known price.*instrument\(prices=") as caught,
    ):
        ask(client, model="nobody-knows-this-model")
    assert (stage.sent, caught.value.reason, caught.value.limit_kind) == (0, "unpriced_model", "cost")
    assert ("unpriced", None) in heard.counts
    assert [kind for what, kind in heard.counts if what == "denied"] == ["cost"]
    assert [record.limit_scope for record in heard.calls] == ["run"]


@pytest.mark.parametrize("opener", [ravi_otel.run, ravi_otel.agent], ids=["run", "agent"])
@pytest.mark.parametrize("budget", [ExecutionBudget, ExecutionTracker])
def test_the_way_out_of_a_budget_without_a_price_works_as_it_is_written(stage, client, ask, opener, budget):
    with opener("r", budget=budget(max_cost_usd=5)), pytest.raises(BudgetExhaustedError, match="in place of") as caught:
        ask(client, model="nobody-knows-this-model")
    [way_out] = re.findall(r"with limits=(\[.*?\]) in place of Execution\w+\.max_cost_usd\.", str(caught.value))
    with opener("r", limits=ast.literal_eval(way_out)):
        ask(client, model="nobody-knows-this-model")
    assert (way_out, stage.sent) == ("['cost=5usd:unpriced=warn']", 1)


def test_a_share_names_the_limit_that_takes_the_way_out(client, ask):
    with (
        ravi_otel.run("r", limits=[cost_limit(5)]),
        ravi_otel.agent("a", share=0.5),
        pytest.raises(BudgetExhaustedError, match=r":unpriced=warn in words, on the limit that agent\(share=0\.5\) is a part of\."),
    ):
        ask(client, model="nobody-knows-this-model")


def test_a_budget_that_is_kept_strictly_names_what_takes_its_option(client):
    ask = partial(client.responses.create, model="gpt-4o-mini", input="x", previous_response_id="resp_1")
    with ravi_otel.instrument(admission="strict"), ravi_otel.run("r", budget=ExecutionBudget(max_tokens=100_000)):
        with pytest.raises(BudgetExhaustedError, match=r"with limits=\['tokens=100k:unbounded=window'\] in place of") as caught:
            ask()
        assert caught.value.reason == "unbounded_input"


def test_it_is_let_through_where_that_was_chosen(stage, client, ask, heard):
    with ravi_otel.run("r", limits=[cost_limit(1, on_unpriced="warn")]) as run:
        ask(client, model="nobody-knows-this-model")
    assert (stage.sent, run.cost_usd, run.stats().unpriced_calls) == (1, None, 1)
    assert ("unpriced", None) in heard.counts


def test_a_spent_cost_limit_refuses_it_even_so(stage, client, ask):
    with ravi_otel.run("r", limits=[cost_limit("0.2", on_unpriced="warn")]):
        ask(client, max_tokens=1)
        for model in ("gpt-4o-mini", "nobody-knows-this-model"):
            with pytest.raises(BudgetExhaustedError):
                ask(client, model=model)
    assert stage.sent == 1


def test_a_price_that_comes_with_the_answer_is_charged(stage, client, ask):
    stage.answer = Text("ok", usage=(100, 100), model="gpt-4o-mini")
    with ravi_otel.run("r", limits=[cost_limit(1, on_unpriced="warn")]) as run:
        ask(client, model="nobody-knows-this-model")
    assert (used(run), run.cost_usd) == ({"cost": 0.2}, 0.2)


def test_without_a_cost_limit_an_unknown_price_is_unknown(client, ask):
    with ravi_otel.run("r") as run:
        ask(client, model="nobody-knows-this-model")
    assert run.cost_usd is None


# Watching only


def test_watching_only_refuses_nothing_and_tells_what_would_have_been(stage, client, ask, settings, clock):
    @ravi_otel.tool
    def work():
        return "done"

    limits = ["requests=1", "tokens=100", "cost=0.01", "turns=1", "time=1", "messages=1", "tool_calls=0", "depth=0", "agents=1"]
    with (
        settings(observe=True, clock=clock) as heard,
        ravi_otel.run("r", limits=limits) as run,
        ravi_otel.agent("a", budget=ExecutionBudget(max_turns=0)),
        ravi_otel.agent("b"),
    ):
        for _ in range(3):
            clock.advance(1)
            assert ask(client).choices[0].message.content == "ok"
            assert ask(client, model="nobody-knows-this-model")
            assert work() == "done"
    assert (stage.sent, run.status, run.stats().refused) == (6, "ok", 0)
    told = {(event.limit_kind, event.decision) for event in heard.limits if event.event == "limit_exceeded"}
    assert {kind for kind, _ in told} == {"requests", "tokens", "cost", "turns", "time", "messages", "tool_calls", "depth", "agents"}
    assert "denied" not in {decision for _, decision in told}


# Reading and changing


def test_a_raised_limit_lets_the_run_go_on(client, ask):
    with ravi_otel.run("r", limits=["requests=1"]) as run:
        ask(client)
        with pytest.raises(BudgetExhaustedError):
            ask(client)
        run.scope.set_limit("requests", 2)
        ask(client)
        with pytest.raises(BudgetExhaustedError):
            ask(client)
    assert run.limits[0].events == ("limit_nearing", "limit_exceeded") * 2


def test_a_kind_of_the_programs_own(instrumented):
    with ravi_otel.run("r", limits=["charge.sql_rows=100"]) as run:
        scope = ravi_otel.current_scope()
        scope.charge("sql_rows", 60)
        with pytest.raises(
            BudgetExhaustedError, match=r"^60 of 100 sql_rows used in run .*; this needs at least 60 more, which does not fit"
        ):
            scope.charge("sql_rows", 60)
        scope.charge("sql_rows", 40)
        with pytest.raises(BudgetExhaustedError, match=r"^100 of 100 sql_rows used in run .* \(100 \+ 1 > 100\)"):
            scope.charge("sql_rows")
    assert used(run) == {"sql_rows": 100}


@pytest.mark.parametrize("amount", [-1, 1.5, float("nan"), float("inf"), "5", True, None, 2**70])
def test_what_is_no_amount_is_never_charged(instrumented, amount):
    with ravi_otel.run("r", limits=["charge.sql_rows=100"]) as run:
        with pytest.raises(ConfigurationError, match=r"charge\(amount\)=.* must be a whole number"):
            run.scope.charge("sql_rows", amount)
        assert used(run) == {"sql_rows": 0}


@pytest.mark.parametrize("value", [-1, 1.5, float("nan"), "5", True, None, 2**70])
def test_what_is_no_limit_is_never_set(instrumented, value):
    with ravi_otel.run("r", limits=["requests=3"]) as run:
        with pytest.raises(ConfigurationError, match=r"set_limit\(value\)=.* must be a whole number"):
            run.scope.set_limit("requests", value)
        assert run.limits[0].limit.value == 3


def test_setting_a_limit_that_is_not_there_says_which_are(instrumented):
    with ravi_otel.run("r", limits=["requests=3"]) as run, pytest.raises(ConfigurationError, match="has no such limit; it has requests"):
        run.scope.set_limit("tokens", 5)


def test_a_depth_limit_refuses_the_agent_below_and_says_how_deep(instrumented):
    with (
        ravi_otel.run("r", limits=["depth=1"]),
        ravi_otel.agent("a"),
        ravi_otel.agent("b"),
        pytest.raises(BudgetExhaustedError, match=r"^Agents go 1 deep in run 'r'; agent .* would be 2 deep and is refused \(2 > 1\)"),
        ravi_otel.agent("c"),
    ):
        pytest.fail("it opened")


def test_a_message_limit_looks_at_the_conversation(stage, client, ask):
    many = [{"role": "user", "content": "hi"}] * 6
    with ravi_otel.run("r", limits=["messages=5"]):
        ask(client, messages=many[:4])
        with pytest.raises(BudgetExhaustedError, match=r"^5 messages are allowed in run 'r'; this call makes it 7"):
            ask(client, messages=many)
        ask(client, messages=many[:4])
    assert stage.sent == 2
