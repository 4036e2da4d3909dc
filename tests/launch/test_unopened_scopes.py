"""Limits of agents, blocks and handoffs that a launched program never opens: the report says that they held nothing."""

import json
import sys

import pytest

CALL = """
import openai
def ask():
    openai.OpenAI(max_retries=0).chat.completions.create(model="gpt-4o-mini", messages=[{"role": "user", "content": "hi"}])
"""
HELD = "held for nothing"


def launched(desk, code, *limits, flags=("--json",)):
    done = desk.launch(
        sys.executable, "-c", "import ravi_otel\n" + code, flags=[*(word for limit in limits for word in ("--limit", limit)), *flags]
    )
    return done, [sentence for sentence in json.loads(done.err.splitlines()[-1])["said"] if HELD in sentence]


def test_a_limit_of_what_is_never_opened_is_said_and_is_no_failure(desk):
    done, said = launched(desk, "", "agent.requests=3")
    (sentence,) = said
    assert (done.status, done.run["outcome"]) == (0, "ok"), done.err
    assert sentence == "The limit agent.requests=3 held for nothing: no agent was opened in this program."
    assert sentence in done.run["notes"]


@pytest.mark.parametrize(
    ("one", "two", "three", "missed"),
    [
        (
            "agent.researcher.requests=3",
            "block.search.requests=3",
            "block.requests=3",
            "no agent 'researcher', no block 'search' and no block",
        ),
        ("tokens@writer=500", "agents_total@writer=3", "handoff.critic.messages=3", "no agent 'writer' and no handoff 'critic'"),
    ],
)
def test_each_kind_of_scope_that_is_never_opened_is_named(desk, one, two, three, missed):
    done, said = launched(desk, "", one, two, three)
    assert said == [f"The limits {one}, {two} and {three} held for nothing: {missed} was opened in this program."], done.err


def test_nothing_is_said_of_a_limit_whose_scope_is_opened_with_or_without_a_call(desk):
    limits = ["agent.requests=3", "agent.researcher.requests=3", "tokens@researcher=500", "block.requests=3", "block.search.requests=3"]
    opens = ["agent('researcher')", "apply_limits([], name='search')", "handoff('critic')"]
    opened = "".join(f"\nwith ravi_otel.{each}: pass" for each in opens)
    done, said = launched(desk, f"{CALL}ask(){opened}", *limits, "handoff.critic.messages=3")
    assert (done.status, said) == (0, []), done.err


def test_nothing_is_said_of_limits_of_the_whole_program(desk):
    done, said = launched(desk, "", "requests=3", "session.requests=3", "run.turns=3", "tool.search=3", "agents_total=3")
    assert (done.status, said) == (0, []), done.err


def test_what_a_process_opened_that_is_killed_is_known(desk):
    killed = "import os\nif not os.fork():\n    with ravi_otel.agent('writer'): os._exit(0)\nos.wait()"
    done, said = launched(desk, killed, "agent.requests=3")
    assert (done.status, said) == (0, []), done.err


def test_a_limit_that_refused_the_only_agent_did_not_hold_nothing(desk):
    tried = "try:\n    with ravi_otel.agent('writer'): pass\nexcept ravi_otel.RaviError: print('refused')"
    done, said = launched(desk, tried, "agents_total@writer=0")
    assert (done.out, done.status, said) == ("refused\n", 0, []), done.err


def test_several_limits_are_one_sentence(desk):
    limits, missed = "agent.researcher.turns=3 and block.search.turns=4", "no agent 'researcher' and no block 'search'"
    done, said = launched(
        desk, "with ravi_otel.agent('writer'): pass", "agent.researcher.turns=3", "block.search.turns=4", "agent.turns=5", "turns=6"
    )
    assert said == [f"The limits {limits} held for nothing: {missed} was opened in this program."], done.err


def test_the_report_in_words_has_it_beside_that_nothing_was_called(desk):
    done = desk.launch(sys.executable, "-c", "", flags=["--limit", "agent.requests=3"], COLUMNS="400")
    assert done.status == 0
    assert "No call of a model was seen" in done.report
    assert "The limit agent.requests=3 held for nothing: no agent was opened in this program." in done.report
