"""Two agents of a LlamaIndex workflow, one of which hands over to the other, whose events are read while they work."""

import asyncio
import os

from llama_index.core.agent.workflow import AgentStream, AgentWorkflow, FunctionAgent
from llama_index.llms.openai import OpenAI

USAGE = {"stream_options": {"include_usage": True}}


def find_parcel(number: str) -> str:
    """Say where a parcel is."""
    print("find_parcel", number)
    return f"{number} is in Oslo"


async def ask_harbour(city: str) -> str:
    """Ask a harbour what it waits for."""
    return f"{city} is waiting for a ship"


async def main():
    model = OpenAI(model="gpt-4.1-mini", api_base=os.environ["OPENAI_BASE_URL"], additional_kwargs=USAGE)
    clerk = FunctionAgent(name="clerk", description="Finds parcels.", tools=[find_parcel, ask_harbour], llm=model, can_handoff_to=[])
    desk = FunctionAgent(name="desk", description="Hands over.", tools=[], llm=model, can_handoff_to=["clerk"])
    handler = AgentWorkflow(agents=[desk, clerk], root_agent="desk").run("Where are my parcels?")
    words = [event.delta async for event in handler.stream_events() if isinstance(event, AgentStream)]
    print(await handler)
    print("".join(words))


asyncio.run(main())
