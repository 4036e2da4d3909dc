"""A line under the text of a cut stream says which limit stopped it: off unless asked for, and there once (enforcement §7)."""

import pickle
import re

import pytest

import ravi_otel
from ravi_otel import BudgetExhaustedError, ConfigurationError, footer
from ravi_otel._runtime.footers import footed
from ravi_otel.testing import Text

WORDS = "word " * 400
LINE = r"\[stopped by the output token limit of run 'r': \d+ of 100 by our count\]"


def error(**fields):
    return BudgetExhaustedError(
        "no", **{"scope": "run", "run_name": "x", "limit_kind": "tokens", "used": 4200, "threshold": 4000, **fields}
    )


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ({}, "[stopped by the token limit of run 'x': 4200 of 4000]"),
        ({"limit_kind": "cost", "used": 0.5, "threshold": 0.25}, "[stopped by the cost limit of run 'x': $0.50 of $0.25]"),
        ({"limit_kind": "time", "used": 91.5, "threshold": 90}, "[stopped by the time limit of run 'x': 91.5 s of 90 s]"),
        ({"limit_kind": "tool.search"}, "[stopped by the limit of tool 'search' of run 'x': 4200 of 4000]"),
        ({"limit_kind": "tokens(uncached)"}, "[stopped by the token limit (uncached) of run 'x': 4200 of 4000]"),
        ({"limit_kind": "sql_rows"}, "[stopped by the limit of 'sql_rows' of run 'x': 4200 of 4000]"),
        ({"scope": "agent", "agent_name": "a\nb"}, "[stopped by the token limit of agent 'a\\nb': 4200 of 4000]"),
        ({"scope": "session"}, "[stopped by the token limit of this session: 4200 of 4000]"),
        ({"run_name": None}, "[stopped by the token limit of this run: 4200 of 4000]"),
        ({"estimated": True}, "[stopped by the token limit of run 'x': 4200 of 4000 by our count]"),
        ({"used": None}, "[stopped by the token limit of run 'x']"),
        ({"limit_kind": None}, ""),
    ],
)
def test_it_names_the_limit_and_the_figures(fields, line):
    assert footer(error(**fields)) == line
    assert footer(pickle.loads(pickle.dumps(error(**fields)))) == line


def test_what_is_no_limits_error_has_none():
    assert footer(ValueError("x")) == footer(ravi_otel.CancellationError()) == ""


def cut(stage, client, ask):
    """Give the error of a stream that was cut in a run which it stopped, with that run."""
    stage.answer = Text(WORDS, chunks=100)
    caught = None
    with ravi_otel.run("r", limits=["output_tokens=100:on=stop"]) as run:
        try:
            for _ in ask(client, stream=True):
                pass
        except BudgetExhaustedError as error:
            caught = error
            raise
    return caught, run


def test_it_is_off_by_default(stage, client, ask):
    caught, run = cut(stage, client, ask)
    assert run.status == "stopped"
    assert WORDS.startswith(caught.partial.rstrip("\n"))
    assert run.partial == caught.partial


@pytest.mark.parametrize("how", ["keyword", "variable"])
def test_it_is_put_under_what_came_once(stage, ask, how, monkeypatch):
    if how == "variable":
        monkeypatch.setenv("RAVI_FOOTERS", "1")
    with ravi_otel.instrument(footers=True if how == "keyword" else None), stage.client() as client:
        caught, run = cut(stage, client, ask)
        again = footed(footed(caught))
    text, _, line = caught.partial.rpartition("\n")
    assert WORDS.startswith(text)
    assert text
    assert re.fullmatch(LINE, line)
    assert (line, run.partial, again.partial.count("[stopped")) == (footer(caught), caught.partial, 1)


def test_code_is_stronger_than_the_variable(stage, ask, monkeypatch):
    monkeypatch.setenv("RAVI_FOOTERS", "on")
    with ravi_otel.instrument(footers=False), stage.client() as client:
        assert "[stopped" not in cut(stage, client, ask)[0].partial


def test_what_is_neither_on_nor_off_is_an_error():
    with pytest.raises(ConfigurationError, match="footers"):
        ravi_otel.instrument(footers="yes")
