"""What docs/supervisor-limits.md shows is what happens."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import pytest
import warm_starts

from ravi_otel.policy import parse_limit
from ravi_otel.testing import ScriptedLLM, Text, ToolCalls

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "supervisor-limits.md").read_text(encoding="utf-8")
PROGRAM = "\n".join(re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL))
PRINTED = re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL)


def answer(request):
    """Play every model of the page, told apart by what is on offer and what was said."""
    messages = request.body["messages"]
    last = messages[-1]
    offered = {tool["function"]["name"] for tool in request.body.get("tools", ())}
    results = [message["content"] for message in messages if message["role"] == "tool"]
    handed = next((name for name in sorted(offered) if name.startswith(("transfer_to_", "delegate_to_"))), None)
    if handed is not None:
        return supervise(handed, offered, last, results)
    if "wait_for_news" in offered:
        return ToolCalls([("wait_for_news", {})])
    if "search" in offered:
        return research(last, results)
    return Text("Let me think." if offered else "So far I only thought.", usage=(60, 10))


def supervise(handed, offered, last, results):
    if results:
        told = json.loads(results[-1])
        answers = ". ".join(json.loads(each).get("answer", "") for each in results)
        if "submit" in offered:
            return ToolCalls([("submit", {"answer": told["answer"]})])
        return Text(told["message"] if told["status"] != "ok" else f"{answers}.")
    tasks = ["The map", "The key"] if handed.startswith("delegate_to_") else ["The map"]
    return ToolCalls([(handed, {"task": task if "found" not in last["content"] else "Never enough"}) for task in tasks])


def research(last, results):
    if last["role"] == "user" and last["content"] != "Never enough":
        return ToolCalls([("search", {"query": last["content"]})])
    if results and "Never" not in results[0] and "clue" not in results[0]:
        return Text(last["content"])
    return ToolCalls([("search", {"query": f"clue {len(results)}"})])


def test_the_programs_that_are_shown_run_as_one_and_print_what_is_shown():
    with ScriptedLLM(answer) as server:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("RAVI_", "OTEL_"))}
        environment = {
            **kept,
            "RAVI_LIMIT_LOG": "json",
            "OPENAI_BASE_URL": server.base_url,
            "OPENAI_API_KEY": "any",
            "PYTHONPATH": str(ROOT),
        }
        done = warm_starts.run(
            [sys.executable, "-W", "error", "-c", PROGRAM], env=environment, capture_output=True, text=True, timeout=60, check=False
        )
        assert not server.script_errors
    told = [line for line in done.stderr.splitlines() if not line.startswith('{"event": "limit_')]  # our own logger
    assert (done.returncode, told) == (0, [])
    assert done.stdout == "".join(PRINTED)


@pytest.mark.parametrize("spec", sorted(set(re.findall(r'[`"]([a-z][a-z_.]*(?:@[a-z]+)?=[0-9][^`",\s\]]*)[`"\]]', PAGE))))
def test_every_limit_in_words_can_be_read(spec):
    assert parse_limit(spec).value > 0
