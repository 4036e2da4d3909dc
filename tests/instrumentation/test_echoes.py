"""What a server writes into the names of an answer is told as it is, or not at all: a key never."""

from __future__ import annotations

import base64
import uuid
from typing import Any

import pytest

import ravi_otel
from ravi_otel.instrumentation.http.echoes import OTHER, code, shaped, was_sent
from ravi_otel.policy.usage import Reply
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


def bare(key: str) -> str:
    return key.replace("-", "")


def around(key: str) -> str:
    return f"x_{key}_y"


def half(key: str) -> str:
    return key[:18]


class Sent:
    """Be a request, as far as it is looked at."""

    def __init__(self, *headers: tuple[str, str], path: str = "/v1/chat/completions") -> None:
        self.headers = type("Headers", (), {"raw": [(name.encode(), value.encode()) for name, value in headers]})()
        self.url = type("Url", (), {"raw_path": path.encode()})()


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
    sent = Sent(("Authorization", f"Bearer {KEY}"), ("User-Agent", "AsyncOpenAI/Python 3.52.0"), ("Host", "api.openai.com"))
    assert getattr(shaped(named(field, value), sent), field) == value


@pytest.mark.parametrize("field", ["id", "model", "system_fingerprint", "conversation_id"])
@pytest.mark.parametrize("name", ["Authorization", "api-key", "X-Tenant-Secret"])
@pytest.mark.parametrize("key", [HEX, UUID])
@pytest.mark.parametrize("change", [str, str.upper, bare, around, half])
def test_a_name_made_of_what_was_sent_is_unknown(field: str, name: str, key: str, change: Any) -> None:
    assert getattr(shaped(named(field, change(key)), Sent((name, f"Bearer {key}"))), field) is None


def test_a_model_the_program_named_is_told_although_a_header_names_it_too() -> None:
    sent = Sent(("X-Model", "gpt-4o-mini-2024-07-18"), ("Host", "gpt-4o-mini.openai.azure.com"))
    assert shaped(Reply(model="gpt-4o-mini-2024-07-18"), sent).model == "gpt-4o-mini-2024-07-18"


def test_an_id_the_program_asked_for_is_told() -> None:
    assert shaped(Reply(id="thing-" + UUID), Sent(path=f"/v1/things/thing-{UUID}")).id == "thing-" + UUID


def test_a_key_in_the_query_is_not_told() -> None:
    assert shaped(Reply(id=UUID), Sent(path=f"/v1/things?key={UUID}")).id is None


@pytest.mark.parametrize(
    "echo",
    [UUID, UUID.upper(), UUID.replace("-", ""), f"req_{UUID}".replace("-", "_"), f"req_{UUID[9:30]}"],
)
def test_an_echo_is_known_however_it_is_written(echo: str) -> None:
    assert was_sent(echo.encode(), Sent(("Authorization", f"Bearer {UUID}")))
    assert was_sent(echo.encode(), Sent(("Cookie", f"a=b; key={UUID.upper()}")))


def test_digits_echoed_with_dashes_are_known() -> None:
    assert was_sent(str(uuid.UUID(HEX)).encode(), Sent(("api-key", HEX)))


def test_a_key_in_base_64_is_known() -> None:
    assert was_sent(b"req_" + base64.b64encode(HEX.encode()), Sent(("Authorization", f"Bearer {HEX}")))


def test_a_short_secret_within_an_id_is_known() -> None:
    assert was_sent(b"req_zzabcd1234zz", Sent(("Authorization", "Bearer abcd1234")))


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
