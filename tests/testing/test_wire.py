from __future__ import annotations

import json
from types import MappingProxyType
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from ravi_otel.testing import Disconnect, Exchange, Raw, ReplayServer, Request, Text, ToolCalls
from ravi_otel.testing._wire.payload import pieces
from ravi_otel.testing._wire.router import objection, render

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def _request(path: str, body: dict[str, Any]) -> Request:
    raw = json.dumps(body).encode()
    return Request(0, "POST", path, "", MappingProxyType({}), MappingProxyType(body), raw, 0)


@given(st.text(), st.none() | st.integers(-3, 50))
def test_pieces_make_the_text_again(text, chunks):
    assert "".join(pieces(text, chunks)) == text


@given(st.binary(max_size=500), st.integers(-3, 50))
def test_raw_chunks_make_the_body_again(body, chunks):
    payload = render(_request("/v1/chat/completions", {}), Raw(body, chunks=chunks))
    assert b"".join(payload.parts) == body


@given(st.text(max_size=2_000), st.integers())
def test_a_replayed_stream_is_cut_without_losing_a_byte(body, seed):
    exchange = Exchange("POST", "/v1/chat/completions", None, 200, {"content-type": "text/event-stream"}, body)
    assert b"".join(ReplayServer([], seed=seed)._cut(exchange)).decode() == body


@given(st.text(), st.integers(1, 3), st.booleans())
def test_streamed_chat_says_the_text_and_the_usage_of_the_whole_answer(text, n, multibyte):
    answer = Text(text + ("é" if multibyte else ""))
    body = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "n": n}
    whole = json.loads(b"".join(render(_request("/v1/chat/completions", body), answer).parts))
    streamed = render(_request("/v1/chat/completions", {**body, "stream": True, "stream_options": {"include_usage": True}}), answer)
    chunks = [json.loads(part.removeprefix(b"data: ")) for part in streamed.parts[:-1]]
    said = [""] * n
    for chunk in chunks[:-1]:
        said[chunk["choices"][0]["index"]] += chunk["choices"][0]["delta"].get("content") or ""
    assert said == [choice["message"]["content"] for choice in whole["choices"]]
    assert chunks[-1]["usage"] == whole["usage"]


@given(
    st.sampled_from(["/v1/chat/completions", "/v1/responses", "/v1/completions", "/v1/embeddings"]),
    st.dictionaries(st.text(), JSON),
    st.data(),
)
def test_no_body_breaks_the_server(path, body, data):
    hostile = {
        name: data.draw(JSON, name) for name in ("model", "messages", "input", "prompt", "n", "stream", "stream_options", "dimensions")
    }
    request = _request(path, body | hostile)
    if objection(request, ()) is None:
        assert render(request, Text("x")).parts


def test_an_answer_that_is_cut_states_the_length_it_does_not_reach():
    payload = render(_request("/v1/chat/completions", {"model": "m", "messages": []}), Disconnect(1, ToolCalls([("f", "{}")])))
    assert payload.cut
    assert len(payload.parts[0]) < int(payload.headers["content-length"])
