"""Stream answers of the Responses API on asyncio, run their tools at once, and send back no more than their results."""

import asyncio
import json

import openai

TOOLS = [
    {"type": "function", "name": name, "parameters": {"type": "object", "properties": {argument: {"type": "string"}}}, "strict": False}
    for name, argument in (("find_parcel", "number"), ("ask_harbour", "city"))
]


async def find_parcel(number):
    return f"{number} is in Oslo"


async def ask_harbour(city):
    return f"{city} is waiting for a ship"


async def act(call):
    result = await globals()[call.name](**json.loads(call.arguments))
    return {"type": "function_call_output", "call_id": call.call_id, "output": result}


async def solve(client, task):
    said, previous, words, used = task, None, [], 0
    while said:
        async with client.responses.stream(
            model="gpt-4.1-mini", input=said, tools=TOOLS, previous_response_id=previous or openai.omit
        ) as stream:
            words += [event.delta async for event in stream if event.type == "response.output_text.delta"]
            response = await stream.get_final_response()
        previous = response.id
        used += response.usage.total_tokens
        said = await asyncio.gather(*(act(item) for item in response.output if item.type == "function_call"))
    return f"{task}: {''.join(words)} ({used} tokens)"


async def main():
    async with openai.AsyncOpenAI() as client:
        tasks = [solve(client, f"Where is P-{number}?") for number in (1, 2)]
        for line in await asyncio.gather(*tasks, return_exceptions=True):  # one that fails does not end the other
            if isinstance(line, BaseException):
                raise line
            print(line)


asyncio.run(main())
