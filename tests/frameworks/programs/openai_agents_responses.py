"""Two agents of the OpenAI Agents SDK, one of which hands over to the other, streamed, over the Responses API."""

import asyncio

from agents import Agent, Runner, function_tool, set_tracing_disabled

set_tracing_disabled(True)


@function_tool
def find_parcel(number: str) -> str:
    """Say where a parcel is."""
    print("find_parcel", number)
    return f"{number} is in Oslo"


@function_tool
async def ask_harbour(city: str) -> str:
    """Ask a harbour what it waits for."""
    return f"{city} is waiting for a ship"


clerk = Agent(name="clerk", instructions="You find parcels.", tools=[find_parcel, ask_harbour], model="gpt-4.1-mini")
desk = Agent(name="desk", instructions="Hand parcels over to the clerk.", handoffs=[clerk], model="gpt-4.1-mini")


async def main():
    result = Runner.run_streamed(desk, "Where are my parcels?")
    async for event in result.stream_events():
        if event.type == "agent_updated_stream_event":
            print("now", event.new_agent.name)
    usage = result.context_wrapper.usage
    print(result.final_output)
    print(usage.requests, "requests", usage.input_tokens, usage.output_tokens)


asyncio.run(main())
