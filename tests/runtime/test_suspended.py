"""Limits set aside for auxiliary work, only where they allow it, and told (issue: nesting)."""

import logging
import threading

import anyio
import pytest

import ravi_otel
from ravi_otel import BudgetExhaustedError, ConfigurationError, DeadlineExceededError, time_limit
from ravi_otel._runtime import scopes
from ravi_otel._runtime.state import STATE
from ravi_otel.hooks._listeners import Listener


@pytest.fixture
def told_once(monkeypatch):
    monkeypatch.setattr(scopes, "_said", set())


def limit(run, kind):
    return next((one.used, one.events) for one in run.limits if one.limit.label == kind)


def test_what_is_done_inside_is_counted_and_not_refused(stage, client, ask):
    with ravi_otel.run("r", limits=["turns=1:suspend=allow"]) as run:
        ask(client)
        with ravi_otel.suspend_limits("summary of the conversation"):
            ask(client)
            ask(client)
        with pytest.raises(BudgetExhaustedError, match=r"^3 of 1 turn used in run .*; this call is refused \(3 > 1\)"):
            ask(client)
    assert (stage.sent, limit(run, "turns")) == (3, (3, ("limit_nearing", "limit_exceeded")))


@pytest.mark.parametrize("kind", ["tokens", "cost", "requests", "turns", "input_tokens", "output_tokens", "messages"])
def test_each_kind_of_a_call_can_be_set_aside_and_none_is_by_itself(stage, client, ask, kind):
    with ravi_otel.run("r", limits=[f"{kind}=0:suspend=allow"]):
        with ravi_otel.suspend_limits("judge"):
            ask(client)
        with pytest.raises(BudgetExhaustedError):
            ask(client)
    with ravi_otel.run("r", limits=[f"{kind}=0"]), ravi_otel.suspend_limits("judge"), pytest.raises(BudgetExhaustedError):
        ask(client)
    assert stage.sent == 1


@pytest.mark.parametrize("spec", ["tokens=0:admission=strict", "cost=0:admission=strict", "turns=0"])
def test_where_a_limit_is_strict_they_are_set_aside_just_the_same(stage, client, ask, spec):
    with ravi_otel.run("r", limits=[f"{spec}:suspend=allow", "input_tokens=1M:admission=strict"]):
        with ravi_otel.suspend_limits("judge"):
            ask(client)
        with pytest.raises(BudgetExhaustedError):
            ask(client)
    assert stage.sent == 1


def test_a_strict_limit_that_is_set_aside_asks_for_no_bound(stage, client, ask):
    with ravi_otel.run("r", limits=["tokens=1M:admission=strict:suspend=allow"]):
        with ravi_otel.suspend_limits("judge"):
            ask(client, extra_body={"plugins": ["web"]})
        with pytest.raises(BudgetExhaustedError, match="plugins"):
            ask(client, extra_body={"plugins": ["web"]})
    assert stage.sent == 1


def test_tools_and_own_kinds_can_be_set_aside(instrumented):
    ran = []
    search = ravi_otel.tool(lambda: ran.append(1), name="search")
    with ravi_otel.run("r", limits=["tool.search=0:suspend=allow", "charge.sql_rows=5:suspend=allow"]) as run:
        with ravi_otel.suspend_limits("audit"):
            search()
            ravi_otel.current_scope().charge("sql_rows", 9)
        with pytest.raises(BudgetExhaustedError):
            search()
        with pytest.raises(BudgetExhaustedError):
            run.scope.charge("sql_rows", 1)
    assert (ran, limit(run, "sql_rows")[0]) == ([1], 9)


def test_draining_of_a_limit_that_is_set_aside_does_not_stop_it(client, ask):
    with ravi_otel.run("r", limits=["tokens=150:suspend=allow"]) as run:
        ask(client, max_tokens=20)
        with pytest.raises(BudgetExhaustedError):
            ask(client)
        assert run.scope.accounts[0].draining
        with ravi_otel.suspend_limits("summary"):
            ask(client)
    assert limit(run, "tokens")[0] == 400


def test_limits_that_do_not_allow_it_stay_in_force(client, ask):
    with (
        ravi_otel.run("outer", limits=["requests=2"]),
        ravi_otel.run("inner", limits=["requests=1:suspend=allow"]),
        ravi_otel.suspend_limits("judge"),
    ):
        ask(client)
        ask(client)
        with pytest.raises(BudgetExhaustedError, match="run 'outer'"):
            ask(client)


def test_only_the_kinds_that_are_named_are_set_aside(client, ask):
    with ravi_otel.run("r", limits=["turns=0:suspend=allow", "requests=0:suspend=allow"]):
        with ravi_otel.suspend_limits("judge", ["turn"]), pytest.raises(BudgetExhaustedError, match="of 0 requests used"):
            ask(client)
        with ravi_otel.suspend_limits("judge", ["turn", "requests"]):
            ask(client)


def test_scopes_threads_and_tasks_inside_inherit_it_and_nobody_else(stage, client, ask):
    refused = []

    def elsewhere():
        try:
            ask(client)
        except BudgetExhaustedError as error:
            refused.append(error)

    with ravi_otel.run("r", limits=["turns=0:suspend=allow"]):
        outside = threading.Thread(target=elsewhere)
        outside.start()
        outside.join(10)
        with ravi_otel.suspend_limits("summary"), ravi_otel.agent("summariser", limits=["requests=9"]):
            ask(client)
            inside = threading.Thread(target=elsewhere)
            inside.start()
            inside.join(10)
    assert (stage.sent, len(refused)) == (2, 1)


def test_a_model_without_a_price_passes_a_cost_limit_that_is_set_aside(client, ask):
    with ravi_otel.run("r", limits=["cost=1usd:suspend=allow"]), ravi_otel.suspend_limits("judge"):
        ask(client, model="nobody-knows")
        ask(client)


def test_clocks_do_not_stop(client, ask, on_clock):
    with ravi_otel.run("r", limits=[time_limit(10, suspend="allow")]), ravi_otel.suspend_limits("judge"):
        on_clock.advance(11)
        with pytest.raises(DeadlineExceededError):
            ask(client)


def test_it_is_told_once_a_block_with_its_reason(client, ask):
    counted = []

    class Counting(Listener):
        def counted(self, event):
            counted.append(event)

    STATE.engine.listeners.add(Counting())
    with ravi_otel.run("r", limits=["turns=0:suspend=allow"]) as run, ravi_otel.suspend_limits("summary"):
        ask(client)
        ask(client)
    told = [one for one in counted if one.what == "suspended"]
    assert [(one.amount, one.limit_kind, one.reason, one.scope_id) for one in told] == [(1, "turns", "summary", run.scope.facts.scope_id)]


def test_where_nothing_allows_it_the_log_says_so_once_and_nothing_changes(client, ask, heard, told_once, caplog):
    with caplog.at_level(logging.WARNING, "ravi_otel"), ravi_otel.run("r", limits=["turns=1"]):
        for _ in range(2):
            with ravi_otel.suspend_limits("judge"):
                pass
        with ravi_otel.suspend_limits("judge"):
            ask(client)
            with pytest.raises(BudgetExhaustedError):
                ask(client)
    said = [record for record in caplog.records if "suspend_limits() changes nothing" in record.message]
    assert (len(said), [what for what, _ in heard.counts].count("suspended")) == (1, 0)


@pytest.mark.anyio
async def test_it_is_entered_in_both_colours_and_decorates(aclient, ask):
    @ravi_otel.suspend_limits("judge")
    async def judge():
        return await ask(aclient)

    async with ravi_otel.run("r", limits=["turns=0:suspend=allow"]):
        async with ravi_otel.suspend_limits("judge"):
            await ask(aclient)
        await judge()
        with pytest.raises(BudgetExhaustedError):
            await ask(aclient)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("",), r"suspend_limits\(reason\)"),
        (("a\nb",), r"suspend_limits\(reason\)"),
        (("x" * 300,), r"suspend_limits\(reason\)"),
        (("why", "tokens"), r"suspend_limits\(kinds\)='tokens' must be a list"),
        (("why", []), r"suspend_limits\(kinds\) is empty"),
        (("why", ["time"]), r"suspend_limits\(kinds\) names time, and time does not stop"),
    ],
)
def test_what_it_cannot_use_is_said(instrumented, arguments, said):
    with pytest.raises(ConfigurationError, match=said):
        ravi_otel.suspend_limits(*arguments)


# After its end


def test_a_thread_that_goes_on_after_the_block_is_refused_again(stage, client, ask):
    left, got = threading.Event(), []

    def late():
        left.wait(10)
        try:
            ask(client)
        except BudgetExhaustedError as error:
            got.append(error.limit_kind)

    with ravi_otel.run("r", limits=["turns=0:suspend=allow"]):
        with ravi_otel.suspend_limits("summary"), ravi_otel.agent("summariser"):
            thread = threading.Thread(target=late)
            thread.start()
            ask(client)
        left.set()
        thread.join(10)
    assert (stage.sent, got) == (1, ["turns"])


@pytest.mark.anyio
async def test_a_task_that_goes_on_after_the_block_is_refused_again(stage, aclient, ask):
    left = anyio.Event()

    async def late():
        await ask(aclient)
        await left.wait()
        with pytest.raises(BudgetExhaustedError):
            await ask(aclient)

    async with ravi_otel.run("r", limits=["turns=0:suspend=allow"]), anyio.create_task_group() as tasks:
        async with ravi_otel.suspend_limits("summary"):
            tasks.start_soon(late)
            await anyio.wait_all_tasks_blocked()
            await ask(aclient)
            while stage.sent < 2:
                await anyio.lowlevel.checkpoint()
        left.set()
    assert stage.sent == 2


def test_a_block_inside_another_that_ends_leaves_the_outer_one_in_force(client, ask):
    with ravi_otel.run("r", limits=["turns=0:suspend=allow", "requests=0:suspend=allow"]), ravi_otel.suspend_limits("outer"):
        with ravi_otel.suspend_limits("inner", ["turns"]):
            ask(client)
        ask(client)


def test_a_generator_holds_the_block_until_it_is_over(client, ask):
    def steps():
        with ravi_otel.suspend_limits("judge"):
            yield ask(client)

    with ravi_otel.run("r", limits=["turns=0:suspend=allow"]):
        generator = steps()
        next(generator)
        generator.close()
        with pytest.raises(BudgetExhaustedError):
            ask(client)


def test_where_only_other_kinds_allow_it_the_log_says_that(client, ask, told_once, caplog):
    with (
        caplog.at_level(logging.WARNING, "ravi_otel"),
        ravi_otel.run("r", limits=["requests=9:suspend=allow"]),
        ravi_otel.suspend_limits("judge", kinds=["tokens"]),
    ):
        ask(client)
    (record,) = caplog.records
    assert "changes nothing here: the limits around it that allow to be set aside are of other kinds" in record.getMessage()


def test_a_kind_is_named_as_limits_spell_it(client, ask):
    with (
        ravi_otel.run("r", limits=["requests@bob=0:suspend=allow", "tool.search=0:suspend=allow"]),
        ravi_otel.agent("bob"),
        ravi_otel.suspend_limits("judge", kinds=["request@bob", "tool_call.search"]),
    ):
        ask(client)
        ravi_otel.tool(lambda: None, name="search")()
