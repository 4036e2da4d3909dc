"""What docs/building-agents.md shows is what happens; and a program of such agents runs under the command."""

from __future__ import annotations

import inspect
import os
import re
import sys
from pathlib import Path

import warm_starts

from ravi_otel.agents import ReActAgent
from ravi_otel.testing import ScriptedLLM, Text, ToolCalls

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "building-agents.md").read_text(encoding="utf-8")
PROGRAM = "\n".join(re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL))
PRINTED = "".join(re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL))

SMALL = """
from ravi_otel.agents import ReActAgent
def price_of(plan: str) -> str:
    return plan
result = ReActAgent("advisor", tools=[price_of]).run_blocking("What do they cost?")
print(result.status, result.stop_reason, result.usage.turns, result.usage.tool_calls)
"""


def plays(request):
    messages = request.body["messages"]
    offered = {tool["function"]["name"] for tool in request.body.get("tools", ())}
    if messages[-1]["role"] == "tool":
        return Text("You may cancel at any time." if "ask_helper" in offered else "Basic is 10 USD and plus is 25 USD.")
    if "price_of" in offered:
        return ToolCalls([("price_of", {"plan": "basic"}), ("price_of", {"plan": "plus"})])
    return ToolCalls([("ask_helper", {"question": "May I?"})]) if offered else Text("Yes.")


def ran(server, *command, **environment):
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("RAVI_", "OTEL_", "OPENAI_"))}
    given = {
        **kept,
        "RAVI_LIMIT_LOG": "json",
        "OPENAI_BASE_URL": server.base_url,
        "OPENAI_API_KEY": "any",
        "PYTHONPATH": str(ROOT),
        **environment,
    }
    return warm_starts.run([sys.executable, *command], env=given)


def test_the_programs_that_are_shown_run_as_one_and_print_what_is_shown():
    with ScriptedLLM(plays) as server:
        done = ran(server, "-W", "error", "-c", PROGRAM)
    told = [line for line in done.stderr.splitlines() if not line.startswith('{"event": "limit_')]  # our own logger
    assert (done.returncode, told, done.stdout) == (0, [], PRINTED)


def test_a_program_of_agents_runs_under_the_command(tmp_path):
    program = tmp_path / "small.py"
    program.write_text(SMALL, encoding="utf-8")
    command = ("-m", "ravi_otel", "run", "--limit", "turns=1", "--", sys.executable, str(program))
    with ScriptedLLM(plays) as server:
        done = ran(server, *command, RAVI_HOME=str(tmp_path), HOME=str(tmp_path))
    assert "stopped limit_turns 1 2" in done.stdout, done.stderr
    assert "was not called" not in done.stderr


def test_the_keywords_of_an_agent_are_those_of_the_code():
    table = PAGE.partition("| keyword |")[2].partition("\n\n")[0]
    assert set(re.findall(r"^\| `(\w+)`", table, re.MULTILINE)) == set(inspect.signature(ReActAgent).parameters) - {"name"}
