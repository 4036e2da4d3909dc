"""An agent of LlamaIndex with two tools."""

import asyncio
import os

from llama_index.core.agent.workflow import FunctionAgent
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
    clerk = FunctionAgent(name="clerk", tools=[find_parcel, ask_harbour], llm=model, system_prompt="You find parcels.")
    print(await clerk.run("Where are my parcels?"))


asyncio.run(main())
