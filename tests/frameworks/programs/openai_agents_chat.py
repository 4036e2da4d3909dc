"""An agent of the OpenAI Agents SDK over chat completions."""

from agents import Agent, ModelSettings, OpenAIChatCompletionsModel, Runner, function_tool, set_tracing_disabled
from openai import AsyncOpenAI

set_tracing_disabled(True)


@function_tool
def find_parcel(number: str) -> str:
    """Say where a parcel is."""
    print("find_parcel", number)
    return f"{number} is in Oslo"


@function_tool
def ask_harbour(city: str) -> str:
    """Ask a harbour what it waits for."""
    return f"{city} is waiting for a ship"


clerk = Agent(
    name="clerk",
    instructions="You find parcels.",
    tools=[find_parcel, ask_harbour],
    model=OpenAIChatCompletionsModel("gpt-4.1-mini", AsyncOpenAI()),
    model_settings=ModelSettings(temperature=0),
)

result = Runner.run_sync(clerk, "Where are my parcels?")
print(result.final_output)
print(result.context_wrapper.usage.requests, "requests", result.context_wrapper.usage.total_tokens)
