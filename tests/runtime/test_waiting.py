"""Waits that the program declares: `working` limits stand still, `time` limits go on."""

import pytest

import ravi_otel
from ravi_otel import ConfigurationError, DeadlineExceededError
from ravi_otel._enforcement.deadlines import Deadlines


def used(handle):
    return [reading.used for reading in handle.scope.readings()]


def test_a_declared_wait_is_no_work_and_takes_its_time(on_clock):
    with ravi_otel.run("r", limits=["working=10s", "time=60s"]) as run:
        on_clock.advance(3)
        with run.waiting("approval"):
            on_clock.advance(20)
        on_clock.advance(2)
        assert used(run) == [5, 25]
        assert (run.stats().waited_s, run.stats().duration_s) == (20, 25)


def test_work_before_and_after_a_wait_is_what_runs_out(on_clock, client, ask):
    with ravi_otel.run("r", limits=["working=10s"]) as run:
        on_clock.advance(9)
        with ravi_otel.waiting("approval"):
            on_clock.advance(1_000)
        ask(client)
        on_clock.advance(1)
        with pytest.raises(DeadlineExceededError) as refused:
            ask(client)
    assert (refused.value.limit_kind, refused.value.used, refused.value.threshold) == ("working", 10, 10)
    assert run.stats().waited_s == 1_000


@pytest.mark.anyio
async def test_waits_at_the_same_time_count_once(on_clock):
    async with ravi_otel.run("r", limits=["working=10s"]) as run:
        async with run.waiting("approval"):
            on_clock.advance(4)
            async with ravi_otel.waiting("a second one"):
                on_clock.advance(3)
            on_clock.advance(2)
        on_clock.advance(1)
        assert (used(run), run.stats().waited_s) == ([1], 9)


def test_a_wait_stops_the_clocks_of_every_scope_around_it_and_of_no_other(on_clock):
    with ravi_otel.run("r", limits=["working=100s"]) as run, ravi_otel.agent("outer", limits=["working=50s"]) as outer:
        with ravi_otel.agent("inner", limits=["working=30s"]) as inner, ravi_otel.waiting("approval"):
            on_clock.advance(20)
        with ravi_otel.agent("next", limits=["working=30s"]) as after:
            on_clock.advance(5)
            assert (used(run), used(outer), used(inner), used(after)) == ([5], [5], [0], [5])


def test_a_wait_declared_on_a_run_is_one_of_the_agent_it_is_declared_in(on_clock):
    with ravi_otel.run("r", limits=["working=10s"]) as run, ravi_otel.agent("a", limits=["working=10s"]) as agent:
        with run.waiting("approval"):
            on_clock.advance(20)
        assert (used(run), used(agent)) == ([0], [0])


def test_a_wait_that_is_open_at_the_deadline_keeps_working_from_running_out(on_clock, heard):
    with ravi_otel.run("r", limits=["working=10s"]), ravi_otel.waiting("approval"):
        on_clock.advance(1_000)
        ravi_otel.current_scope().checkpoint()
    assert heard.events() == []


def test_when_a_wait_is_over_the_clock_goes_on_where_it_stood(on_clock, heard):
    with ravi_otel.run("r", limits=["working=10s"]):
        on_clock.advance(7)
        with ravi_otel.waiting("approval"):
            on_clock.advance(100)
        on_clock.advance(0.5)
        assert heard.events() == []
        on_clock.advance(0.5)
        assert heard.events() == [("run", "working", "limit_nearing")]


def test_a_wait_ends_with_its_block_however_that_ends(on_clock):
    def fail(run):
        with run.waiting("approval"):
            on_clock.advance(5)
            raise ZeroDivisionError

    with ravi_otel.run("r", limits=["working=10s"]) as run:
        with pytest.raises(ZeroDivisionError):
            fail(run)
        on_clock.advance(1)
        assert used(run) == [1]


def test_a_wait_outside_any_run_belongs_to_the_process(on_clock):
    with ravi_otel.waiting("approval"):
        on_clock.advance(1)
    assert ravi_otel.current_scope().spend().waited_s == 1


def test_one_wait_is_opened_once_at_a_time(on_clock):
    wait = ravi_otel.waiting("approval")
    assert "approval" in repr(wait)
    with wait, pytest.raises(ConfigurationError, match=r"waiting\('approval'\) is already open"), wait:
        pass
    with wait:
        on_clock.advance(1)


@pytest.mark.parametrize("reason", ["", None, 3])
def test_a_wait_has_a_reason_in_words(reason):
    with pytest.raises(ConfigurationError, match=r"waiting\(reason\)"):
        ravi_otel.waiting(reason)


def waits():
    with ravi_otel.waiting("approval"):
        yield


def test_a_wait_is_over_when_its_generator_is_closed_and_not_when_somebody_notices(on_clock):
    with ravi_otel.run("r", limits=["working=10s"]) as run:
        generator = waits()
        next(generator)
        on_clock.advance(3)
        generator.close()
        on_clock.advance(10)
        with pytest.raises(DeadlineExceededError), ravi_otel.agent("next"):
            ravi_otel.current_scope().checkpoint()
        assert run.stats().waited_s == 3


def test_a_wait_that_begins_after_one_was_dropped_counts_for_itself(on_clock):
    with ravi_otel.run("r", limits=["working=10s"]) as run:
        generator = waits()
        next(generator)
        on_clock.advance(3)
        del generator
        on_clock.advance(1)
        with ravi_otel.waiting("more"):
            on_clock.advance(2)
        assert run.stats().waited_s == 5


def test_a_wait_whose_beginning_is_interrupted_is_none(on_clock, monkeypatch):
    watch = Deadlines.watch

    def interrupted(*_):
        monkeypatch.setattr(Deadlines, "watch", watch)
        raise KeyboardInterrupt

    with ravi_otel.run("r", limits=["working=10s"]) as run:
        monkeypatch.setattr(Deadlines, "watch", interrupted)
        with pytest.raises(KeyboardInterrupt), ravi_otel.waiting("approval"):
            pass
        on_clock.advance(10)
        assert run.stats().waited_s == 0
        with pytest.raises(DeadlineExceededError):
            ravi_otel.current_scope().checkpoint()
