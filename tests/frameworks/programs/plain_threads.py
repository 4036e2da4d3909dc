"""Reason and act in a loop on three threads, with nothing but the client."""

import json
from concurrent.futures import ThreadPoolExecutor

from openai import OpenAI

client = OpenAI()


def find_parcel(number):
    return f"{number} is in Oslo"


def ask_harbour(city):
    return f"{city} is waiting for a ship"


FUNCTIONS = {"find_parcel": find_parcel, "ask_harbour": ask_harbour}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"Call {name}.",
            "parameters": {"type": "object", "properties": {argument: {"type": "string"}}, "required": [argument]},
        },
    }
    for name, argument in (("find_parcel", "number"), ("ask_harbour", "city"))
]


def solve(task):
    messages = [{"role": "system", "content": "You find parcels."}, {"role": "user", "content": task}]
    used = 0
    with ThreadPoolExecutor(2) as pool:
        while True:
            answer = client.chat.completions.create(model="gpt-4.1-mini", messages=messages, tools=TOOLS)
            message = answer.choices[0].message
            used += answer.usage.total_tokens
            if not message.tool_calls:
                return f"{task}: {message.content} ({used} tokens)"
            messages.append(message)
            calls = [(call.id, FUNCTIONS[call.function.name], json.loads(call.function.arguments)) for call in message.tool_calls]
            results = [(call_id, pool.submit(function, **arguments)) for call_id, function, arguments in calls]
            messages += [{"role": "tool", "tool_call_id": call_id, "content": result.result()} for call_id, result in results]


with ThreadPoolExecutor(3) as workers:
    for line in workers.map(solve, ["Where is P-1?", "Where is P-2?", "Where is P-3?"]):
        print(line)
