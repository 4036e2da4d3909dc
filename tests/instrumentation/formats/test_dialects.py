"""A request's format is chosen by the dialect of its host, and by its path and body."""

from __future__ import annotations

from typing import Any

import pytest

from ravi_otel._instrumentation import model_hosts
from ravi_otel._instrumentation.formats import anthropic, chat, responses
from ravi_otel._instrumentation.formats.dialects import DIALECTS, Dialect, dialect_of, format_for_request
from ravi_otel._instrumentation.formats.format import UNREAD, Host, Request

HI: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
PROVIDERS = {*model_hosts.HOSTS.values(), *model_hosts.SUFFIXES.values(), "aws.bedrock"}


@pytest.mark.parametrize("provider", sorted(PROVIDERS))
def test_every_provider_of_a_known_host_has_a_dialect(provider: str) -> None:
    assert dialect_of(provider) in DIALECTS


def test_a_provider_that_nobody_knows_has_none() -> None:
    assert dialect_of("acme") is None


@pytest.mark.parametrize(
    ("dialect", "path", "expected"),
    [
        ("openai", "/v1/chat/completions", chat.CHAT),
        ("openai", "/openai/deployments/d/chat/completions?api-version=2024-10-21", chat.CHAT),
        ("openai", "/v1/fim/completions", chat.CHAT),
        ("openai", "/v1/agents/completions", chat.CHAT),
        ("openai", "/api/v1/responses", responses.RESPONSES),
        ("openai", "/anthropic/v1/messages", anthropic.MESSAGES),
        ("openai", "/api/v1/messages", anthropic.MESSAGES),
        ("anthropic", "/v1/messages?beta=true", anthropic.MESSAGES),
        ("google", "/v1beta/openai/chat/completions", chat.CHAT),
        ("google", "/v1/projects/p/locations/l/endpoints/openapi/chat/completions", chat.CHAT),
        ("bedrock", "/openai/v1/chat/completions", chat.CHAT),
        ("cohere", "/compatibility/v1/chat/completions", chat.CHAT),
        ("ollama", "/v1/chat/completions", chat.CHAT),
        ("auto", "/whatever/v1/chat/completions", chat.CHAT),
        ("auto", "/v1/messages", anthropic.MESSAGES),
        ("auto", "/generate", chat.CHAT),
    ],
)
def test_a_path_chooses_the_format(dialect: Dialect, path: str, expected: object) -> None:
    assert format_for_request(dialect, "POST", path, HI) is expected


@pytest.mark.parametrize(
    ("dialect", "method", "path"),
    [
        *((dialect, "GET", "/v1/models") for dialect in DIALECTS),
        ("openai", "POST", "/v1/files"),
        ("openai", "POST", "/v1/threads/t/messages"),
        ("anthropic", "POST", "/v1/messages/count_tokens"),
        ("anthropic", "POST", "/v1/messages/batches/b1/cancel"),
        ("auto", "POST", "/login"),
    ],
)
def test_what_asks_no_model_has_no_format(dialect: Dialect, method: str, path: str) -> None:
    assert format_for_request(dialect, method, path, {}) is None


@pytest.mark.parametrize(
    ("dialect", "path"),
    [("google", "/some/new/thing"), ("bedrock", "/model/m/some-new-thing"), ("cohere", "/some/new/thing"), ("ollama", "/some/new/thing")],
)
def test_an_unknown_path_of_a_known_dialect_is_a_request_that_nobody_can_read(dialect: Dialect, path: str) -> None:
    found = format_for_request(dialect, "POST", path, {"a": 1})
    assert found is UNREAD
    call = found.call(Request("POST", path, {"a": 1}, Host("x", assumed=False, address="h", port=443), stream=False))
    assert (call.unread, call.generative, call.model) == (True, True, None)


def test_what_a_provider_keeps_is_only_free_where_its_api_is_openais_own() -> None:
    found = format_for_request("openai", "POST", "/v1/conversations", {"inputs": "Hi"}, "mistral_ai")
    assert found is not None
    assert format_for_request("openai", "POST", "/v1/conversations", {}, "openai") is None
