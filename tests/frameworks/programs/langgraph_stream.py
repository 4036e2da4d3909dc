"""A graph of LangGraph's own, whose model's words are streamed while it works."""

import asyncio

from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition


@tool
def find_parcel(number: str) -> str:
    """Say where a parcel is."""
    print("find_parcel", number)
    return f"{number} is in Oslo"


@tool
async def ask_harbour(city: str) -> str:
    """Ask a harbour what it waits for."""
    return f"{city} is waiting for a ship"


TOOLS = [find_parcel, ask_harbour]
model = ChatOpenAI(model="gpt-4.1-mini", streaming=True, stream_usage=True).bind_tools(TOOLS)


async def think(state: MessagesState):
    return {"messages": [await model.ainvoke(state["messages"])]}


graph = StateGraph(MessagesState)
graph.add_node("think", think)
graph.add_node("tools", ToolNode(TOOLS))
graph.add_edge(START, "think")
graph.add_conditional_edges("think", tools_condition)
graph.add_edge("tools", "think")
clerk = graph.compile(name="clerk")


async def main():
    words, tokens = [], 0
    async for message, where in clerk.astream({"messages": [("user", "Where are my parcels?")]}, stream_mode="messages"):
        if where["langgraph_node"] == "think":
            words.append(message.content)
            tokens += (message.usage_metadata or {}).get("total_tokens", 0)
    print("".join(words))
    print(tokens, "tokens")


asyncio.run(main())
