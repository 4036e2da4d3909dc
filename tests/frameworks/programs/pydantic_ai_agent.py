"""An agent of Pydantic AI with two tools."""

from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel

clerk = Agent(OpenAIChatModel("gpt-4.1-mini"), instructions="You find parcels. Look up the parcel and its harbour.")


@clerk.tool_plain
def find_parcel(number: str) -> str:
    """Say where a parcel is."""
    print("find_parcel", number)
    return f"{number} is in Oslo"


@clerk.tool_plain
def ask_harbour(city: str) -> dict[str, str]:
    """Ask a harbour what it waits for."""
    return {"city": city, "state": "waiting for a ship"}


if __name__ == "__main__":
    done = clerk.run_sync("Where are my parcels?")
    print(done.output)
    print(done.usage.requests, "requests", done.usage.input_tokens, done.usage.output_tokens)
