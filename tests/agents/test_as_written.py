"""The program that this package was drawn up for runs as it was written."""

from __future__ import annotations

import json

import anyio
import anyio.lowlevel
import pytest

import ravi_otel
from ravi_otel import ExecutionTracker, HookEvent, HookManager, Priority, SpawnBudget, SpawnTracker
from ravi_otel.agents import OrchestratorAgent, ReActAgent, SubAgentConfig
from ravi_otel.testing import ScriptedLLM, Text, ToolCalls

SUB, SEARCH = "delegate_to_researcher", "search"


class Catalogue:
    """Be what both researchers search in at once, and see how many agents live then."""

    def __init__(self):
        self.inside, self.active = [], []
        self.both = anyio.Event()

    async def search(self, query: str) -> str:
        """Search the catalogue of plans."""
        self.inside.append(query)
        if len(self.inside) == 2:
            self.both.set()
        with anyio.fail_after(30):
            await self.both.wait()
        self.active.append(SpawnTracker.current().stats().active)
        return f"{query} costs 10 USD"


class Model:
    """Play the lead, which delegates twice in one answer, and the researcher, which searches once for each task."""

    def __init__(self):
        self.told = []

    def __call__(self, request):
        messages = request.body["messages"]
        offered = {tool["function"]["name"] for tool in request.body.get("tools", ())}
        last = messages[-1]
        if SUB in offered and last["role"] == "user":
            return ToolCalls([(SUB, {"task": "Plan A"}), (SUB, {"task": "Plan B"})], usage=(100, 10))
        if SUB in offered:
            self.told = [json.loads(message["content"]) for message in messages if message["role"] == "tool"]
            return Text("Plan A and plan B cost the same.", usage=(200, 20))
        if last["role"] == "user":
            return ToolCalls([(SEARCH, {"query": last["content"]})], usage=(50, 5))
        return Text(last["content"], usage=(60, 6))


@pytest.fixture
def scripted(monkeypatch):
    model = Model()
    with ScriptedLLM(model) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        monkeypatch.setenv("OPENAI_API_KEY", "any")
        yield model
        assert not server.script_errors


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
async def test_the_program_runs_as_it_is_written(scripted):
    seen, times = [], []
    catalogue = Catalogue()
    search = catalogue.search
    model = "gpt-4.1-mini"
    with ravi_otel.instrument():
        hooks = HookManager()

        @hooks.on(HookEvent.LLM_END)
        async def watch(ctx):
            seen.append(ctx["usage"].total_tokens)

        @hooks.on(HookEvent.TOOL_END)
        def timing(ctx):
            times.append((ctx["tool_name"], ctx["duration_ms"]))

        tracker = ExecutionTracker(max_tokens=50_000, max_turns=20)
        researcher = ReActAgent("researcher", model=model, tools=[search], hooks=hooks, execution_budget=tracker)
        analyst = ReActAgent("analyst", model=model)
        lead = OrchestratorAgent(
            "lead",
            model=model,
            sub_agents=[
                SubAgentConfig(agent=researcher, priority=Priority.HIGH, ask_timeout=120),
                SubAgentConfig(agent=analyst, priority=Priority.NORMAL, ask_timeout=120),
            ],
            spawn_budget=SpawnBudget(max_agents=10, allow_preempt=True),
        )
        result = await lead.run("Compare the two plans.")
        with anyio.fail_after(30):
            while len(seen) < 4:  # asynchronous hooks are told in the background
                await anyio.lowlevel.checkpoint()
    assert (result.status, result.stop_reason, result.answer) == ("ok", "success", "Plan A and plan B cost the same.")
    assert sorted(told["answer"] for told in scripted.told) == ["Plan A costs 10 USD", "Plan B costs 10 USD"]
    assert (tracker.tokens, tracker.turns) == (2 * (55 + 66), 4)  # one tab, that both runs of the researcher were charged to
    assert sorted(seen) == [55, 55, 66, 66]
    assert [name for name, _ in times] == [SEARCH, SEARCH]
    assert all(duration_ms >= 0 for _, duration_ms in times)
    assert catalogue.active == [3, 3]  # the lead, and two leases of one researcher
    assert result.usage.turns == 6
    assert [row["tool"] for row in result.trace] == [SUB, SUB]
