"""What docs/progress.md shows is what happens."""

from __future__ import annotations

import os
import re
import sys
from dataclasses import fields
from pathlib import Path

import pytest
import warm_starts

import ravi_otel
from ravi_otel import Priority, ProgressEvent, SpawnBudget
from ravi_otel.testing import Failure, ScriptedLLM, Text

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "progress.md").read_text(encoding="utf-8")
SHOWN = re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize(("program", "printed"), SHOWN, ids=["async for", "for"])
def test_every_program_that_is_shown_prints_what_is_shown(program, printed):
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("RAVI_", "OTEL_"))}
    done = warm_starts.run(
        [sys.executable, "-W", "error", "-c", program],
        env={**kept, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert [line.rstrip() for line in done.stdout.splitlines()] == printed.splitlines()


def table():
    """Give the names of the data of each event, as the page has them."""
    found: dict[str, set[str]] = {}
    before: set[str] = set()
    for events, data in re.findall(r"^\| (`[a-z_`, ]+`) \| (.*) \|$", PAGE, re.MULTILINE):
        names = set(re.findall(r"`(\w+)`", data)) | (before if data.startswith("the same") else set())
        before = names
        found |= dict.fromkeys(re.findall(r"\w+", events), names)
    return {event: names for event, names in found.items() if event != "event"}


def test_the_events_of_a_busy_run_have_the_data_that_is_on_the_page():
    answers = iter([Failure(500, retry_after_s=0), Text("ok"), Text("ok")])
    with ScriptedLLM(lambda _: next(answers)) as server, ravi_otel.instrument():
        from openai import OpenAI

        with OpenAI(base_url=server.base_url, api_key="any", max_retries=1) as client:
            told = list(_busy(client))
    shown = table()
    assert {event.event for event in told} == set(shown) - {"command"}
    for event in told:
        assert set(event.data) - {"done"} == shown[event.event], event.event


def _busy(client):
    with ravi_otel.run("r", limits=["turns=1:on=observe"], spawn_budget=SpawnBudget(2)) as run:
        progress = run.progress()
        with ravi_otel.agent("root"), ravi_otel.spawn("low", priority=Priority.LOW) as low:
            run.report("begun", done=1)
            for _ in range(2):
                client.chat.completions.create(model="gpt-4o-mini", messages=[{"role": "user", "content": "hi"}])
            ravi_otel.tool(lambda: None, name="look")()
            with pytest.raises(ravi_otel.SpawnDeniedError), ravi_otel.agent("late"):
                pytest.fail("it opened")
            with ravi_otel.agent("urgent", priority=Priority.CRITICAL):
                assert low.paused
            run.scope.spawn.reprioritize("low", Priority.NORMAL)
    return progress


def test_every_field_of_an_event_is_on_the_page():
    said = PAGE.partition("A `ProgressEvent` is frozen:")[2].partition("\n")[0]
    assert set(re.findall(r"`(\w+)`", said)) == {field.name for field in fields(ProgressEvent)}
