"""Every state of small runs' slots, and that no guard of their source can go unmissed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from spawn_guards import SOURCE, conditions, parsed
from spawn_states import INSTANCES, explore

DEAR = {"two places", "paused agents", "paused in line", "callers in line", "two paused", "callers in a tree"}
"""Walked through by `make spawn-guards`, and with RAVI_LONG."""
DAILY = INSTANCES if os.environ.get("RAVI_LONG") else [instance for instance in INSTANCES if instance.name not in DEAR]


@pytest.mark.parametrize("instance", DAILY, ids=lambda instance: instance.name)
def test_in_every_state_each_step_does_what_the_rules_say(instance):
    states, steps = explore(instance)
    print(f"\n{instance.name}: {states:,} states, {steps:,} steps")
    assert steps > states > 5


def test_without_a_guard_some_state_is_found_where_the_rules_are_broken():
    """A sample; `make spawn-guards` takes away each."""
    done = subprocess.run(
        [sys.executable, str(Path(__file__).parent / "spawn_guards.py"), "193"], capture_output=True, text=True, timeout=110, check=False
    )  # fmt: skip
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_condition_of_the_source_is_a_guard_that_is_taken_away():
    before, _, after = SOURCE.read_text(encoding="utf-8").partition("class Slots:")
    source = after.partition("\nclass ")[0]
    lines = {node.lineno - before.count("\n") for _, node in conditions(parsed("Slots"), "Slots")}
    words = ("if ", "elif ", "while ", " if ")
    code = [(at, line.split("#")[0].strip()) for at, line in enumerate(source.splitlines(), 1) if "self._shared" not in line]
    assert [line for at, line in code if line.startswith(words[:3]) and line.endswith(":") and at not in lines] == []
