"""What is said while a launched program runs, where a limit is exceeded."""

import json

import pytest

from ravi_otel.launch.telling import sentence


def line(kind, **more):
    known = {
        "event": "limit_exceeded",
        "limit_kind": kind,
        "scope": "run",
        "scope_name": "r",
        "used": 3,
        "threshold": 2,
        "ratio": 1.5,
        "decision": "denied",
    }
    return json.dumps(known | more)


@pytest.mark.parametrize(
    ("kind", "what"),
    [
        ("tokens", "nothing more is sent"),
        ("requests", "nothing more is sent"),
        ("agents", "no more agents are let in"),
        ("agents_total", "no more agents are let in"),
        ("fan_out", "no more agents are let in"),
        ("depth", "no agents are let in below that"),
        ("tool_calls", "no more tool calls are let through"),
        ("tool.search", "no more tool calls are let through"),
    ],
)
def test_an_exceeded_limit_says_what_is_let_through_no_more(kind, what):
    assert sentence(line(kind)) == f"{kind} of run r exceeded: 3 of 2, {what}"


def test_a_limit_that_is_only_observed_says_so():
    assert sentence(line("agents", decision="observed")) == "agents of run r exceeded: 3 of 2, observed only: would be refused"
