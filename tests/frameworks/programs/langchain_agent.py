"""An agent of LangChain with two tools."""

from langchain.agents import create_agent
from langchain.tools import tool
from langchain_openai import ChatOpenAI


@tool
def find_parcel(number: str) -> str:
    """Say where a parcel is."""
    print("find_parcel", number)
    return f"{number} is in Oslo"


@tool
def ask_harbour(city: str) -> str:
    """Ask a harbour what it waits for."""
    return f"{city} is waiting for a ship"


model = ChatOpenAI(model="gpt-4.1-mini", temperature=0)
clerk = create_agent(model, tools=[find_parcel, ask_harbour], system_prompt="You find parcels.", name="clerk")
state = clerk.invoke({"messages": [{"role": "user", "content": "Where are my parcels?"}]})
print(state["messages"][-1].content)
print(sum(message.usage_metadata["total_tokens"] for message in state["messages"] if message.type == "ai"), "tokens")
