"""Random users, amounts and times, against the plainest account of what a window is: every decision and every sum is the same."""

import os
import sys
from collections import defaultdict
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from ravi_otel._enforcement.engine import Engine
from ravi_otel.hooks._listeners import Listeners
from ravi_otel.policy._limits import window_at

sys.path.insert(0, str(Path(__file__).parent))

from window_scopes import Heard, at, refuses, root_of, run_of

MOST = int(os.environ.get("RAVI_LONG") or 60)
USERS = ("ann", "bob", None)
LIMIT = 20
charges = st.lists(st.tuples(st.integers(0, 5_000), st.sampled_from(USERS), st.integers(0, 12)), max_size=40)


@settings(max_examples=MOST, deadline=None)
@given(charges, st.sampled_from(["minute", "hour", "day"]), st.sampled_from(["UTC", "Europe/Berlin", "Australia/Lord_Howe"]), st.booleans())
def test_a_window_of_the_calendar_admits_what_fits_into_it_and_tells_each_event_once(charges, per, tz, by_user):
    clock, heard = at("2026-03-29T00:00", tz), Heard()
    root = root_of(Engine(clock=clock, listeners=Listeners([heard])), f"charge.rows={LIMIT}:per={per}:tz={tz}{':by=user' * by_user}")
    runs = {user: run_of(root, user_id=user) for user in USERS}
    used, told = defaultdict(int), set()
    for passed, user, amount in charges:
        clock.advance(passed)
        place = (window_at(per, tz, clock.time()).id, user if by_user else None)
        fits = used[place] + amount <= LIMIT
        assert refuses(runs[user], amount) is not fits
        if fits:
            used[place] += amount
            if used[place] >= 0.8 * LIMIT:
                told.add(("limit_nearing", per, place[0], "user" if by_user else None, place[1]))

    assert len(heard.told) == len(set(heard.told))
    assert {each for each in heard.told if each[0] == "limit_nearing"} == told
    last = window_at(per, tz, clock.time()).id
    now = {reading.counted_for: reading.used for reading in root.readings() if reading.used}
    assert now == {user: amount for (window, user), amount in used.items() if window == last and amount}


@settings(max_examples=MOST, deadline=None)
@given(charges, st.sampled_from(["60s", "10m", "2h"]))
def test_a_rolling_window_never_admits_more_than_fits_into_any_stretch_of_it(charges, per):
    """And refuses nothing that would fit into a stretch which is a sixtieth longer."""
    clock = at("2026-01-01T00:00")
    root = root_of(Engine(clock=clock), f"charge.rows={LIMIT}:per={per}:by=user")
    runs = {user: run_of(root, user_id=user) for user in USERS}
    width = {"60s": 60, "10m": 600, "2h": 7_200}[per]
    done = defaultdict(list)
    for passed, user, amount in charges:
        clock.advance(passed / 100)
        now = clock.monotonic_ns() / 1e9
        within = sum(each for when, each in done[user] if now - when < width)
        longer = sum(each for when, each in done[user] if now - when <= width * 61 / 60)
        admitted = not refuses(runs[user], amount)
        if admitted:
            assert within + amount <= LIMIT
            done[user].append((now, amount))
        else:
            assert longer + amount > LIMIT
