"""Limits of agents, blocks and handoffs that a launched program never opens: the report says that they held nothing."""

import json
import sys

import pytest

CALL = """
import openai, ravi_otel
def ask():
    openai.OpenAI(max_retries=0).chat.completions.create(model="gpt-4o-mini", messages=[{"role": "user", "content": "hi"}])
"""
HELD = "held for nothing"


def launched(desk, code, *limits, flags=("--json",)):
    done = desk.launch(sys.executable, "-c", CALL + code, flags=[*(word for limit in limits for word in ("--limit", limit)), *flags])
    return done, [sentence for sentence in json.loads(done.err.splitlines()[-1])["said"] if HELD in sentence]


@pytest.mark.parametrize(
    ("limit", "missed"),
    [
        ("agent.requests=3", "no agent"),
        ("agent.researcher.requests=3", "no agent 'researcher'"),
        ("tokens@researcher=500", "no agent 'researcher'"),
        ("agents_total@researcher=3", "no agent 'researcher'"),
        ("block.search.requests=3", "no block 'search'"),
        ("handoff.researcher.messages=3", "no handoff 'researcher'"),
    ],
)
def test_a_limit_of_what_is_never_opened_is_said_and_is_no_failure(desk, limit, missed):
    done, said = launched(desk, "ask()", limit)
    (sentence,) = said
    assert (done.status, desk.sent, done.run["outcome"]) == (0, 1, "ok"), done.err
    assert sentence == f"The limit {limit} held for nothing: {missed} was opened in this program."
    assert sentence in done.run["notes"]


@pytest.mark.parametrize(
    ("limit", "opens"),
    [
        ("agent.requests=3", "agent('writer')"),
        ("agent.researcher.requests=3", "agent('researcher')"),
        ("tokens@researcher=500", "agent('researcher')"),
        ("block.requests=3", "apply_limits([], name='search')"),
        ("block.search.requests=3", "apply_limits([], name='search')"),
        ("handoff.researcher.messages=3", "handoff('researcher')"),
    ],
)
def test_nothing_is_said_of_a_limit_whose_scope_is_opened_with_or_without_a_call(desk, limit, opens):
    done, said = launched(desk, f"ask()\nwith ravi_otel.{opens}: pass", limit)
    assert (done.status, said) == (0, []), done.err


@pytest.mark.parametrize("limit", ["requests=3", "session.requests=3", "run.requests=3", "tool.search=3", "agents_total=3"])
def test_nothing_is_said_of_limits_of_the_whole_program(desk, limit):
    done, said = launched(desk, "ask()", limit)
    assert (done.status, said) == (0, []), done.err


def test_what_a_process_opened_that_is_killed_is_known(desk):
    killed = "import os\nif not os.fork():\n    with ravi_otel.agent('writer'): os._exit(0)\nos.wait()\nask()"
    done, said = launched(desk, killed, "agent.requests=3")
    assert (done.status, said) == (0, []), done.err


def test_a_limit_that_refused_the_only_agent_did_not_hold_nothing(desk):
    tried = "ask()\ntry:\n    with ravi_otel.agent('writer'): pass\nexcept ravi_otel.RaviError: print('refused')"
    done, said = launched(desk, tried, "agents_total@writer=0")
    assert (done.out, done.status, said) == ("refused\n", 0, []), done.err


def test_several_limits_are_one_sentence(desk):
    limits, missed = "agent.researcher.turns=3 and block.search.turns=4", "no agent 'researcher' and no block 'search'"
    done, said = launched(
        desk, "with ravi_otel.agent('writer'): ask()", "agent.researcher.turns=3", "block.search.turns=4", "agent.turns=5", "turns=6"
    )
    assert said == [f"The limits {limits} held for nothing: {missed} was opened in this program."], done.err


def test_the_report_in_words_has_it_beside_that_nothing_was_called(desk):
    done = desk.launch(sys.executable, "-c", "", flags=["--limit", "agent.requests=3"], COLUMNS="400")
    assert done.status == 0
    assert "No call of a model was seen" in done.report
    assert "The limit agent.requests=3 held for nothing: no agent was opened in this program." in done.report
