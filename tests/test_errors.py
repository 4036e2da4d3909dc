from __future__ import annotations

import copy
import pickle

import pytest

from ravi_otel import errors

BUDGET_FIELDS = {
    "limit_kind": "tokens",
    "threshold": 4000,
    "used": 4200,
    "held": 10,
    "remaining": -210,
    "scope": "agent",
    "agent_name": "researcher",
    "run_name": "triage",
    "run_id": "r1",
    "reason": "exhausted",
    "partial": "so far",
}
EXAMPLES = [
    (errors.RaviError("a"), {}),
    (errors.ConfigurationError("a"), {}),
    (errors.LimitSyntaxError("a", spec="tokns=5"), {"spec": "tokns=5"}),
    (errors.MissingExtraError("a", name="redis"), {"name": "redis"}),
    (errors.BudgetError("a", **BUDGET_FIELDS), BUDGET_FIELDS),
    (errors.BudgetExhaustedError("a", **BUDGET_FIELDS), BUDGET_FIELDS),
    (errors.BudgetContendedError("a", **BUDGET_FIELDS), BUDGET_FIELDS),
    (errors.DeadlineExceededError("a", **BUDGET_FIELDS), BUDGET_FIELDS),
    (errors.CancellationError("a", reason="user"), {"reason": "user"}),
    (errors.SpawnDeniedError("a", agent_id="x", max_agents=2, **BUDGET_FIELDS), {"agent_id": "x", "max_agents": 2, **BUDGET_FIELDS}),
    (errors.SpawnDeniedError("a", max_agents=2), {"limit_kind": "agents", "threshold": 2}),
    (errors.AgentPausedError("a", agent_id="x"), {"agent_id": "x"}),
    (errors.RetriesExhaustedError("a"), {}),
    (errors.MiddlewareTermination("a", guardrail="no_secrets"), {"guardrail": "no_secrets", "stop_reason": "guardrail:no_secrets"}),
    (errors.StopRun("tool_error:x", "a", tool="x", phase="execution"), {"reason": "tool_error:x", "tool": "x", "phase": "execution"}),
    (errors.ToolDeniedError("a", tool="x", reason="b", stop_reason="c"), {"tool": "x", "reason": "b", "stop_reason": "c"}),
    (errors.ToolDeniedError("a", tool="x", ran=True), {"tool": "x", "ran": True}),
    (errors.ToolTimeoutError("a", tool="x", timeout_s=2.5), {"tool": "x", "timeout_s": 2.5}),
    (errors.LLMTimeout("a"), {}),
    (errors.LLMEmpty("a"), {}),
]
TREE = {
    errors.ConfigurationError: {errors.RaviError, ValueError},
    errors.LimitSyntaxError: {errors.ConfigurationError},
    errors.MissingExtraError: {errors.RaviError, ImportError},
    errors.BudgetError: {errors.RaviError},
    errors.BudgetExhaustedError: {errors.BudgetError},
    errors.DeadlineExceededError: {errors.BudgetExhaustedError, errors.CancellationError},
    errors.BudgetContendedError: {errors.BudgetError},
    errors.CancellationError: {errors.RaviError},
    errors.SpawnDeniedError: {errors.BudgetExhaustedError},
    errors.AgentPausedError: {errors.RaviError},
    errors.RetriesExhaustedError: {errors.RaviError},
    errors.MiddlewareTermination: {errors.RaviError},
    errors.ToolDeniedError: {errors.RaviError},
    errors.ToolTimeoutError: {errors.RaviError, TimeoutError},
    errors.StopRun: {errors.RaviError},
    errors.LLMTimeout: {errors.RaviError, TimeoutError},
    errors.LLMEmpty: {errors.RaviError},
}


DENIALS = [
    ({"agent_id": "x", "max_agents": 3}, "There is no room for agent 'x': at most 3 agents may be at work at once.", "ask again"),
    (
        {"agent_id": "{}", "max_agents": 1},
        "There is no room for agent '{}': at most 1 agent may be at work at once.",
        "do that work yourself.",
    ),
    (
        {"agent_id": "x", "max_agents": 9, "limit_kind": "agents_total"},
        "There is no room for agent 'x': 9 agents in all were allowed, and none more may begin.",
        "do that work yourself.",
    ),
    (
        {"agent_id": "x", "max_agents": 1, "limit_kind": "fan_out"},
        "There is no room for agent 'x': at most 1 agent may be at work at once under the one that asks.",
        "ask again",
    ),
    ({"agent_id": "x"}, "There is no room for agent 'x' now.", "ask again"),
    ({}, "There is no room for another agent now.", "ask again"),
]


@pytest.mark.parametrize(("fields", "message", "way_out"), DENIALS)
def test_a_model_is_told_what_is_the_case_and_what_it_can_do_and_not_what_the_program_could(fields, message, way_out):
    told = errors.SpawnDeniedError("Raise SpawnBudget.max_agents, or await wait_for_slot().", **fields).as_tool_error()
    assert told["message"] == message
    assert way_out in told["way_out"]


def _classes() -> set[type]:
    return {found for found in vars(errors).values() if isinstance(found, type) and issubclass(found, errors.RaviError)}


@pytest.mark.parametrize(("error", "fields"), EXAMPLES, ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "")
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_every_error_crosses_a_process_with_its_fields(error, fields, protocol):
    arrived = pickle.loads(pickle.dumps(error, protocol))

    assert type(arrived) is type(error)
    assert str(arrived) == "a"
    assert {name: getattr(arrived, name) for name in fields} == fields


@pytest.mark.parametrize(("error", "fields"), EXAMPLES, ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "")
def test_every_error_can_be_copied(error, fields):
    assert {name: getattr(copy.copy(error), name) for name in fields} == fields


def test_every_error_is_in_these_tests():
    assert {type(error) for error, _ in EXAMPLES} == _classes()


@pytest.mark.parametrize("child", TREE, ids=lambda child: child.__name__)
def test_the_tree_is_as_drawn(child):
    assert set(child.__bases__) == TREE[child]


def test_the_tree_names_every_class():
    assert {*TREE, errors.RaviError} == _classes()
    assert all(found.__name__ in errors.__doc__ for found in _classes())


def test_a_deadline_says_so_unless_told_otherwise():
    error = errors.DeadlineExceededError()

    assert str(error) == "deadline exceeded"
    assert (error.limit_kind, error.reason) == ("time", "deadline")


def test_what_is_unknown_is_none():
    error = errors.BudgetExhaustedError("a")

    assert {getattr(error, name) for name in BUDGET_FIELDS} == {None}
