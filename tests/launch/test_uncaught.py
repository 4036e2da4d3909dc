"""A refusal that nobody catches is heard of, and the hooks that were there hear it too."""

import threading

import pytest

from ravi_otel._launch.attach import ThreadExceptions, ended_by_limit
from ravi_otel.errors import BudgetExhaustedError, DeadlineExceededError


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


class UnsayableError(Exception):
    def __str__(self):
        raise KeyError("no words")


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (RuntimeError("BudgetExhaustedError: over by 3\nTraceback:\n  ..."), True),
        (because(KeyError("outer"), RuntimeError("it was over by 3")), True),
        (ExceptionGroup("tasks", [RuntimeError("it was over by 3")]), True),
        (after(RuntimeError("from None"), BudgetExhaustedError("over by 3"), suppressed=True), False),
        (RuntimeError("over by 4"), False),
        (UnsayableError(), False),
    ],
)
def test_a_refusal_is_known_by_its_sentence_in_an_error_that_somebody_made_of_it(error, told):
    assert ended_by_limit(error, ["over by 3"]) is told
    assert not ended_by_limit(error)


@pytest.fixture
def heard(monkeypatch):
    heard = []
    monkeypatch.setattr(threading, "excepthook", lambda args: heard.append(args.exc_value))
    return heard


def fail(error):
    def work():
        raise error

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def test_the_previous_hook_hears_everything_and_we_hear_refusals(heard):
    told = []
    ThreadExceptions(told.append).watch()
    other = KeyError("its own")
    fail(other)
    fail(REFUSAL)
    assert heard == [other, REFUSAL]
    assert told == [REFUSAL]


def test_a_hook_that_is_set_later_and_calls_the_one_before_it_is_no_circle(heard):
    told = []
    threads = ThreadExceptions(told.append)
    threads.watch()
    before = threading.excepthook
    threading.excepthook = lambda args: (heard.append("the program's"), before(args))
    threads.watch()
    threads.watch()
    fail(REFUSAL)
    assert heard == ["the program's", REFUSAL]
    assert told == [REFUSAL]


def test_a_thread_that_ends_by_what_only_says_the_refusal_is_heard(heard):
    told = []
    ThreadExceptions(told.append, ["over by 3"]).watch()
    error, other = RuntimeError("it was over by 3"), RuntimeError("its own")
    fail(error)
    fail(other)
    assert (told, heard) == ([error], [error, other])
