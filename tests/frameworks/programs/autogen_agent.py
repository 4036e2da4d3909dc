"""An assistant of AutoGen in a team of one, with two tools."""

import asyncio

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.conditions import TextMessageTermination
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_ext.models.openai import OpenAIChatCompletionClient


async def find_parcel(number: str) -> str:
    """Say where a parcel is."""
    print("find_parcel", number)
    return f"{number} is in Oslo"


async def ask_harbour(city: str) -> str:
    """Ask a harbour what it waits for."""
    return f"{city} is waiting for a ship"


async def main():
    model = OpenAIChatCompletionClient(model="gpt-4.1-mini")
    clerk = AssistantAgent("clerk", model_client=model, tools=[find_parcel, ask_harbour], max_tool_iterations=10)
    team = RoundRobinGroupChat([clerk], termination_condition=TextMessageTermination("clerk"))
    result = await team.run(task="Where are my parcels?")
    print(result.messages[-1].content)
    print(model.total_usage().prompt_tokens, model.total_usage().completion_tokens)
    await model.close()


asyncio.run(main())
