from __future__ import annotations

import json

import pytest
from heard import Telemetry

from ravi_otel._telemetry.content import Content
from ravi_otel.policy._usage import Asked, Reply, Usage

MODES = {"SPAN_ONLY": (True, False), "EVENT_ONLY": (False, True), "SPAN_AND_EVENT": (True, True), "NO_CONTENT": (False, False)}
INPUT = [{"role": "user", "parts": [{"type": "text", "content": "Hi"}]}]
OUTPUT = [{"role": "assistant", "parts": [{"type": "text", "content": "Ho"}], "finish_reason": "stop"}]
CONTENT_NAMES = {"gen_ai.input.messages", "gen_ai.output.messages", "gen_ai.system_instructions", "gen_ai.tool.definitions"}


def _asked():
    return Asked(system=[{"type": "text", "content": "S"}], messages=INPUT, tools=[{"type": "function", "name": "f", "description": ""}])


def _call(backend, make, mode, **fields):
    telemetry = Telemetry(backend.pipeline(), Content(*MODES[mode]))
    record = make.call(content=_asked())
    telemetry.call_started(record)
    record.status, record.reply, record.usage = "ok", Reply("r1", "gpt-4o-2024", output=OUTPUT), Usage(3, 4)
    for name, value in fields.items():
        setattr(record, name, value)
    telemetry.call_ended(record)
    return record


@pytest.mark.parametrize("mode", MODES)
def test_content_goes_where_the_mode_says(backend, make, mode):
    _call(backend, make, mode)
    on_spans, on_events = MODES[mode]
    assert set(backend.span().attributes) >= CONTENT_NAMES if on_spans else not CONTENT_NAMES & set(backend.span().attributes)
    assert [log.event_name for log in backend.logs()] == ["gen_ai.client.inference.operation.details"] * on_events


def test_a_span_holds_json_and_an_event_structure(backend, make):
    _call(backend, make, "SPAN_AND_EVENT")
    span, (log,) = backend.span(), backend.logs()
    assert json.loads(span.attributes["gen_ai.input.messages"]) == INPUT
    assert json.loads(span.attributes["gen_ai.output.messages"]) == OUTPUT
    assert json.loads(span.attributes["gen_ai.system_instructions"]) == [{"type": "text", "content": "S"}]
    assert log.trace_id == span.context.trace_id
    assert log.span_id == span.context.span_id
    told = dict(log.attributes)
    assert next(dict(message) for message in told["gen_ai.output.messages"])["finish_reason"] == "stop"
    assert told["gen_ai.operation.name"] == "chat"
    assert told["gen_ai.provider.name"] == "openai"
    assert told["gen_ai.request.model"] == "gpt-4o"
    assert told["gen_ai.response.id"] == "r1"
    assert told["gen_ai.usage.input_tokens"] == 3
    assert told["server.port"] == 443


def test_a_call_that_failed_tells_what_was_asked_and_what_came(backend, make):
    cut = Reply(output=[{"role": "assistant", "parts": [{"type": "text", "content": "Ha"}]}])
    _call(backend, make, "SPAN_AND_EVENT", status="error", error=ValueError("x"), reply=cut)
    log = next(log for log in backend.logs() if log.event_name == "gen_ai.client.inference.operation.details")
    assert log.attributes["error.type"] == "ValueError"
    assert json.loads(backend.span().attributes["gen_ai.output.messages"])[0]["finish_reason"] == "error"


def test_a_refused_call_emits_no_details(backend, make):
    _call(backend, make, "SPAN_AND_EVENT", status="refused", reply=None, usage=None)
    assert backend.logs() == []


def test_nothing_is_told_of_a_call_whose_content_was_not_written_down(backend, make):
    telemetry = Telemetry(backend.pipeline(), Content(on_spans=True, on_events=True))
    record = make.call()
    telemetry.call_started(record)
    record.status = "ok"
    telemetry.call_ended(record)
    assert not CONTENT_NAMES & set(backend.span().attributes)
    assert backend.logs() == []


@pytest.mark.parametrize("mode", MODES)
def test_a_tool_tells_its_arguments_and_result_on_its_span(backend, make, mode):
    telemetry = Telemetry(backend.pipeline(), Content(*MODES[mode]))
    record = make.tool(arguments={"city": "Paris", "n": 2})
    telemetry.tool_started(record)
    record.status, record.result, record.returned = "ok", {"temperature": 7.5}, True
    telemetry.tool_ended(record)
    attributes = backend.span().attributes
    if MODES[mode][0]:
        assert json.loads(attributes["gen_ai.tool.call.arguments"]) == {"city": "Paris", "n": 2}
        assert json.loads(attributes["gen_ai.tool.call.result"]) == {"temperature": 7.5}
    else:
        assert not {"gen_ai.tool.call.arguments", "gen_ai.tool.call.result"} & set(attributes)
    assert record.arguments is None
    assert record.result is None
