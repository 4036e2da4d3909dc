"""A server by hand over stdio, which keeps every byte that it is sent, and asks for a model's answer where a tool is called `sample`."""

import json
import os
import sys
from pathlib import Path

BETWEEN = {"type": "object", "properties": {"from": {"type": "string"}, "to": {"type": "string"}}, "required": ["from"]}
TOOLS = [{"name": "search", "inputSchema": {"type": "object"}}, {"name": "between", "inputSchema": BETWEEN}]
SAMPLING = {"messages": [{"role": "user", "content": {"type": "text", "text": "?"}}], "maxTokens": 5}


def answer(message):
    if message["method"] == "initialize":
        version = message["params"]["protocolVersion"]
        info = {"name": os.environ.get("SERVER_NAME", "notes"), "version": "1"}
        return {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info}
    if message["method"] == "tools/list":
        return {"tools": TOOLS}
    if message["method"] == "tools/call":
        return {"content": [{"type": "text", "text": "found"}]}
    return {}


with Path(os.environ["RAN"]).open("ab", buffering=0) as log:
    for line in sys.stdin.buffer:
        log.write(line)
        message = json.loads(line)
        if message.get("method") == "tools/call" and message["params"]["name"] == "sample":
            sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": 7, "method": "sampling/createMessage", "params": SAMPLING}) + "\n")
        if "id" in message and "method" in message:
            sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": answer(message)}) + "\n")
            sys.stdout.flush()
