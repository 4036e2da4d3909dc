"""The scripted server speaks the formats of Google, Bedrock, Cohere, Ollama and Mistral over real HTTP, each as its readers expect it."""

import json

import httpx
import pytest

from ravi_otel._instrumentation.formats.dialects import format_for_request
from ravi_otel._instrumentation.formats.format import Host, Request, read_body, read_events
from ravi_otel._instrumentation.formats.framing import Framing
from ravi_otel.policy._usage import Asked, Usage
from ravi_otel.testing import Disconnect, Failure, Malformed, ScriptedLLM, Text, ToolCalls, Vector

HI = [{"role": "user", "content": "Hi"}]
BLOCKS = [{"role": "user", "content": [{"text": "Hi"}]}]
CLAUDE = {"anthropic_version": "x", "max_tokens": 9, "messages": HI}
CACHED = Usage(20, 5, cached_input_tokens=16)
PLAIN = Usage(20, 5)
VERTEX = "/v1/projects/p/locations/l/publishers"

CHATS = {
    "google": (
        "google",
        "/v1beta/models/m",
        ":generateContent",
        ":streamGenerateContent?alt=sse",
        {"contents": [{"parts": [{"text": "Hi"}]}]},
        CACHED,
    ),
    "google, an array": (
        "google",
        f"{VERTEX}/google/models/m",
        ":generateContent",
        ":streamGenerateContent",
        {"contents": [{"parts": [{"text": "Hi"}]}]},
        CACHED,
    ),
    "vertex, claude": ("google", f"{VERTEX}/anthropic/models/m", ":rawPredict", ":streamRawPredict", CLAUDE, CACHED),
    "vertex, mistral": ("google", f"{VERTEX}/mistralai/models/m", ":rawPredict", ":streamRawPredict", {"messages": HI}, CACHED),
    "converse": ("bedrock", "/model/m", "/converse", "/converse-stream", {"messages": BLOCKS}, CACHED),
    "claude": ("bedrock", "/model/m", "/invoke", "/invoke-with-response-stream", CLAUDE, CACHED),
    "llama": ("bedrock", "/model/m", "/invoke", "/invoke-with-response-stream", {"prompt": "Hi", "max_gen_len": 9}, PLAIN),
    "titan": ("bedrock", "/model/m", "/invoke", "/invoke-with-response-stream", {"inputText": "Hi"}, PLAIN),
    "cohere": ("cohere", "/v2/chat", "", "", {"model": "m", "messages": HI}, CACHED),
    "ollama": ("ollama", "/api/chat", "", "", {"model": "m", "messages": HI}, PLAIN),
    "ollama, a completion": ("ollama", "/api/generate", "", "", {"model": "m", "prompt": "Hi"}, PLAIN),
    "mistral": (
        "openai",
        "/v1/chat/completions",
        "",
        "",
        {"model": "m", "messages": HI, "stream_options": {"include_usage": True}},
        CACHED,
    ),
    "mistral, a completion": ("openai", "/mistral/v1/fim/completions", "", "", {"model": "m", "prompt": "Hi"}, CACHED),
}
TOOLS = ("google", "google, an array", "vertex, claude", "converse", "claude", "cohere", "ollama", "mistral")


def ask(server, name, *, stream, **more):
    """Send the request, and read what comes back with the format that its path and body choose."""
    dialect, path, whole, streamed, body, _ = CHATS[name]
    path += streamed if stream else whole
    body = {**body, **more, **({} if ":" in path or path.startswith("/model") else {"stream": stream})}
    found = format_for_request(dialect, "POST", path, body)
    request = Request("POST", path, body, Host("x", assumed=False, address="h", port=1), stream)
    call = found.call(request)
    call.content, call.offers_tools = Asked(), True
    answer = httpx.post(server.url + path, json=body, timeout=30)
    assert answer.status_code == 200
    if not stream:
        return read_body(found, lambda: answer.content, call)
    assert Framing.of(answer.headers["content-type"]) is found.framing(request)
    parser, collector = found.framing(request).parser(), found.collector(call)
    for event in [*parser.feed(answer.content), *parser.end()]:
        collector.add(event)
    reply = read_events(collector, call)
    assert not parser.lossy
    assert collector.complete or reply.usage.source == "estimated"
    return reply


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", CHATS)
def test_a_text_and_its_usage_are_those_of_the_script(name, stream):
    usage = CHATS[name][-1]
    with ScriptedLLM(Text("Hello there.", usage=usage)) as server:
        reply = ask(server, name, stream=stream)
    assert reply.usage == usage
    assert [part["content"] for message in reply.output for part in message["parts"] if part["content"]] == ["Hello there."]
    assert reply.finish_reasons == ("stop",)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", TOOLS)
def test_tools_are_asked_for_in_the_format_s_own_way(name, stream):
    with ScriptedLLM(ToolCalls([("lookup", {"user": 42}), ("refund", {})], usage=(20, 5))) as server:
        reply = ask(server, name, stream=stream)
    assert [use.name for use in reply.tool_uses] == ["lookup", "refund"]
    said = [part for message in reply.output for part in message["parts"] if part["type"] == "tool_call"]
    assert [part["arguments"] for part in said] == [{"user": 42}, {}]


@pytest.mark.parametrize("name", ["google", "converse", "claude", "cohere", "ollama", "mistral"])
def test_what_is_used_is_counted_where_the_script_says_nothing(name):
    with ScriptedLLM("Four plus four") as server:
        whole, streamed = (ask(server, name, stream=stream) for stream in (False, True))
    assert whole.usage == streamed.usage
    assert whole.usage.output_tokens == 4
    assert whole.usage.input_tokens == 8


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", ["google", "converse", "cohere", "mistral"])
def test_nothing_is_told_where_the_script_says_so(name, stream):
    with ScriptedLLM(Text("Hello there.", usage="missing")) as server:
        reply = ask(server, name, stream=stream)
    assert reply.usage is None or reply.usage.source == "estimated"


@pytest.mark.parametrize(
    ("name", "body", "header"),
    [
        ("google", {"error": {"code": 429, "message": "slow", "status": "RESOURCE_EXHAUSTED"}}, None),
        ("converse", {"message": "slow"}, "ThrottlingException"),
        ("cohere", {"message": "slow"}, None),
        ("ollama", {"error": "slow"}, None),
    ],
)
def test_a_failure_has_the_format_s_own_shape(name, body, header):
    _, path, whole, _, asked, _ = CHATS[name]
    with ScriptedLLM(Failure(429, "slow", retry_after_s=0)) as server:
        answer = httpx.post(server.url + path + whole, json=asked, timeout=30)
    assert (answer.status_code, answer.json(), answer.headers.get("x-amzn-errortype")) == (429, body, header)


@pytest.mark.parametrize(
    ("dialect", "path", "body"),
    [
        ("google", "/v1beta/models/m:batchEmbedContents", {"requests": [{"content": {"parts": [{"text": "Hi"}]}}]}),
        ("google", f"{VERTEX}/google/models/embed:predict", {"instances": [{"content": "Hi"}]}),
        ("bedrock", "/model/titan-embed/invoke", {"inputText": "Hi"}),
        ("cohere", "/v2/embed", {"model": "m", "texts": ["Hi"], "input_type": "search_query"}),
        ("ollama", "/api/embed", {"model": "m", "input": "Hi"}),
    ],
)
def test_embeddings_tell_what_they_used(dialect, path, body):
    with ScriptedLLM(Vector(4, usage=(7, 0))) as server:
        answer = httpx.post(server.url + path, json=body, timeout=30)
    found = format_for_request(dialect, "POST", path, body)
    assert found.reply(answer.json()).usage == Usage(7)


@pytest.mark.parametrize("name", ["google", "google, an array", "converse", "cohere", "ollama"])
def test_a_stream_that_is_cut_or_has_a_hole_is_known_to(name):
    dialect, path, _, streamed, asked, _ = CHATS[name]
    with ScriptedLLM([Disconnect(2), Malformed(after_chunks=1)]) as server:
        with pytest.raises(httpx.RemoteProtocolError):
            httpx.post(server.url + path + streamed, json={**asked, "stream": True}, timeout=30)
        answer = httpx.post(server.url + path + streamed, json={**asked, "stream": True}, timeout=30)
    found = format_for_request(dialect, "POST", path + streamed, {**asked, "stream": True})
    parser = found.framing(Request("POST", path + streamed, asked, Host("x", False, None, None), True)).parser()
    parser.feed(answer.content)
    parser.end()
    assert parser.lossy


def test_a_model_that_is_named_by_an_arn_is_found_and_a_strange_path_is_not():
    path = "/model/arn%3Aaws%3Abedrock%3Aus-east-1%3A1%3Ainference-profile%2Fus.m/converse"
    with ScriptedLLM("Hello.") as server:
        assert httpx.post(server.url + path, json={"messages": BLOCKS}, timeout=30).status_code == 200
        assert httpx.post(server.url + "/model/m/dance", json={"messages": BLOCKS}, timeout=30).status_code == 404
        assert httpx.post(server.url + "/v1beta/models/m:dance", json={}, timeout=30).status_code == 404
        assert httpx.post(server.url + "/v1beta/models/m:generateContent", json={}, timeout=30).status_code == 400
    assert json.loads(server.requests[0].raw) == {"messages": BLOCKS}
