"""What a refusal says: to whoever runs the program, to the program, and to whoever uses it."""

import pickle
import re
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from ravi_otel._enforcement.errors_text import RefusalErrors
from ravi_otel._enforcement.ledger.contract import new_op_id
from ravi_otel._enforcement.ledger.judge import Denied, Line, Reservation
from ravi_otel._flow import run_sync
from ravi_otel.errors import BudgetContendedError, BudgetError, BudgetExhaustedError, ConfigurationError
from ravi_otel.policy._limits import Kind

sys.path.insert(0, str(Path(__file__).parent))

from window_scopes import DAY, Heard, at, engine_over, root_of, run_of

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
OPERATORS_WORDS = re.compile(r"ravi-otel|ledger|set-limit|set_limit|instrument|wrap_up|Raise|raise|=|SpawnBudget|tokens|nano|scope")


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
def alone(request, tmp_path, clock, heard):
    with engine_over("memory", request, tmp_path, clock, heard) as made:
        yield made


def refusal_of(scope, kind="rows", amount=1):
    """Charge until it does not fit, and give the error."""
    with pytest.raises(BudgetError) as caught:  # noqa: PT012 - what is refused is the last of them
        for _ in range(1_000):
            scope.charge(kind, amount)
    return caught.value


def ask(scope, kind, amount, *, model=None):
    """Hold so much of what a call of a model uses."""
    lines = [Line(account, amount, amount) for account in scope.plan.accounts(model) if account.kind == kind]
    answer = run_sync(scope.engine.ledger.reserve(Reservation(new_op_id(), lines)))
    return RefusalErrors(answer).refused() if isinstance(answer, Denied) else answer


def spend(scope, kind, amount):
    grant = ask(scope, kind, amount)
    scope.engine.settle(grant.op_id, {kind: amount})
    return grant


# -- when it fits again -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("per", "again"),
    [
        ("minute", NOON + timedelta(minutes=1)),
        ("hour", NOON + timedelta(hours=1)),
        ("day", NOON + timedelta(hours=12)),
        ("week", datetime(2026, 1, 5, tzinfo=UTC)),
        ("month", datetime(2026, 2, 1, tzinfo=UTC)),
        ("day:tz=Europe/Berlin", NOON + timedelta(hours=11)),
    ],
)
def test_a_window_of_the_calendar_resets_at_its_end(engine, per, again):
    error = refusal_of(run_of(root_of(engine), f"charge.rows=2:per={per}"))
    assert (error.resets_at, error.per) == (again, per.partition(":")[0])
    assert error.resets_at.utcoffset() == timedelta(0)


def test_what_is_refused_fits_when_the_error_said(engine, clock):
    run = run_of(root_of(engine), "charge.rows=5:per=day")
    error = refusal_of(run)
    clock.advance((error.resets_at - NOON).total_seconds())
    run.charge("rows", 5)


@pytest.mark.parametrize("engine", ["memory", "sqlite"], indirect=True)
def test_a_rolling_window_has_room_when_enough_has_left_it_and_not_before(engine, clock):
    run = run_of(root_of(engine), "charge.rows=10:per=1h")
    run.charge("rows", 4)
    clock.advance(600)
    run.charge("rows", 6)
    few, many = (refusal_of(run, amount=amount).resets_at for amount in (3, 6))
    assert NOON + timedelta(hours=1) < few <= NOON + timedelta(hours=1, minutes=2)
    assert NOON + timedelta(hours=1, minutes=10) < many <= NOON + timedelta(hours=1, minutes=12)
    clock.advance((few - NOON).total_seconds() - 600 - 180)
    refusal_of(run, amount=3)
    clock.advance(180)
    run.charge("rows", 3)


@pytest.mark.parametrize("engine", ["redis"], indirect=True)
def test_where_the_store_does_not_tell_what_leaves_when_it_is_when_all_of_it_has(engine):
    run = run_of(root_of(engine), "tenant.charge.rows=10:per=1h", tenant_id="acme")
    assert refusal_of(run, amount=6).resets_at == NOON + timedelta(hours=1)


def test_a_rolling_limit_that_drains_has_no_room_before_it_is_below_its_warning_level(alone, clock):
    run = run_of(root_of(alone), "tokens=100:per=1h")
    spend(run, "tokens", 15)
    clock.advance(600)
    spend(run, "tokens", 85)
    ask(run, "tokens", 1)
    error = ask(run, "tokens", 1)
    assert error.reason == "draining"
    assert NOON + timedelta(hours=1, minutes=10) < error.resets_at <= NOON + timedelta(hours=1, minutes=12)


@pytest.mark.parametrize("limit", ["charge.rows=5", "charge.rows=5:by=user", "charge.rows=0:per=day"])
def test_what_never_fits_again_says_so(engine, limit):
    error = refusal_of(run_of(root_of(engine), limit, user_id="ann"))
    assert error.resets_at is None
    assert "again" not in error.public_message


def test_more_than_a_whole_window_has_never_fits(alone):
    error = refusal_of(run_of(root_of(alone), "charge.rows=5:per=day"), amount=6)
    assert (error.reason, error.resets_at) == ("too_large", None)


# -- whose it is ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limit", "whose"),
    [
        ("charge.rows=2:by=user", "user 'u42'"),
        ("charge.rows=2:by=tenant", "tenant 'acme'"),
        ("charge.rows=2:by=tag.team", "tag.team 'red'"),
        ("tenant.charge.rows=2", "tenant 'acme'"),
        ("tenant.charge.rows=2:per=day:by=user", "user 'u42'"),
        ("session.charge.rows=2", "session 'chat-7'"),
        ("charge.rows=2:by=tag.other", None),
        ("charge.rows=2", None),
    ],
)
def test_it_says_whose_counter_it_is(engine, limit, whose):
    run = run_of(root_of(engine), limit, user_id="u42", tenant_id="acme", session_id="chat-7", tags={"team": "red"})
    assert refusal_of(run).counted_for == whose


def test_a_hostile_user_id_cannot_move_a_cursor_or_break_the_line(alone):
    error = refusal_of(run_of(root_of(alone), "charge.rows=2:by=user", user_id="\u202e" + "x" * 200))
    assert error.counted_for.isascii()
    assert len(error.counted_for) < 100


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_all_of_it_crosses_a_process(alone, protocol):
    error = refusal_of(run_of(root_of(alone), "charge.rows=2:per=day:by=user", user_id="u42"))
    arrived = pickle.loads(pickle.dumps(error, protocol))
    names = ("resets_at", "per", "counted_for", "public_message")
    assert [getattr(arrived, name) for name in names] == [getattr(error, name) for name in names]


# -- for an end user --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limit", "words"),
    [
        ("charge.rows=2:per=day", "The usage limit for today is reached. Please try again after 2026-01-02 00:00 UTC."),
        ("charge.rows=2:per=week:by=user", "The usage limit for this week is reached. Please try again after 2026-01-05 00:00 UTC."),
        (
            "charge.rows=2:per=month:tz=Europe/Berlin",
            "The usage limit for this month is reached. Please try again after 2026-02-01 00:00 (Europe/Berlin).",
        ),
        ("session.charge.rows=2", "The usage limit for this conversation is reached."),
        ("charge.rows=2", "The usage limit for this task is reached."),
        ("tenant.charge.rows=2", "The usage limit is reached."),
        ("charge.rows=2:by=user", "The usage limit is reached."),
    ],
)
def test_an_end_user_reads_what_it_means_and_when_to_try_again(engine, limit, words):
    run = run_of(root_of(engine), limit, user_id="u42", tenant_id="acme", session_id="chat-7")
    assert refusal_of(run).public_message == words


def test_a_moment_is_told_to_the_minute_and_never_too_early(alone, clock):
    clock.advance(1)
    run = run_of(root_of(alone), "charge.rows=2:per=90m")
    error = refusal_of(run)
    told = datetime.fromisoformat(re.search(r"after (\S+ \S+) UTC", error.public_message)[1]).replace(tzinfo=UTC)
    assert error.resets_at <= told < error.resets_at + timedelta(minutes=1)


def test_an_end_user_reads_no_words_of_operators(engine):
    run = run_of(root_of(engine), "tokens=100", "turns=1:per=day", "cost=1usd", "session.charge.rows=2", "depth=0", session_id="chat-7")
    spend(run, "tokens", 60)
    held = ask(run, "tokens", 30)
    errors = [ask(run, "tokens", 20), ask(run, "tokens", 120), refusal_of(run), ask(run, "depth", 1)]
    assert {type(error) for error in errors} == {BudgetContendedError, BudgetExhaustedError}
    run.engine.settle(held.op_id, None)
    run.close()
    with pytest.raises(BudgetExhaustedError) as closed:
        run.charge("rows")
    for error in (*errors, closed.value):
        assert error.public_message.endswith(".")
        assert not OPERATORS_WORDS.search(error.public_message), error.public_message


def test_an_error_made_by_hand_has_a_sentence_too():
    assert BudgetExhaustedError("Raise it by `ravi-otel ledger set-limit`.").public_message == (
        "A usage limit was reached, so this could not be completed."
    )


# -- for whoever runs the program -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limit", "kind", "used", "asked", "sentence"),
    [
        (
            "requests=2",
            "requests",
            2,
            1,
            "2 of 2 requests used in run 'r'; this one is refused (2 + 1 > 2). Raise requests=2 or leave it out.",
        ),
        ("turns=1", "turns", 1, 1, "1 of 1 turn used in run 'r'; this one is refused (1 + 1 > 1). Raise turns=1 or leave it out."),
        (
            "cost=0.005usd",
            "cost",
            4_978_000,
            280_000,
            "$0.004978 of $0.005 used in run 'r'; this call needs at least $0.00028 more and is refused ($0.004978 + $0.00028 > $0.005). ",
        ),
        (
            "tokens=100",
            "tokens",
            95,
            20,
            "95 of 100 tokens used in run 'r'; this call needs at least 20 more and is refused (95 + 20 > 100). Raise tokens",
        ),
        (
            "tokens=100",
            "tokens",
            40,
            80,
            "40 of 100 tokens used in run 'r'; this call needs at least 80 more, which does not fit (40 + 80 > 100). Send less, or",
        ),
        ("tokens=100:admission=after", "tokens", 120, 1, "120 of 100 tokens used in run 'r'; this call is refused (120 > 100). Raise "),
        (
            "tool.search=1",
            "tool.search",
            1,
            1,
            "1 of 1 call of tool 'search' used in run 'r'; this one is refused (1 + 1 > 1). Raise tool.search",
        ),
        (
            "charge.sql_rows=9",
            "sql_rows",
            9,
            1,
            "9 of 9 sql_rows used in run 'r'; this one is refused (9 + 1 > 9). Raise charge.sql_rows=9 or",
        ),
        ('charge."a b"=9', "a b", 8, 3, "8 of 9 'a b' used in run 'r'; 3 more are refused (8 + 3 > 9). Raise "),
        (
            "messages=4",
            "messages",
            0,
            6,
            "4 messages are allowed in run 'r'; this call makes it 6 and is refused (6 > 4). Raise messages=4 or",
        ),
        (
            "requests=2:per=day:by=user",
            "requests",
            2,
            1,
            "2 of 2 requests used in run 'r', day 2026-01-01 in UTC, user 'u42'; this one is refused (2 + 1 > 2). Raise ",
        ),
    ],
)
def test_the_fact_comes_first_and_the_arithmetic_after_it(alone, limit, kind, used, asked, sentence):
    run = run_of(root_of(alone), limit, name="r", user_id="u42")
    if used:
        grant = ask(run, kind, min(used, run.plan.accounts()[0].value))
        run.engine.settle(grant.op_id, {kind: used} if kind in (*Kind.__members__.values(),) else None)
    error = ask(run, kind, asked)
    assert str(error).startswith(sentence)


def test_what_others_hold_is_told_with_what_is_used(alone):
    run = run_of(root_of(alone), "tokens=100", name="r")
    spend(run, "tokens", 10)
    ask(run, "tokens", 80)
    error = ask(run, "tokens", 20)
    assert str(error) == (
        "10 of 100 tokens used in run 'r', 80 held by calls in flight; this call needs at least 20 more, and too little came free in time. "
        "Lower the concurrency, or raise tokens=100."
    )


def test_a_limit_event_says_when_it_resets(alone, clock):
    class Resets(Heard):
        def limit_event(self, event, at):
            self.told.append((event.event, event.resets_at))

    heard = Resets()
    alone.listeners.add(heard)
    root = root_of(alone)
    for limit in ("charge.rows=2:per=day", "charge.rows=2"):
        refusal_of(run_of(root, limit))
    tomorrow = NOON + timedelta(days=DAY / 2 / 86_400)
    assert heard.told == [(event, when) for when in (tomorrow, None) for event in ("limit_nearing", "limit_exceeded")]


def test_a_wrong_kind_is_still_a_configuration_error(alone):
    with pytest.raises(ConfigurationError):
        run_of(root_of(alone)).charge("tokens")
