"""An agent that goes round in circles is noticed with the call that closes the circle."""

import threading

import pytest

from ravi_otel.supervisor._run_state import ALTERNATING, PER_TOOL, REPEATED, SAME_ERROR, LoopRules, Loops

READS = frozenset({"look", "list"})


def loops(**rules):
    return Loops(LoopRules(**{"read_only": READS, "per_tool_limit": None, **rules}))


@pytest.mark.parametrize(("tool", "times"), [("pay", 1), ("look", 2)])
def test_the_same_call_runs_once_and_a_read_only_one_twice(tool, times):
    run = loops()
    assert [run.enter(tool, "{}") for _ in range(times + 2)] == [None] * times + [REPEATED] * 2


def test_how_often_a_read_only_call_repeats_can_be_said():
    run = loops(read_only_repeat_limit=4)
    assert [run.enter("look", "{}") for _ in range(5)] == [None] * 4 + [REPEATED]


def test_other_arguments_are_another_call():
    run = loops()
    assert [run.enter("pay", str(number)) for number in range(9)] == [None] * 9


@pytest.mark.parametrize(("limit", "of_pay", "of_look"), [(2, 2, 2), ({"pay": 3}, 3, 9), (None, 9, 9), (0, 0, 0)])
def test_a_tool_has_a_ceiling_for_all_of_its_calls(limit, of_pay, of_look):
    run = loops(per_tool_limit=limit)
    assert sum(run.enter("pay", str(number)) is None for number in range(9)) == of_pay
    assert sum(run.enter("look", str(number)) is None for number in range(9)) == of_look


def test_the_ceiling_goes_before_the_repetition():
    run = loops(per_tool_limit=1)
    run.enter("pay", "{}")
    assert run.enter("pay", "{}") == PER_TOOL


def test_two_calls_in_turn_are_a_loop_with_the_fourth():
    run = loops(read_only_repeat_limit=9)
    assert [run.enter(tool, "{}") for tool in ("look", "list", "look", "list")] == [None, None, None, ALTERNATING]


def test_three_calls_in_turn_and_one_alone_are_none():
    run = loops(read_only_repeat_limit=9)
    turns = [("look", "1"), ("list", "1"), ("look", "2"), ("list", "1"), ("look", "1"), ("look", "1"), ("look", "1"), ("look", "1")]
    assert [run.enter(*turn) for turn in turns] == [None] * 8


def test_a_call_that_was_refused_is_not_counted():
    run = loops(per_tool_limit=2)
    run.enter("pay", "1")
    for _ in range(5):
        assert run.enter("pay", "1") == REPEATED
    assert run.enter("pay", "2") is None


def test_the_same_error_of_a_tool_is_a_loop_the_third_time_and_refuses_the_tool_from_then_on():
    run = loops()
    assert [run.failed("pay", "no such user") for _ in range(3)] == [None, None, SAME_ERROR]
    assert run.enter("pay", "{}") == SAME_ERROR
    assert run.enter("look", "{}") is None


def test_different_errors_and_those_of_different_tools_are_none():
    run = loops()
    assert [run.failed(tool, error) for tool, error in (("pay", "a"), ("pay", "b"), ("look", "a"), ("pay", "a"), ("look", "b"))] == [
        None
    ] * 5


def test_many_different_errors_take_no_memory_without_end():
    run = loops()
    for number in range(3_000):
        run.failed("pay", str(number))
    assert len(run._errors) <= 1_000


def test_of_many_threads_with_the_same_call_one_enters():
    run = loops()
    ready = threading.Barrier(8, timeout=60)
    found = []

    def go():
        ready.wait()
        found.append(run.enter("pay", "{}"))

    threads = [threading.Thread(target=go) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found.count(None) == 1
