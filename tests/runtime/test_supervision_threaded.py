"""Who is under whom, and with which budgets, as run(), agent() and spawn() say it: the same from any task and thread."""

import asyncio
import threading

import pytest

import ravi_otel
from ravi_otel import BudgetExhaustedError, DeadlineExceededError, ExecutionBudget, HistoryRetention, Priority, SpawnBudget, SpawnTracker
from ravi_otel._enforcement.opening import UNLIMITED_AGENTS


def node():
    return ravi_otel.current_scope().supervision


def test_the_whole_tree_shares_the_very_spawn_budget_that_the_run_was_given(instrumented):
    given = SpawnBudget(max_agents=9)
    with ravi_otel.run("r", spawn_budget=given) as run, ravi_otel.agent("root"):
        seen = [run.supervision, node()]
        with ravi_otel.agent("child"), ravi_otel.spawn("grandchild"), ravi_otel.agent("grandchild"):
            seen.append(node())
        assert [one.spawn_budget is given for one in seen] == [True, True, True]
        assert SpawnTracker.current().budget is given


def test_with_a_tighter_limit_of_agents_the_tree_shares_the_budget_that_slots_are_given_by(instrumented):
    with ravi_otel.run("r", spawn_budget=SpawnBudget(9), limits=["agents=3"]), ravi_otel.agent("root"):
        held_to = SpawnTracker.current().budget
        with ravi_otel.agent("child"):
            assert node().spawn_budget is held_to
    assert held_to == SpawnBudget(3)


def test_without_a_spawn_budget_the_tree_says_that_nothing_is_limited(instrumented):
    with ravi_otel.run("r"), ravi_otel.agent("root"):
        assert node().spawn_budget is UNLIMITED_AGENTS
    with ravi_otel.agent("alone"):
        assert node().spawn_budget is UNLIMITED_AGENTS


def test_a_run_has_a_node_of_its_own_before_any_agent(instrumented):
    with ravi_otel.run("r", session_id="s", priority=Priority.HIGH, budget=ExecutionBudget(max_turns=4)) as run:
        assert (node().run_id, node().session_id, node().root_id, node().depth) == (run.id, "s", None, 0)
        assert (node().priority, node().retention, node().execution_budget.max_turns) == (Priority.HIGH, HistoryRetention.PERMANENT, 4)
        assert run.supervision is node()
        assert node().progress_topic.source == run.id


def test_ids_and_depth_say_who_is_under_whom(instrumented):
    with ravi_otel.run("r") as run, ravi_otel.agent("lead", agent_id="lead-1") as lead, ravi_otel.handoff("h"):
        with ravi_otel.agent("child"), ravi_otel.agent("grandchild", retention=HistoryRetention.NONE, priority=Priority.LOW) as deepest:
            found = deepest.supervision
        assert (found.run_id, found.root_id, found.parent_id, found.depth) == (run.id, "lead-1", "child", 2)
        assert (found.retention, found.priority) == (HistoryRetention.NONE, Priority.LOW)
        assert (lead.supervision.parent_id, lead.supervision.is_root) == (None, True)


def test_the_first_agent_of_a_run_is_the_root_of_those_beside_it_too(instrumented):
    with ravi_otel.run("r"):
        with ravi_otel.agent("first"):
            pass
        with ravi_otel.agent("second") as second:
            assert (second.supervision.root_id, second.supervision.depth) == ("first", 0)
    with ravi_otel.run("another"), ravi_otel.agent("second") as second:
        assert second.supervision.root_id == "second"


def test_an_agent_that_could_not_be_opened_is_nobodys_root(instrumented):
    with ravi_otel.run("r", limits=["depth=0"]):
        with pytest.raises(ravi_otel.ConfigurationError), ravi_otel.agent("never", share=0.5):
            pytest.fail("it opened")
        with ravi_otel.agent("first") as first:
            assert first.supervision.root_id == "first"


def test_the_node_is_read_in_tasks_and_threads(instrumented):
    async def main():
        task = asyncio.create_task(asyncio.to_thread(node))
        return await asyncio.gather(task, asyncio.to_thread(node))

    found = []
    with ravi_otel.run("r"), ravi_otel.agent("a") as opened:
        thread = threading.Thread(target=lambda: found.append(node()))
        thread.start()
        thread.join()
        found += asyncio.run(main())
        assert [one is opened.supervision for one in found] == [True, True, True]


def test_a_child_without_a_budget_may_spend_as_much_as_its_parent_on_a_tab_of_its_own(client, ask):
    with ravi_otel.run("r"), ravi_otel.agent("lead", budget=ExecutionBudget(max_turns=1)) as lead:
        ask(client)
        with ravi_otel.agent("child") as child:
            ask(client)
            assert child.supervision.execution_budget is lead.supervision.execution_budget
            with pytest.raises(BudgetExhaustedError):
                ask(client)


def test_a_larger_budget_of_a_child_loosens_neither_its_parents_nor_the_runs(client, ask):
    with ravi_otel.run("r", limits=["turns=3"]), ravi_otel.agent("lead", budget=ExecutionBudget(max_turns=1)):
        with ravi_otel.agent("child", budget=ExecutionBudget(max_turns=50)) as child:
            ask(client)
            ask(client)
            assert child.supervision.execution_budget.max_turns == 50
        ask(client)
        with pytest.raises(BudgetExhaustedError, match="in run 'r'"), ravi_otel.agent("child", budget=ExecutionBudget(max_turns=50)):
            ask(client)


def test_a_later_deadline_of_a_child_does_not_put_off_its_parents(on_clock):
    near, far = ExecutionBudget(deadline_s=5), ExecutionBudget(deadline_s=50)
    with ravi_otel.run("r"), ravi_otel.agent("lead", budget=near), ravi_otel.agent("child", budget=far) as child:
        on_clock.advance(6)
        with pytest.raises(DeadlineExceededError, match="in agent 'lead'"):
            child.scope.checkpoint()
