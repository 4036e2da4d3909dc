"""What `ravi-otel top` writes in little room: each number is whole, or not there."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from types import MappingProxyType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from live_actors import limit, run, scope

from ravi_otel._cli.top import Layout
from ravi_otel._local import wording
from ravi_otel._local.live.client import Session, Watched, rows
from ravi_otel._local.live.protocol import ProcessState
from ravi_otel.errors import ConfigurationError

NUMBER = re.compile(r"[$>]*[\d.,]*\d[\d.,]*[A-Za-z%]*")
COUNTS = st.integers(0, 2**63 - 1) | st.integers(0, 3_000_000)
AMOUNTS = st.floats(0, 1e12) | st.sampled_from([1_500.0, 0.004941, 25_000_000.0, 123_456.78])
KINDS = MappingProxyType({"tokens": "{token}", "cost": "USD", "time": "s", "agents": "{agent}", "charge.rows_7": "1"})


@st.composite
def limits(draw):
    kind = draw(st.sampled_from(sorted(KINDS)))
    amount = AMOUNTS if kind in ("cost", "time") else COUNTS
    return limit(kind, draw(amount), draw(amount), held=draw(amount), unit=KINDS[kind])


def drawn(width, watched, *, ascii_only=False):
    layout = Layout(width, ascii_only=ascii_only)
    return [line.plain for row in rows([watched]) for line in (layout.line(row), *layout.limits(row))]


def numbers(lines):
    return {found.rstrip(".,") for found in NUMBER.findall("\n".join(lines))}


@settings(max_examples=40)
@given(
    width=st.integers(20, 200),
    ascii_only=st.booleans(),
    told=st.lists(limits(), max_size=4),
    counts=st.tuples(COUNTS, COUNTS, COUNTS),
    amounts=st.tuples(AMOUNTS, AMOUNTS, AMOUNTS),
    left_out=COUNTS,
    trouble=st.none() | st.just("has not answered for 123456 s"),
)
def test_every_number_that_is_shown_is_a_whole_one(width, ascii_only, told, counts, amounts, left_out, trouble):
    figures_of = {"input_tokens": counts[0], "output_tokens": counts[1], "cost_usd": amounts[0], "tokens_per_s": amounts[1]}
    inner = scope(
        "worker-1234567",
        "nightly-20260101",
        age_s=amounts[2],
        last_event="paid $1,234,567.89 of it",
        limits=tuple(told),
        limits_left_out=counts[0],
        **figures_of,
    )
    process = ProcessState(0, "agent 987654 here", 0.0, (run("nightly-20260101", inner),), left_out)
    watched = Watched(Session(Path("x"), 4_194_304), process, trouble)
    lines = drawn(width, watched, ascii_only=ascii_only)
    assert all(len(line) <= width for line in lines)
    assert numbers(lines) <= numbers(drawn(2_000, watched, ascii_only=ascii_only))


@pytest.mark.parametrize(
    ("kind", "used", "of", "width", "shown"),
    [
        ("tokens", 1_234_567, 25_000_000, 57, ["1,234,567 of 25,000,000"]),
        ("cost", 0.004941, 1_500.0, 54, ["$0.004941 of $1,500.00"]),
        ("tokens", 1_234_567, 25_000_000, 24, ["tokens 4 %", "1,234,567 of", "25,000,000"]),
    ],
)
def test_a_limit_in_little_room_loses_its_bar_and_then_takes_more_lines(kind, used, of, width, shown):
    lines = [line.plain for line in Layout(width).limit(limit(kind, used, of), width)]
    assert all(any(each in line for line in lines) for each in shown)
    assert all(len(line) <= width for line in lines)


@pytest.mark.parametrize(
    ("write", "value", "written"),
    [
        (wording.short, 2**63, "9.2E"),
        (partial(wording.short, estimated=True), 450_999, "~450k"),
        (partial(wording.short, estimated=True), 12_399, "~12.3k"),
        (wording.short_usd, 1_234.5, "$1,234.50"),
        (wording.short_usd, 1_234_567.0, "$1.2M"),
        (partial(wording.short_usd, estimated=True), 0.00017, "~$0.000170"),
        (partial(wording.short_usd, estimated=True, partly=True), 0.00017, "≥~$0.0001"),
        (wording.age, 86_400 * 1_000 * 12, "12.0kd"),
        (wording.age, -3, "0s"),
    ],
)
def test_large_figures_are_written_in_the_room_of_their_column(write, value, written):
    assert write(value) == written


def test_a_share_far_past_its_limit_is_not_cut():
    assert limit(used=12_345, of=10).share == ">999%"


@pytest.mark.parametrize(("typed", "value"), [("2.50", 2.5), ("1,000", 1_000), ("1,234.5", 1_234.5), ("12,345,678", 12_345_678)])
def test_thousands_may_be_written_apart(typed, value):
    assert limit("cost").read_amount(typed) == value


@pytest.mark.parametrize("typed", ["2,50", "2,5", "1,0000", "1,", ",5"])
def test_a_comma_that_parts_no_thousands_is_refused(typed):
    with pytest.raises(ConfigurationError, match="is no value for cost"):
        limit("cost").read_amount(typed)


@pytest.mark.parametrize(("left_out", "said"), [(0, []), (1_234, ["and 1,234 more than it tells of"])])
def test_below_the_limits_stands_how_many_more_there_are(left_out, said):
    inner = scope("a", "r", limits=(limit("tokens", 1, 2),), limits_left_out=left_out)
    process = ProcessState(0, "p.py", 0.0, (run("r", inner),))
    lines = drawn(80, Watched(Session(Path("x"), 1), process))
    assert [line.strip() for line in lines if "more than" in line] == said
