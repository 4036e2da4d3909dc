"""What other libraries record is not ours to keep: their spans stay in the tree, without what may be content."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode

from ravi_otel.local.store import Store, foreign
from ravi_otel.local.store.writing import FileSink

CONTENT = (
    "gen_ai.prompt", "gen_ai.prompt.0.content", "gen_ai.completion.0.content", "gen_ai.input.messages", "gen_ai.output.messages",
    "gen_ai.system_instructions", "gen_ai.tool.call.arguments", "gen_ai.tool.call.result", "gen_ai.tool.definitions",
    "llm.input_messages", "input.value", "output.value", "traceloop.entity.input", "langfuse.input", "db.statement", "db.query.text",
    "http.url", "http.target", "url.full", "url.query", "http.request.header.authorization", "http.response.header.set-cookie",
    "rpc.grpc.request.metadata.authorization", "process.command_args", "process.command_line", "exception.message",
    "exception.stacktrace", "code.stacktrace", "user.id", "messaging.message.body", "anything",
)  # fmt: skip
HARMLESS: dict[str, Any] = {
    "gen_ai.operation.name": "chat",
    "gen_ai.request.model": "gpt-4.1",
    "gen_ai.usage.input_tokens": 3,
    "http.request.method": "POST",
    "http.response.status_code": 200,
    "server.address": "api.openai.com",
    "db.system.name": "postgresql",
    "rpc.method": "Do",
    "error.type": "timeout",
    "thread.id": 7,
    "ravi.run.id": "r",
}


@pytest.fixture
def run(tmp_path):
    return Store.open(tmp_path / "store").begin("desk")


@pytest.fixture
def tracers(run):
    sink = FileSink(run.path)
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(sink.span_processor())
    yield provider.get_tracer("another.library"), provider.get_tracer("ravi_otel")
    sink.close()


def stored(run, tracers) -> list[dict[str, Any]]:
    tracers[0].span_processor.force_flush()
    lines = [line for path in run.files() for line in path.read_text().splitlines()]
    return [span for line in lines for group in json.loads(line)["resourceSpans"][0]["scopeSpans"] for span in group["spans"]]


def text_of(run, tracers) -> str:
    tracers[0].span_processor.force_flush()
    return "".join(path.read_text() for path in run.files())


@pytest.mark.parametrize("key", CONTENT)
def test_content_in_another_librarys_span_is_not_stored(run, tracers, key):
    linked = Link(SpanContext(1, 2, is_remote=False), {key: "SECRET"})
    with tracers[0].start_as_current_span("request", attributes={key: "SECRET"}, links=[linked]) as span:
        span.add_event("gen_ai.content.prompt", {key: "SECRET"})
        span.set_attribute(f"{key}.list", ["SECRET"] * 3)
    assert "request" in text_of(run, tracers)
    assert "SECRET" not in text_of(run, tracers)


def test_an_exceptions_message_in_another_librarys_span_is_not_stored_and_its_type_is(run, tracers):
    with pytest.raises(ValueError, match="SECRET"), tracers[0].start_as_current_span("request"):
        raise ValueError("SECRET")
    (span,) = stored(run, tracers)
    assert span["status"] == {"code": 2}
    assert span["events"][0]["name"] == "exception"
    assert span["events"][0]["attributes"] == [{"key": "exception.type", "value": {"stringValue": "ValueError"}}]
    assert "SECRET" not in json.dumps(span)


def test_what_carries_no_content_stays(run, tracers):
    with (
        tracers[0].start_as_current_span("request", kind=SpanKind.SERVER, attributes=HARMLESS) as outer,
        tracers[1].start_as_current_span("chat") as inner,
    ):
        outer.set_status(Status(StatusCode.OK))
    found = {span["name"]: span for span in stored(run, tracers)}
    assert {each["key"] for each in found["request"]["attributes"]} == set(HARMLESS)
    assert (found["request"]["kind"], found["request"]["status"]) == (2, {"code": 1})
    assert found["chat"]["parentSpanId"] == found["request"]["spanId"] == f"{outer.get_span_context().span_id:016x}"
    assert found["chat"]["spanId"] == f"{inner.get_span_context().span_id:016x}"


def test_a_text_longer_than_a_name_and_a_list_are_no_names(run, tracers):
    given_values = {"gen_ai.request.model": "SECRET" * 100, "error.type": ["SECRET"], "ravi.tag.x": b"SECRET"}
    tracers[0].start_span("request", attributes=given_values).end()
    assert "SECRET" not in text_of(run, tracers)


def test_our_own_spans_are_kept_whole(run, tracers):
    span = tracers[1].start_span("chat", attributes={"anything": "kept"})
    span.set_status(Status(StatusCode.ERROR, "kept too"))
    span.end()
    (found,) = stored(run, tracers)
    assert found["attributes"][0]["value"] == {"stringValue": "kept"}
    assert found["status"]["message"] == "kept too"


def test_how_many_attributes_were_not_kept_is_told(run, tracers):
    with tracers[0].start_as_current_span("request", attributes={"a": 1, "b": 2, "thread.id": 3}) as span:
        span.add_event("e", {"c": 1})
    (found,) = stored(run, tracers)
    assert (found["droppedAttributesCount"], found["events"][0]["droppedAttributesCount"]) == (2, 1)


@settings(max_examples=50, deadline=None)
@given(keys=st.lists(st.text(min_size=1, max_size=30).filter(lambda key: not foreign._is_kept(key, "SECRET")), max_size=5))
def test_no_other_key_keeps_content(tmp_path_factory, keys):
    run = Store.open(tmp_path_factory.mktemp("foreign") / "store").begin("r")
    sink = FileSink(run.path)
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(sink.span_processor())
    provider.get_tracer("x").start_span("s", attributes=dict.fromkeys(keys, "SECRET")).end()
    sink.close()
    assert "SECRET" not in "".join(path.read_text() for path in run.files())
