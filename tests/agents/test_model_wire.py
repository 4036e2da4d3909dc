"""The plain openai client as an agent's model: chat and Responses, what goes out, and what odd answers become."""

from __future__ import annotations

import json
from types import SimpleNamespace

import anyio
import openai
import pytest

from ravi_otel import ConfigurationError, LLMEmpty, LLMTimeout
from ravi_otel.agents import OpenAIModel, ReActAgent
from ravi_otel.agents._model import from_chat
from ravi_otel.policy._contracts import ChatMessage, LLMClient
from ravi_otel.testing import Raw, Text, ToolCalls

HI = [ChatMessage("user", "hi")]


def double(x: int) -> int:
    """Double a number."""
    return 2 * x


def response(*output, **more):
    body = {"id": "resp_1", "object": "response", "created_at": 1, "model": "r", "status": "completed", "output": list(output)}
    body |= {"parallel_tool_calls": True, "tool_choice": "auto", "tools": [], "usage": {"input_tokens": 10, "output_tokens": 5}}
    return Raw(json.dumps(body | more).encode())


REASONING = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAAA"}
CALL = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "double", "arguments": '{"x": 2}', "status": "completed"}


@pytest.mark.parametrize("api", ["chat", "responses"])
def test_either_api_gives_text_tools_and_usage(team, go, api):
    team.plays("r", ToolCalls([("double", {"x": 2})], usage=(10, 5)), Text("four", usage=(10, 5)))
    result = go(ReActAgent("r", model="r", api=api, tools=[double], instructions="Be kind.").run, "hi")
    assert (result.answer, result.usage.total_tokens, result.usage.tool_calls) == ("four", 30, 1)


def test_reasoning_is_passed_back_as_it_came(team, go):
    team.plays("r", response(REASONING, CALL), Text("four", usage=(10, 5)))
    assert go(ReActAgent("r", model="r", api="responses", tools=[double]).run, "hi").answer == "four"
    sent = team.requests("r")[-1]["input"]
    assert sent[1] == REASONING
    assert sent[2] == {key: value for key, value in CALL.items() if key != "status"}
    assert sent[3] == {"type": "function_call_output", "call_id": "call_1", "output": "4"}


def test_reasoning_travels_encrypted_where_nothing_is_stored(team, go):
    team.plays("r", Text("ok"))
    go(lambda: OpenAIModel("r", api="responses").generate(HI, options={"store": False}))
    assert team.requests("r")[0]["include"] == ["reasoning.encrypted_content"]


def test_a_conversation_from_elsewhere_is_written_for_responses(team, go):
    team.plays("r", Text("ok"))
    call = {"id": "c", "type": "function", "function": {"name": "double", "arguments": "{}"}}
    given = [ChatMessage("developer", "d"), ChatMessage("assistant", "a", tool_calls=(call,)), ChatMessage("tool", "1", tool_call_id="c")]
    go(lambda: OpenAIModel("r", api="responses").generate(given))
    assert team.requests("r")[0]["input"] == [
        {"role": "developer", "content": "d"},
        {"role": "assistant", "content": "a"},
        {"type": "function_call", "call_id": "c", "name": "double", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "1"},
    ]


@pytest.mark.parametrize(("api", "named"), [("chat", "max_completion_tokens"), ("responses", "max_output_tokens")])
def test_options_are_the_endpoints_own(team, go, api, named):
    team.plays("r", Text("ok"))
    go(lambda: OpenAIModel("r", api=api).generate(HI, options={named: 7}))
    assert team.requests("r")[0][named] == 7


def test_a_failed_response_is_empty_and_says_why(team, go):
    team.plays("r", response(status="failed", error={"code": "server_error", "message": "overloaded"}))
    with pytest.raises(LLMEmpty, match="overloaded"):
        go(lambda: OpenAIModel("r", api="responses").generate(HI))


@pytest.mark.parametrize("api", ["chat", "responses"])
def test_a_model_that_does_not_answer_in_time_times_out(team, go, api):
    team.plays("slow", lambda _: Text("late", think_s=30))

    async def main():
        async with openai.AsyncOpenAI(max_retries=0) as client:
            model = OpenAIModel("slow", client=client, api=api, timeout_s=0.2)
            result = await ReActAgent("r", model=model).run("hi")
            with pytest.raises(LLMTimeout, match="OPENAI_TIMEOUT_SECONDS"):
                await model.generate(HI)
            return result

    result = go(main)
    assert (result.status, result.stop_reason, type(result.error)) == ("stopped", "llm_timeout", LLMTimeout)


def test_a_deadline_of_the_run_is_no_time_out_of_the_model(team, go):
    team.plays("slow", lambda _: Text("late", think_s=30))
    assert go(ReActAgent("r", model="slow", limits=["time=0.3s"]).run, "hi").stop_reason == "deadline"


def test_defaults_come_from_the_environment(monkeypatch):
    monkeypatch.delenv("OPENAI_MODEL", raising=False)
    monkeypatch.delenv("OPENAI_TIMEOUT_SECONDS", raising=False)
    assert (OpenAIModel().model, OpenAIModel().timeout_s) == ("gpt-4.1-mini", 60)
    monkeypatch.setenv("OPENAI_MODEL", "other")
    monkeypatch.setenv("OPENAI_TIMEOUT_SECONDS", "7.5")
    assert (OpenAIModel().model, OpenAIModel().timeout_s) == ("other", 7.5)
    assert (OpenAIModel("mine", timeout_s=3).model, OpenAIModel("mine", timeout_s=3).timeout_s) == ("mine", 3)
    assert isinstance(OpenAIModel(), LLMClient)


@pytest.mark.parametrize("seconds", ["soon", "nan", "-1", "0", "inf"])
def test_a_time_that_is_none_is_said(monkeypatch, seconds):
    monkeypatch.setenv("OPENAI_TIMEOUT_SECONDS", seconds)
    with pytest.raises(ConfigurationError, match="OPENAI_TIMEOUT_SECONDS"):
        OpenAIModel()


def test_a_blocking_client_is_refused(team):
    with openai.OpenAI() as client, pytest.raises(ConfigurationError, match="AsyncOpenAI"):
        OpenAIModel(client=client)


def test_a_missing_key_ends_the_run_and_says_so(team, monkeypatch, go):
    monkeypatch.delenv("OPENAI_API_KEY")
    result = go(ReActAgent("r", model="r").run, "hi")
    assert (result.status, result.stop_reason) == ("error", "llm_error:OpenAIError")
    assert "OPENAI_API_KEY" in str(result.error)


def test_agents_of_one_run_share_a_client_which_is_closed_with_it(team, monkeypatch):
    made = []

    class Counted(openai.AsyncOpenAI):
        def __init__(self, **given):
            super().__init__(**given)
            made.append(self)

    monkeypatch.setattr(openai, "AsyncOpenAI", Counted)
    inner = ReActAgent("inner", model=team.plays("inner", Text("in")))

    async def delegate() -> str:
        return (await inner.run("x")).answer

    agent = ReActAgent("r", model=team.plays("r", ToolCalls([("delegate", {})]), Text("out")), tools=[delegate])
    assert anyio.run(agent.run, "go").ok
    assert [client.is_closed() for client in made] == [True]


def call(call_id, name, arguments):
    return SimpleNamespace(id=call_id, function=SimpleNamespace(name=name, arguments=arguments))


@pytest.mark.parametrize(
    ("given", "read"),
    [
        (call("c", "double", "{}"), ("c", "double", "{}")),
        (call(None, None, None), ("call_0", "", "null")),
        (call(3, 4, {"x": 1}), ("call_0", "", '{"x": 1}')),
        (call("c", "half \ud800", "\ud800"), ("c", "half ?", "?")),
        (SimpleNamespace(id="c", function=None, custom=SimpleNamespace(name="n", input="free")), ("c", "n", "free")),
    ],
)
def test_odd_tool_calls_become_calls_that_can_be_answered(given, read):
    message = SimpleNamespace(content=None, refusal=None, tool_calls=[given])
    generation = from_chat(SimpleNamespace(choices=[SimpleNamespace(message=message, finish_reason="tool_calls")], usage=None))
    (found,) = generation.message.tool_calls
    assert (found["id"], found["function"]["name"], found["function"]["arguments"]) == read


@pytest.mark.parametrize("completion", [SimpleNamespace(), SimpleNamespace(choices=None), SimpleNamespace(choices=[SimpleNamespace()])])
def test_an_answer_without_anything_in_it_is_empty(completion):
    with pytest.raises(LLMEmpty):
        from_chat(completion)
