"""A function that LangGraph makes a graph of, with tools that it runs as tasks."""

from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.func import entrypoint, task


@tool
def find_parcel(number: str) -> str:
    """Say where a parcel is."""
    print("find_parcel", number)
    return f"{number} is in Oslo"


@tool
def ask_harbour(city: str) -> str:
    """Ask a harbour what it waits for."""
    return f"{city} is waiting for a ship"


TOOLS = {each.name: each for each in (find_parcel, ask_harbour)}
model = ChatOpenAI(model="gpt-4.1-mini").bind_tools(list(TOOLS.values()))


@task
def think(messages):
    return model.invoke(messages)


@task
def use(call):
    return TOOLS[call["name"]].invoke(call)


@entrypoint()
def clerk(messages):
    answer = think(messages).result()
    while answer.tool_calls:
        results = [use(call) for call in answer.tool_calls]
        messages = [*messages, answer, *(each.result() for each in results)]
        answer = think(messages).result()
    return answer


print(clerk.invoke([("user", "Where are my parcels?")]).content)
