"""Run an orchestrator whose model hands work to sub-agents, in a run that has room for four agents at once.

    OPENAI_API_KEY=... python examples/orchestrator.py

The orchestrator asks for more than there is room for: the model hears of the denied ones as of any tool's error, and goes
on. `urgent` work takes the slot of a sub-agent that can wait. `docs/agents.md` explains each of these words, and
`examples/ten_slots` is a larger one with a scripted model, no key needed.
"""

import asyncio
import json
import sys

import openai

import ravi_otel
from ravi_otel import AgentPausedError, ExecutionBudget, Priority, SpawnBudget, SpawnDeniedError

MODEL = "gpt-4.1-mini"
TASK = "Compare how Lisbon, Porto and Faro get their drinking water. Hand each city to a researcher, all at once, then sum up."
DELEGATE = {
    "type": "function",
    "function": {
        "name": "delegate",
        "description": "Have a researcher of that name answer a question. Urgent ones go before others.",
        "parameters": {
            "type": "object",
            "properties": {"name": {"type": "string"}, "question": {"type": "string"}, "urgent": {"type": "boolean"}},
            "required": ["name", "question", "urgent"],
            "additionalProperties": False,
        },
    },
}


@ravi_otel.tool
async def delegate(client, name, question, urgent=False):
    """Have a sub-agent answer; one whose slot was taken gives what it has."""
    agent = ravi_otel.agent(name, priority=Priority.HIGH if urgent else Priority.LOW, budget=ExecutionBudget(max_tokens=5_000))
    try:
        async with agent:  # raises SpawnDeniedError when all slots are taken
            for step in ("Note what you know about this.", "Now answer in two sentences."):
                prompt = "\n".join([question, agent.partial or "", step])
                reply = await client.responses.create(model=MODEL, input=prompt, max_output_tokens=300)
                agent.keep(reply.output_text)
    except AgentPausedError:
        pass
    return {"status": agent.status, "answer": agent.partial}


async def use(client, call):
    """Run the tool that the model asks for; what went wrong is its result, for the model to deal with."""
    try:
        return await delegate(client, **json.loads(call.function.arguments))
    except SpawnDeniedError as denied:
        return denied.as_tool_error()
    except (TypeError, ValueError) as error:
        return {"error": str(error)}


@ravi_otel.agent("orchestrator", budget=ExecutionBudget(max_turns=8))
async def orchestrate(client, task):
    messages = [{"role": "user", "content": task}]
    while True:
        reply = await client.chat.completions.create(model=MODEL, messages=messages, tools=[DELEGATE], max_completion_tokens=500)
        message = reply.choices[0].message
        messages.append(message.model_dump(exclude_none=True))
        if not message.tool_calls:
            return message.content
        results = await asyncio.gather(*(use(client, call) for call in message.tool_calls))
        for call, result in zip(message.tool_calls, results, strict=True):
            print(call.function.arguments, "->", result)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": json.dumps(result)})


async def main():
    ravi_otel.instrument()
    try:
        client = openai.AsyncOpenAI()
    except openai.OpenAIError as error:
        sys.exit(f"orchestrator: {error}")

    limits = [ravi_otel.cost_limit(0.05), ravi_otel.time_limit(120)]
    async with client, ravi_otel.run("orchestrator", limits=limits, spawn_budget=SpawnBudget(max_agents=4)) as run:
        print(await orchestrate(client, TASK))
        print(ravi_otel.SpawnTracker.current().stats())

    print(run.tree())
    print(run.cost_usd, run.stats())


if __name__ == "__main__":
    asyncio.run(main())
