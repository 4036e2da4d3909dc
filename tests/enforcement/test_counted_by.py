"""Limits that give each user, model, tenant or value of a tag a counter of its own."""

import sys
from pathlib import Path

import pytest

from ravi_otel._enforcement.engine import Engine
from ravi_otel._enforcement.series import MOST_COUNTERS
from ravi_otel.errors import BudgetExhaustedError
from ravi_otel.hooks._listeners import Listeners
from ravi_otel.policy._limits import ScopeKind

sys.path.insert(0, str(Path(__file__).parent))

from window_scopes import Heard, at, engine_over, refuses, root_of, run_of


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


def test_each_user_has_a_counter_and_those_without_a_name_share_one(engine, heard):
    root = root_of(engine, "charge.rows=2:per=day:by=user")
    ann, bob, nobody, no_one = (run_of(root, user_id=user) for user in ("ann", "bob", None, None))
    ann.charge("rows", 2)
    assert refuses(ann)
    assert not refuses(bob)
    nobody.charge("rows", 2)
    assert refuses(no_one)

    assert heard.told[0] == ("limit_nearing", "day", "2026-01-01", "user", "ann")
    assert heard.told[-1] == ("limit_exceeded", "day", "2026-01-01", "user", None)


@pytest.mark.parametrize(
    ("by", "one", "other"),
    [
        ("user", {"user_id": "ann"}, {"user_id": "bob"}),
        ("tenant", {"tenant_id": "acme"}, {"tenant_id": "bank"}),
        ("tag.team", {"tags": {"team": "search"}}, {"tags": {"team": "ads"}}),
    ],
)
@pytest.mark.parametrize("window", ["", ":per=month", ":per=90m"])
def test_a_limit_counts_by_what_it_says(engine, by, one, other, window):
    root = root_of(engine, f"charge.rows=2:by={by}{window}")
    first, same, another = run_of(root, **one), run_of(root, **one), run_of(root, **other)
    first.charge("rows", 2)

    assert refuses(same)
    assert not refuses(another)


def test_an_error_says_that_it_was_refused_to_calls_of_which_it_is_not_known(alone):
    nobody = run_of(root_of(alone, "charge.rows=2:per=day:by=tag.team"))
    with pytest.raises(BudgetExhaustedError, match=r"day 2026-01-01 in UTC, calls without a tag\.team"):
        nobody.charge("rows", 3)


def test_what_is_done_inside_a_run_counts_for_its_user_unless_it_names_another(engine):
    root = root_of(engine, "charge.rows=2:by=user")
    ann = run_of(root, user_id="ann")
    run_of(ann, kind=ScopeKind.AGENT, name="helper").charge("rows", 1)
    run_of(ann, user_id="bob").charge("rows", 2)
    run_of(ann).charge("rows", 1)

    assert {reading.counted_for: reading.used for reading in root.readings()} == {"ann": 2, "bob": 2}


def test_a_tenants_limit_by_user_holds_for_all_its_runs_and_for_nobody_else(engine):
    root = root_of(engine)
    limit = "tenant.charge.rows=2:per=day:by=user"
    first = run_of(root, limit, tenant_id="acme", user_id="ann")
    first.charge("rows", 2)

    assert refuses(run_of(root, limit, tenant_id="acme", user_id="ann"))
    assert not refuses(run_of(root, limit, tenant_id="acme", user_id="bob"))
    assert not refuses(run_of(root, limit, tenant_id="bank", user_id="ann"))


def test_a_smaller_limit_that_is_declared_later_holds_for_all_and_arms_nothing(engine, heard):
    root = root_of(engine)
    first = run_of(root, "tenant.charge.rows=10:per=day", tenant_id="acme")
    first.charge("rows", 9)
    second = run_of(root, "tenant.charge.rows=5:per=day", tenant_id="acme")

    assert refuses(second)
    assert refuses(first)
    assert [event for event, *_ in heard.told] == ["limit_nearing", "limit_exceeded"]


def test_a_limit_with_other_options_that_joins_later_begins_at_what_was_counted(alone):
    root = root_of(alone)
    run_of(root, "tenant.charge.rows=10:per=day", tenant_id="acme").charge("rows", 4)
    second = run_of(root, "tenant.charge.rows=5:per=day:warn=0.5", tenant_id="acme")

    assert not refuses(second)
    assert refuses(second)


def test_more_users_than_have_counters_share_one_more_and_nobody_is_forgotten(alone):
    root = root_of(alone, "charge.rows=1:by=user")
    series = root.series[0]
    first = run_of(root, user_id="first")
    first.charge("rows")
    for number in range(MOST_COUNTERS - 1):
        series.counter(("", f"user-{number}")).used = 1

    assert not refuses(run_of(root, user_id="late"))
    assert refuses(run_of(root, user_id="later"))
    assert refuses(run_of(root, user_id="first"))
    assert len(series.living()) == MOST_COUNTERS + 1


def test_counters_that_say_nothing_make_room_for_others(alone):
    root = root_of(alone, "charge.rows=1:by=user")
    for number in range(MOST_COUNTERS):
        root.series[0].counter(("", f"user-{number}"))

    run_of(root, user_id="late").charge("rows")
    assert not refuses(run_of(root, user_id="later"))
    assert len(root.series[0].living()) == 2


@pytest.mark.parametrize("user", ["*", "others", "x" * 256, "a\u202eb", '{"', "}", "ann:bob", "é"])
def test_no_name_of_a_user_is_taken_for_anothers(engine, user):
    root = root_of(engine, "charge.rows=1:per=day:by=user")
    run_of(root, user_id=user).charge("rows")

    assert refuses(run_of(root, user_id=user))
    assert not refuses(run_of(root, user_id="ann"))
    assert not refuses(run_of(root))
