"""What was done in a run is counted from the step in which it was let through, by any thread, and nothing lowers it."""

import threading
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ravi_otel
from ravi_otel.errors import ToolDeniedError
from ravi_otel.supervisor import Decision, DecisionKind, Gate, GateState, RunState
from ravi_otel.supervisor._run_state import MOST_RESULTS, Snapshot, keeper_of
from ravi_otel.supervisor.rules._kinds import ListedPast, told_an_error

PAY = {"user_id": 1, "amount": 20.0}


def test_it_is_a_state_that_a_gate_can_keep():
    assert isinstance(RunState(), GateState)


def test_a_call_counts_from_its_beginning_and_is_done_at_a_good_end():
    state = RunState()
    state.begin("pay", PAY)
    assert (state.begun("pay"), state.done("pay"), state.total("pay", "amount")) == (1, 0, 20.0)
    state.end("pay", PAY, "ok", {"id": 7})
    assert (state.begun("pay"), state.done("pay"), state.total("pay", "amount")) == (1, 1, 20.0)
    assert state.result("pay") == {"id": 7}
    assert (state.begun("look"), state.done("look"), state.result("look")) == (0, 0, None)


def test_what_failed_or_was_cancelled_counts_on_for_it_may_have_done_its_work():
    state = RunState()
    for status in ("error", "cancelled"):
        state.begin("pay", PAY)
        state.end("pay", PAY, status, None)
    assert (state.begun("pay"), state.done("pay"), state.total("pay", "amount")) == (2, 0, 40.0)


def test_what_never_ran_is_taken_out_again():
    state = RunState()
    state.begin("pay", PAY)
    state.end("pay", PAY, "refused", None)
    assert (state.begun("pay"), state.total("pay", "amount"), state.calls) == (0, 0.0, ())


def test_an_end_without_a_beginning_changes_nothing():
    state = RunState()
    state.begin("pay", PAY)
    before = state.version
    state.end("pay", {**PAY, "amount": 3.0}, "refused", None)
    assert (state.version, state.begun("pay")) == (before, 1)


def test_what_is_no_amount_and_what_is_below_zero_adds_nothing_to_a_total():
    state = RunState()
    for amount in (100, True, "50", None, -1000.0, float("nan"), float("inf")):
        state.begin("pay", {"amount": amount})
    assert state.total("pay", "amount") == 100.0


def test_each_beginning_and_end_gives_another_version():
    state = RunState()
    versions = [state.version]
    state.begin("pay", PAY)
    versions.append(state.version)
    state.end("pay", PAY, "ok", None)
    versions.append(state.version)
    assert len(set(versions)) == 3


def test_of_many_threads_that_noted_the_same_only_one_begins():
    state = RunState()
    kept = keeper_of(state)
    note = Snapshot(kept.version, "1")
    ready = threading.Barrier(8, timeout=60)
    let = []

    def go():
        ready.wait()
        let.append(kept.begin("pay", PAY, note, lambda: True, read_only=False))

    threads = [threading.Thread(target=go) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(let) == [False] * 7 + [True]
    assert state.begun("pay") == 1


def test_a_read_of_another_tool_is_no_change_and_one_of_the_same_is():
    kept = keeper_of(RunState())
    note, look = Snapshot(kept.version, "1"), Snapshot(kept.version, "1")
    assert kept.begin("look", {}, look, lambda: True, read_only=True)
    assert not kept.begin("look", {}, look, lambda: True, read_only=True)
    assert kept.begin("pay", PAY, note, lambda: True, read_only=False)
    assert not kept.begin("pay", PAY, note, lambda: True, read_only=False)


def test_a_state_has_one_keeper_however_often_it_is_given():
    state = RunState()
    first = keeper_of(state)
    assert keeper_of(state) is first
    assert keeper_of(RunState()) is not first


def test_amounts_are_added_up_exactly_and_one_that_never_ran_is_taken_back_exactly():
    state = RunState()
    for amount in (0.1, 0.1, 0.1, 1e17):
        state.begin("pay", {"amount": amount})
    assert state.spent("pay", "amount") == Fraction("0.3") + 10**17
    state.end("pay", {"amount": 1e17}, "refused", None)
    assert (state.spent("pay", "amount"), state.total("pay", "amount")) == (Fraction("0.3"), 0.3)


def test_what_is_done_to_the_arguments_of_a_call_afterwards_changes_no_sum():
    state = RunState()
    state.begin("pay", {"amount": 5})
    assert state.spent("pay", "amount") == 5
    state.begin("pay", {"amount": 100})
    state.calls[0].arguments["amount"] = state.calls[1].arguments["amount"] = 1
    state.end("pay", {"amount": 1}, "refused", None)
    assert (state.spent("pay", "amount"), state.begun("pay")) == (100, 1)


def test_a_sum_is_unknown_while_a_call_without_a_number_there_counts():
    state = RunState()
    state.begin("pay", {"amount": 5})
    state.begin("pay", {"amount": "5"})
    assert state.spent("pay", "amount") is None
    state.end("pay", {"amount": "5"}, "refused", None)
    assert state.spent("pay", "amount") == 5


@pytest.mark.parametrize("result", [{"error": "not found"}, '{"error": "not found"}', ' {"n": 1, "error": {"code": 5}}\n'])
def test_what_told_of_an_error_is_not_done_and_no_result_to_go_by(result):
    state = RunState()
    for returned in ({"max": 10}, result):
        state.begin("look", PAY)
        state.end("look", PAY, "ok", returned)
    assert (state.begun("look"), state.done("look"), state.result("look")) == (2, 1, {"max": 10})


@pytest.mark.parametrize(
    "result", ['{"error": null}', '"error"', '{"a": "error"}', '["error"]', '{"error"', '{"a":' * 5000 + '"error"', "error"]
)
def test_text_that_tells_of_no_error_is_a_result(result):
    state = RunState()
    state.begin("look", PAY)
    state.end("look", PAY, "ok", result)
    assert (state.done("look"), state.result("look")) == (1, result)


def test_what_is_done_to_a_result_afterwards_changes_nothing():
    state = RunState()
    result = {"max": 10, "per": [{"max": 5}]}
    state.begin("look", PAY)
    state.end("look", PAY, "ok", result)
    result["per"][0]["max"] = result["max"] = 9e9
    result["per"].append({})
    assert state.result("look") == state.calls[0].result == {"max": 10, "per": [{"max": 5}]}


def test_a_result_that_holds_itself_is_a_result():
    state = RunState()
    result = []
    result.append(result)
    state.begin("look", PAY)
    state.end("look", PAY, "ok", result)
    assert state.done("look") == 1


@pytest.mark.parametrize("asked_first", [True, False])
def test_fields_of_calls_that_ended_well_are_found_whenever_they_are_asked_for(asked_first):
    state = RunState()
    if asked_first:
        assert not state.done_with("look", ("user.id",), ("1",))
    for result in ({"error": "no"}, {"id": 1}):
        state.begin("look", {"user": {"id": 1 if "id" in result else 2}})
        state.end("look", state.calls[-1].arguments, "ok", result)
    assert state.done_with("look", ("user.id",), ("1",))
    assert not state.done_with("look", ("user.id",), ("2",))


def test_of_many_results_the_last_are_kept_and_that_an_older_one_told_of_an_error():
    state = RunState()
    for number in range(MOST_RESULTS + 3):
        state.begin("look", {"n": number})
        state.end("look", {"n": number}, "ok", {"error": "no", "n": number} if number == 1 else {"n": number})
    results = [call.result for call in state.calls]
    assert results[:4] == [None, {"error": True}, None, {"n": 3}]
    assert (len(results), state.result("look")) == (MOST_RESULTS + 3, {"n": MOST_RESULTS + 2})
    state.begin("pay", PAY)
    state.end("pay", PAY, "ok", "paid")
    assert state.result("look") == {"n": MOST_RESULTS + 2}


MONEY = st.one_of(st.floats(), st.integers(-100, 100), st.sampled_from([True, None, "5", 0.1, 0.2, -0.0]))
STEPS = st.lists(
    st.tuples(st.sampled_from(["begin", "ok", "error", "refused", "ask"]), st.sampled_from(["pay", "look"]), st.integers(0, 3), MONEY)
)


@given(STEPS)
@settings(deadline=None)
def test_what_is_kept_ready_is_what_a_look_at_all_calls_gives(steps):
    state = RunState()
    for what, tool, user, amount in steps:
        if what == "begin":
            state.begin(tool, {"user": user, "amount": amount})
        elif what == "ask":
            state.spent(tool, "amount")
            state.done_with(tool, ("user",), (str(user),))
        else:
            running = [call for call in state.calls if call.tool == tool and call.status == "running"]
            if running:
                state.end(tool, running[user % len(running)].arguments, what, {"error": "no"} if user == 3 else user)
    listed = ListedPast(state.calls)
    for tool in ("pay", "look", "other"):
        assert state.begun(tool) == listed.begun(tool)
        assert state.spent(tool, "amount") == listed.spent(tool, "amount")
        for keys in [(str(user),) for user in range(4)]:
            assert state.done_with(tool, ("user",), keys) == listed.done_with(tool, ("user",), keys)
        assert state.done_with(tool, (), ()) == listed.done_with(tool, (), ())
        ended = [call for call in state.calls if call.tool == tool and call.status == "ok" and not told_an_error(call.result)]
        assert (state.done(tool), state.result(tool)) == (len(ended), ended[-1].result if ended else None)


class SlowState(RunState):
    """Takes a call in only once another one has been reviewed."""

    def __init__(self):
        super().__init__()
        self.begins, self.reviewed = threading.Event(), threading.Event()

    def begin(self, tool, arguments):
        self.begins.set()
        self.reviewed.wait(1)
        super().begin(tool, arguments)


class Once:
    def review(self, action, state, policy):
        calls = state.calls
        if state.begins.is_set():
            state.reviewed.set()
        return Decision(DecisionKind.BLOCK, "only_once") if calls else Decision(DecisionKind.APPROVE, "first")


def test_a_call_that_is_judged_while_another_one_begins_is_judged_by_it_too():
    paid, state = [], SlowState()

    def pay(user_id: int) -> None:
        paid.append(user_id)

    tool = ravi_otel.tool(pay, gate=Gate(Once(), tools=[pay], state=state))
    with ThreadPoolExecutor(1) as others:
        first = others.submit(tool, user_id=1)
        assert state.begins.wait(5)
        with pytest.raises(ToolDeniedError, match="only_once"):
            tool(user_id=2)
        first.result(5)
    assert paid == [1]
