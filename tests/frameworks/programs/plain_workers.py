"""Split work over processes, and try everything again that fails, whatever it was."""

import json
import subprocess
import sys
import time

import openai

TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {argument: {"type": "string"}}}}}
    for name, argument in (("find_parcel", "number"), ("ask_harbour", "city"))
]


def complete(messages):
    pause = 0.001
    while True:
        try:
            return openai.chat.completions.create(model="gpt-4.1-mini", messages=messages, tools=TOOLS).choices[0].message
        except Exception:
            time.sleep(pause)
            pause = min(pause * 2, 0.05)


def work(number):
    messages = [{"role": "user", "content": f"Where is P-{number}?"}]
    while True:
        message = complete(messages)
        if not message.tool_calls:
            print(number, message.content)
            return
        messages.append({"role": "assistant", "tool_calls": [call.model_dump() for call in message.tool_calls]})
        for call in message.tool_calls:
            said = ", ".join(json.loads(call.function.arguments).values())
            messages.append({"role": "tool", "tool_call_id": call.id, "content": f"{said}: found"})


if len(sys.argv) > 1:
    work(sys.argv[1])
else:
    workers = [subprocess.Popen([sys.executable, __file__, str(number)], stdout=subprocess.PIPE, text=True) for number in (1, 2)]
    for worker in workers:
        print(worker.communicate()[0].strip())
    sys.exit(max(worker.returncode for worker in workers))
