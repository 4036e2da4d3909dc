"""Be the service of one team: its agents work through the tasks of the day, each task in a run of its own.

    OTEL_SERVICE_NAME=finance-agents python examples/incident/team.py finance

`OPENAI_BASE_URL` and `OPENAI_API_KEY` say where the model is, `OTEL_EXPORTER_OTLP_ENDPOINT` where telemetry goes, `RAVI_STORE` where it
is kept on this machine, `RAVI_LEDGER` where budgets are counted that outlive the process. `fleet.py` beside this file starts three of
these, with a scripted model.
"""

import argparse
import json
import sys

import openai

import ravi_otel
from ravi_otel import HookEvent, HookManager

MODEL = "gpt-5"
BUDGET = "tenant.cost=1usd:per=24h"  # what a team may spend in a day, whichever of its agents does
TASKS = {
    "search": [("finder", f"lamp {number}") for number in range(1, 13)],
    "support": [("helper", f"parcel {number}") for number in range(1, 13)],
    "finance": [("biller", "order 1"), ("biller", "order 2"), ("reconciler", "June"), ("biller", "order 3"), ("biller", "order 4")],
}


@ravi_otel.tool
def search_catalogue(key):
    return f"{key} is on shelf {len(key)}."


@ravi_otel.tool
def track_parcel(key):
    return f"{key} comes tomorrow."


@ravi_otel.tool
def read_order(key):
    return f"{key} is 20 EUR."


@ravi_otel.tool
def read_statement(key):
    """Ask the bank for a month, which has been working on it since yesterday, and sends each time what it has so far."""
    lines = (f"{key} {day:02}  card payment  shop {day * 37:05}  {day * 11 % 90}.50 EUR  pending" for day in range(1, 31))
    return "\n".join([*lines, "This statement is not complete yet. Please try again."])


TOOLS = {tool.__name__: tool for tool in (search_catalogue, track_parcel, read_order, read_statement)}
OFFERED = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {"key": {"type": "string"}}}}}
    for name in TOOLS
]
hooks = HookManager()


@hooks.on(HookEvent.LIMIT_NEARING)
def near(event):
    print(f"{event['ratio']:.0%} used of the {event['limit_kind']} limit of {event['scope']} {event['scope_name']}", flush=True)


def work(client, agent, task):
    """Ask the model until it has an answer, with all that was said so far: what every agent's loop does."""
    messages = [{"role": "system", "content": f"You are {agent}"}, {"role": "user", "content": task}]
    with ravi_otel.agent(agent):
        while True:
            reply = client.chat.completions.create(model=MODEL, messages=messages, tools=OFFERED).choices[0].message
            if not reply.tool_calls:
                return reply.content
            messages.append(reply.model_dump(exclude_none=True))
            for call in reply.tool_calls:
                told = TOOLS[call.function.name](**json.loads(call.function.arguments))
                messages.append({"role": "tool", "tool_call_id": call.id, "content": told})


def serve(team):
    """Do all tasks; one that is refused is left, and the next one is begun."""
    try:
        ravi_otel.instrument(hooks=hooks)
    except ravi_otel.ConfigurationError as error:  # such as a policy file that is not there
        sys.exit(f"{team}: {error}")
    client, spent = openai.OpenAI(), 0.0
    for agent, task in TASKS[team]:
        try:
            with ravi_otel.run(team, tenant_id=team, tags={"team": team, "tenant": "acme"}, limits=[BUDGET]) as run:
                told = work(client, agent, task)
        except ravi_otel.BudgetExhaustedError as error:
            told = f"refused: {error}"
        print(f"{team:8} {agent:11} {run.stats().requests:3} calls {run.cost_usd:7.4f} USD  {told}", flush=True)
        spent += run.cost_usd
    print(f"{team:8} {'in all':11} {spent:17.4f} USD  of {BUDGET}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Be the service of one team.")
    parser.add_argument("team", choices=TASKS)
    serve(parser.parse_args().team)
