"""Limits that begin anew each window, in a run, over runs, and where a run goes on elsewhere."""

import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ravi_otel._enforcement.engine import Engine
from ravi_otel._enforcement.ledger.contract import new_op_id
from ravi_otel._enforcement.ledger.judge import Line, Reservation
from ravi_otel._enforcement.ledger.memory import MemoryLedger
from ravi_otel._enforcement.ledger.sqlite.ledger import SqliteLedger
from ravi_otel._enforcement.series import MOST_READ
from ravi_otel._enforcement.snapshot import Snapshot
from ravi_otel._flow import run_sync
from ravi_otel.errors import BudgetExhaustedError, ConfigurationError
from ravi_otel.hooks._listeners import Listeners

sys.path.insert(0, str(Path(__file__).parent))

from window_scopes import DAY, Heard, at, engine_over, refuses, root_of, run_of


@pytest.fixture
def clock():
    return at("2026-01-01T12:00")


@pytest.fixture
def heard():
    return Heard()


@pytest.fixture(params=["memory", "sqlite", "redis"])
def engine(request, tmp_path, clock, heard):
    with engine_over(request.param, request, tmp_path, clock, heard) as made:
        yield made


@pytest.fixture
def alone(clock, heard):
    """An engine over memory, for what no ledger has a part in."""
    return Engine(clock=clock, listeners=Listeners([heard]))


def test_a_limit_of_a_day_begins_anew_at_midnight(engine, clock):
    run = run_of(root_of(engine), "charge.rows=10:per=day")
    run.charge("rows", 10)
    clock.advance(DAY / 2 - 1)
    assert refuses(run)

    clock.advance(1)
    run.charge("rows", 10)
    assert refuses(run)


@pytest.mark.parametrize(("per", "lasts"), [("minute", 60), ("hour", 3_600), ("day", DAY / 2), ("week", 3.5 * DAY), ("month", 30.5 * DAY)])
def test_each_window_of_the_calendar_ends_when_the_calendar_says(engine, clock, per, lasts):
    run = run_of(root_of(engine), f"charge.rows=1:per={per}")
    run.charge("rows")
    clock.advance(lasts - 1)
    assert refuses(run)

    clock.advance(1)
    assert not refuses(run)


@pytest.mark.parametrize(("day", "hours"), [("2026-03-29", 23), ("2026-10-25", 25)])
def test_the_day_on_which_clocks_change_is_one_window(heard, day, hours):
    clock = at(f"{day}T00:00", "Europe/Berlin")
    run = run_of(root_of(Engine(clock=clock)), "charge.rows=1:per=day:tz=Europe/Berlin")
    run.charge("rows")
    clock.advance(hours * 3_600 - 1)
    assert refuses(run)

    clock.advance(1)
    assert not refuses(run)


def test_nearing_and_exceeded_are_told_once_a_window(engine, clock, heard):
    run = run_of(root_of(engine), "charge.rows=10:per=day")
    for _ in range(2):
        for _ in range(12):
            refuses(run)
        clock.advance(DAY)

    days = ("2026-01-01", "2026-01-02")
    assert heard.told == [(event, "day", day, None, None) for day in days for event in ("limit_nearing", "limit_exceeded")]


def test_an_operation_settles_in_the_window_it_was_reserved_in(engine, clock):
    run = run_of(root_of(engine), "tokens=100:per=day")
    (account,) = run.plan.accounts()
    op = new_op_id()
    run_sync(engine.ledger.reserve(Reservation(op, [Line(account, 60, 60)])))
    clock.advance(DAY)
    (today,) = run.plan.accounts()
    run_sync(engine.ledger.settle(op, {"tokens": 90}))

    assert account is not today
    assert (account.used, account.held) == (90, 0)
    assert (today.used, today.held) == (0, 0)


def test_a_limit_that_drains_goes_on_in_the_next_window(engine, clock):
    run = run_of(root_of(engine), "tokens=100:per=day")

    def ask(amount):
        (account,) = run.plan.accounts()
        return run_sync(engine.ledger.reserve(Reservation(new_op_id(), [Line(account, amount, amount)], spent=amount == 90)))

    run_sync(engine.ledger.settle(ask(90).op_id, {"tokens": 90}))
    assert ask(20).reason == "exhausted"
    assert ask(1).reason == "draining"
    clock.advance(DAY)
    assert ask(20).op_id


def test_a_clock_that_is_put_back_finds_what_was_counted_then(alone):
    run = run_of(root_of(alone), "charge.rows=5:per=hour")
    run.charge("rows", 5)
    alone.clock = at("2026-01-01T13:00")
    run.charge("rows", 5)

    alone.clock = at("2026-01-01T12:59")
    assert refuses(run)


def test_windows_that_are_over_are_let_go_of(alone, clock):
    run = run_of(root_of(alone), "charge.rows=5:per=minute")
    for _ in range(50):
        run.charge("rows", 5)
        clock.advance(60)
    assert len(run.series[0].living()) <= 3


def test_the_ledgers_own_time_goes_before_the_machines(clock):
    """A store that several machines share says which day it is."""

    class Told(MemoryLedger):
        def wall_s(self):
            return at("2026-05-05T00:00").time()

    run = run_of(root_of(Engine(ledger=Told(), clock=clock)), "charge.rows=5:per=day")
    run.charge("rows")

    assert run.readings()[0].window == "2026-05-05"


def test_limits_with_windows_and_without_are_asked_in_one_step_from_the_root_on(engine):
    root = root_of(engine, "charge.rows=5:per=day")
    run = run_of(root, "charge.rows=3")
    with pytest.raises(BudgetExhaustedError, match="in this process, day 2026-01-01 in UTC"):
        run.charge("rows", 6)
    with pytest.raises(BudgetExhaustedError, match="in run "):
        run.charge("rows", 4)
    run.charge("rows", 3)
    assert [reading.used for reading in (*root.readings(), *run.readings())] == [3, 3]


# -- reading and changing ---------------------------------------------------------------------------------------------


def test_a_reading_says_which_window_and_whose(engine, clock):
    root = root_of(engine, "charge.rows=10:per=day:by=user", "charge.pages=10:per=90m", "charge.rows=99")
    run_of(root, user_id="ann").charge("rows", 4)
    found = {reading.title: (reading.used, reading.remaining) for reading in root.readings()}

    nobody_asked = str(found.pop("pages per 90m"))  # where others count too, it is unknown until they are asked
    assert nobody_asked == ("(0, 10)" if isinstance(engine.ledger, MemoryLedger) else "(nan, nan)")
    assert found == {"rows": (4, 95), "rows per day 2026-01-01 for user ann": (4, 6)}


def test_of_many_users_the_fullest_are_read(alone):
    root = root_of(alone, "charge.rows=100:by=user")
    for number in range(50):
        run_of(root, user_id=f"user-{number}").charge("rows", number + 1)
    readings = root.readings()

    assert len(readings) == MOST_READ
    assert [reading.used for reading in readings] == list(range(50, 50 - MOST_READ, -1))


def test_a_rolling_limit_is_read_as_of_now(alone, clock):
    run = run_of(root_of(alone), "charge.rows=10:per=60m")
    run.charge("rows", 10)
    clock.advance(2 * 3_600)
    assert run.readings()[0].used == 0


def test_another_value_holds_for_all_counters_and_for_windows_to_come(engine, clock):
    root = root_of(engine, "charge.rows=2:per=day:by=user")
    ann = run_of(root, user_id="ann")
    ann.charge("rows", 2)
    root.set_limit("rows", 3)
    assert [refuses(ann) for _ in range(2)] == [False, True]

    clock.advance(DAY)
    bob = run_of(root, user_id="bob")
    assert [refuses(bob) for _ in range(4)] == [False, False, False, True]


def test_a_refusal_names_the_window_and_whom_it_is_for(engine):
    root = root_of(engine, "charge.rows=2:per=day:tz=Europe/Berlin:by=user")
    with pytest.raises(BudgetExhaustedError) as caught:
        run_of(root, user_id="ann").charge("rows", 3)

    assert "in this process, day 2026-01-01 in Europe/Berlin, user 'ann'" in str(caught.value)


def test_a_run_that_its_windows_limit_has_ended_says_so(alone):
    run = run_of(root_of(alone), "charge.rows=2:per=day")
    assert refuses(run, 3)
    run.charge("rows", 2)
    assert refuses(run)
    run.leave(None)

    assert run.status == "stopped"


def test_a_run_whose_window_has_turned_since_it_was_refused_has_come_to_its_end(alone, clock):
    run = run_of(root_of(alone), "charge.rows=2:per=day")
    run.charge("rows", 2)
    assert refuses(run)
    clock.advance(DAY)
    run.charge("rows")
    run.leave(None)

    assert run.status == "ok"


def test_a_run_that_is_resumed_goes_on_in_its_window_and_not_in_one_that_is_over(alone, clock):
    limits = ("charge.rows=5:per=day:by=user", "charge.pages=5:per=60m")
    root = root_of(alone)
    run = run_of(root, *limits, user_id="ann")
    run.charge("rows", 5)
    run.charge("pages", 5)
    snapshot = Snapshot.from_json(run.snapshot().to_json())
    run.leave(None)

    again = run_of(root, *limits, user_id="ann", run_id=snapshot.run_id, resume=snapshot)
    assert refuses(again)
    assert refuses(again, kind="pages")
    again.leave(None)
    clock.advance(DAY)
    later = run_of(root, *limits, user_id="ann", run_id=snapshot.run_id, resume=snapshot)
    assert not refuses(later)


@pytest.mark.parametrize("part", [5, ["a"] * 4, [5], ["a\nb"], "ab"])
def test_a_snapshot_with_another_part_is_refused(alone, part):
    run = run_of(root_of(alone), "charge.rows=5:per=day")
    run.charge("rows")
    content = json.loads(run.snapshot().to_json())
    content["counters"][-1]["part"] = part

    with pytest.raises(ConfigurationError, match=r"counters\.part"):
        Snapshot.from_json(json.dumps(content))


def test_a_snapshot_of_a_window_that_is_not_now_pushes_nothing_out(alone):
    root = root_of(alone)
    run = run_of(root, "charge.rows=5:per=day")
    run.charge("rows", 3)
    content = json.loads(run.snapshot().to_json())
    odd = [content["counters"][-1] | {"part": [f"2030-01-{day:02}"]} for day in range(1, 29)]
    content["counters"] = [*odd, content["counters"][-1]]
    run.leave(None)
    again = run_of(root, "charge.rows=5:per=day", run_id=content["run_id"], resume=Snapshot.from_json(json.dumps(content)))

    assert len(again.series[0].living()) == 1
    assert refuses(again, 3)


# -- several at once --------------------------------------------------------------------------------------------------


def test_two_processes_count_in_the_same_window_of_the_same_user(tmp_path, clock):
    path = tmp_path / "ledger.db"
    one, two = (Engine(ledger=SqliteLedger(path, clock=clock), clock=clock) for _ in range(2))
    limit = "charge.rows=3:per=day:by=user"
    first = run_of(root_of(one, limit, scope_id="shop"), user_id="ann")
    second = run_of(root_of(two, limit, scope_id="shop"), user_id="ann")
    first.charge("rows", 2)
    second.charge("rows", 1)

    assert refuses(first)
    assert refuses(second)
    for each in (one, two):
        each.ledger.close()


def test_threads_over_the_end_of_a_window_charge_each_amount_once_and_no_window_too_much(alone, clock):
    root = root_of(alone, "charge.rows=100:per=minute:by=user")
    runs = [run_of(root, user_id=user) for user in ("ann", "bob")]
    rounds = int(os.environ.get("RAVI_LONG", "300"))

    def charge(number):
        done = sum(not refuses(runs[number % 2]) for _ in range(rounds))
        clock.advance(60)
        return done

    with ThreadPoolExecutor(8) as pool:
        done = sum(pool.map(charge, range(8)))
    assert done == root.usage.charged["rows"]
    assert all(account.used <= 100 and account.held == 0 for account in root.series[0].living())
