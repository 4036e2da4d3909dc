"""Every stop reason of the gateway is reached by a real run, from both colours, and its counters are the ledger's."""

import contextvars
import json
import threading

import anyio
import pytest
from refund_gate import NO, YES, Desk, Person, Policy, Says, Till, called

import ravi_otel
from ravi_otel._enforcement.engine import Engine
from ravi_otel._runtime.state import STATE
from ravi_otel.errors import BudgetExhaustedError, ConfigurationError, StopRun, ToolTimeoutError
from ravi_otel.hooks._listeners import Listener, Listeners
from ravi_otel.supervisor import Budget, Decision, DecisionKind, ToolGateway
from ravi_otel.supervisor._json import args_hash
from ravi_otel.testing import ManualClock

SMALL = {"user_id": 42, "amount": 100.0, "reason": "late"}
BLOCK = Decision(DecisionKind.BLOCK, "no_way")


@pytest.fixture(params=["sync", "async", "trio"])
def colour(request):
    return request.param


@pytest.fixture
def till():
    return Till()


@pytest.fixture
def staged():
    """Put the engine on a clock that stands still, and keep what is told of limits."""
    told = []

    class Hears(Listener):
        def limit_event(self, event, at=None):
            told.append(event)

    before = STATE.engine, STATE.limits
    clock = ManualClock()
    STATE.install(Engine(clock=clock, listeners=Listeners([Hears()])), ())
    yield clock, told
    STATE.install(*before)


@pytest.fixture
def outside():
    """Be in no run."""


@pytest.fixture(autouse=True)
def run(request):
    if "staged" in request.fixturenames:
        request.getfixturevalue("staged")
    if "outside" in request.fixturenames:
        yield None
        return
    with ravi_otel.run("desk") as run:
        yield run


@pytest.fixture
def gateway(till):
    """Make gateways that are closed again."""
    made = []

    def make(**more):
        registry = more.setdefault("registry", till.tools)
        gateway = ToolGateway(**{"read_only": ["context"] if "context" in registry else [], **more})
        made.append(gateway)
        return gateway

    yield make
    for each in made:
        each.close()


def stopped(colour, gateway, name, arguments):
    with pytest.raises(StopRun) as caught:
        called(colour, gateway, name, arguments)
    return caught.value


def pay(colour, gateway, amount):
    return called(colour, gateway, "refund", {**SMALL, "amount": float(amount)})


def broken(user_id: int) -> dict:
    raise LookupError(f"no user {user_id}")


def liar(user_id: int) -> dict:
    return [user_id]


async def endless(user_id: int) -> dict:
    await anyio.sleep_forever()
    return {}


def sticky(user_id: int) -> dict:
    return {"error": "context_not_found"}


def sticky_text(user_id: int) -> str:
    return json.dumps(sticky(user_id))


def test_a_call_gives_what_the_tool_gives_and_a_row(colour, till, gateway):
    door = gateway()
    assert pay(colour, door, 100) == {"status": "ok", "amount": 100.0}
    assert till.paid == [(42, 100.0, "late")]
    (row,) = door.trace
    assert row.pop("args_hash") == args_hash(SMALL)
    assert row == {"step": 1, "tool": "refund", "supervisor_decision": "approve", "executed_from": "original", "ok": True}


def test_json_text_is_read_like_arguments(colour, till, gateway):
    called(colour, gateway(), "refund", '{"user_id": 42, "amount": 5.0, "reason": "late"}')
    assert till.paid == [(42, 5.0, "late")]


def test_a_coroutine_function_is_a_tool(till, gateway):
    called("async", gateway(registry={"refund": till.refund_async}), "refund", SMALL)
    assert till.paid == [(42, 100.0, "late")]


@pytest.mark.parametrize(
    ("more", "name", "arguments", "reason", "phase"),
    [
        ({"allow": ["context"]}, "refund", SMALL, "tool_denied:refund", "execution"),
        ({}, "gone", {}, "tool_missing:gone", "execution"),
        ({}, "refund", {**SMALL, "amount": True}, "tool_bad_args:refund", "execution"),
        ({}, "refund", "not json", "tool_bad_args:refund", "execution"),
        ({"registry": {"broken": broken}}, "broken", {"user_id": 1}, "tool_error:broken", "execution"),
        ({"registry": {"liar": liar}}, "liar", {"user_id": 1}, "tool_bad_result:liar", "execution"),
        ({"supervisor": Says(BLOCK)}, "refund", SMALL, "supervisor_block:no_way", "supervisor"),
        ({"budget": Budget(max_tool_calls=0)}, "refund", SMALL, "max_tool_calls", "execution"),
        ({"budget": Budget(max_seconds=0)}, "refund", SMALL, "max_seconds", "execution"),
        ({"per_tool_limit": 0}, "refund", SMALL, "loop_detected:per_tool_limit", "execution"),
        ({}, "no\nsuch\x1b[2J", {}, None, "execution"),
    ],
)
def test_what_is_not_let_through_stops_the_run_with_its_reason(colour, till, gateway, more, name, arguments, reason, phase):
    door = gateway(**more)
    stop = stopped(colour, door, name, arguments)
    assert stop.phase == phase
    if reason is None:
        assert stop.reason.startswith("tool_missing:")
        assert stop.reason.isprintable()
    else:
        assert stop.reason == reason
        assert door.trace[-1]["stop_reason"] == reason
    assert door.trace[-1]["ok"] is False
    assert till.paid == []


def test_a_person_who_rejects_stops_the_run(colour, till, gateway):
    stop = stopped(colour, gateway(supervisor=Desk(), policy=Policy(auto=10), approver=Person(NO)), "refund", SMALL)
    assert (stop.reason, stop.phase) == ("human_rejected", "human_approval")
    assert till.paid == []


def test_the_error_of_a_tool_is_the_cause_of_the_stop(colour, gateway):
    stop = stopped(colour, gateway(registry={"broken": broken}), "broken", {"user_id": 1})
    assert isinstance(stop.__cause__, LookupError)


def test_a_call_more_than_the_budget_has_stops_the_run(colour, till, gateway):
    door = gateway(budget=Budget(max_tool_calls=2), per_tool_limit=None)
    pay(colour, door, 1)
    pay(colour, door, 2)
    assert stopped(colour, door, "refund", {**SMALL, "amount": 3.0}).reason == "max_tool_calls"
    assert len(till.paid) == 2


def test_a_tool_runs_twice_unless_another_ceiling_is_given(colour, till, gateway):
    door = gateway(per_tool_limit={"refund": 3}, budget=Budget(max_tool_calls=9))
    for amount in (1, 2, 3):
        pay(colour, door, amount)
    assert stopped(colour, door, "refund", {**SMALL, "amount": 4.0}).reason == "loop_detected:per_tool_limit"
    other = gateway()
    pay(colour, other, 1)
    pay(colour, other, 2)
    assert stopped(colour, other, "refund", {**SMALL, "amount": 3.0}).reason == "loop_detected:per_tool_limit"


def test_the_same_call_again_stops_the_run_and_a_read_only_one_with_the_third(colour, till, gateway):
    door = gateway(per_tool_limit=9, budget=Budget(max_tool_calls=9))
    pay(colour, door, 1)
    assert stopped(colour, door, "refund", {**SMALL, "amount": 1.0}).reason == "loop_detected:signature_repeat"
    called(colour, door, "context", {"user_id": 42})
    called(colour, door, "context", {"user_id": 42})
    assert stopped(colour, door, "context", {"user_id": 42}).reason == "loop_detected:signature_repeat"
    assert (len(till.paid), len(till.looked)) == (1, 2)


def test_two_calls_in_turn_stop_the_run_with_the_fourth(colour, till, gateway):
    door = gateway(per_tool_limit=9, budget=Budget(max_tool_calls=9))
    for user_id in (1, 2, 1):
        called(colour, door, "context", {"user_id": user_id})
    assert stopped(colour, door, "context", {"user_id": 2}).reason == "loop_detected:alternation"
    assert till.looked == [1, 2, 1]


@pytest.mark.parametrize("tool", [sticky, sticky_text])
def test_the_same_error_in_a_result_stops_the_run_with_the_third(colour, gateway, tool):
    door = gateway(registry={"sticky": tool}, per_tool_limit=9)
    for user_id in (1, 2):
        assert "context_not_found" in str(called(colour, door, "sticky", {"user_id": user_id}))
    assert stopped(colour, door, "sticky", {"user_id": 3}).reason == "loop_detected:same_error"
    assert stopped(colour, door, "sticky", {"user_id": 4}).reason == "loop_detected:same_error"


def test_the_same_exception_three_times_refuses_the_tool(colour, gateway):
    def always(user_id: int) -> dict:
        raise LookupError("gone")

    door = gateway(registry={"always": always}, per_tool_limit=9)
    for user_id in (1, 2, 3):
        assert stopped(colour, door, "always", {"user_id": user_id}).reason == "tool_error:always"
    assert stopped(colour, door, "always", {"user_id": 4}).reason == "loop_detected:same_error"


def test_steps_are_counted_and_the_one_past_the_budget_stops_the_run(gateway):
    door = gateway(budget=Budget(max_steps=2))
    assert [door.step(), door.step()] == [1, 2]
    with pytest.raises(StopRun) as caught:
        door.step()
    assert (caught.value.reason, caught.value.phase) == ("max_steps", "worker")


def test_time_that_is_over_stops_calls_and_steps(staged, till, gateway):
    clock, _ = staged
    door = gateway()
    door.step()
    clock.advance(30)
    assert stopped("sync", door, "refund", SMALL).reason == "max_seconds"
    with pytest.raises(StopRun, match="30 s are allowed") as caught:
        door.step()
    assert caught.value.reason == "max_seconds"
    assert till.paid == []


def test_time_that_runs_out_during_the_review_stops_the_call(staged, till, gateway):
    clock, _ = staged

    def think(action, state, policy):
        clock.advance(31)
        return Decision(DecisionKind.APPROVE, "fine")

    assert stopped("sync", gateway(supervisor=Says(think)), "refund", SMALL).reason == "max_seconds"
    assert till.paid == []


def test_the_time_a_person_takes_is_none_of_the_budgets(staged, till, gateway):
    clock, _ = staged

    def think(request):
        clock.advance(600)
        return YES

    door = gateway(supervisor=Desk(), policy=Policy(auto=10), approver=Person(think))
    pay("sync", door, 100)
    clock.advance(30)
    assert stopped("sync", door, "refund", SMALL).reason == "max_seconds"
    assert len(till.paid) == 1


@pytest.mark.parametrize("awaits", ["async", "trio"])
def test_a_tool_that_takes_too_long_is_an_error_of_the_tool(gateway, awaits):
    stop = stopped(awaits, gateway(registry={"endless": endless}, timeout_s=0.01), "endless", {"user_id": 1})
    assert stop.reason == "tool_error:endless"
    assert isinstance(stop.__cause__, ToolTimeoutError)


def test_a_tool_that_outlasts_the_budget_is_given_up_with_it(gateway):
    stop = stopped("async", gateway(registry={"endless": endless}, budget=Budget(max_seconds=0.02)), "endless", {"user_id": 1})
    assert stop.reason == "max_seconds"


def test_the_limits_of_the_program_hold_besides_and_raise_their_own_error(colour, till, gateway):
    door = gateway()
    with ravi_otel.agent("teller", limits=[ravi_otel.tool_call_limit(1)]):
        pay(colour, door, 1)
        with pytest.raises(BudgetExhaustedError):
            pay(colour, door, 2)
    assert len(till.paid) == 1
    assert door.state.begun("refund") == 1


def test_calls_of_every_agent_of_a_run_count_for_one_budget_and_another_run_has_its_own(colour, till, gateway):
    door = gateway(budget=Budget(max_tool_calls=2), per_tool_limit=None)
    for amount in (1, 2):
        with ravi_otel.agent(f"teller-{amount}"):
            pay(colour, door, amount)
    with ravi_otel.agent("third"):
        assert stopped(colour, door, "refund", {**SMALL, "amount": 3.0}).reason == "max_tool_calls"
    with ravi_otel.run("another"):
        pay(colour, door, 3)
    assert [each[1] for each in till.paid] == [1.0, 2.0, 3.0]


def test_a_call_that_closes_a_loop_costs_nothing_of_the_budget(till, gateway):
    door = gateway(budget=Budget(max_tool_calls=2), per_tool_limit=None)
    pay("sync", door, 1)
    for _ in range(3):
        assert stopped("sync", door, "refund", {**SMALL, "amount": 1.0}).reason == "loop_detected:signature_repeat"
    pay("sync", door, 2)
    assert len(till.paid) == 2


def test_the_budget_is_told_as_limits_are_and_each_once(staged, till, gateway, run):
    _, told = staged
    door = gateway(budget=Budget(max_tool_calls=2), per_tool_limit=None)
    for amount in (1, 2, 3, 4):
        try:
            pay("sync", door, amount)
        except StopRun:
            continue
    assert [(each.event, each.limit_kind, each.run_id) for each in told] == [
        ("limit_nearing", "tool_calls", run.id),
        ("limit_exceeded", "tool_calls", run.id),
    ]


def test_of_many_threads_no_more_pay_than_the_budget_has(till, gateway):
    door = gateway(budget=Budget(max_tool_calls=3), per_tool_limit=None)
    ready = threading.Barrier(8, timeout=60)
    ended = []

    def go(amount):
        ready.wait()
        try:
            pay("sync", door, amount)
            ended.append("paid")
        except StopRun as stop:
            ended.append(stop.reason)

    threads = [threading.Thread(target=contextvars.copy_context().run, args=(go, amount)) for amount in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(ended) == ["max_tool_calls"] * 5 + ["paid"] * 3
    assert len(till.paid) == 3


def test_what_the_person_took_out_of_the_budget_of_another_run_is_forgotten_with_it(gateway):
    door = gateway()
    for _ in range(20):
        with ravi_otel.run("short"):
            door.step()
    assert len(door.gate._tabs) == 1


@pytest.mark.usefixtures("outside")
def test_outside_any_run_there_is_one_budget_for_the_process(till, gateway):
    door = gateway(budget=Budget(max_tool_calls=1))
    pay("sync", door, 1)
    assert stopped("sync", door, "refund", {**SMALL, "amount": 2.0}).reason == "max_tool_calls"


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"registry": [len]}, "registry"),
        ({"per_tool_limit": -1}, "per_tool_limit"),
        ({"per_tool_limit": "two"}, "per_tool_limit"),
    ],
)
def test_what_a_gateway_cannot_use_is_named(till, wrong, said):
    with pytest.raises(ConfigurationError, match=said):
        ToolGateway(**{"registry": till.tools, **wrong})


@pytest.mark.parametrize("wrong", [{"max_steps": -1}, {"max_tool_calls": 1.5}, {"max_seconds": "long"}, {"max_seconds": True}])
def test_what_is_no_budget_is_named(wrong):
    with pytest.raises(ConfigurationError, match=next(iter(wrong))):
        Budget(**wrong)


def test_a_budget_has_its_known_defaults_and_cannot_change():
    budget = Budget()
    assert (budget.max_steps, budget.max_tool_calls, budget.max_seconds) == (8, 5, 30)
    with pytest.raises(AttributeError):
        budget.max_steps = 99
