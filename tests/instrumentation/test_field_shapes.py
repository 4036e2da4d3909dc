"""What a server writes into the names of an answer is told as it is, or not at all: a key never."""

from __future__ import annotations

import base64
from typing import Any

import pytest

import ravi_otel
from ravi_otel._instrumentation.formats.format import OTHER, code, shaped
from ravi_otel.policy._usage import Reply
from ravi_otel.testing import Capture, Raw

HEX = "4f3a9c1e2b7d4e6f8a1b2c3d4e5f6a7b"
UUID = "a1b2c3d4-1111-4222-8333-abcdef012345"
KEY = "sk-proj-PLANTEDKEY0001abcdefghijklmnop"
SHAPED_LIKE_KEYS = [
    KEY,
    "gsk_abcdefghijklmnop1234",
    "Bearer abcdefghijklmnop",
    "AKIAIOSFODNN7EXAMPLE",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.abc",
    "ghp_abcdefghijklmnopqrst",
    "AIzaSyA1234567890abcdefghijklmnopqrstu",
    "model " + KEY,
    KEY.replace("-", "%2D"),
    base64.b64encode(KEY.encode()).decode(),
]
FIELDS = ("id", "model", "system_fingerprint", "conversation_id", "service_tier")


def named(field: str, value: str) -> Reply:
    reply = Reply()
    setattr(reply, field, value)
    return reply


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("value", SHAPED_LIKE_KEYS)
def test_a_name_that_looks_like_a_key_is_unknown(field: str, value: str) -> None:
    assert getattr(shaped(named(field, value)), field) is None


@pytest.mark.parametrize("value", [*SHAPED_LIKE_KEYS, HEX, UUID, "two words", "", "x" * 65, "\x1b[31m"])
def test_a_code_that_is_none_is_other(value: str) -> None:
    told = shaped(Reply(finish_reasons=("stop", value), error_type=value))
    assert (told.finish_reasons, told.error_type) == (("stop", OTHER), OTHER)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("id", "chatcmpl-BxYz0123456789abcdefghijkl"),
        ("id", "resp_68a1b2c3d4e5f6a7b8c9d0e1f2a3b4c5d6e7f8a9b0c1d2e3"),
        ("id", "chatcmpl-" + UUID),
        ("id", HEX),
        ("model", "gpt-4o-mini-2024-07-18"),
        ("model", "ft:gpt-4o-mini-2024-07-18:org::AbC123dE"),
        ("model", "meta-llama/Llama-3.3-70B-Instruct-Turbo"),
        ("model", "task-risk-model"),
        ("system_fingerprint", "fp_44709d6fcb"),
        ("conversation_id", "conv_68a1b2c3d4e5f6a7b8c9d0e1f2a3b4c5"),
        ("service_tier", "default"),
        ("service_tier", "on_demand"),
        ("error_type", "rate_limit_exceeded"),
        ("error_type", "ResponsibleAIPolicyViolation"),
    ],
)
def test_an_ordinary_name_is_told(field: str, value: str) -> None:
    assert getattr(shaped(named(field, value)), field) == value


@pytest.mark.parametrize("field", ["id", "model", "system_fingerprint", "conversation_id"])
@pytest.mark.parametrize("value", ["two words", "", "x" * 257, "x" * 10**6, "\x1b[31m", "a\nb", "<b>", "\u00e9"])
def test_a_name_of_another_shape_is_unknown(field: str, value: str) -> None:
    assert getattr(shaped(named(field, value)), field) is None


def test_a_model_the_program_named_is_told_as_it_is() -> None:
    assert shaped(Reply(model="my own model"), "my own model").model == "my own model"


def test_words_of_an_api_are_codes() -> None:
    assert [code(one) for one in ("stop", "max_output_tokens", "content_filter", "tool-calls")] == [
        "stop", "max_output_tokens", "content_filter", "tool-calls",
    ]  # fmt: skip


@pytest.mark.parametrize("how", ["plain", "raw", "stream"])
def test_of_a_key_a_server_echoes_nothing_is_told(how: str, stage: Any, clients: Any, colour: str) -> None:
    body = (
        f'{{"id": "{KEY}", "object": "chat.completion", "created": 1, "model": "{KEY}", "service_tier": "{KEY}",'
        f' "system_fingerprint": "{KEY}", "choices": [{{"index": 0, "finish_reason": "{KEY}",'
        ' "message": {"role": "assistant", "content": "hi"}, "delta": {"content": "hi"}}],'
        ' "usage": {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}}'
    )
    answer = Raw(f"data: {body}\n\ndata: [DONE]\n\n".encode(), content_type="text/event-stream")
    client = clients.make(colour, stage.play(answer if how == "stream" else Raw(body.encode(), content_type="application/json")))
    with (
        Capture() as seen,
        ravi_otel.instrument(tracer_provider=seen.tracer_provider, meter_provider=seen.meter_provider),
    ):
        clients.run(colour, _ask(client, how))
        spans = [span for span in seen.spans() if (span.attributes or {}).get("gen_ai.usage.output_tokens") == 2]
        metrics = [point.attributes for name in seen.metric_names() for point in seen.metric(name)]
    assert spans
    assert KEY not in repr([(span.name, span.attributes, span.status.description) for span in spans])
    assert KEY not in repr(metrics)


async def _ask(client: Any, how: str) -> None:
    at = client.chat.completions.with_raw_response if how == "raw" else client.chat.completions
    made = at.create(model="gpt-4o-mini", messages=[{"role": "user", "content": "hi"}], stream=how == "stream")
    found = await made if hasattr(made, "__await__") else made
    if how != "stream":
        return
    if hasattr(found, "__aiter__"):
        async for _ in found:
            pass
    else:
        for _ in found:
            pass
