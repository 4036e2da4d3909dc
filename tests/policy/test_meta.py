from __future__ import annotations

import dataclasses
import time
from datetime import UTC, datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest

from ravi_otel.errors import CancellationError, ConfigurationError, DeadlineExceededError
from ravi_otel.policy import CancellationToken, RunMeta, Supervision


class Clocks:
    def __init__(self) -> None:
        self.utc = 1_700_000_000.0
        self.steady = 1_000.0

    def pass_(self, seconds):
        self.utc += seconds
        self.steady += seconds


@pytest.fixture
def clocks(monkeypatch):
    clocks = Clocks()
    monkeypatch.setattr(time, "time", lambda: clocks.utc)
    monkeypatch.setattr(time, "monotonic", lambda: clocks.steady)
    return clocks


def test_a_meta_makes_up_what_is_not_given():
    meta = RunMeta()

    assert len(meta.run_id) == len(meta.trace_id) == 32
    assert (meta.deadline, meta.remaining_s, meta.tenant_id, meta.supervision) == (None, None, None, None)
    meta.check()


def test_a_meta_keeps_what_is_given():
    token, supervision, trace = CancellationToken(), Supervision(), "0af7651916cd43dd8448eb211c80319c"
    meta = RunMeta("r1", token, supervision, 2_000_000_000, trace, "acme")

    assert (meta.run_id, meta.trace_id, meta.tenant_id, meta.deadline) == ("r1", trace, "acme", 2_000_000_000)
    assert meta.cancellation is token
    assert meta.supervision is supervision


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("run_id", ""),
        ("cancellation", "user"),
        ("supervision", "lead"),
        ("deadline", -1),
        ("deadline", float("nan")),
        ("deadline", float("inf")),
        ("deadline", True),
        ("deadline", "soon"),
        ("deadline", 1_700_000_000_000),
        ("deadline", datetime(1969, 1, 1, tzinfo=UTC)),
        ("trace_id", "0" * 32),
        ("trace_id", "0AF7651916CD43DD8448EB211C80319C"),
        ("trace_id", "abc"),
        ("trace_id", 3),
        ("tenant_id", "\n"),
    ],
)
def test_a_wrong_field_is_named(field, wrong):
    with pytest.raises(ConfigurationError, match=rf"^{field}="):
        RunMeta(**{field: wrong})


def test_a_cancelled_meta_raises():
    meta = RunMeta()
    meta.cancellation.cancel("user")

    with pytest.raises(CancellationError, match=r"user"):
        meta.check()


def test_time_runs_out(clocks):
    meta = RunMeta("r1", deadline=clocks.utc + 90)
    clocks.pass_(89.5)
    meta.check()
    assert meta.remaining_s == 0.5

    clocks.pass_(1.5)
    with pytest.raises(DeadlineExceededError, match=r"deadline exceeded: run 'r1' had 90\.000 s and is 1\.000 s over") as caught:
        meta.check()
    error = caught.value
    assert (error.limit_kind, error.reason, error.run_id, error.scope) == ("time", "deadline", "r1", "run")
    assert (error.threshold, error.used, error.remaining) == (90, 91, -1)


def test_a_deadline_reached_to_the_moment_is_past(clocks):
    meta = RunMeta(deadline=clocks.utc + 1)
    clocks.pass_(1)

    with pytest.raises(DeadlineExceededError):
        meta.check()


def test_a_deadline_already_past_allows_nothing_and_says_for_how_long_it_has_been(clocks):
    meta = RunMeta("r1", deadline=clocks.utc - 10)
    assert meta.remaining_s == -10
    with pytest.raises(DeadlineExceededError, match=r"run 'r1' had 0\.000 s and is 10\.000 s over") as caught:
        meta.check()
    assert (caught.value.threshold, caught.value.used, caught.value.remaining) == (0, 10, -10)


@pytest.mark.parametrize("zone", [UTC, timezone(timedelta(hours=-5)), ZoneInfo("Asia/Kolkata")])
def test_a_deadline_may_be_an_aware_datetime_of_any_zone(clocks, zone):
    meta = RunMeta("r1", deadline=datetime.fromtimestamp(clocks.utc + 90, zone))
    assert (meta.deadline, meta.remaining_s) == (clocks.utc + 90, 90)
    assert dataclasses.replace(meta).deadline == meta.deadline


def test_a_datetime_without_a_zone_is_refused_with_the_way_out():
    with pytest.raises(ConfigurationError, match=r"^deadline=.* has no time zone.*datetime\.now\(timezone\.utc\)"):
        RunMeta(deadline=datetime(2030, 1, 1))  # noqa: DTZ001 - a naive one is the example


@pytest.mark.parametrize("jump", [-86_400, 86_400])
def test_setting_the_wall_clock_moves_no_deadline(clocks, jump):
    meta = RunMeta(deadline=clocks.utc + 90)
    clocks.utc += jump

    assert meta.remaining_s == 90


def test_cancellation_is_told_before_the_deadline(clocks):
    meta = RunMeta(deadline=clocks.utc - 1)
    meta.cancellation.cancel("user")

    with pytest.raises(CancellationError) as caught:
        meta.check()
    assert not isinstance(caught.value, DeadlineExceededError)


def test_a_standalone_run_has_its_own_tree(clocks):
    meta = RunMeta.standalone("lead", session_id="s1", tenant_id="acme", deadline_s=90)

    assert meta.supervision.is_root
    assert (meta.supervision.root_id, meta.supervision.session_id, meta.tenant_id) == ("lead", "s1", "acme")
    assert meta.run_id == meta.supervision.run_id
    assert meta.deadline == clocks.utc + 90


def test_a_standalone_run_may_join_a_tree():
    supervision = Supervision.root("lead")
    meta = RunMeta.standalone(supervision=supervision)

    assert (meta.supervision, meta.run_id, meta.deadline) == (supervision, supervision.run_id, None)


def test_a_standalone_deadline_is_seconds():
    with pytest.raises(ConfigurationError, match=r"^deadline_s=-1 must be a number of seconds"):
        RunMeta.standalone(deadline_s=-1)
