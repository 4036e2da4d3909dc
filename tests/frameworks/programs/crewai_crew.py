"""A crew of CrewAI with one agent, and one task."""

from crewai import LLM, Agent, Crew, Task
from crewai.tools import tool


@tool("find_parcel")
def find_parcel(number: str) -> str:
    """Say where a parcel is."""
    print("find_parcel", number)
    return f"{number} is in Oslo"


@tool("ask_harbour")
def ask_harbour(city: str) -> str:
    """Ask a harbour what it waits for."""
    return f"{city} is waiting for a ship"


clerk = Agent(
    role="clerk", goal="Find parcels.", backstory="You know the harbours.", llm=LLM(model="gpt-4.1-mini"), tools=[find_parcel, ask_harbour]
)
task = Task(description="Where are my parcels?", expected_output="Where they are.", agent=clerk)
result = Crew(agents=[clerk], tasks=[task]).kickoff()
print(result.raw)
print(result.token_usage.total_tokens, "tokens")
