"""A redaction hook may ask a model itself: what it asks is counted, and captured no further."""

from __future__ import annotations

import json
from typing import Any

import pytest

import ravi_otel
from ravi_otel.testing import Text

MODEL = "gpt-4o-mini"
IN, OUT = "gen_ai.input.messages", "gen_ai.output.messages"


@pytest.fixture(autouse=True)
def _captures_content(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", "SPAN_AND_EVENT")


def providers(capture: Any) -> dict[str, Any]:
    return {name: getattr(capture, name) for name in ("tracer_provider", "meter_provider", "logger_provider")}


@pytest.mark.parametrize("stream", [False, True])
def test_what_a_hook_asks_is_counted_and_not_captured(stream: bool, stage: Any, clients: Any, capture: Any) -> None:
    client = clients.make("sync", stage.play(Text("hi", usage=(10, 5))))

    def redact(text: str) -> str:
        asked = client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": text}], stream=stream)
        return f"<{len(list(asked)) > 0}>"

    with ravi_otel.instrument(**providers(capture), redact=redact), ravi_otel.run("r") as run:
        client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "Call me."}])
        assert run.stats().requests == 3  # its own, and one for each of the two texts
    spans = capture.spans(f"chat {MODEL}")
    (told,) = [span for span in spans if IN in span.attributes]
    assert len(spans) == 3
    assert json.loads(told.attributes[IN])[0]["parts"][0]["content"] == "<True>"
    assert [span for span in spans if OUT in span.attributes] == [told]


def test_a_tool_that_a_hook_calls_is_not_captured(stage: Any, clients: Any, capture: Any) -> None:
    client = clients.make("sync", stage.play(Text("hi", usage=(10, 5))))

    @ravi_otel.tool
    def look_up(text: str) -> str:
        return text.upper()

    with ravi_otel.instrument(**providers(capture), redact=look_up):
        client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "Call me."}])
    spans = capture.spans("execute_tool look_up")
    assert len(spans) == 2
    assert all("gen_ai.tool.call.arguments" not in span.attributes for span in spans)
    (told,) = capture.spans(f"chat {MODEL}")
    assert json.loads(told.attributes[IN])[0]["parts"][0]["content"] == "CALL ME."
