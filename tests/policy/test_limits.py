from __future__ import annotations

import dataclasses
import decimal
import math
import pickle
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ravi_otel.errors import ConfigurationError
from ravi_otel.policy import (
    Admission,
    Kind,
    Limit,
    Outcome,
    ScopeKind,
    cost_limit,
    message_limit,
    parse_limit,
    request_limit,
    time_limit,
    token_limit,
    tool_call_limit,
    turn_limit,
    working_limit,
)
from ravi_otel.policy._limits import UNITS

COUNTS = {
    token_limit: Kind.TOKENS,
    turn_limit: Kind.TURNS,
    message_limit: Kind.MESSAGES,
    tool_call_limit: Kind.TOOL_CALLS,
    request_limit: Kind.REQUESTS,
}
CLOCKS = {time_limit: Kind.TIME, working_limit: Kind.WORKING}


def name_of(value):
    return getattr(value, "__name__", None)


@pytest.mark.parametrize("make", COUNTS, ids=name_of)
@pytest.mark.parametrize("number", [0, 1, 2**53])
def test_a_count_is_kept_as_it_is(make, number):
    assert make(number) == Limit(kind=COUNTS[make], value=number)


@pytest.mark.parametrize("make", COUNTS, ids=name_of)
@pytest.mark.parametrize("wrong", [-1, 1.5, 5.0, True, "5", None, math.nan, 2**53 + 1, pytest.param(10**5000, id="huge")])
def test_a_count_must_be_a_whole_number(make, wrong):
    with pytest.raises(
        ConfigurationError, match=r"^\w+\(n\)=.* must be a whole number from 0 to 2\*\*53 \(0 allows nothing(; with a unit .*)?\)\.$"
    ):
        make(wrong)


@pytest.mark.parametrize("kind", [Kind.TOKENS, "tokens", "sql_rows"])
def test_a_kind_is_plain_text_however_it_was_written(kind):
    made = Limit(kind=kind, value=5)
    assert [type(each.kind) for each in (made, dataclasses.replace(made, value=6), pickle.loads(pickle.dumps(made)))] == [str] * 3
    assert (type(token_limit(5).kind), type(parse_limit("tokens=5").kind), made.kind) == (str, str, kind)


@pytest.mark.parametrize("make", CLOCKS, ids=name_of)
@pytest.mark.parametrize(
    ("seconds", "nano"), [(0, 0), (90, 90 * 10**9), (0.5, 5 * 10**8), (1e-9, 1), (1e-12, 1), (5e-324, 1), (0.1, 10**8)]
)
def test_seconds_become_nanoseconds(make, seconds, nano):
    assert make(seconds) == Limit(kind=CLOCKS[make], value=nano)


@pytest.mark.parametrize("make", CLOCKS, ids=name_of)
@pytest.mark.parametrize("wrong", [-1, -0.1, True, "90s", None, math.nan, math.inf, 1e300, pytest.param(10**5000, id="huge")])
def test_seconds_must_be_finite_and_not_negative(make, wrong):
    with pytest.raises(ConfigurationError, match=r"^\w+\(s\)=.* must be a number of seconds such as 90"):
        make(wrong)


@pytest.mark.parametrize(
    ("usd", "nano"),
    [
        (0, 0),
        (1, 10**9),
        (0.1, 10**8),
        (0.1 + 0.2, 3 * 10**8),
        ("2.50", 25 * 10**8),
        (" 2.5 ", 25 * 10**8),
        (Decimal("0.000000001"), 1),
        (1e-9, 1),
        (9_000_000_000, 9 * 10**18),
        (Decimal("-0"), 0),
        (Decimal("0e-90"), 0),
    ],
)
def test_a_cost_becomes_nano_usd(usd, nano):
    assert cost_limit(usd) == Limit(kind=Kind.COST, value=nano)


@pytest.mark.parametrize(
    "wrong",
    [
        *(-1, -0.01, True, None, "", "two", "2,50", "$2", math.nan, math.inf, [], 1e300),
        *(
            "nan",
            "sNaN",
            "1e999999999999999999",
            "1e400",
            "9" * 5_000,
            f"1.{'0' * 70}1",
            Decimal("Infinity"),
            Decimal("sNaN"),
            Decimal("1e-1000000"),
        ),
        pytest.param(10**5000, id="huge"),
    ],
)
def test_a_cost_must_be_a_number_and_not_negative(wrong):
    with pytest.raises(ConfigurationError, match=r"^cost_limit\(usd\)=.* must be an amount of USD such as 2\.50"):
        cost_limit(wrong)


@pytest.mark.parametrize("wrong", ["0.0000000001", Decimal("1.0000000001"), 1e-10, 1e-50])
def test_a_cost_too_fine_to_count_is_refused_rather_than_rounded(wrong):
    with pytest.raises(ConfigurationError, match=r"^cost_limit\(usd\)=.* is too fine: the smallest step is 0\.000000001 USD"):
        cost_limit(wrong)


def test_no_decimal_context_of_the_program_changes_a_cost():
    with decimal.localcontext(decimal.Context(prec=2, traps=[decimal.Inexact, decimal.Rounded, decimal.FloatOperation])):
        assert cost_limit("1234.567891234").value == 1_234_567_891_234
        assert cost_limit(0.1 + 0.2).value == 300_000_000
        assert time_limit(0.1).value == 100_000_000


@given(st.integers(0, 9 * 10**18))
def test_every_nano_usd_can_be_written(nano):
    assert cost_limit(Decimal(nano).scaleb(-9, decimal.Context(prec=30))).value == nano


@given(st.floats())
def test_no_float_gets_past_the_checks_as_something_else(value):
    try:
        limit = cost_limit(value)
    except ConfigurationError:
        assert math.isnan(value) or value < 0 or value > 9e9 or 0 < value < 1e-9
    else:
        assert math.isclose(limit.amount, value, rel_tol=1e-12, abs_tol=6e-10)


def test_a_limit_of_one_tool_names_it():
    limit = tool_call_limit(5, tool="search")

    assert (limit.kind, limit.detail, limit.label) == (Kind.TOOL_CALLS, "search", "tool.search")


@pytest.mark.parametrize("wrong", ["", "a\nb", 3])
def test_a_tool_needs_a_name(wrong):
    with pytest.raises(ConfigurationError, match=r"^tool="):
        tool_call_limit(5, wrong)


def test_every_keyword_is_kept():
    limit = cost_limit(
        2,
        scope="agent",
        name="researcher",
        per="week",
        tz="Europe/Berlin",
        by="tag.team",
        warn_at=0.5,
        on_exceed="stop",
        admission="strict",
        on_unpriced="warn",
        on_unbounded="window",
        on_store_failure="open",
    )

    assert limit == Limit(
        kind=Kind.COST,
        value=2 * 10**9,
        scope=ScopeKind.AGENT,
        scope_name="researcher",
        per="week",
        tz="Europe/Berlin",
        by="tag.team",
        warn_at=0.5,
        on_exceed=Outcome.STOP,
        admission=Admission.STRICT,
        on_unpriced="warn",
        on_unbounded="window",
        on_store_failure="open",
    )
    assert type(limit.scope) is ScopeKind
    assert type(limit.on_exceed) is Outcome


def test_members_of_the_enums_are_taken_as_they_are():
    limit = token_limit(5, scope=ScopeKind.RUN, on_exceed=Outcome.OBSERVE, admission=Admission.AFTER)

    assert (limit.scope, limit.on_exceed, limit.admission) == (ScopeKind.RUN, Outcome.OBSERVE, Admission.AFTER)


def test_none_is_what_an_optional_keyword_is_without():
    assert token_limit(5, scope=None, name=None, per=None, by=None, warn_at=None, admission=None, on_store_failure=None) == token_limit(5)


@pytest.mark.parametrize("per", ["minute", "hour", "day", "week", "month", "1s", "15m", "24h", "9999999d"])
def test_a_window_is_of_the_calendar_or_a_duration(per):
    assert token_limit(5, per=per).per == per


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        *(("scope", wrong) for wrong in ["agnt", "process", "", 3]),
        *(("per", wrong) for wrong in ["", "s", "m", "0m", "015m", "-1m", "1.5h", "\u0661m", "15", "15x", "fortnight", "99999999d", 15]),
        *(("tz", wrong) for wrong in ["Mars", "", "../../etc/passwd", "/etc/passwd", "a\x00b", "x" * 5000, "\ud800", "Europe", None, 3]),
        *(("by", wrong) for wrong in ["", "me", "tag.", "tag.a b", "tag.a:b", "users", 3]),
        *(("warn_at", wrong) for wrong in [0, -0.5, 1.1, math.nan, math.inf, True, "0.8"]),
        *(("on_exceed", wrong) for wrong in ["explode", None, True]),
        *(("admission", wrong) for wrong in ["loose", 3]),
        *(("on_unpriced", wrong) for wrong in ["ignore", None]),
        *(("on_unbounded", wrong) for wrong in ["ignore", None]),
        *(("on_store_failure", wrong) for wrong in ["ignore", "local", 0]),
    ],
)
def test_a_wrong_value_of_a_keyword_is_named(field, wrong):
    with pytest.raises(ConfigurationError, match=rf"^{field}="):
        token_limit(5, **{field: wrong})


def test_a_value_close_to_a_known_word_is_guessed():
    with pytest.raises(ConfigurationError, match=r"'agnt' is unknown: give one of 'tenant', .*; did you mean 'agent'\?$"):
        token_limit(5, scope="agnt")


@pytest.mark.parametrize("make", [*COUNTS, *CLOCKS, cost_limit], ids=name_of)
def test_a_wrong_keyword_lists_the_right_ones(make):
    with pytest.raises(
        ConfigurationError,
        match=r"^'warnat' is no keyword of a limit; did you mean warn_at=\? It takes scope, name, warn_at, on_exceed, per",
    ):
        make(5, warnat=0.5)


def test_a_keyword_close_to_nothing_is_not_guessed():
    with pytest.raises(ConfigurationError, match=r"^'zzz' is no keyword of a limit\. It takes scope"):
        token_limit(5, zzz=1)


@pytest.mark.parametrize("scope", [None, "run", "session", "tenant"])
def test_a_name_belongs_to_a_handoff_a_block_or_an_agent(scope):
    with pytest.raises(ConfigurationError, match=r"^name='x' names a handoff, block or agent: give scope="):
        token_limit(5, scope=scope, name="x")


@pytest.mark.parametrize("scope", ["handoff", "block", "agent"])
def test_a_template_may_name_its_scope_or_be_for_all(scope):
    assert token_limit(5, scope=scope, name="x").scope_name == "x"
    assert token_limit(5, scope=scope).scope_name is None


def test_a_limit_is_a_frozen_value():
    limit = token_limit(5)

    with pytest.raises(dataclasses.FrozenInstanceError):
        limit.value = 6
    assert {limit, token_limit(5)} == {limit}
    assert pickle.loads(pickle.dumps(limit)) == limit


@pytest.mark.parametrize(
    ("limit", "amount"),
    [(cost_limit("2.50"), 2.5), (time_limit(90), 90.0), (working_limit(0.5), 0.5), (token_limit(5), 5)],
    ids=["cost", "time", "working", "tokens"],
)
def test_an_amount_is_read_in_its_public_unit(limit, amount):
    assert limit.amount == amount


@pytest.mark.parametrize(
    ("limit", "label"),
    [
        (Limit(kind="tokens", value=1), "tokens"),
        (Limit(kind="tokens", value=1, agent="researcher"), "tokens@researcher"),
        (Limit(kind="tool_calls", value=1, detail="search", agent="x"), "tool.search@x"),
    ],
    ids=["kind", "agent", "tool"],
)
def test_a_label_is_the_kind_as_the_grammar_writes_it(limit, label):
    assert limit.label == label


@pytest.mark.parametrize("kind", Kind)
def test_every_kind_has_a_unit(kind):
    assert UNITS[kind]
