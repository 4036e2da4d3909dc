"""What requests to the Responses API say, and what their output says, in the shapes of the convention."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ravi_otel._instrumentation.formats.anthropic import MESSAGES
from ravi_otel._instrumentation.formats.chat import CHAT
from ravi_otel._instrumentation.formats.format import Host, Request
from ravi_otel._instrumentation.formats.responses import Responses, ResponsesCollector, answered, asked
from ravi_otel.policy._usage import Asked, Call

RECORDED = sorted(Path(__file__).parents[3].glob("shared/recordings/*/*esponses*.json"))
KEY = "sk-secret-1234567890"


def parts(item: Any) -> Any:
    (message,) = asked({"input": [item]}).messages
    return message["role"], message["parts"]


def test_instructions_are_what_the_model_is_told_to_be():
    assert asked({"instructions": "Be brief.", "input": "hi"}) == Asked(
        [{"type": "text", "content": "Be brief."}], [{"role": "user", "parts": [{"type": "text", "content": "hi"}]}]
    )


ITEMS: list[tuple[Any, Any]] = [
    ({"role": "user", "content": "hi"}, ("user", [{"type": "text", "content": "hi"}])),
    ({"role": "developer", "content": [{"type": "input_text", "text": "hi"}]}, ("developer", [{"type": "text", "content": "hi"}])),
    (
        {"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
        ("assistant", [{"type": "refusal", "content": "no"}]),
    ),
    (
        {"role": "user", "content": [{"type": "input_image", "image_url": "https://x.test/a.png"}]},
        ("user", [{"type": "uri", "modality": "image", "mime_type": None, "uri": "https://x.test/a.png"}]),
    ),
    (
        {"role": "user", "content": [{"type": "input_image", "image_url": "data:image/png;base64,AAAA"}]},
        ("user", [{"type": "blob", "modality": "image", "mime_type": "image/png", "content": "AAAA"}]),
    ),
    (
        {"role": "user", "content": [{"type": "input_image", "file_id": "file-1"}]},
        ("user", [{"type": "file", "modality": "image", "file_id": "file-1"}]),
    ),
    (
        {"role": "user", "content": [{"type": "input_file", "file_url": "https://x.test/a.pdf"}]},
        ("user", [{"type": "uri", "modality": "document", "mime_type": None, "uri": "https://x.test/a.pdf"}]),
    ),
    (
        {"role": "user", "content": [{"type": "input_file", "file_data": "AAAA"}]},
        ("user", [{"type": "blob", "modality": "document", "mime_type": None, "content": "AAAA"}]),
    ),
    (
        {"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": "AAAA", "format": "mp3"}}]},
        ("user", [{"type": "blob", "modality": "audio", "mime_type": "audio/mp3", "content": "AAAA"}]),
    ),
    (
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": '{"x": 1}'},
        ("assistant", [{"type": "tool_call", "id": "c", "name": "f", "arguments": {"x": 1}}]),
    ),
    (
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{broken"},
        ("assistant", [{"type": "tool_call", "id": "c", "name": "f", "arguments": "{broken"}]),
    ),
    (
        {"type": "custom_tool_call", "call_id": "c", "name": "f", "input": "ls"},
        ("assistant", [{"type": "tool_call", "id": "c", "name": "f", "arguments": "ls"}]),
    ),
    (
        {"type": "function_call_output", "call_id": "c", "output": "12"},
        ("tool", [{"type": "tool_call_response", "id": "c", "response": "12"}]),
    ),
    (
        {"type": "custom_tool_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "12"}]},
        ("tool", [{"type": "tool_call_response", "id": "c", "response": [{"type": "text", "content": "12"}]}]),
    ),
    (
        {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "hm"}], "encrypted_content": "gAAA"},
        ("assistant", [{"type": "reasoning", "content": "hm"}]),
    ),
    (
        {"type": "web_search_call", "id": "w", "status": "completed", "action": {"type": "search", "query": "q"}},
        ("assistant", [{"type": "web_search_call", "id": "w", "status": "completed", "action": {"type": "search", "query": "q"}}]),
    ),
    ({"type": "item_reference", "id": "i"}, ("user", [{"type": "item_reference", "id": "i"}])),
    (
        {"type": "image_generation_call", "id": "g", "status": "completed", "result": "AAAA"},
        (
            "assistant",
            [
                {"type": "image_generation_call", "id": "g", "status": "completed"},
                {"type": "blob", "modality": "image", "mime_type": "image/png", "content": "AAAA"},
            ],
        ),
    ),
]


@pytest.mark.parametrize(("item", "told"), ITEMS, ids=[str(item.get("type", item.get("role"))) for item, _ in ITEMS])
def test_an_item_of_the_input_is_written_in_the_shapes_of_the_convention(item, told):
    assert parts(item) == told


@pytest.mark.parametrize(("item", "told"), ITEMS, ids=[str(item.get("type", item.get("role"))) for item, _ in ITEMS])
def test_an_item_that_is_an_object_is_written_like_one_that_is_a_mapping(item, told):
    assert answered([openai.BaseModel.construct(**item)], ())[0]["parts"] == told[1]


def test_tools_are_told_without_the_keys_they_hold():
    server = {"type": "mcp", "server_label": "s", "server_url": f"https://x.test/?k={KEY}", "headers": {"a": KEY}, "authorization": KEY}
    server["authorization_token"] = KEY
    shell = {"type": "code_interpreter", "container": {"type": "auto", "network_policy": {"domain_secrets": [{"value": KEY}]}}}
    function = {"type": "function", "name": "f", "description": "d", "parameters": {"type": "object"}, "strict": True}
    tools = asked({"tools": [server, shell, function]}).tools
    assert KEY not in json.dumps(tools)
    assert tools[0] == {"type": "mcp", "server_label": "s"}
    assert tools[2] == {"type": "function", "name": "f", "description": "d", "parameters": {"type": "object"}}


def test_the_output_is_one_message_of_the_assistant_that_says_why_it_ended():
    text = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "hello"}]}
    assert answered([text], ("stop",)) == [
        {"role": "assistant", "parts": [{"type": "text", "content": "hello"}], "finish_reason": "stop"},
    ]


def test_an_answer_that_asks_for_tools_ends_for_the_conventions_reason():
    asks = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    assert answered([asks], ("tool_calls",))[0]["finish_reason"] == "tool_call"


@pytest.mark.parametrize("api", [CHAT, MESSAGES], ids=["chat", "messages"])
def test_parts_and_tools_of_other_apis_are_told_without_keys_too(api):
    part = {"type": "tool_reference", "authorization": KEY, "name": "x"}
    tool = {"type": "mcp", "name": "m", "headers": {"a": KEY}}
    request = Request(
        "POST", "/", {"messages": [{"role": "user", "content": [part]}], "tools": [tool]}, Host("p", False, None, None), False
    )
    told = api.asked(request)
    assert told.messages == [{"role": "user", "parts": [{"type": "tool_reference", "name": "x"}]}]
    assert told.tools == [{"type": "mcp", "name": "m"}]


def call(content: Asked | None = None) -> Call:
    return Call(operation="chat", endpoint="responses", size=1, content=content)


def delta(said: str, at: int = 0) -> dict[str, Any]:
    return {"type": "response.output_text.delta", "output_index": at, "delta": said}


def test_a_stream_that_was_cut_says_what_came():
    follows = ResponsesCollector(Responses(), call(content=Asked()))
    done = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    events = [
        {"type": "response.created", "response": {"id": "r", "status": "in_progress", "output": []}},
        *(delta(piece) for piece in ("one ", "two")),
        {"type": "response.output_item.done", "output_index": 1, "item": done},
    ]
    for event in events:
        follows.add(event)
    (message,) = follows.reply().output or ()
    assert message["parts"] == [
        {"type": "text", "content": "one two"},
        {"type": "tool_call", "id": "c", "name": "f", "arguments": {}},
    ]


def test_a_stream_keeps_no_text_where_nothing_is_captured():
    follows = ResponsesCollector(Responses(), call())
    follows.add(delta("one"))
    assert follows.reply().output is None


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["type", "role", "content", "text", "output", "summary", "arguments", "x"]), inner, max_size=4)
    ),
    max_leaves=15,
)


@given(json_values, json_values, json_values)
def test_whatever_is_sent_or_answered_is_written_down_without_raising(given_input, tools, output):
    asked({"input": given_input, "tools": tools, "instructions": output, "prompt": tools})
    Responses().answered({"output": output, "status": "completed"})


@pytest.mark.skipif(not RECORDED, reason="the recordings of real exchanges are not here")
def test_every_recorded_exchange_is_written_down():
    written = 0
    for file in RECORDED:
        for exchange in json.loads(file.read_text()):
            if exchange["status"] != 200 or not exchange["body"].lstrip().startswith("{"):
                continue
            body = json.loads(exchange["body"])
            if body.get("object") != "response" or not body.get("output"):
                continue
            (message,) = Responses().answered(body)
            json.dumps(message)
            written += bool(message["parts"])
            asked(exchange["request"] or {})
    assert written > 20
