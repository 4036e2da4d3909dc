"""Be the model of every program here: it asks four times for two tools, then says what it found. Each answer costs the same."""

import threading

from ravi_otel.testing import Text, ToolCalls

ROUNDS = 4
REQUESTS = ROUNDS + 1
TOOLS = ("find_parcel", "ask_harbour")
USAGE = (1000, 50)
TOKENS = sum(USAGE)
COST = (0.40 * USAGE[0] + 1.60 * USAGE[1]) / 1_000_000
"""USD of one answer of gpt-4.1-mini."""

FINAL = "All of them are in Oslo."
HANDOFF = "transfer_to_clerk"


class Story:
    """Answer by what a request says has happened; one that says it by the id of a response is remembered."""

    def __init__(self):
        self._lock = threading.Lock()
        self._rounds = {}

    def __call__(self, request):
        body = request.body
        offered = {tool.get("name") or tool["function"]["name"] for tool in body.get("tools", ())}
        if HANDOFF in offered:
            return ToolCalls([(HANDOFF, {})], usage=USAGE)
        if "handoff" in offered:  # how LlamaIndex has an agent hand over
            return ToolCalls([("handoff", {"to_agent": "clerk", "reason": "parcels"})], usage=USAGE)
        done = self._before(body) + rounds(body)
        with self._lock:
            self._rounds[f"resp_{request.index + 1}"] = done
        if "<code>" in str(body.get("messages", "")):  # how smolagents has a model write code
            asks = f'final_answer("{FINAL}")'
            if done < ROUNDS:
                asks = f'print(find_parcel(number="P-{done}"))\nprint(ask_harbour(city="Oslo"))'
            return Text(f"<code>\n{asks}\n</code>", usage=USAGE)
        if done < ROUNDS:
            return ToolCalls([("find_parcel", {"number": f"P-{done}"}), ("ask_harbour", {"city": "Oslo"})], usage=USAGE)
        if "final_answer" in offered:  # how smolagents has a model say that it is done
            return ToolCalls([("final_answer", {"answer": FINAL})], usage=USAGE)
        return Text(FINAL, usage=USAGE)

    def _before(self, body):
        with self._lock:
            return self._rounds.get(body.get("previous_response_id"), 0)


def rounds(body):
    """Count the answers whose tools have been run, in a chat, in an input of the Responses API, or in words."""
    said = body.get("messages") or body.get("input") or ()
    if isinstance(said, str):
        return 0
    first = TOOLS[0]
    chat = sum(any(call["function"]["name"] == first for call in item.get("tool_calls") or ()) for item in said)
    called = {item["call_id"] for item in said if item.get("type") == "function_call" and item["name"] == first}
    results = [item for item in said if item.get("type") == "function_call_output"]
    # With the id of the response before, only the results are sent.
    responses = len(called) if called or len(results) < len(TOOLS) else 1
    told = sum("Calling tools:" in str(item.get("content")) for item in said if item.get("role") == "assistant")
    return chat + responses + told
