"""What a chat says is told as the convention has it, whole and in pieces alike."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any

import pytest

import ravi_otel
from ravi_otel._telemetry.content import redact_secrets
from ravi_otel.testing import Capture, Disconnect, Raw, Refusal, Text, ToolCalls

EVENT = "gen_ai.client.inference.operation.details"
MODEL = "gpt-4o-mini"
ASK: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "Weather in Paris? Mail me@example.com"}]}
SOUND = base64.b64encode(bytes(range(100))).decode()


@pytest.fixture
def captured(capture: Capture, monkeypatch: pytest.MonkeyPatch) -> Iterator[Capture]:
    """Instrument with content captured on spans and in events, and redacted."""
    monkeypatch.setenv("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", "SPAN_AND_EVENT")
    with ravi_otel.instrument(
        tracer_provider=capture.tracer_provider,
        meter_provider=capture.meter_provider,
        logger_provider=capture.logger_provider,
        redact=redact_secrets,
    ):
        yield capture


@pytest.fixture
def ask(stage, clients, colour):
    def run(program, *answers):
        url = stage.play(*answers)

        async def main():
            result = program(clients.make(colour, url))
            result = await result if hasattr(result, "__await__") else result
            if hasattr(result, "__aiter__"):
                return [chunk async for chunk in result]
            return list(result) if hasattr(result, "response") and hasattr(result, "__next__") else result

        return clients.run(colour, main())

    return run


def on_span(capture: Capture, name: str = "output") -> Any:
    (span,) = [each for each in capture.spans() if f"gen_ai.{name}.messages" in (each.attributes or {})]
    return json.loads(span.attributes[f"gen_ai.{name}.messages"])


@pytest.mark.parametrize("stream", [False, True])
def test_a_text_is_told_the_same_whole_and_streamed(captured, ask, stream):
    ask(lambda client: client.chat.completions.create(**ASK, stream=stream), Text("It rains in Paris."))
    assert on_span(captured, "input") == [
        {"role": "user", "parts": [{"type": "text", "content": "Weather in Paris? Mail [redacted:email]"}]}
    ]
    told = [{"role": "assistant", "parts": [{"type": "text", "content": "It rains in Paris."}], "finish_reason": "stop"}]
    assert on_span(captured) == told
    (event,) = captured.events(EVENT)
    assert event.attributes["gen_ai.output.messages"][0]["parts"][0]["content"] == "It rains in Paris."


@pytest.mark.parametrize("stream", [False, True])
def test_tool_calls_are_put_together_and_their_arguments_parsed(captured, ask, stream):
    calls = ToolCalls([("weather", {"city": "Paris", "days": [1, 2]}), ("mail", '{"to": "me@exa'), ("now", "")])
    ask(lambda client: client.chat.completions.create(**ASK, n=2, stream=stream), calls)
    first, second = on_span(captured)
    assert first["finish_reason"] == "tool_call"
    assert [(part["type"], part["name"], part["arguments"]) for part in first["parts"]] == [
        ("tool_call", "weather", {"city": "Paris", "days": [1, 2]}),
        ("tool_call", "mail", '{"to": "me@exa'),
        ("tool_call", "now", ""),
    ]
    assert [part["id"] for part in second["parts"]] == ["call_1_1_0", "call_1_1_1", "call_1_1_2"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_refusal_is_told_as_one(captured, ask, stream):
    ask(lambda client: client.chat.completions.create(**ASK, stream=stream), Refusal("I cannot."))
    assert on_span(captured)[0]["parts"] == [{"type": "refusal", "content": "I cannot."}]


def test_a_stream_that_breaks_tells_what_came(captured, ask):
    with pytest.raises(Exception):  # noqa: B017 - which one is the client's and its HTTP library's
        ask(lambda client: client.chat.completions.create(**ASK, stream=True), Disconnect(after_chunks=3, answer=Text("one two three")))
    (message,) = on_span(captured)
    assert message["finish_reason"] == "error"
    assert message["parts"][0]["content"].startswith("one")


def test_every_sort_of_input_is_told_in_its_shape(captured, ask):
    image = {"type": "image_url", "image_url": {"url": "https://h.example/a.png?sig=SECRET"}}
    messages: list[Any] = [
        {"role": "developer", "content": "Be brief.", "name": "boss"},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "See"},
                image,
                {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{SOUND}"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "input_audio", "input_audio": {"data": SOUND, "format": "wav"}},
                {"type": "file", "file": {"file_id": "file-1"}},
            ],
        },
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "4"},
        {"role": "assistant", "audio": {"id": "audio_1"}, "refusal": "no"},
        {"role": "assistant", "function_call": {"name": "old", "arguments": "{}"}},
        {"role": "function", "name": "old", "content": "5"},
    ]
    tools: Any = [{"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}]
    ask(lambda client: client.chat.completions.create(model=MODEL, messages=messages, tools=tools), Text("Yes"))
    told = on_span(captured, "input")
    assert "SECRET" not in json.dumps(told)
    assert SOUND not in json.dumps(told)
    assert [(each["role"], [part["type"] for part in each["parts"]]) for each in told] == [
        ("developer", ["text"]),
        ("user", ["text", "uri", "blob"]),
        ("user", ["blob", "file"]),
        ("assistant", ["tool_call"]),
        ("tool", ["tool_call_response"]),
        ("assistant", ["refusal", "file"]),
        ("assistant", ["tool_call"]),
        ("tool", ["tool_call_response"]),
    ]
    assert told[0]["name"] == "boss"
    assert told[1]["parts"][2]["size"] == told[2]["parts"][0]["size"] == 100
    assert told[4]["parts"] == [{"type": "tool_call_response", "id": "c1", "response": "4"}]
    (span,) = captured.spans()
    assert json.loads(span.attributes["gen_ai.tool.definitions"]) == [
        {"type": "function", "name": "f", "description": "d", "parameters": {"type": "object"}}
    ]


def test_what_the_program_changes_afterwards_is_not_told(captured, ask):
    messages = [{"role": "user", "content": [{"type": "text", "text": "before"}]}]

    def program(client):
        sent = client.chat.completions.create(model=MODEL, messages=messages, stream=True)
        if not hasattr(sent, "__await__"):
            messages[0]["content"][0]["text"] = "after"
        return sent

    ask(program, Text("Yes"))
    assert on_span(captured, "input")[0]["parts"][0]["content"] == "before"


def test_thoughts_and_sounds_of_an_answer_are_told(captured, ask):
    message = {
        "role": "assistant",
        "content": "4",
        "reasoning_content": "2 + 2",
        "audio": {"id": "a", "data": SOUND, "transcript": "four", "expires_at": 1},
    }
    body = {
        "id": "c",
        "object": "chat.completion",
        "created": 1,
        "model": MODEL,
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
    }
    ask(lambda client: client.chat.completions.create(**ASK), Raw(json.dumps(body).encode()))
    parts = on_span(captured)[0]["parts"]
    assert [(part["type"], part.get("content")) for part in parts] == [
        ("reasoning", "2 + 2"),
        ("text", "4"),
        ("blob", None),
        ("text", "four"),
    ]
    assert parts[2]["size"] == 100


@pytest.mark.parametrize("stream", [False, True])
def test_an_old_function_call_beside_tool_calls_is_told_as_a_call_of_its_own(captured, ask, stream):
    tool = {"index": 0, "id": "t1", "type": "function", "function": {"name": "search", "arguments": '{"q": 1}'}}
    said = {"role": "assistant", "content": None, "tool_calls": [tool], "function_call": {"name": "old", "arguments": '{"a": 2}'}}
    body = {"id": "c", "object": "chat.completion", "created": 1, "model": MODEL}
    choice = {"index": 0, "finish_reason": "tool_calls"}
    if stream:
        rest = {"tool_calls": [{"index": 0, "function": {"arguments": ""}}], "function_call": {"arguments": ""}}
        chunks = [body | {"choices": [{"index": 0, "delta": said}]}, body | {"choices": [choice | {"delta": rest}]}]
        answer = Raw(b"".join(b"data: %s\n\n" % json.dumps(each).encode() for each in chunks), content_type="text/event-stream")
    else:
        answer = Raw(json.dumps(body | {"choices": [choice | {"message": said}]}).encode())
    ask(lambda client: client.chat.completions.create(**ASK, stream=stream), answer)
    assert on_span(captured)[0]["parts"] == [
        {"type": "tool_call", "id": "t1", "name": "search", "arguments": {"q": 1}},
        {"type": "tool_call", "name": "old", "arguments": {"a": 2}},
    ]


@pytest.mark.parametrize("stream", [False, True])
def test_the_words_of_a_legacy_completion_are_not_told(captured, ask, stream):
    ask(lambda client: client.completions.create(model=MODEL, prompt="Secret", stream=stream), Text("and then"))
    (span,) = [each for each in captured.spans() if each.attributes["gen_ai.operation.name"] == "text_completion"]
    assert not [name for name in span.attributes if name.endswith("messages")]


def test_a_raw_response_is_told_as_well(captured, ask):
    ask(lambda client: client.chat.completions.with_raw_response.create(**ASK), Text("Yes"))
    assert on_span(captured)[0]["parts"] == [{"type": "text", "content": "Yes"}]


def test_embeddings_say_nothing_in_words(captured, ask):
    ask(lambda client: client.embeddings.create(model="text-embedding-3-small", input="secret text", encoding_format="float"), Text("x"))
    assert "secret text" not in str([dict(span.attributes or {}) for span in captured.spans()])


def test_a_tool_of_the_program_is_told(captured):
    @ravi_otel.tool
    def lookup(city: str, *, days: int = 1) -> dict[str, Any]:
        return {"city": city, "mail": "me@example.com"}

    class Desk:
        @ravi_otel.tool
        def close(self, ticket: int) -> None:
            """Close it."""

    lookup("Paris", days=3)
    Desk().close(7)
    first, second = (dict(span.attributes or {}) for span in captured.spans())
    assert json.loads(first["gen_ai.tool.call.arguments"]) == {"city": "Paris", "days": 3}
    assert json.loads(first["gen_ai.tool.call.result"]) == {"city": "Paris", "mail": "[redacted:email]"}
    assert json.loads(second["gen_ai.tool.call.arguments"]) == {"ticket": 7}
    assert second["gen_ai.tool.call.result"] == "null"


def test_a_tool_called_wrongly_raises_its_own_error(captured):
    @ravi_otel.tool
    def lookup(city: str) -> str:
        return city

    with pytest.raises(TypeError, match="unexpected keyword argument 'town'"):
        lookup(town="Paris")


def test_without_capture_nothing_that_was_said_leaves(instrumented, ask):
    @ravi_otel.tool
    def lookup(city: str) -> str:
        return city

    lookup("plantedsecret")
    ask(
        lambda client: client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "plantedsecret"}]),
        Text("plantedsecret"),
    )
    assert instrumented.events(EVENT) == []
    assert "plantedsecret" not in str([(dict(span.attributes or {}), span.name) for span in instrumented.spans()])
