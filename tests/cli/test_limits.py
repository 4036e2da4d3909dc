from __future__ import annotations

import json
import re

import pytest
from click.testing import CliRunner

from ravi_otel._cli.entry import commands
from ravi_otel._runtime.policy_file import SCHEMA
from ravi_otel.policy import parse_limit

POLICY = """\
name = "nightly"
limits = [
    "tokens=1M",
    "cost=2.50usd:warn=0.5",
]
tags = {team = "search"}
prices = {my-model = {input = 2.5, output = 10}}
"""


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "policy.toml").write_text(POLICY, encoding="utf-8")
    return tmp_path


def limits(*arguments, **environment):
    return CliRunner(env={"COLUMNS": None} | environment).invoke(commands, ["limits", *arguments])


def test_each_limit_is_shown_with_its_source_and_what_it_replaced():
    done = limits("--limit", "tokens=20k", "--policy", "policy.toml", RAVI_LIMIT_TOKENS="500k", RAVI_LIMIT_TIME="90s")
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout == (
        "limit                  from                   warns at  instead of\n"
        "tokens=20k             --limit                          tokens=500k from RAVI_LIMIT_TOKENS, tokens=1M from policy.toml limits[0]\n"
        "time=90s               RAVI_LIMIT_TIME\n"
        "cost=2.50usd:warn=0.5  policy.toml limits[1]  0.5\n"
        "\n"
        "enforcement  enforce      default\n"
        "admission    estimate     default\n"
        "name         nightly      policy.toml\n"
        "tags         team=search  policy.toml\n"
        "prices       my-model     policy.toml\n"
    )


def test_without_a_limit_it_says_how_to_give_one():
    done = limits()
    assert done.exit_code == 0
    assert done.stdout.startswith("No limit is set. Give one with --limit tokens=500k, in RAVI_LIMIT_TOKENS=500k, or in a policy file")


def test_observing_is_shown_with_its_source():
    assert "enforcement  observe   RAVI_ENFORCEMENT" in limits(RAVI_ENFORCEMENT="observe").stdout


def test_the_same_as_json():
    shown = json.loads(limits("--json", "--limit", "tool.search@researcher=5", "--policy", "policy.toml", RAVI_LIMIT_TOKENS="500k").stdout)
    assert [each["limit"] for each in shown["limits"]] == ["tool.search@researcher=5", "tokens=500k", "cost=2.50usd:warn=0.5"]
    first, second, third = shown["limits"]
    assert (first["kind"], first["tool"], first["agent"], first["value"]) == ("tool_calls", "search", "researcher", 5)
    assert second["instead_of"] == [{"limit": "tokens=1M", "source": "policy.toml limits[0]"}]
    assert (third["value"], third["source"]) == (2.5, "policy.toml limits[1]")
    assert all(parse_limit(each["limit"]) for each in shown["limits"])
    assert (shown["enforcement"], shown["name"], shown["tags"]) == ("enforce", "nightly", {"team": "search"})
    assert shown["sources"]["name"] == "policy.toml"


@pytest.mark.parametrize(
    ("arguments", "environment", "begins"),
    [
        (["--limit", "tokns=5"], {}, "Error: --limit: limit 'tokns=5': kind 'tokns' is unknown, did you mean 'tokens'"),
        (["--limit", "tokens=5", "--limit", "token=6"], {}, "Error: --limit 'token=6' is there twice: --limit 'tokens=5' sets"),
        (["--limit", "tenant.cost=5"], {}, "Error: limit 'tenant.cost=5' of --limit belongs to a tenant"),
        (["--limit", "time=5s:per=day"], {}, "Error: --limit: limit 'time=5s:per=day': per=day goes with what is counted up"),
        (["--policy", "nope.toml"], {}, "Error: policy file nope.toml cannot be read: No such file or directory."),
        ([], {"RAVI_LIMIT_TOKNS": "5"}, "Error: variable 'RAVI_LIMIT_TOKNS' names no kind of limit, did you mean RAVI_LIMIT_TOKENS"),
        ([], {"RAVI_ENFORCEMENT": "off"}, "Error: RAVI_ENFORCEMENT='off' is unknown"),
    ],
)
@pytest.mark.parametrize("form", [[], ["--json"]])
def test_what_is_wrong_is_one_sentence_and_exit_code_2(form, arguments, environment, begins):
    done = limits(*form, *arguments, **environment)
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith(begins)
    assert len(done.stderr.splitlines()) == 1


def test_a_name_cannot_move_the_cursor_or_turn_the_line_around():
    done = limits("--limit", 'agent."a\u202eb".tokens=5')
    assert (done.exit_code, "\u202e" in done.stdout) == (0, False)


def test_a_very_long_limit_pushes_its_own_line_only():
    done = limits("--limit", f"agent.{'x' * 150}.tokens=5", "--limit", "tokens=5")
    assert [len(line) for line in done.stdout.splitlines()[:3]] == [81, 174, 69]


def test_what_run_takes_besides_limits_is_shown_with_its_source():
    done = limits("--observe", "--name", "evening", "--tag", "owner=me", "--policy", "policy.toml")
    shown = {line.split()[0]: line.split()[1:] for line in done.stdout.splitlines() if line}
    assert shown["enforcement"] == ["observe", "--observe"]
    assert shown["name"] == ["evening", "--name"]
    assert shown["tags"] == ["team=search,", "owner=me", "--tag,", "policy.toml"]
    document = json.loads(limits("--observe", "--tag", "owner=me", "--json").stdout)
    assert (document["enforcement"], document["tags"], document["sources"]["enforcement"]) == ("observe", {"owner": "me"}, "--observe")


@pytest.mark.parametrize(
    ("limit", "words"),
    [("cost=0.5eur", "has another unit than usd, which is the only one known"), ("requests", "For example: requests=500")],
)
def test_a_limit_that_is_nearly_right_is_answered_with_what_is_missing(limit, words):
    done = limits("--limit", limit)
    assert done.exit_code == 2
    assert words in done.stderr


TEAM = """\
limits = ["tokens=1M"]
agents = {researcher = {limits = ["cost=1usd", "turns=20"], admission = "after"}}
warn_at = 0.5
[tools]
search = 5
[profiles.ci]
limits = ["tokens=1k:on=stop"]
enforcement = "observe"
"""


@pytest.fixture
def team(here):
    (here / "team.toml").write_text(TEAM, encoding="utf-8")
    return "team.toml"


def test_agents_tools_and_a_profile_are_shown_with_what_is_not_as_usual(team):
    done = limits("--policy", team, "--profile", "ci")
    assert (done.exit_code, done.stderr) == (0, "")
    assert [re.split(r"  +", line) for line in done.stdout.splitlines()] == [
        ["limit", "from", "admission", "past it", "warns at", "instead of"],
        ["tokens=1k:on=stop", "team.toml profiles.ci.limits[0] (profile ci)", "stop", "0.5", "tokens=1M from team.toml limits[0]"],
        ["agent.researcher.cost=1usd:admission=after", "team.toml agents.researcher.limits[0]", "after", "0.5"],
        ["agent.researcher.turns=20", "team.toml agents.researcher.limits[1]", "0.5"],
        ["tool.search=5", "team.toml tools.search", "0.5"],
        [""],
        ["enforcement", "observe", "team.toml (profile ci)"],
        ["admission", "estimate", "default"],
        ["warn_at", "0.5", "team.toml"],
        ["profile", "ci", "--profile"],
    ]


def test_the_same_as_json_has_what_comes_of_each_limit(team):
    shown = json.loads(limits("--json", "--policy", team, RAVI_PROFILE="ci", RAVI_WARN_AT="0.7", RAVI_ADMISSION="after").stdout)
    first, second, *_ = shown["limits"]
    assert first["source"] == "team.toml profiles.ci.limits[0] (profile ci)"
    assert (first["on_exceed"], first["warn_at"], first["admission"]) == ("stop", 0.7, "after")
    assert (second["scope"], second["scope_name"], second["admission"]) == ("agent", "researcher", "after")
    assert (shown["profile"], shown["warn_at"], shown["admission"], shown["enforcement"]) == ("ci", 0.7, "after", "observe")
    assert shown["sources"]["profile"] == "RAVI_PROFILE"


def test_a_narrow_terminal_gets_one_thing_a_line(team):
    lines = limits("--policy", team, "--profile", "ci", COLUMNS="40").stdout.splitlines()
    assert lines[:5] == [
        "tokens=1k:on=stop",
        "  from team.toml profiles.ci.limits[0] (profile ci)",
        "  past it stop",
        "  warns at 0.5",
        "  instead of tokens=1M from team.toml limits[0]",
    ]
    assert max(map(len, lines)) <= 52


def test_the_schema_is_printed_as_it_is_shipped():
    done = limits("--schema")
    assert (done.exit_code, json.loads(done.stdout)["title"]) == (0, "A policy file of ravi-otel")
    assert done.stdout == SCHEMA.read_text(encoding="utf-8")


@pytest.mark.parametrize("observe", [[], ["--observe"]])
@pytest.mark.parametrize("variable", ["", "enforce", "observe"])
def test_a_flag_goes_before_the_variable_and_that_before_the_file(team, observe, variable):
    shown = json.loads(limits("--json", "--policy", team, "--profile", "ci", *observe, RAVI_ENFORCEMENT=variable).stdout)
    source = "--observe" if observe else "RAVI_ENFORCEMENT" if variable else "team.toml (profile ci)"
    assert (shown["enforcement"], shown["sources"]["enforcement"]) == ("observe" if observe else variable or "observe", source)


@pytest.mark.parametrize(
    ("arguments", "environment", "begins"),
    [
        (
            ["--profile", "cii"],
            {"RAVI_POLICY": "team.toml"},
            "Error: --profile='cii' is no profile of team.toml, did you mean 'ci'; its profiles are 'ci'.",
        ),
        ([], {"RAVI_PROFILE": "ci"}, "Error: RAVI_PROFILE='ci' chooses a profile, and there is no policy file"),
        (["--admission", "tight"], {}, "Error: --admission='tight' is unknown: give one of 'estimate', 'strict', 'after'"),
        ([], {"RAVI_ADMISSION": "tight"}, "Error: RAVI_ADMISSION='tight' is unknown: give one of"),
        ([], {"RAVI_WARN_AT": "80%"}, "Error: RAVI_WARN_AT='80%' must be a share of the limit from 0.001 to 1"),
        ([], {"RAVI_POLICY": "gone.yaml"}, "Error: policy file gone.yaml cannot be read"),
    ],
)
def test_a_wrong_choice_is_one_sentence_and_exit_code_2(team, arguments, environment, begins):
    done = limits(*arguments, **environment)
    assert (done.exit_code, done.stdout, len(done.stderr.splitlines())) == (2, "", 1)
    assert done.stderr.startswith(begins)
