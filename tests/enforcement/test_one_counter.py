"""A limit that is declared again, with other options or by another process, is the very counter of the first one."""

import os
import random
import sys
import uuid
from functools import partial
from pathlib import Path

import pytest

from ravi_otel._enforcement.engine import Engine
from ravi_otel._enforcement.ledger.account import Account
from ravi_otel._enforcement.ledger.contract import new_op_id
from ravi_otel._enforcement.ledger.judge import Denied, Line, Reservation
from ravi_otel._enforcement.ledger.memory import MemoryLedger
from ravi_otel._enforcement.ledger.redis.client import RedisClient
from ravi_otel._enforcement.ledger.redis.store import RedisStore
from ravi_otel._enforcement.ledger.sqlite.ledger import SqliteLedger
from ravi_otel._enforcement.ledger.store_ledger import StoreLedger
from ravi_otel._enforcement.snapshot import Snapshot
from ravi_otel._flow import run_sync
from ravi_otel.errors import BudgetExhaustedError
from ravi_otel.hooks._listeners import Listeners
from ravi_otel.policy._grammar import parse_limit
from ravi_otel.policy._limits import ScopeKind
from ravi_otel.policy._runs import ScopeFacts

sys.path.insert(0, str(Path(__file__).parent))

from window_scopes import Heard, refuses, root_of, run_of

PLAIN = "tenant.charge.rows=5"
OPTIONS = ("warn=0.5", "warn=0.8", "on=stop", "on=deny_tool", "store=open", "store=closed", "suspend=allow")
WINDOWS = ("5:per=60m", "5:per=1h", "5:per=3600s", "5:per=1h:warn=0.5")
SHARED = ("sqlite", "redis")


class Process:
    """Count as a process of its own does: an engine, and a ledger of a store that others may have, too."""

    def __init__(self, ledger):
        self.ledger, self.heard = ledger, Heard()
        ledger.store_id = "as a URL would"
        self.engine = Engine(ledger=ledger, listeners=Listeners([self.heard]))
        self.root = root_of(self.engine)
        self.tenant = "acme"

    def of(self, tenant):
        self.tenant = tenant
        return self

    def run(self, *limits, **more):
        return run_of(self.root, *limits, tenant_id=self.tenant, **more)

    @property
    def told(self):
        return [event for event, *_ in self.heard.told]


def _ledger(kind, request, path, namespace):
    if kind == "memory":
        return MemoryLedger()
    if kind == "sqlite":
        return SqliteLedger(path)
    redis = RedisStore(RedisClient(request.getfixturevalue("redis_process").url), namespace=namespace)
    return StoreLedger(redis, shares=lambda _: True)


@pytest.fixture
def opened(request, tmp_path):
    """A function that begins a process on the one store there is."""
    made, make = [], partial(_ledger, request.param, request, tmp_path / "ledger.db", uuid.uuid4().hex)

    def begin():
        made.append(Process(make()))
        return made[-1]

    yield begin
    for process in made:
        getattr(process.ledger, "close", lambda: None)()


def everywhere(function):
    return pytest.mark.parametrize("opened", ["memory", *SHARED], indirect=True)(function)


def over_stores(function):
    return pytest.mark.parametrize("opened", SHARED, indirect=True)(function)


def let_in(run, most=20):
    return next(at for at in range(most) if refuses(run))


@over_stores
def test_a_limit_with_another_option_in_another_process_is_the_same_counter(opened):
    assert let_in(opened().run(PLAIN)) == 5
    assert [let_in(opened().run(f"{PLAIN}:{option}")) for option in OPTIONS] == [0] * len(OPTIONS)


@over_stores
def test_a_window_of_one_length_is_one_however_it_is_spelt(opened):
    first, *others = (f"tenant.charge.rows={each}" for each in WINDOWS)
    assert let_in(opened().run(first)) == 5
    assert [let_in(opened().run(each)) for each in others] == [0] * len(others)


@everywhere
@pytest.mark.parametrize("renews", ["", ":per=day"])
def test_a_limit_with_other_options_in_one_process_is_counted_and_told_once(opened, renews):
    process = opened()
    first = process.run(f"tenant.charge.rows=8{renews}")
    for _ in range(3):
        first.charge("rows")
    second = process.run(f"tenant.charge.rows=8{renews}:warn=0.5", f"tenant.charge.rows=6{renews}:on=stop")
    assert let_in(second) == 3
    assert let_in(first) == 0
    assert process.told == ["limit_nearing", "limit_exceeded"]
    readings = second.parent.readings()
    assert {(reading.used, reading.limit.value) for reading in readings} == {(6, 6)}
    assert {reading.events for reading in readings} == {("limit_nearing", "limit_exceeded")}


@everywhere
def test_what_only_observes_tightens_nothing_and_keeps_a_count_of_its_own(opened):
    process = opened()
    run = process.run(PLAIN, "tenant.charge.rows=2:on=observe")
    assert let_in(run) == 5
    assert {(each.limit.value, each.used) for each in run.parent.readings()} == {(5, 5), (2, 5)}


@everywhere
def test_a_limit_that_is_set_anew_is_set_for_all_that_are_the_same(opened):
    process = opened()
    run = process.run(PLAIN, f"{PLAIN}:warn=0.5")
    assert let_in(run) == 5
    run.parent.set_limit("rows", 7)
    assert let_in(run) == 2
    assert {each.limit.value for each in run.parent.readings()} == {7}


@over_stores
def test_a_run_that_goes_on_elsewhere_charges_what_the_store_counts_no_second_time(opened):
    run = opened().run("tenant.charge.rows=100")
    run.charge("rows", 30)
    snapshot = Snapshot.from_json(run.snapshot().to_json())
    run = opened().run("tenant.charge.rows=100", "tenant.charge.rows=100:warn=0.5", resume=snapshot)
    run.charge("rows", 1)
    assert {each.used for each in run.parent.readings()} == {31}


def _ask(ledger, *lines, op_id=None):
    return run_sync(ledger.reserve(Reservation(op_id or new_op_id(), [Line(account, want, want) for account, want in lines])))


@over_stores
def test_the_strictest_of_several_options_holds_for_a_call_that_asks_for_all(opened):
    ledger = opened().ledger
    facts = ScopeFacts(scope_id=uuid.uuid4().hex, kind=ScopeKind.TENANT, tenant_id=uuid.uuid4().hex)
    after, plain = (Account(parse_limit(text), facts, origin=text) for text in ("tokens=100:admission=after", "tokens=60"))
    op_id = new_op_id()
    _ask(ledger, (after, 0), (plain, 50), op_id=op_id)
    assert isinstance(_ask(ledger, (after, 0), (plain, 50)), Denied)
    run_sync(ledger.settle(op_id, {"tokens": 55}))
    for each in (after, plain):
        assert ledger.read(each)
        assert (each.used, each.held, each.value) == (55, 0, 60)
    assert isinstance(_ask(ledger, (after, 0), (plain, 6)), Denied)


@over_stores
@pytest.mark.parametrize("stated", [3, 9])
def test_a_refusal_says_how_to_raise_what_others_are_held_to(opened, stated):
    assert let_in(opened().run("tenant.charge.rows=3:per=2h")) == 3
    run = opened().run(f"tenant.charge.rows={stated}:per=120m:warn=0.5")
    with pytest.raises(BudgetExhaustedError) as caught:
        run.charge("rows")
    command = str(caught.value).partition("`ravi-otel ledger set-limit ")[2].partition("`")[0]
    assert command == f"tenant:acme charge.rows={9 if stated == 9 else 6}:per=2h"


@everywhere
@pytest.mark.parametrize("option", ["", ":warn=0.5", ":on=stop", ":store=open"])
def test_a_smaller_limit_with_another_option_holds_however_hot_the_first_one_is(opened, option):
    process = opened()
    first = process.run("tenant.charge.rows=1000")
    for _ in range(100):
        first.charge("rows")
    assert let_in(process.run(f"tenant.charge.rows=200{option}"), 1001) == 100
    assert refuses(first)


@everywhere
def test_a_lower_warning_level_is_told_of_on_time_however_hot_the_first_limit_is(opened):
    process = opened()
    first = process.run("tenant.charge.rows=1000:warn=0.9")
    for _ in range(100):
        first.charge("rows")
    second = process.run("tenant.charge.rows=1000:warn=0.5")
    assert next(at for at in range(101, 1001) if not refuses(second) and process.told) == 500


def _use_up(run, turns):
    for _ in range(turns):
        run.charge_now([Line(each, 1, 1) for each in run.plan.accounts()])


@everywhere
def test_what_one_of_two_limits_keeps_back_is_kept_however_hot_the_other_is(opened):
    process = opened()
    first = process.run("tenant.turns=100")
    _use_up(first, 30)
    run = process.run("tenant.turns=100:on=final")
    with pytest.raises(BudgetExhaustedError):
        _use_up(run, 100)
    assert {each.used for each in run.parent.readings()} == {99}


def _history(process, seed):
    rng, runs, said = random.Random(seed), [], []
    for _ in range(6):
        options = rng.choice(["", ":warn=0.5", ":warn=0.9", ":on=stop", ":store=closed", ":suspend=allow"])
        runs.append(process.run(f"tenant.charge.rows={rng.choice([60, 120, 250, 400])}{options}"))
        for _ in range(rng.randrange(20, 90)):
            said.append(refuses(rng.choice(runs), rng.choice([1, 1, 1, 3])))  # noqa: PERF401 - in the order it is said
    return said, process.told


@everywhere
def test_limits_of_any_options_decide_as_in_memory(opened):
    for seed in range(int(os.environ.get("RAVI_LONG", "4"))):
        name = f"acme-{seed}"
        assert _history(opened().of(name), seed) == _history(Process(MemoryLedger()).of(name), seed)


RENEWED = pytest.mark.parametrize("renews", ["", ":per=day", ":per=1h"])


@everywhere
@RENEWED
@pytest.mark.parametrize("option", ["", ":warn=0.5", ":on=stop"])
def test_what_was_set_holds_where_the_limit_is_declared_again_as_ever(opened, renews, option):
    process = opened()
    run = process.run(f"tenant.charge.rows=10{renews}")
    run.charge("rows")
    run.parent.set_limit("rows", 30)
    assert let_in(process.run(f"tenant.charge.rows=10{renews}{option}"), 40) == 29


@everywhere
@RENEWED
@pytest.mark.parametrize("option", ["", ":warn=0.5"])
def test_who_declares_less_than_was_ever_declared_is_held_to_it_whatever_was_set(opened, renews, option):
    process = opened()
    run = process.run(f"tenant.charge.rows=10{renews}")
    run.charge("rows")
    run.parent.set_limit("rows", 30)
    second = process.run(f"tenant.charge.rows=8{renews}{option}")
    assert let_in(second, 40) == 7
    run.parent.set_limit("rows", 20)
    assert let_in(process.run(f"tenant.charge.rows=8{renews}", f"tenant.charge.rows=10{renews}{option}"), 40) == 12


@everywhere
def test_what_was_lowered_is_not_raised_by_who_declares_something_between(opened):
    process = opened()
    run = process.run("tenant.charge.rows=10")
    run.charge("rows")
    run.parent.set_limit("rows", 3)
    assert let_in(process.run("tenant.charge.rows=8")) == 2


def _operate(process, value):
    listing = run_sync(process.ledger.list_accounts())
    assert [run_sync(process.ledger.set_limit(each, value)).value for each in listing.counters] == [value] * len(listing.counters)


@over_stores
@RENEWED
def test_what_an_operator_sets_holds_until_less_is_declared_than_any_process_ever_did(opened, renews):
    process, elsewhere = opened(), opened()
    run = process.run(f"tenant.charge.rows=10{renews}")
    run.charge("rows")
    elsewhere.run(f"tenant.charge.rows=6{renews}").charge("rows")
    _operate(elsewhere, 15)
    assert let_in(process.run(f"tenant.charge.rows=10{renews}", f"tenant.charge.rows=8{renews}")) == 13
    _operate(elsewhere, 20)
    assert let_in(process.run(f"tenant.charge.rows=5{renews}")) == 0
    assert let_in(elsewhere.run(f"tenant.charge.rows=6{renews}")) == 0
