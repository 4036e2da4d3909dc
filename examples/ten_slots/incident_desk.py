"""An incident desk: one agent leads, its model assigns work to others, who may do the same.

Everything of ravi-otel in here is `@ravi_otel.tool`, `ravi_otel.agent(...)` and what a paused, cancelled or denied agent comes to.
`examples/orchestrator.py` is a smaller one, to begin with.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import openai

import ravi_otel
from ravi_otel import AgentPausedError, BudgetExhaustedError, CancellationError, ExecutionBudget, Priority, SpawnDeniedError

Say = Callable[[str], None]

ALERT = "14:02 checkout takes nine seconds. Find out why, have it put right, and keep customers told."
ORDER = "You are {name}, at an incident desk. Do your task with the tools you have, in few words, and answer with what you found."
SIGHTS: dict[str, str] = {
    "alerts": "14:02 checkout takes nine seconds",
    "releases": "14:01 release 812 of checkout, by the basket team",
    "tickets": "forty of them, all since 14:02, all about checkout",
}
BUDGET = ExecutionBudget(max_tokens=4_000, max_turns=6)


def describe(name, about, **types):
    """Describe a tool to the model."""
    properties = {field: {"type": kind} for field, kind in types.items()}
    schema = {"type": "object", "properties": properties, "required": list(types), "additionalProperties": False}
    return {"type": "function", "function": {"name": name, "description": about, "parameters": schema}}


TOOLS: Any = [
    describe("look_at", f"Look at one of {', '.join(SIGHTS)}.", sight="string"),
    describe(
        "assign",
        "Have a worker of that name do a task, and get what it found. Priority: background, low, normal, high or critical. "
        "A worker whose slot goes to more urgent work ends with what it has, unless it must_finish.",
        worker="string", task="string", priority="string", must_finish="boolean",
    ),
    describe("call_off", "Stop a worker whose work nobody needs any more, and all that work for it.", worker="string", reason="string"),
]  # fmt: skip


@dataclass(eq=False)
class Worker:
    """One agent at work: `found` are the texts it wrote so far, kept also when it is stopped on the way, and `why` is why."""

    agent: ravi_otel.Agent
    must_finish: bool = False
    found: list[str] = field(default_factory=list[str])
    why: str | None = None


class Desk:
    """Run one incident; `at_work` are the workers by name, `say` is told what happens."""

    def __init__(self, client: openai.AsyncOpenAI, model: str, say: Say = print) -> None:
        self.client = client
        self.model = model
        self.say = say
        self.at_work: dict[str, Worker] = {}
        self.tools = {tool.__name__: ravi_otel.tool(tool) for tool in (self.look_at, self.assign, self.call_off)}

    async def lead(self, alert: str) -> str:
        """Have the lead, the root of the tree, deal with an alert, and give what it says in the end."""
        async with ravi_otel.agent("lead", budget=ExecutionBudget(max_tokens=20_000, max_turns=8)) as agent:
            lead = Worker(agent)
            await self.converse(lead, alert)
            return lead.found[-1] if lead.found else ""

    # -- the loop of every agent ------------------------------------------------------------------------------------

    async def converse(self, worker: Worker, task: str) -> None:
        """Ask the model and run the tools it asks for, side by side, until it asks for none."""
        order = ORDER.format(name=worker.agent.id)
        messages: Any = [{"role": "system", "content": order}, {"role": "user", "content": task}]
        ask = partial(self.client.chat.completions.create, model=self.model, messages=messages, tools=TOOLS, max_completion_tokens=300)
        while True:
            reply = await self.unpaused(worker, ask)
            message = reply.choices[0].message
            messages.append(message.model_dump(exclude_none=True))
            if message.content:
                worker.found.append(message.content)
            if not message.tool_calls:
                return
            results = await asyncio.gather(*(self.use(worker, call) for call in message.tool_calls))
            messages += [
                {"role": "tool", "tool_call_id": call.id, "content": json.dumps(result)}
                for call, result in zip(message.tool_calls, results, strict=True)
            ]

    async def use(self, worker: Worker, call: Any) -> Any:
        """Run a tool; what its model asks wrongly it is told, and also that there is no slot for another worker."""
        try:
            tool, arguments = self.tools[call.function.name], json.loads(call.function.arguments)
            return await self.unpaused(worker, partial(tool, **arguments))
        except (KeyError, TypeError, ValueError) as error:
            return {"error": f"{type(error).__name__}: {error}"}
        except SpawnDeniedError as error:
            self.say(f"{worker.agent.id} is told so, and goes on")
            return error.as_tool_error()

    async def unpaused(self, worker: Worker, step: Callable[[], Awaitable[Any]]) -> Any:
        """Do a step; when urgent work took the slot before it, a worker that must finish waits in line, any other ends."""
        while True:
            try:
                return await step()
            except AgentPausedError as error:
                if not worker.must_finish or error.agent_id != worker.agent.id:
                    raise
            self.say(f"{worker.agent.id} must finish, and waits in line")
            await worker.agent.resumed()

    # -- the tools --------------------------------------------------------------------------------------------------

    async def look_at(self, sight: str) -> str:
        """Look at something."""
        return SIGHTS.get(sight, "nothing there")

    async def assign(self, worker: str, task: str, priority: str = "normal", *, must_finish: bool = False) -> dict[str, Any]:
        """Have a worker do a task, and give how it ended and what it found, also when it was stopped on the way."""
        urgency = Priority[str(priority).upper()]
        if urgency > Priority.NORMAL:
            self.say(f"{worker} is {urgency.name.lower()} work")
        at_work = Worker(ravi_otel.agent(worker, priority=urgency, budget=BUDGET), must_finish)
        try:
            async with at_work.agent:  # SpawnDeniedError when there is no slot
                self.at_work[worker] = at_work
                await self.converse(at_work, str(task))
        except SpawnDeniedError:
            raise
        except (AgentPausedError, CancellationError, BudgetExhaustedError) as error:
            at_work.why = str(error)
        return {"status": at_work.agent.status, "found": at_work.found, "why": at_work.why}

    async def call_off(self, worker: str, reason: str) -> dict[str, Any]:
        """Cancel one branch of the tree: the worker, and all below it."""
        found = self.at_work.get(worker)
        if found is None or found.agent.status != "open":
            return {"error": f"nobody of the name {worker} is at work"}
        self.say(f"{worker} is called off, with all that work for it: {reason}")
        found.agent.cancel(str(reason))
        return {"called_off": worker}
