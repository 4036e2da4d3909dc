"""A framework that makes a text of whatever a tool raises: the request that brings it to the model is refused, until there is room."""

import pytest
from openai import OpenAI

import ravi_otel
from ravi_otel import BudgetExhaustedError
from ravi_otel._runtime.inferred_tools import INFERRING
from ravi_otel.testing import ScriptedLLM, Text, ToolCalls

TOOLS = [{"type": "function", "function": {"name": "find", "parameters": {"type": "object", "properties": {}}}}]


def reply(request):
    asked = not any(message["role"] == "tool" for message in request.body["messages"])
    return ToolCalls([("find", {})]) if asked else Text("done")


@pytest.fixture
def client():
    with ScriptedLLM(reply) as server, ravi_otel.instrument(), OpenAI(base_url=server.base_url, api_key="any", max_retries=0) as client:
        yield client


def ask(client, *more):
    messages = [{"role": "user", "content": "hi"}, *more]
    return client.chat.completions.create(model="gpt-4o-mini", messages=messages, tools=TOOLS).choices[0].message


def results_of(message):
    return [message.model_dump(exclude_none=True)] + [
        {"role": "tool", "tool_call_id": each.id, "content": "it failed"} for each in message.tool_calls
    ]


def refused(find, run):
    with pytest.raises(BudgetExhaustedError):
        find()
    INFERRING.refused(run.scope, "find")


def test_the_request_that_brings_it_is_refused_and_nothing_is_charged(client):
    find = ravi_otel.tool(lambda: 1, name="find")
    with ravi_otel.run("around", limits=["tool_calls=0"]) as run:
        message = ask(client)
        refused(find, run)
        for _ in range(2):
            with pytest.raises(BudgetExhaustedError, match="tool calls"):
                ask(client, *results_of(message))
        assert (run.stats().tool_calls, run.stats().requests) == (0, 1)
        assert [each.used for each in run.limits] == [0]


def test_with_room_by_then_it_goes_on_and_the_tool_is_not_counted(client):
    find = ravi_otel.tool(lambda: 1, name="find")
    with ravi_otel.run("around", limits=["tool_calls=0"]) as run:
        message = ask(client)
        refused(find, run)
        run.set_limit("tool_calls", 1)
        assert ask(client, *results_of(message)).content == "done"
        assert (run.stats().tool_calls, [each.used for each in run.limits], [each.held for each in run.limits]) == (0, [0], [0])


def test_what_no_answer_asked_for_changes_nothing(client):
    with ravi_otel.run("around") as run:
        message = ask(client)
        INFERRING.refused(run.scope, "another")
        assert ask(client, *results_of(message)).content == "done"
        assert run.stats().tool_calls == 1
