from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ravi_otel.errors import ConfigurationError
from ravi_otel.policy import AgentId, ExecutionBudget, HistoryRetention, Priority, SpawnBudget, Supervision, TopicId


def test_a_root_has_no_parent_and_keeps_its_history():
    root = Supervision.root("lead")

    assert root.is_root
    assert (root.root_id, root.parent_id, root.depth) == ("lead", None, 0)
    assert (root.retention, root.priority) == (HistoryRetention.PERMANENT, Priority.NORMAL)
    assert type(root.root_id) is AgentId


def test_a_root_without_a_session_makes_one_up_which_its_tree_shares():
    root, other = Supervision.root("lead"), Supervision.root("lead")

    assert len(root.session_id) == 32
    assert root.session_id not in (other.session_id, root.run_id)
    assert root.spawn_child("lead").spawn_child("sub").session_id == root.session_id


def test_a_root_takes_what_it_is_given():
    spawn, execution = SpawnBudget(2), ExecutionBudget(5)
    root = Supervision.root("lead", "s1", spawn, execution, HistoryRetention.NONE, Priority.HIGH, run_id="r1")

    assert root == Supervision("r1", "s1", "lead", None, 0, spawn, execution, HistoryRetention.NONE, Priority.HIGH)


def test_a_child_stays_in_the_run_and_shares_the_spawn_budget():
    root = Supervision.root("lead", "s1", execution_budget=ExecutionBudget(5))
    child = root.spawn_child("lead")

    assert (child.run_id, child.session_id, child.root_id) == (root.run_id, "s1", "lead")
    assert child.spawn_budget is root.spawn_budget
    assert child.execution_budget is root.execution_budget
    assert (child.parent_id, child.depth, child.is_root) == ("lead", 1, False)
    assert (child.retention, child.priority) == (HistoryRetention.RUN, Priority.NORMAL)


def test_a_child_may_have_its_own_budget_rank_and_retention():
    own = ExecutionBudget(max_turns=1)
    child = Supervision.root("lead").spawn_child("lead", HistoryRetention.NONE, Priority.LOW, own)

    assert (child.execution_budget, child.priority, child.retention) == (own, Priority.LOW, HistoryRetention.NONE)


@given(st.lists(st.sampled_from(["a", "b", "c"]), max_size=30))
def test_depth_counts_the_generations_and_nothing_is_refused(parents):
    supervision = Supervision.root("lead")
    for parent in parents:
        supervision = supervision.spawn_child(parent)

    assert supervision.depth == len(parents)
    assert supervision.parent_id == (parents[-1] if parents else None)


def test_built_directly_it_is_a_passing_agent_of_a_new_run():
    first, second = Supervision(), Supervision()

    assert (first.depth, first.retention, first.priority) == (0, HistoryRetention.RUN, Priority.NORMAL)
    assert first.run_id != second.run_id
    assert len(first.run_id) == 32


def test_plain_values_become_members():
    supervision = Supervision(retention="none", priority=8)

    assert supervision.retention is HistoryRetention.NONE
    assert supervision.priority is Priority.CRITICAL


def test_progress_has_a_topic_per_run():
    assert Supervision(run_id="r1").progress_topic == TopicId("agent.progress", "r1")


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("run_id", ""),
        ("run_id", None),
        ("session_id", "a\nb"),
        ("root_id", ""),
        ("parent_id", 3),
        ("depth", -1),
        ("depth", True),
        ("spawn_budget", None),
        ("execution_budget", 5),
        ("retention", "forever"),
        ("priority", 3),
        ("priority", True),
    ],
)
def test_a_wrong_field_is_named(field, wrong):
    with pytest.raises(ConfigurationError, match=rf"^{field}="):
        Supervision(**{field: wrong})


def test_a_root_needs_a_name():
    with pytest.raises(ConfigurationError, match=r"^agent_id='' is empty"):
        Supervision.root("")


def test_a_child_needs_a_parent():
    with pytest.raises(ConfigurationError, match=r"^parent_id=None"):
        Supervision.root("lead").spawn_child(None)


def test_it_crosses_a_process():
    child = Supervision.root("lead", "s1").spawn_child("lead")

    assert pickle.loads(pickle.dumps(child)) == child
