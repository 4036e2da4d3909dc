from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from recorded import Record, as_json
from rich.cells import cell_len

from ravi_otel._local.wording import amount, clean, count, milliseconds, money, percent
from ravi_otel.hooks._events import Spend
from ravi_otel.policy._limits import ScopeKind

HOSTILE = {
    "ansi": "ev\x1b[31mil\x1b]0;title\x07\x9b2J",
    "bidi": "abc\u202edef\u2066ghi\u200f",
    "markup": "[bold red]name[/] [link=http://x]y[/link] :boom:",
    "newline": "one\ntwo\r\nthree\u2028four\tfive",
    "nul": "nul\x00bell\x07back\x08del\x7f",
    "surrogate": "half \ud83d pair",
    "stacked": "z" + "\u0300" * 500 + "algo",
    "wide": "注文" * 40,
    "long": "x" * 10_000,
    "empty": "",
}
WIDTHS = (40, 80, 200)


def rows(text: str) -> list[str]:
    return text.splitlines()


def row_of(text: str, word: str) -> str:
    return next(row for row in rows(text) if word in row)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_name_neither_moves_the_cursor_nor_breaks_the_layout(story, shown, name, width):
    run = story.run(name, limits=[story.reading(events=(name,))], spent=Spend(requests=1, input_tokens=1, output_tokens=1))
    agent = story.agent(name, run)
    story.call(agent, model=name)
    story.tool(agent, name)
    story.refusal(agent, name)
    story.record.limit_event(story.event(agent, scope_name=name, limit_kind=name), None)
    text = shown(width)
    assert all(char == "\n" or char.isprintable() for char in text)
    assert all(cell_len(row) <= width for row in rows(text))


def test_markup_in_a_name_is_shown_as_it_is_written(story, shown):
    story.run("[bold red]name[/] :boom:")
    assert "run [bold red]name[/] :boom:" in shown()


@given(st.text(), st.integers(1, 100))
def test_a_cleaned_name_is_one_printable_line_no_longer_than_asked(name, most):
    found = clean(name, most)
    assert len(found) <= most
    assert all(char.isprintable() for char in found)


@pytest.mark.parametrize("width", WIDTHS)
def test_the_tree_shows_who_did_what_with_its_figures(story, shown, width):
    run = story.run(spent=Spend(requests=1, input_tokens=1_210, output_tokens=80, cost_usd=0.00025, duration_s=0.5))
    agent = story.agent("clerk", run)
    story.call(agent, (1_210, 80), retries=story.retries(2))
    story.tool(agent, "look_up")
    text = shown(width)
    for words in ("run desk", "agent clerk", "chat m-1", "2 retries", "tool look_up", "1,210", "80", "$0.000250", "500"):
        assert words in text


def test_colors_are_for_terminals_only(story, shown):
    story.refusal(story.run())
    assert "\x1b[" in shown(terminal=True)
    assert "\x1b" not in shown(terminal=False)


def test_no_color_is_respected_on_a_terminal(story, shown, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    story.refusal(story.run())
    assert not re.search(r"\x1b\[[0-9;]*3[0-7]", shown(terminal=True))


@pytest.mark.parametrize("encoding", ["ascii", "cp1252", "latin-1"])
def test_an_output_that_cannot_carry_the_guides_gets_plain_ones(story, shown, encoding):
    run = story.run("注文…", limits=[story.reading()])
    for _ in range(20):
        story.refusal(run)
    assert "`- ... 19 more refused" in shown(encoding=encoding)


def test_unknown_usage_and_cost_are_question_marks_and_never_zero(story, shown):
    story.call(story.run(spent=Spend(requests=1, unpriced_calls=1)), None, None)
    text = shown()
    assert row_of(text, "chat m-1").split()[-3:] == ["?", "?", "?"]
    assert row_of(text, "run desk").split()[-3:] == ["?", "?", "?"]
    assert "? unknown" in text


def test_a_known_usage_without_a_price_shows_tokens_and_an_unknown_cost(story, shown):
    story.call(story.run(spent=Spend(requests=1, input_tokens=210, output_tokens=80, unpriced_calls=1)), cost=None)
    text = shown()
    assert row_of(text, "chat m-1").split()[-3:] == ["210", "80", "?"]
    assert row_of(text, "run desk").split()[-3:] == ["210", "80", "?"]


def test_a_sum_of_which_a_part_is_unknown_says_at_least(story, shown):
    run = story.run(spent=Spend(requests=2, input_tokens=210, output_tokens=80, cost_usd=0.00025, unpriced_calls=1))
    story.call(run)
    story.call(run, None, None)
    assert row_of(shown(), "run desk").split()[-3:] == ["≥210", "≥80", "≥$0.000250"]


def test_estimates_carry_a_tilde(story, shown):
    story.call(story.run(spent=Spend(requests=1, input_tokens=210, output_tokens=80, cost_usd=0.00025)), source="estimated")
    text = shown()
    assert row_of(text, "chat m-1").split()[-3:] == ["~210", "~80", "~$0.000250"]
    assert row_of(text, "run desk").split()[-3:] == ["~210", "~80", "~$0.000250"]


def test_output_that_nobody_counted_is_unknown_although_the_input_was_estimated(story, shown):
    story.call(story.run(), (210, 0), status="error", source="estimated", error_type="APITimeoutError")
    assert row_of(shown(), "chat m-1").split()[-3:] == ["~210", "?", "≥~$0.000250"]


def test_a_price_of_an_assumed_provider_is_an_estimate_though_the_tokens_are_exact(story, shown):
    story.call(story.run(), cost_source="assumed")
    assert row_of(shown(), "chat m-1").split()[-3:] == ["210", "80", "~$0.000250"]


def test_a_call_that_was_never_sent_has_no_figures(story, shown):
    run = story.run()
    story.refusal(run)
    assert row_of(shown(), "refused").split() == ["└─", "chat", "m-1", "refused"]


def test_a_refusal_says_why(story, shown):
    story.refusal(story.run(), "Token budget exceeded: 95 + 20 > 100 in agent 'chaser'.")
    assert "x Token budget exceeded: 95 + 20 > 100 in agent 'chaser'." in shown()


def test_what_a_provider_said_is_not_kept(story, shown):
    story.call(story.run(), None, None, status="error", error=ValueError("the prompt: my secret"), error_type="BadRequestError")
    assert "BadRequestError" in shown()
    assert "secret" not in shown() + as_json(story.record)


def test_a_call_that_is_not_over_is_open(story, shown):
    story.begin(story.run())
    assert "chat m-1  open" in shown()


def test_the_warning_stands_below_the_call_that_brought_it_about(story, shown):
    run = story.run()
    started = story.begin(run)
    story.record.limit_event(story.event(run), started)
    story.end(started)
    text = rows(shown())
    at = next(at for at, row in enumerate(text) if "chat m-1" in row)
    assert "! 83 % of the tokens of run desk: 83 of 100" in text[at + 1]


@pytest.mark.parametrize("width", WIDTHS)
def test_a_long_run_of_refusals_is_folded(story, shown, width):
    run = story.run()
    for _ in range(13):
        story.refusal(run)
    assert shown(width).count("chat m-1  refused") == 1
    assert "… 12 more refused" in shown(width)


def test_folded_calls_show_the_top_spenders_and_the_sum_of_the_rest(story, shown):
    run = story.run()
    for cost in (1, 900, 2, 3, 800, 4, 700, 5):
        story.call(run, (cost, 1), cost * 1_000)
    text = shown()
    assert [row.split()[-3] for row in rows(text) if "chat m-1" in row] == ["900", "800", "700", "15"]
    assert "… 5 more chat m-1" in text


def test_a_call_of_unknown_cost_is_never_folded_away_behind_known_ones(story, shown):
    run = story.run()
    for cost in range(8):
        story.call(run, (cost, 1), cost)
    story.call(run, None, None)
    assert "?" in rows(shown())[2]


def test_a_call_with_a_warning_is_never_folded(story, shown):
    run = story.run()
    for at in range(20):
        started = story.begin(run)
        if at == 10:
            story.record.limit_event(story.event(run), started)
        story.end(started)
    assert "! 83 %" in shown()


def test_many_like_agents_are_folded(story, shown):
    run = story.run()
    for _ in range(40):
        story.agent("worker", run)
    assert "… 37 more agent worker" in shown()


def test_a_very_deep_tree_is_shown_within_the_width(story, shown):
    place = story.run()
    for at in range(2_000):
        place = story.agent(f"a{at}", place)
    text = shown(40)
    assert all(cell_len(row) <= 40 for row in rows(text))
    assert "agent a1999" in text


@pytest.mark.parametrize("width", WIDTHS)
def test_the_budget_table_has_the_worst_first(story, shown, width):
    run = story.run(limits=[story.reading("cost", 50_000_000, 0.01), story.reading("requests", 5, 1)])
    story.agent("chaser", run, limits=[story.reading("tokens", 1_000, 990, events=("limit_nearing", "limit_exceeded"), denied=12, held=7)])
    text = shown(width)
    order = [text.index(words) for words in ("tokens", "requests", "$0.05")]
    assert order == sorted(order)
    for words in ("agent chaser", "1,000", "990", "7", "99", "nearing", "exceeded", "12", "$0.01"):
        assert words in text


def test_hundreds_of_limits_end_in_a_sentence(story, shown):
    run = story.run()
    for at in range(100):
        story.agent(f"a{at}", run, limits=[story.reading(used=at)])
    assert "… 70 more limits, none above 69 %" in shown()


def test_what_is_past_the_bound_is_counted_and_said(story, shown):
    record = Record(most=3)
    story.record = record
    run = story.run()
    for _ in range(5):
        story.call(run)
    story.tool(run, "t")
    story.agent("late", run)
    assert len(record) == 3
    assert "Not shown, past the first 3 entries: 1 scopes, 3 calls, 1 tools." in shown(what=record)


def test_nothing_recorded_is_said(shown):
    assert "Nothing was recorded." in shown()


def test_a_process_around_runs_is_shown_only_when_it_made_calls(story, shown):
    process = story.scope(ScopeKind.PROCESS, limits=[story.reading()])
    story.run(parent=process)
    assert rows(shown())[1].startswith("run desk")
    assert "process" in shown()
    story.call(process)
    assert rows(shown())[1].startswith("process")


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (money(None), "?"),
        (money(0), "$0"),
        (money(1), "<$0.000001"),
        (money(52_000), "$0.000052"),
        (money(123_400_000), "$0.1234"),
        (money(12_345_000_000_000), "$12,345.00"),
        (count(None), "?"),
        (count(0), "0"),
        (count(0, estimated=True), "?"),
        (milliseconds(None), "?"),
        (milliseconds(999_999), "<1"),
        (milliseconds(1_999_999_999), "1,999"),
        (amount("cost", 0.05), "$0.05"),
        (amount("cost", 10), "$10.00"),
        (amount("time", 90.0), "90 s"),
        (amount("time", 0.74), "0.7 s"),
        (amount("tokens", 12_000), "12,000"),
        (percent(0.7999), "79 %"),
        (percent(0.29), "29 %"),
        (percent(float("inf")), "> 1e9 %"),
        (percent(float("nan")), "?"),
    ],
)
def test_amounts_are_written_for_people(written, expected):
    assert written == expected


def test_calls_and_tools_that_take_turns_are_folded_wherever_they_stand(story, shown):
    run = story.run()
    for number in range(100):
        story.call(run, (10 + number, 5))
        story.tool(run, "look_up")
    text = shown()
    assert len(rows(text)) < 15
    assert "… 97 more chat m-1" in text
    assert "… 97 more tool look_up" in text
    assert row_of(text, "chat m-1").split()[-3] == "109"


def test_many_that_are_not_alike_are_ranked_and_the_rest_is_one_line(story, shown):
    run = story.run()
    for number in range(60):
        story.agent(f"agent-{number}", run, spent=Spend(requests=1, input_tokens=number, cost_usd=number / 100))
        story.call(run, model=f"m-{number}")
    text = shown()
    assert len(rows(text)) < 40
    assert row_of(text, "agent-").split()[2] == "agent-59"
    assert "more: " in text
    assert re.search(r"… 91 more: \d+ agents, \d+ calls|… 91 more: \d+ calls, \d+ agents", text)
