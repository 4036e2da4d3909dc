"""What befalls a real Redis, a few times each: the table of `redis_faults.py` prints the same for as many as one likes."""

import importlib.util
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("redis_faults.py")


@pytest.fixture(scope="module")
def faults():
    spec = importlib.util.spec_from_file_location("redis_faults", PROGRAM)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_lost_reply_counts_once(faults):
    row = faults.lost_replies(8)
    assert (row.times, row.wrong) == (8, 0)


def test_what_killed_holders_held_is_settled_when_their_lease_is_over(faults):
    assert faults.killed_holders(5).wrong == 0


def test_a_stopped_server_is_given_up(faults):
    assert faults.stopped(1).wrong == 0


def test_what_a_server_wrote_down_is_counted_on(faults):
    assert faults.started_again(1, durable=True).wrong == 0


def test_a_server_that_wrote_nothing_down_has_forgotten(faults):
    assert faults.started_again(1, durable=False).wrong == 0


def test_an_emptied_store_is_found_out(faults):
    assert faults.emptied(2).wrong == 0


def test_the_clock_of_a_process_moves_no_lease(faults):
    assert faults.jumped(4).wrong == 0


def test_a_replica_goes_on_with_what_it_has_heard_of(faults):
    assert faults.failed_over(1).wrong == 0


def test_a_replica_that_takes_over_with_nothing_is_found_out(faults):
    assert faults.failed_over_to_nothing(1).wrong == 0
