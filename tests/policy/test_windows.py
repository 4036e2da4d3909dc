"""Say when a limit's window begins and ends, in every zone and over every change of the clocks."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ravi_otel.policy._checks import WINDOWS
from ravi_otel.policy._limits import is_calendar, longest_s, roll_ns, window_at

ZONES = [
    "UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu", "America/Havana", "Africa/Casablanca",
    "Pacific/Apia", "Asia/Beirut",
]  # fmt: skip
moments = st.integers(int(datetime(2012, 1, 1, tzinfo=UTC).timestamp()), int(datetime(2036, 1, 1, tzinfo=UTC).timestamp()))


def at(text, tz="UTC"):
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(tz)).timestamp()


@pytest.mark.parametrize(
    ("per", "name", "start", "end"),
    [
        ("minute", "2026-01-01T13:30+0000", "2026-01-01T13:30", "2026-01-01T13:31"),
        ("hour", "2026-01-01T13+0000", "2026-01-01T13:00", "2026-01-01T14:00"),
        ("day", "2026-01-01", "2026-01-01T00:00", "2026-01-02T00:00"),
        ("week", "2026-W01", "2025-12-29T00:00", "2026-01-05T00:00"),
        ("month", "2026-01", "2026-01-01T00:00", "2026-02-01T00:00"),
    ],
)
def test_a_window_of_the_calendar_has_a_name_a_start_and_an_end(per, name, start, end):
    window = window_at(per, "UTC", at("2026-01-01T13:30:15"))

    assert (window.id, window.start, window.end) == (name, at(start), at(end))


def test_a_day_is_the_one_of_its_zone():
    late = at("2026-01-01T23:30")

    assert window_at("day", "Europe/Berlin", late).id == "2026-01-02"
    assert window_at("day", "America/New_York", late).id == "2026-01-01"


@pytest.mark.parametrize(("day", "hours"), [("2026-03-29", 23), ("2026-03-30", 24), ("2026-10-25", 25)])
def test_a_day_on_which_clocks_change_is_as_long_as_it_is(day, hours):
    window = window_at("day", "Europe/Berlin", at(f"{day}T12:00", "Europe/Berlin"))

    assert window.id == day
    assert window.end - window.start == hours * 3_600


def test_an_hour_that_clocks_show_twice_is_two_windows():
    first = at("2026-10-25T02:30", "Europe/Berlin")
    one, two = (window_at("hour", "Europe/Berlin", first + more) for more in (0, 3_600))

    assert (one.id, two.id) == ("2026-10-25T02+0200", "2026-10-25T02+0100")
    assert one.end == two.start


def test_an_hour_that_is_cut_in_half_by_a_change_is_two_windows():
    """Lord Howe puts its clocks back by half an hour, at two: from then on it is half past one again."""
    change = at("2026-04-05T02:00", "Australia/Lord_Howe") - 1_800
    before, after = (window_at("hour", "Australia/Lord_Howe", change + more) for more in (-1, 0))

    assert (before.id, after.id) == ("2026-04-05T01+1100", "2026-04-05T01+1030")
    assert before.end == after.start == change
    assert after.end - after.start == 1_800


def test_a_day_whose_midnight_the_clocks_skip_begins_when_they_skip_it():
    """Havana goes from midnight to one."""
    noon = at("2026-03-08T12:00", "America/Havana")
    day, before = window_at("day", "America/Havana", noon), window_at("day", "America/Havana", noon - 86_400)

    assert day.id == "2026-03-08"
    assert before.end == day.start
    assert day.end - day.start == 23 * 3_600


@given(st.sampled_from(WINDOWS), st.sampled_from(ZONES), moments)
def test_every_moment_is_in_its_window_and_windows_follow_each_other(per, tz, moment):
    window = window_at(per, tz, moment)

    assert window.holds(moment)
    assert window.end - window.start <= longest_s(per)
    assert window_at(per, tz, window.start).id == window_at(per, tz, window.end - 1).id == window.id
    following = window_at(per, tz, window.end)
    assert following.start == window.end
    assert following.id != window.id


@pytest.mark.parametrize("tz", ZONES)
def test_no_two_hours_of_a_year_have_one_name(tz):
    begin = at("2026-01-01T00:00", tz)
    hours = [window_at("hour", tz, begin + number * 1_800) for number in range(366 * 48)]

    distinct = list(dict.fromkeys(hours))
    assert len({hour.id for hour in distinct}) == len(distinct)
    assert all(one.end == two.start for one, two in pairwise(distinct))


@pytest.mark.parametrize("moment", [-1e30, -1.0, 0.0, 1e11, 1e30, float("inf")])
@pytest.mark.parametrize("per", WINDOWS)
def test_a_clock_that_is_far_off_raises_nothing(per, moment):
    assert window_at(per, "Europe/Berlin", moment).id


@pytest.mark.parametrize(("per", "seconds"), [("1s", 1), ("90m", 5_400), ("24h", 86_400), ("7d", 604_800), ("day", 0), (None, 0)])
def test_a_duration_looks_back_that_far(per, seconds):
    assert roll_ns(per) == seconds * 10**9
    assert is_calendar(per) is (per == "day")


@pytest.mark.parametrize(
    ("per", "longest"), [("minute", 60), ("day", 90_000), ("month", timedelta(days=31, hours=1).total_seconds()), ("2h", 7_200), (None, 0)]
)
def test_a_store_is_told_how_long_a_window_may_last(per, longest):
    assert longest_s(per) == longest
