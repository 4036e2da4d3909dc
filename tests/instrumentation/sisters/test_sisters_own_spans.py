"""A client that makes spans by itself and we never tell the same call twice."""

from __future__ import annotations

from typing import Any

import anthropic
import pytest
from opentelemetry import trace

from ravi_otel.testing import Text

ASKED: dict[str, Any] = {"model": "claude-opus-4-8", "max_tokens": 64, "messages": [{"role": "user", "content": "Say hello."}]}


def spans(sisters: Any, **settings: Any) -> list[str]:
    sisters._answers = [Text("hello")]
    with sisters.instrumented(), anthropic.Anthropic(base_url=sisters.server.url, api_key="k", **settings) as client:
        client.messages.create(**ASKED)
    return [span.name for span in sisters.capture.spans()]


def test_a_client_at_its_defaults_leaves_the_telling_to_us(sisters: Any):
    assert spans(sisters) == ["chat claude-opus-4-8"]


@pytest.mark.skipif(not hasattr(anthropic, "_tracing"), reason="this client makes no spans")
def test_a_client_whose_tracing_was_set_up_tells_its_calls_itself(sisters: Any):
    assert spans(sisters, open_telemetry={"tracer_provider": sisters.capture.tracer_provider}) == ["anthropic.messages.create"]


@pytest.mark.skipif(not hasattr(anthropic, "_tracing"), reason="this client makes no spans")
def test_where_the_process_has_tracing_its_own_span_stays_and_the_metrics_are_ours(sisters: Any, monkeypatch: Any):
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: sisters.capture.tracer_provider)
    monkeypatch.setattr(trace, "get_tracer", lambda *args, **_: sisters.capture.tracer_provider.get_tracer(args[0]))
    assert spans(sisters) == ["anthropic.messages.create"]
    assert [point.count for point in sisters.capture.metric("gen_ai.client.operation.duration")] == [1]


@pytest.mark.skipif(not hasattr(anthropic, "_tracing"), reason="this client makes no spans")
def test_a_client_whose_tracing_is_off_is_told_by_us(sisters: Any):
    assert spans(sisters, open_telemetry=False) == ["chat claude-opus-4-8"]
