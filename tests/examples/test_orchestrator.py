from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import pytest
import warm_starts

from ravi_otel.testing import ScriptedLLM, Text, ToolCalls

PROGRAM = Path(__file__).parents[2] / "examples" / "orchestrator.py"
ASKED = [("Lisbon", False), ("Porto", False), ("Faro", False), ("Evora", False), ("Madeira", True)]


def run(**environment):
    return warm_starts.run([sys.executable, PROGRAM], capture_output=True, text=True, timeout=60, env=os.environ | environment, check=False)


def answer(request):
    if request.path.endswith("/responses"):
        return Text("From a dam." if "Now answer" in request.body["input"] else "A dam, perhaps.")
    if request.body["messages"][-1]["role"] == "tool":
        return Text("All of them have dams.")
    return ToolCalls([("delegate", {"name": name, "question": "What do they drink?", "urgent": urgent}) for name, urgent in ASKED])


@pytest.fixture(scope="module")
def story():
    with ScriptedLLM(answer) as server:
        done = run(OPENAI_API_KEY="k", OPENAI_BASE_URL=server.base_url)
        done.requests = server.requests
    assert done.returncode == 0
    assert all("agents" in line for line in done.stderr.splitlines()), done.stderr  # that its slots are nearly, and then all, taken
    return done


def results_of(story):
    return [json.loads(message["content"]) for message in story.requests[-1].body["messages"] if message["role"] == "tool"]


def test_the_model_gets_the_result_of_each_sub_agent_the_denied_and_the_paused_one_too(story):
    lisbon, porto, faro, evora, madeira = results_of(story)
    assert lisbon == porto == madeira == {"status": "ok", "answer": "From a dam."}
    assert faro == {"status": "paused", "answer": "A dam, perhaps."}
    assert (evora["error"], evora["agent_id"], evora["max_agents"]) == ("spawn_denied", "Evora", 4)
    assert "do that work yourself" in evora["way_out"]


def test_the_orchestrator_goes_on_to_its_answer_and_tells_what_it_used(story):
    assert "All of them have dams." in story.stdout
    assert re.search(r"SpawnStats\(limit=4, .*denied_total=1, preempted_total=1, .*peak=4", story.stdout)
    assert re.search(r"'Faro' · low · paused · .* · 1 call · ", story.stdout)
    assert re.search(r"'Madeira' · high · ok · .* · 2 calls · ", story.stdout)
    assert f"requests={len(story.requests)}" in story.stdout
    assert len(story.requests) == 2 + 2 * 3 + 1


def test_without_a_key_it_says_so_and_fails():
    done = run()
    assert done.returncode == 1
    assert "OPENAI_API_KEY" in done.stderr
    assert "Traceback" not in done.stderr
