"""Run agents whose names nobody expects: `hostile_names.py FRAMEWORK`. Print each answer, or how the framework itself refuses the name."""

import asyncio
import os
import sys

NAMES = ["x" * 1_000_000, None, 7, "", "\x00\n", "\ud800", b"clerk", object]
MODEL = "gpt-4.1-mini"


def find_parcel(number: str) -> str:
    """Say where a parcel is.

    Args:
        number: The number of the parcel.
    """
    return f"{number} is in Oslo"


def ask_harbour(city: str) -> str:
    """Ask a harbour what it waits for.

    Args:
        city: The city of the harbour.
    """
    return f"{city} is waiting for a ship"


FUNCTIONS = [find_parcel, ask_harbour]


def langchain(name):
    from langchain.agents import create_agent
    from langchain.tools import tool
    from langchain_openai import ChatOpenAI

    tools = [tool(each) for each in FUNCTIONS]
    clerk = create_agent(ChatOpenAI(model=MODEL), tools=tools)
    clerk.name = name
    for each in tools:
        each.callbacks = None
    return clerk.invoke({"messages": [("user", "Where are my parcels?")]})["messages"][-1].content


def openai_agents(name):
    from agents import Agent, Runner, function_tool, set_tracing_disabled

    set_tracing_disabled(True)
    clerk = Agent(name="clerk", tools=[function_tool(each) for each in FUNCTIONS], model=MODEL)
    clerk.name = name
    return Runner.run_sync(clerk, "Where are my parcels?").final_output


def pydantic_ai(name):
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel

    clerk = Agent(OpenAIChatModel(MODEL), tools=FUNCTIONS)
    clerk.name = name
    return clerk.run_sync("Where are my parcels?", infer_name=False).output


def smolagents(name):
    from smolagents import OpenAIModel, ToolCallingAgent, tool

    model = OpenAIModel(model_id=MODEL, api_base=os.environ["OPENAI_BASE_URL"], api_key="any")
    clerk = ToolCallingAgent(tools=[tool(each) for each in FUNCTIONS], model=model, verbosity_level=-1)
    clerk.name = name
    return clerk.run("Where are my parcels?")


def crewai(name):
    from crewai import LLM, Agent
    from crewai.tools import tool

    clerk = Agent(role="clerk", goal="Find parcels.", backstory="", llm=LLM(model=MODEL), tools=[tool(each) for each in FUNCTIONS])
    object.__setattr__(clerk, "role", name)
    return clerk.kickoff("Where are my parcels?").raw


def llama_index(name):
    from llama_index.core.agent.workflow import FunctionAgent
    from llama_index.core.tools import FunctionTool
    from llama_index.llms.openai import OpenAI

    clerk = FunctionAgent(
        tools=[FunctionTool.from_defaults(each) for each in FUNCTIONS], llm=OpenAI(model=MODEL, api_base=os.environ["OPENAI_BASE_URL"])
    )
    object.__setattr__(clerk, "name", name)

    async def ask():
        return str(await clerk.run("Where are my parcels?"))

    return asyncio.run(ask())


for number, each in enumerate(NAMES):
    try:
        print(f"name {number}:", globals()[sys.argv[1]](each))
    except Exception as error:
        print(f"name {number}:", type(error).__name__, ascii(str(error))[:200])
