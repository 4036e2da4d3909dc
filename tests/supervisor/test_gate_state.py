"""What was done in a run is counted from the step in which it was let through, by any thread, and nothing lowers it."""

import threading

from ravi_otel.supervisor.decisions import GateState
from ravi_otel.supervisor.standing import Note, keep
from ravi_otel.supervisor.state import RunState

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
    kept = keep(state)
    note = Note(kept.version("pay"), "1")
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
    kept = keep(RunState())
    note, look = Note(kept.version("pay"), "1"), Note(kept.version("look"), "1")
    assert kept.begin("look", {}, look, lambda: True, read_only=True)
    assert not kept.begin("look", {}, look, lambda: True, read_only=True)
    assert kept.begin("pay", PAY, note, lambda: True, read_only=False)
    assert not kept.begin("pay", PAY, note, lambda: True, read_only=False)


def test_a_state_has_one_keeper_however_often_it_is_given():
    state = RunState()
    first = keep(state)
    assert keep(state) is first
    assert keep(RunState()) is not first
