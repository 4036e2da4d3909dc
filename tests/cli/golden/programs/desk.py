"""Be a support desk: three agents for one user of one customer, with a tool, a cached prompt, a stream and a failure."""

import contextlib

import openai
from asks import ask

import ravi_otel


@ravi_otel.tool
def search(question):
    return f"nothing on {question}"


@ravi_otel.tool
def refund(order):
    raise RuntimeError(f"{order} was paid back already")


with ravi_otel.run("triage", user_id="u42", tenant_id="acme", session_id="s-1", tags={"team": "support"}):
    with ravi_otel.agent("planner"):
        ask("used 1210 80")
        with ravi_otel.agent("researcher", priority=ravi_otel.Priority.HIGH):
            for number in range(9):
                ask(f"used {100 + number} 10", model="m-large")
            search("order 881")
            ask("used 2000 300 cached 1500", model="m-large")
    with ravi_otel.agent("writer"):
        for _ in ask("used 500 60", stream=True, stream_options={"include_usage": True}):
            pass
        with contextlib.suppress(RuntimeError):
            refund("881")
        with contextlib.suppress(openai.APIStatusError):
            ask("fails 503")
        client = openai.OpenAI(max_retries=0)
        client.embeddings.create(model="m-vector", input=["where is my order"])
