"""Play the model of all three teams: one that believes its tools, asks again when a tool says so, and thinks longer each time."""

from ravi_otel.testing import Text, ToolCalls

TOOLS = {"finder": "search_catalogue", "helper": "track_parcel", "biller": "read_order", "reconciler": "read_statement"}
"""Which tool each agent is made for."""

THOUGHT, MORE_PER_MESSAGE = 10, 90  # tokens


def answer(request, think_s=0.0):
    """Call the agent's tool once; answer when it has told something, and call it again when it asks for that."""
    messages = request.body["messages"]
    system, task, *since = messages
    thought = THOUGHT + MORE_PER_MESSAGE * max(0, len(since) - 2)
    usage = (sum(len(each.get("content") or "") for each in messages) // 4, thought)
    if not since or "try again" in since[-1]["content"]:
        tool = TOOLS[system["content"].split()[-1]]
        return ToolCalls([(tool, {"key": task["content"]})], usage=usage, think_s=think_s)
    return Text(f"Done: {since[-1]['content']}", usage=usage, think_s=think_s)
