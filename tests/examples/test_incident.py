"""A fleet of three teams in which one agent goes wild, and docs/incident.md, that tells what becomes of it."""

from __future__ import annotations

import contextlib
import importlib
import io
import re
import shlex
import sys
from pathlib import Path

import pytest
import warm_starts
from played_once import played_once

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "incident"
PAGE = (ROOT / "docs" / "incident.md").read_text(encoding="utf-8")
SHOWN = re.findall(r"```console\n\$ ([^\n]*fleet\.py)\n(.*?)```", PAGE, re.DOTALL)


def play(store: Path, **variables: str) -> str:
    """Have the fleet work with no backend, and give what it prints."""
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()) as printed:
        patch.syspath_prepend(str(EXAMPLE))
        for name, value in {"RAVI_STORE": str(store), "COLUMNS": "100", **variables}.items():
            patch.setenv(name, value)
        patch.chdir(ROOT)
        importlib.import_module("fleet").main([], run=warm_starts.run)
    return printed.getvalue()


@pytest.fixture(scope="module")
def wild(tmp_path_factory):
    return played_once(tmp_path_factory, "incident-wild", lambda: play(tmp_path_factory.mktemp("wild")))


@pytest.fixture(scope="module")
def tamed(tmp_path_factory):
    policy = {"RAVI_POLICY": "examples/incident/policy.toml"}
    return played_once(tmp_path_factory, "incident-tamed", lambda: play(tmp_path_factory.mktemp("tamed"), **policy))


def lines(printed, beginning):
    return [line for line in printed.splitlines() if line.startswith(beginning)]


def squeezed(text):
    return " ".join(text.split())


def test_the_wild_agent_is_stopped_by_the_budget_of_its_team(wild):
    (line,) = lines(wild, "finance  reconciler")
    assert " 31 calls  1.0290 USD  refused: Cost budget exceeded: $1.02941 > $1.00 in tenant 'finance', in 24h." in line


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
    assert re.search(r"agent reconciler +error, 1 refused +[\d,]+ +194,300 +78,610 +~\$1.0290", wild) is not None
    assert "└─ chat gpt-5  refused" in wild


def test_a_limit_of_the_agents_own_leaves_the_teams_budget_to_the_team(tamed):
    (line,) = lines(tamed, "finance  reconciler")
    assert " 11 calls  0.1109 USD  refused: Cost budget exceeded: $0.110875 > $0.10 in agent 'reconciler' of run 'finance'." in line
    assert ["Done: order" in line for line in lines(tamed, "finance  biller")] == [True] * 4
    assert "agent reconciler  cost     $0.10  $0.1109    $0  110  nearing," in tamed


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


def test_every_picture_is_there_and_is_told_in_words():
    pictures = re.findall(r"!\[([^\]]+)\]\((pictures/incident/[a-z]+\.svg)\)", PAGE)
    assert {path for _, path in pictures} == {f"pictures/incident/{path.name}" for path in (ROOT / "docs/pictures/incident").iterdir()}
    for words, path in pictures:
        assert len(words) > 80, path
        assert (ROOT / "docs" / path).stat().st_size < 60_000


def test_the_example_is_short_enough_to_read():
    for path in EXAMPLE.iterdir():
        assert path.is_dir() or len(path.read_text(encoding="utf-8").splitlines()) < 120


def test_a_flag_that_is_no_number_is_told():
    done = warm_starts.run([sys.executable, str(EXAMPLE / "fleet.py"), *shlex.split("--think long")])
    assert done.returncode == 2
    assert "argument --think: invalid float value: 'long'" in done.stderr
