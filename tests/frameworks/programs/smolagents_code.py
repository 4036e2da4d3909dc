"""An agent of smolagents that writes code, which calls its tools."""

import os

from smolagents import OpenAIModel, CodeAgent, tool


@tool
def find_parcel(number: str) -> str:
    """Say where a parcel is.

    Args:
        number: The number of the parcel.
    """
    print("find_parcel", number)
    return f"{number} is in Oslo"


@tool
def ask_harbour(city: str) -> str:
    """Ask a harbour what it waits for.

    Args:
        city: The city of the harbour.
    """
    return f"{city} is waiting for a ship"


model = OpenAIModel(model_id="gpt-4.1-mini", api_base=os.environ["OPENAI_BASE_URL"], api_key=os.environ["OPENAI_API_KEY"])
clerk = CodeAgent(tools=[find_parcel, ask_harbour], model=model, name="clerk", verbosity_level=0)
print(clerk.run("Where are my parcels?"))
print(clerk.monitor.get_total_token_counts().total_tokens, "tokens")
