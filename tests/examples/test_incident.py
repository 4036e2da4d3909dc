"""A fleet of three teams in which one agent goes wild, and docs/incident.md, that tells what becomes of it."""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import re
import shlex
import sys
from pathlib import Path

import pytest
import warm_starts
from played_once import played_once

from ravi_otel._telemetry import names

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "incident"
PAGE = (ROOT / "docs" / "incident.md").read_text(encoding="utf-8")
SHOWN = re.findall(r"```console\n\$ ([^\n]*fleet\.py)\n(.*?)```", PAGE, re.DOTALL)
RAISED = re.findall(r"```console\n\$ export RAVI_LEDGER=(\S+)\n\$ (.*?)\n(.*?)\$ ravi-otel (ledger .*?)\n(.*?)```", PAGE, re.DOTALL)


def run(command, *, capture_output=False, text=True, **usual):
    """Run a program; what is not asked for goes where this one prints, as with `subprocess.run`."""
    done = warm_starts.run(command, capture_output=True, text=text, **usual)
    if not capture_output:
        sys.stdout.write(done.stdout)
        sys.stderr.write(done.stderr)
    return done


def play(place: Path, *arguments: str, **variables: str) -> str:
    """Have the fleet work with no backend, as in a new directory where the examples are, and give what it prints."""
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()) as printed:
        patch.syspath_prepend(str(EXAMPLE))
        patch.delenv("RAVI_STORE", raising=False)
        for name, value in {"COLUMNS": "100", **variables}.items():
            patch.setenv(name, value)
        (place / "examples").symlink_to(ROOT / "examples")
        patch.chdir(place)
        importlib.import_module("fleet").main(list(arguments), run=run)
    return printed.getvalue()


def asked(place: Path, command: str) -> str:
    """Give what a command of ours prints in a directory."""
    program = [sys.executable, "-m", "ravi_otel", *shlex.split(command)]
    known = {name: value for name, value in os.environ.items() if not name.startswith("RAVI_")}
    done = warm_starts.run(program, cwd=place, env={**known, "COLUMNS": "100", "PYTHONIOENCODING": "utf-8"})
    assert done.returncode == 0, done.stderr
    return done.stdout


def play_and_raise(place: Path) -> dict[str, str]:
    """Have the fleet work with budgets that outlive it, raise one, and ask the store of that directory what happened."""
    ((ledger, _, _, command, _),) = RAISED
    printed = play(place, RAVI_LEDGER=ledger)
    told = {"fleet": printed, "raised": asked(place, f"{command} --ledger {ledger}")}
    asked(place, shlex.join(["run", "--name", "launched", "--", sys.executable, "-c", "import ravi_otel"]))
    return told | {each: asked(place, each) for each in ("runs -n 100", "show", "cost --tag team --csv")}


@pytest.fixture(scope="module")
def wild(tmp_path_factory):
    return played_once(tmp_path_factory, "incident-wild", lambda: play(tmp_path_factory.mktemp("wild")))


@pytest.fixture(scope="module")
def tamed(tmp_path_factory):
    policy = {"RAVI_POLICY": "examples/incident/policy.toml"}
    return played_once(tmp_path_factory, "incident-tamed", lambda: play(tmp_path_factory.mktemp("tamed"), **policy))


@pytest.fixture(scope="module")
def raised(tmp_path_factory):
    return played_once(tmp_path_factory, "incident-raised", lambda: play_and_raise(tmp_path_factory.mktemp("raised")))


def lines(printed, beginning):
    return [line for line in printed.splitlines() if line.startswith(beginning)]


def squeezed(text):
    return " ".join(text.split())


def test_the_wild_agent_is_stopped_by_the_budget_of_its_team(wild):
    (line,) = lines(wild, "finance  reconciler")
    assert (
        " 31 calls  1.0290 USD  refused: $1.02941 of $1.00 used in tenant 'finance', in 24h; this call is refused ($1.02941 > $1.00)."
        in line
    )


def test_that_it_comes_near_is_told_before(wild):
    assert wild.index("83% used of the cost limit of tenant finance") < wild.index("finance  reconciler")


def test_other_agents_of_the_team_are_refused_from_then_on(wild):
    before, _, after = wild.partition("finance  reconciler")
    assert [" 2 calls" in line for line in lines(before, "finance  biller")] == [True, True]
    assert [" 0 calls  0.0000 USD  refused:" in line for line in lines(after, "finance  biller")] == [True, True]


@pytest.mark.parametrize("team", ["search", "support"])
def test_other_teams_go_on_unharmed(wild, team):
    assert ["  2 calls  0.0002 USD  Done: " in line for line in lines(wild, team)[:-1]] == [True] * 12


def test_nothing_is_sent_for_a_refused_call(wild):
    assert "The model was asked 83 times." in wild  # 24 + 24 + 31 + 4


def test_the_store_knows_who_spent_it_and_where_it_ended(wild):
    assert re.search(r"agent reconciler +limit_cost, 1 refused +[\d,]+ +194,300 +78,610 +~\$1.0290", wild) is not None
    assert "└─ chat gpt-5  refused" in wild
    assert "tenant finance cost per 24h $1.00 $1.0294 $0 102 nearing, exceeded 1" in squeezed(wild)


def test_a_limit_of_the_agents_own_leaves_the_teams_budget_to_the_team(tamed):
    (line,) = lines(tamed, "finance  reconciler")
    assert " 11 calls  0.1109 USD  refused: $0.110875 of $0.10 used in agent 'reconciler' of run 'finance'; this call is refused (" in line
    assert ["Done: order" in line for line in lines(tamed, "finance  biller")] == [True] * 4
    assert "agent reconciler cost $0.10 $0.1109 $0 110 nearing, exceeded 1" in squeezed(tamed)
    assert re.search(r"^tenant finance +cost per 24h +\$1\.00 +\$0\.1113 +\$0 +11 +0 *$", tamed, re.MULTILINE) is not None


def test_the_directory_of_the_fleet_stays_one_that_our_commands_read_and_write(raised):
    listed = re.findall(r" (launched|search|support|finance)  ", raised["runs -n 100"])
    assert {name: listed.count(name) for name in set(listed)} == {"launched": 1, "search": 12, "support": 12, "finance": 5}
    assert listed[0] == "launched"
    assert "launched" in raised["show"].splitlines()[0]
    assert [line.split(",")[0] for line in raised["cost --tag team --csv"].splitlines()[1:4]] == ["finance", "support", "search"]


def test_the_budget_of_a_ledger_outlives_the_fleet_and_is_raised_as_the_page_says(raised):
    ((_, program, shown, _, said),) = RAISED
    assert program == "python examples/incident/fleet.py"
    (line,) = (line for line in shown.splitlines() if line != "…")
    assert line in raised["fleet"].splitlines()
    assert raised["raised"].startswith(said)


def test_a_team_that_cannot_work_says_why_in_one_sentence_and_so_does_the_fleet(tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("RAVI_POLICY", "nowhere.toml")
    with pytest.raises(SystemExit, match="Not every team could work: search with status 1, support with status 1, finance with status 1"):
        play(tmp_path)
    why = "policy file nowhere.toml cannot be read: No such file or directory. Name a file of limits, such as policy.toml."
    assert sorted(capfd.readouterr().err.splitlines()) == [f"{team}: {why}" for team in ("finance", "search", "support")]


def test_what_the_page_shows_is_printed(wild, tamed):
    assert [command for command, _ in SHOWN] == [
        "python examples/incident/fleet.py",
        "RAVI_POLICY=examples/incident/policy.toml python examples/incident/fleet.py",
    ]
    for (_, shown), printed in zip(SHOWN, (wild, tamed), strict=True):
        known = {squeezed(line) for line in printed.splitlines()}
        missing = [line for line in shown.splitlines() if line.strip() != "…" and squeezed(line) not in known]
        assert missing == []


def test_the_page_shows_the_policy_as_it_is():
    assert re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL) == [(EXAMPLE / "policy.toml").read_text(encoding="utf-8")]


def test_the_page_shows_the_program_as_it_is():
    (shown,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    program = (EXAMPLE / "team.py").read_text(encoding="utf-8")
    assert squeezed(shown) in squeezed(program)
    assert "`BUDGET` is `tenant.cost=1usd:per=24h`" in PAGE
    assert 'BUDGET = "tenant.cost=1usd:per=24h"' in program


def test_the_page_calls_attributes_of_limits_as_they_are_called():
    shown = set(re.findall(r"^\| `(ravi\.limit\.[\w.]+)` \|", PAGE, re.MULTILINE))
    assert len(shown) > 5
    assert shown <= {value for value in vars(names).values() if isinstance(value, str)}


def test_every_picture_is_there_and_is_told_in_words():
    pictures = re.findall(r"!\[([^\]]+)\]\((pictures/incident/[a-z]+\.svg)\)", PAGE)
    assert {path for _, path in pictures} == {f"pictures/incident/{path.name}" for path in (ROOT / "docs/pictures/incident").iterdir()}
    for words, path in pictures:
        assert len(words) > 80, path
        assert (ROOT / "docs" / path).stat().st_size < 60_000


def test_the_example_is_short_enough_to_read():
    for path in EXAMPLE.iterdir():
        assert path.is_dir() or len(path.read_text(encoding="utf-8").splitlines()) < 120


@pytest.mark.parametrize(
    ("program", "arguments", "told"),
    [
        ("fleet.py", ["--think", "long"], "argument --think: invalid seconds value: 'long'"),
        ("fleet.py", ["--think", "-1"], "argument --think: -1 is not between 0 and 3600 seconds"),
        ("fleet.py", ["--think", "nan"], "argument --think: nan is not between 0 and 3600 seconds"),
        ("team.py", [], "the following arguments are required: team"),
        ("team.py", ["nobody"], "argument team: invalid choice: 'nobody'"),
    ],
)
def test_what_cannot_be_used_on_the_command_line_is_told(program, arguments, told):
    done = warm_starts.run([sys.executable, str(EXAMPLE / program), *arguments])
    assert done.returncode == 2
    assert told in done.stderr
