"""Of an answer's headers only an id and amounts are told, and nothing that could be a key."""

from __future__ import annotations

import secrets
import string
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ravi_otel._instrumentation.http_library import headers_of_error, read_headers

UUID = "0f3c2a91-55d0-4b9e-9a0e-2f5f0d7f9c11"
IDS = [
    "req_d6009916bd4447188ce5baaea187709b", "req_011CQxJxGSXU4CnyGpcHS7aJ", "req_01hbx7jpqyegfs5mh25gcqxtg6", UUID, UUID.upper(),
    "d6009916bd4447188ce5baaea187709b", "01ARZ3NDEKTSV4RRFFQ69G5FAV",
]  # fmt: skip
AMOUNTS = [
    "0", "0s", "9999", "12ms", "8.64s", "6m0s", "1h2m3.5s", "1m26.4s", "7.66s", "2026-11-21T04:00:00Z", "2026-11-21T04:00:00.5+01:00",
    "Wed, 21 Oct 2015 07:28:00 GMT",
]  # fmt: skip
KEYS = [
    "sk-proj-abcdefghijklmnopqrst",
    "sk-abcdefghijklmnop1234",
    "gsk_abcdefghijklmnopqrstuv",
    "Bearer abcdefghijklmnop",
    "xai-abcdefghijklmnop",
    "AKIAIOSFODNN7EXAMPLE",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.abc",
    "AIzaSyA1234567890abcdefghijklmnopqrstu",
    "ghp_abcdefghijklmnopqrst",
    "hf_abcdefghijklmnopqrstuvwxyz",
    "xoxb-123456789012-abcdefghij",
    "1sk-abcdefghijklmnop",
    "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822c",
    "req_sk-proj-abcdefghijkl",
    "user@example.com",
    "+41 79 123 45 67",
    "4111 1111 1111 1111",
    "4111111111111111",
    "0123456789abcdef0123456789abcdef",
    "\x1b[31mred",
]


class Headers:
    def __init__(self, *pairs: tuple[str, str]) -> None:
        self.raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in pairs]


@pytest.mark.parametrize("name", ["x-request-id", "X-Request-ID", "request-id", "apim-request-id", "x-amzn-RequestId"])
@pytest.mark.parametrize("value", IDS)
def test_an_id_is_told(name: str, value: str) -> None:
    assert read_headers(Headers((name, value))) == (value, {})


@pytest.mark.parametrize("name", ["x-ratelimit-remaining-tokens", "retry-after", "anthropic-ratelimit-requests-reset"])
@pytest.mark.parametrize("value", AMOUNTS)
def test_an_amount_is_told(name: str, value: str) -> None:
    assert read_headers(Headers((name.upper(), f" {value} "))) == (None, {name: value})


@pytest.mark.parametrize("value", KEYS)
def test_what_looks_like_a_key_is_never_told(value: str) -> None:
    assert read_headers(Headers(("x-request-id", value), ("retry-after", value), ("x-ratelimit-reset-tokens", value))) == (None, {})


@pytest.mark.parametrize("name", ["set-cookie", "authorization", "openai-organization", "openai-project", "x-ratelimit-key", "cf-ray"])
def test_no_other_header_is_told(name: str) -> None:
    assert read_headers(Headers((name, "12"))) == (None, {})


def test_the_first_of_several_ids_is_told() -> None:
    assert read_headers(Headers(("request-id", IDS[0]), ("x-request-id", IDS[1])))[0] == IDS[0]


@given(
    st.lists(
        st.tuples(st.sampled_from(["x-request-id", "retry-after", "x-ratelimit-reset-tokens"]), st.text(st.characters(max_codepoint=255)))
    )
)
def test_whatever_comes_is_short_plain_text_or_nothing(pairs: list[tuple[str, str]]) -> None:
    found, limits = read_headers(Headers(*pairs))
    for value in (*([found] if found is not None else []), *limits.values()):
        assert len(value) <= 80
        assert value.isascii()
        assert value.isprintable()


def test_of_ten_thousand_random_keys_none_is_told() -> None:
    letters = string.ascii_letters + string.digits
    for prefix in ("sk-", "sk-proj-", "gsk_", "xai-", "pk_live_", "hf_", "", "9"):
        for _ in range(1_250):
            key = prefix + "".join(secrets.choice(letters) for _ in range(48))
            assert read_headers(Headers(("x-request-id", key), ("retry-after", key))) == (None, {})


@pytest.mark.parametrize("error", [None, ValueError("x"), type("E", (Exception,), {"response": 3})()])
def test_an_error_without_an_answer_tells_nothing(error: Any) -> None:
    assert headers_of_error(error) == (None, {})
