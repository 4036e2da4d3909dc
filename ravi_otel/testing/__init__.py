"""Test programs that call models, without a model: real HTTP, scripted answers, captured telemetry, a clock that waits.

Install it with `pip install 'ravi-otel[testing]'`.

::

    from openai import OpenAI
    from ravi_otel.testing import Failure, ScriptedLLM, Text

    with ScriptedLLM([Failure(429, "slow down", retry_after_s=0), Text("Hello!", usage=(120, 80))]) as server:
        client = OpenAI(base_url=server.base_url, api_key="any")
        reply = client.chat.completions.create(model="gpt-4o-mini", messages=[{"role": "user", "content": "Hi"}])

    assert reply.choices[0].message.content == "Hello!"
    assert reply.usage.total_tokens == 200
    assert len(server.requests) == 2
"""

from __future__ import annotations

from ravi_otel.testing import otlp
from ravi_otel.testing._capture import Capture, Event, Point
from ravi_otel.testing._clock import ManualClock
from ravi_otel.testing._replay import Exchange, Recording, ReplayServer, load_recordings
from ravi_otel.testing._script import (
    Answer,
    Disconnect,
    Failure,
    Generated,
    Malformed,
    Picture,
    Raw,
    Refusal,
    Request,
    Script,
    Sound,
    Text,
    ToolCalls,
    UsageSpec,
    Vector,
)
from ravi_otel.testing._server import ScriptedLLM, Sent
from ravi_otel.testing._sockets import Close, Incoming, ScriptedSocket, realtime_events, responses_events
from ravi_otel.testing.otlp import OtlpReceiver

__all__ = [
    "Answer",
    "Capture",
    "Close",
    "Disconnect",
    "Event",
    "Exchange",
    "Failure",
    "Generated",
    "Incoming",
    "Malformed",
    "ManualClock",
    "OtlpReceiver",
    "Picture",
    "Point",
    "Raw",
    "Recording",
    "Refusal",
    "ReplayServer",
    "Request",
    "Script",
    "ScriptedLLM",
    "ScriptedSocket",
    "Sent",
    "Sound",
    "Text",
    "ToolCalls",
    "UsageSpec",
    "Vector",
    "load_recordings",
    "otlp",
    "realtime_events",
    "responses_events",
]
