"""A refusal that nobody catches is heard of, and the hooks that were there hear it too."""

import sys
import threading

import pytest

from ravi_otel.errors import BudgetExhaustedError, DeadlineExceededError
from ravi_otel.launch.uncaught import Uncaught, ended_by_limit


def because(error, cause):
    error.__cause__ = cause
    return error


def after(error, context, *, suppressed=False):
    error.__context__, error.__suppress_context__ = context, suppressed
    return error


def circle():
    one, other = KeyError("one"), KeyError("other")
    one.__cause__, other.__cause__ = other, one
    return one


REFUSAL = BudgetExhaustedError("over")


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (REFUSAL, True),
        (DeadlineExceededError("late"), True),
        (because(RuntimeError("wrapped"), BudgetExhaustedError("over")), True),
        (after(RuntimeError("while handling"), BudgetExhaustedError("over")), True),
        (after(RuntimeError("from None"), BudgetExhaustedError("over"), suppressed=True), False),
        (ExceptionGroup("tasks", [KeyError("a"), ExceptionGroup("more", [BudgetExhaustedError("over")])]), True),
        (ExceptionGroup("tasks", [KeyError("a")]), False),
        (KeyError("its own"), False),
        (KeyboardInterrupt(), False),
        (circle(), False),
    ],
)
def test_what_a_limit_ended_is_told_from_what_ended_by_itself(error, told):
    assert ended_by_limit(error) is told


@pytest.fixture
def hooks(monkeypatch):
    heard = []
    monkeypatch.setattr(sys, "excepthook", lambda *args: heard.append(("main", args[1])))
    monkeypatch.setattr(threading, "excepthook", lambda args: heard.append(("thread", args.exc_value)))
    return heard


def test_the_previous_hook_hears_everything_and_we_hear_refusals(hooks):
    told = []
    Uncaught(lambda error, thread: told.append((error, thread))).watch()
    other = KeyError("its own")
    for error in (other, REFUSAL):
        sys.excepthook(type(error), error, None)
    assert hooks == [("main", other), ("main", REFUSAL)]
    assert told == [(REFUSAL, False)]


def test_a_thread_that_a_refusal_ends_is_told_as_one(hooks):
    told = []
    Uncaught(lambda error, thread: told.append((error, thread))).watch()

    def work():
        raise REFUSAL

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert hooks == [("thread", REFUSAL)]
    assert told == [(REFUSAL, True)]


def test_a_hook_that_is_set_later_and_calls_the_one_before_it_is_no_circle(hooks):
    told = []
    uncaught = Uncaught(lambda error, thread: told.append(error))
    uncaught.watch()
    before = sys.excepthook
    sys.excepthook = lambda *args: (hooks.append("the program's"), before(*args))
    uncaught.watch()
    uncaught.watch()
    sys.excepthook(type(REFUSAL), REFUSAL, None)
    assert hooks == ["the program's", ("main", REFUSAL)]
    assert told == [REFUSAL]
