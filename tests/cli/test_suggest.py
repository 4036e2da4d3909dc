from __future__ import annotations

import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ravi_otel._cli.suggest import rounded_up
from ravi_otel._runtime.config import effective
from ravi_otel.policy._grammar import parse_limit


def fill(shelf, number=10, name="clerk", **agent):
    for at in range(1, number + 1):
        run = shelf.add(seconds=10.0 * at)
        shelf.call(run, (at * 1_000, 0), at / 100, agent=name, parent=shelf.agent(run, name, seconds=at, **agent))


def limits_of(done):
    assert done.exit_code == 0, done.stderr
    return tomllib.loads(done.stdout)["limits"]


def test_the_suggestion_is_a_policy_file_with_the_p95_and_head_room(shelf, tmp_path):
    fill(shelf)
    done = shelf("suggest")
    assert limits_of(done) == [
        "tokens=13k", "cost=0.13usd", "requests=2", "time=130s",
        "agent.clerk.tokens=13k", "agent.clerk.cost=0.13usd", "agent.clerk.turns=2", "agent.clerk.time=13s",
    ]  # fmt: skip
    path = tmp_path / "policy.toml"
    path.write_text(done.stdout)
    assert [each.spec for each in effective(file=path, environ={}).limits] == limits_of(done)
    assert '"tokens=13k",  # p50 5,000, p95 10,000, max 10,000, n=10' in done.stdout
    assert "plus 25 % head-room" in done.stdout


def test_the_head_room_is_what_is_asked_for(shelf):
    fill(shelf)
    assert limits_of(shelf("suggest", "--headroom", "0"))[0] == "tokens=10k"
    assert limits_of(shelf("suggest", "--headroom", "100"))[0] == "tokens=20k"


def test_one_agent_alone_has_no_limits_of_the_run(shelf):
    fill(shelf)
    fill(shelf, name="boss")
    assert {limit.split(".")[1] for limit in limits_of(shelf("suggest", "--agent", "boss"))} == {"boss"}


def test_too_little_data_is_said_and_nothing_is_suggested(shelf):
    fill(shelf, 3)
    done = shelf("suggest")
    assert tomllib.loads(done.stdout) == {}, "an empty list of limits would look like a policy"
    assert "No limit is suggested" in done.stderr
    assert "# tokens: too little data, n=3; 5 are needed" in done.stdout


def test_what_is_not_known_is_no_ground_for_a_limit(shelf):
    fill(shelf, 5)
    for _ in range(3):
        shelf.call(shelf.add(), None, None)
    for _ in range(4):
        shelf.call(shelf.add(), (10, 10), None)
    done = shelf("suggest")
    assert "max 5,000, n=9, 3 more not fully known" in done.stdout
    assert "p50 $0.03, p95 $0.05, max $0.05, n=5, 7 more not fully known" in done.stdout


def test_agents_that_a_limit_ended_are_said_to_need_more(shelf):
    fill(shelf, 6, status="stopped", stop_reason="limit_tokens")
    assert "# 6 of 6 ended at a limit, so that they may need more than is seen here" in shelf("suggest").stdout


def test_runs_that_went_past_the_suggestion_are_counted(shelf):
    for at in range(40):
        shelf.call(shelf.add(), (1_000_000 if at == 7 else 100, 0), 0.01)
    assert '"tokens=130",  # p50 100, p95 100, max 1,000,000, n=40; 1 went past this' in shelf("suggest").stdout


def test_what_goes_on_or_is_of_another_name_or_time_does_not_count(shelf):
    for changes in ({"outcome": "running", "seconds": None}, {"name": "other"}, {"ago": 7_200}):
        for _ in range(5):
            shelf.call(shelf.add(**changes))
    done = shelf("suggest", "--name", "desk", "--since", "1h")
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith("Error: There is no finished run to learn from.")


def test_an_agent_nobody_knows_is_a_sentence(shelf):
    fill(shelf)
    done = shelf("suggest", "--agent", "ghost")
    assert (done.exit_code, len(done.stderr.splitlines())) == (2, 1)


@pytest.mark.parametrize("name", ['a"b', "a\\b", "a.b", "tokens", "agent.x=1", "注文", "a b", "# x", "x\n]"])
def test_a_policy_with_hostile_names_is_still_one(shelf, name):
    fill(shelf, 5, name=name)
    found = tomllib.loads(shelf("suggest", "--agent", name).stdout).get("limits", [])
    names = {parse_limit(spec).scope_name for spec in found}
    assert names in ({name}, set())
    assert names == {name} or "\n" in name


@given(st.integers(0, 10**18), st.integers(1, 1_000))
def test_rounding_up_never_takes_away_and_adds_a_tenth_at_most(value, parts):
    found = rounded_up(value, parts)
    assert found * parts >= value
    assert found <= max(value / parts * 1.1 + 1, 1)


def test_a_name_of_no_run_is_a_sentence(shelf):
    fill(shelf, 1)
    done = shelf("suggest", "--name", "nope")
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith("Error: --name 'nope' is the name of no run.")
