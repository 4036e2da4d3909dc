"""Run an incident desk whose lead has ten slots for its workers, its own included; the model is a script on this machine, no key needed.

    python examples/ten_slots/ten_slots.py

Urgent work takes the slots of what can wait, one spawn is denied, and one branch is cancelled. Its run is kept in .ravi/, or where
`RAVI_STORE` says, for `ravi-otel show` and `ravi-otel ui`. `docs/agents.md` explains each of the words.
"""

import asyncio
import os

import incident_script
import openai
from incident_desk import ALERT, Desk

import ravi_otel
from ravi_otel import HookEvent, HookManager, SpawnBudget
from ravi_otel.testing import ScriptedLLM

LIMITS = [ravi_otel.cost_limit(0.05), ravi_otel.time_limit(120)]
hooks = HookManager()


@hooks.on(HookEvent.PREEMPTED)
def preempted(event):
    print(f"! {event['agent_id']} ({event['priority']}) is paused: its slot goes to more urgent work")


@hooks.on(HookEvent.RESUMED)
def resumed(event):
    print(f"{event['agent_id']} goes on: a slot is free")


@hooks.on(HookEvent.SPAWN_DENIED)
def denied(event):
    print(f"x {event['agent_id']} is denied: all ten slots are taken")


async def main(url):
    # A proxy that is named in the environment cannot reach this process. The hooks hold answers back until the story needs them.
    http_client = openai.DefaultAsyncHttpxClient(trust_env=False, event_hooks=incident_script.Stage().hooks)
    async with openai.AsyncOpenAI(base_url=url, api_key="any", max_retries=0, http_client=http_client) as client:
        desk = Desk(client, "gpt-4.1-mini")
        with ravi_otel.run("incident-desk", limits=LIMITS, spawn_budget=SpawnBudget(max_agents=10), hooks=hooks) as run:
            answer = await desk.lead(ALERT)
    print()
    for name, worker in desk.at_work.items():
        print(f"{name}, {worker.agent.status}: {' '.join(worker.found) or worker.why or 'nothing'}")
    print(f"answer: {answer}\n")
    print(run.tree())


if __name__ == "__main__":
    os.environ.setdefault("RAVI_STORE", ".ravi")
    ravi_otel.instrument()
    with ScriptedLLM(incident_script.answer) as server:
        asyncio.run(main(server.base_url))
