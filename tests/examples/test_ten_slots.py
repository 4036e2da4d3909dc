"""The incident desk with ten slots: urgent work before what can wait, one spawn denied, one branch cancelled, the same each time."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import warm_starts

PROGRAM = Path(__file__).parents[2] / "examples" / "ten_slots" / "ten_slots.py"


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> subprocess.CompletedProcess[str]:
    place = tmp_path_factory.mktemp("kept")
    environment = os.environ | {"RAVI_STORE": str(place), "PYTHONIOENCODING": "utf-8", "HTTP_PROXY": "http://127.0.0.1:9"}
    return warm_starts.run(
        [sys.executable, PROGRAM], capture_output=True, text=True, encoding="utf-8", timeout=60, env=environment, cwd=place, check=False
    )


def test_it_ends_well_though_a_proxy_is_named(done):
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr


def test_a_denied_spawn_goes_to_the_model_which_answers_without_it(done):
    assert "x query-plans is denied: all ten slots are taken\ndatabase is told so, and goes on" in done.stdout
    assert "database, ok: Nobody was free for the query plans." in done.stdout


def test_critical_work_takes_the_slots_of_background_work_one_of_which_ends_with_what_it_has(done):
    assert "rollback is critical work\n! digest (background) is paused: its slot goes to more urgent work" in done.stdout
    assert "digest, paused: Twenty customers saw the basket turn and turn. Twenty more gave up at the payment." in done.stdout
    assert "rollback, ok: Release 811 of checkout is live again." in done.stdout


def test_the_other_one_waits_in_line_and_goes_on_when_a_slot_is_free(done):
    steps = ["! timeline (background) is paused", "timeline must finish, and waits in line", "timeline goes on: a slot is free"]
    places = [done.stdout.index(step) for step in steps]
    assert places == sorted(places)
    assert "timeline, ok: 14:02 first alert. 14:05 the desk begins. 14:09 release 812 is rolled back." in done.stdout


def test_one_branch_is_cancelled_alone(done):
    assert "network is called off, with all that work for it: it was release 812" in done.stdout
    assert "network, cancelled: " in done.stdout
    assert "traceroute, cancelled: " in done.stdout
    assert "releases, ok: Yes: release 812." in done.stdout
    assert "answer: Release 812 asked the database once for each item" in done.stdout


def test_the_tree_has_each_agent_with_its_place_and_its_state(done):
    tree = done.stdout[done.stdout.index("run 'incid") :]
    line = r"^([ │├└─]+)'([\w…-]+)' · (?:(background|critical) · )?(ok|paused|cancelled) · "
    found = re.findall(line, tree, re.MULTILINE)
    assert [(len(guide) // 4, name, priority, status) for guide, name, priority, status in found] == [
        (1, "lead", "", "ok"),
        (2, "timeline", "background", "ok"),
        (2, "digest", "background", "paused"),
        *[(2, name, "", "ok") for name in ("database", "cache", "payments", "search", "releases")],
        (3, "rollback", "critical", "ok"),
        (3, "status-p…", "critical", "ok"),
        (2, "network", "", "cancelled"),
        (3, "tracerou…", "", "cancelled"),
    ]
