from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ravi_otel._telemetry.content import FAILED, Content, guarded, is_redacting, redact_secrets

PEM = "-----BEGIN RSA PRIVATE KEY-----\nMIIEow\nIBAAKC\n-----END RSA PRIVATE KEY-----"
PIECES = [
    *("a@b.com", "sk-proj-abc123def456ghi789", "gsk_abcdefghijkl1234", "AKIAIOSFODNN7EXAMPLE", "ghp_" + "a1" * 18, PEM),
    *("4111111111111111", "4111 1111 1111 1111", "+49 30 1234567", "(555) 123-4567", "555-123-4567", "030 1234567", "1", "12", "é", "_"),
    *("eyJhbGciOi.eyJzdWIi.abc_-9", "Bearer abcdefgh12345", "-----BEGIN PRIVATE KEY-----", " ", "-", ".", "+", "(", ")", "@", "sk-", "x"),
    *("[redacted:key]", "\ud800", "\n", "0", "a" * 70, "sk-1234567890ab", ".com"),
]


@pytest.mark.parametrize(
    ("secret", "kind"),
    [
        ("jane.doe+x@mail.example.co.uk", "email"),
        ("jürgen@straße.de", "email"),
        ("+49 151 23456789", "phone"),
        ("+1 (415) 555-2671", "phone"),
        ("+14155552671", "phone"),
        ("(415) 555-2671", "phone"),
        ("415.555.2671", "phone"),
        ("1-415-555-2671", "phone"),
        ("020 7946 0958", "phone"),
        ("4111111111111111", "card"),
        ("4111 1111 1111 1111", "card"),
        ("3782-822463-10005", "card"),
        ("sk-proj-Ab3_dEf-456789012345", "key"),
        ("sk-ant-api03-abcDEF123456", "key"),
        ("gsk_abcdefghijklmnop1234", "key"),
        ("AKIAIOSFODNN7EXAMPLE", "key"),
        ("ghp_16C7e42F292c6912E7710c838347Ae178B4a", "key"),
        ("github_pat_11ABCDEFG0abcdefghij", "key"),
        ("xoxb-1234567890-abcdefghij", "key"),
        ("AIzaSyA1234567890abcdefghijklmnopqrstuv", "key"),
        ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjMifQ.SflKxwRJSMeKKF2QT4", "key"),
        ("Bearer abcDEF123.456-789~x", "key"),
        (PEM, "key"),
    ],
)
def test_a_secret_is_replaced_wherever_it_stands(secret, kind):
    for before, after in (("", ""), ("it is ", "."), ('{"a":"', '"}'), ("(", ")")):
        found = redact_secrets(before + secret + after)
        assert f"[redacted:{kind}]" in found
        assert secret not in found


@pytest.mark.parametrize(
    "harmless",
    [
        *("On 2026-11-21 at 04:40:02", "version 10.15.7.2", "pi is 3.14159265358979", "1732160000", "disk-usage-report of the task-force"),
        *("192.168.100.200:8080", "order 4111111111111112", "risk-averse", "the 30 1000 2000 rows", "eyJ", "bearer of news", "a @ b"),
        "550e8400-e29b-41d4-a716-446655440000",
    ],
)
def test_what_is_no_secret_stays(harmless):
    assert redact_secrets(harmless) == harmless


def test_a_private_key_that_is_cut_off_is_replaced_to_the_end():
    assert redact_secrets("key: " + PEM[:40]) == "key: [redacted:key]"


@settings(max_examples=500, deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=12).map("".join))
def test_redacting_twice_is_redacting_once(text):
    once = redact_secrets(text)
    assert redact_secrets(once) == once


@settings(deadline=None)
@given(st.text())
def test_any_text_can_be_redacted(text):
    once = redact_secrets(text)
    assert redact_secrets(once) == once


@pytest.mark.parametrize(
    "piece",
    ["a", "sk-", "eyJ", "1 ", "1", "+", "a@", "@a", "(1", "-----BEGIN PRIVATE KEY-----", "Bearer ", "a.", "555-123-", "AKIA", "1.1-"],
)
def test_the_time_is_linear_on_hostile_text(piece):
    def taken(size):
        text = piece * (size // len(piece))
        begun = time.process_time()
        redact_secrets(text)
        return time.process_time() - begun

    small = min(taken(20_000) for _ in range(3))
    assert taken(160_000) < 8 * 8 * max(small, 0.001)  # eight times the text; quadratic would be 64 times the time


@pytest.mark.parametrize("hook", [lambda _: 1 / 0, lambda _: None, lambda _: b"x", lambda: ""])
def test_a_hook_that_fails_leaks_nothing(hook):
    assert guarded(hook)("secret") == FAILED


def test_a_failing_hook_is_told_once_and_without_the_text(caplog):
    def broken(text):
        raise ValueError(text)

    hook = guarded(broken)
    assert [hook("my secret"), hook("my secret")] == [FAILED, FAILED]
    assert [record.getMessage() for record in caplog.records] == [
        "ravi-otel: the redaction hook raised ValueError; such texts are told as [redaction failed]."
    ]


def test_a_hook_is_never_run_inside_itself():
    ran: list[str] = []

    def hook(text: str) -> str:
        ran.append(text)
        return run(text + "x") + is_redacting() * "!"

    run = guarded(hook)
    assert [run("a"), run("b")] == [FAILED + "!", FAILED + "!"]
    assert ran == ["a", "b"]
    assert not is_redacting()


def test_a_hook_that_raised_may_run_again():
    run = guarded(lambda text: 1 / 0)  # type: ignore[arg-type,return-value]  # no text, and not even a number
    assert [run("a"), run("b")] == [FAILED, FAILED]
    assert not is_redacting()


@pytest.mark.parametrize("piece", ["1 ", "0-1", "123 456 ", "4111 1111 ", "a" * 64 + "@", "sk-", "+1 "])
def test_a_long_text_costs_no_more_than_what_is_told_of_it(piece):
    given: list[int] = []

    def hook(text):
        given.append(len(text))
        return redact_secrets(text)

    content = Content(on_spans=True, redact=hook)
    content.argument(piece * (1_000_000 // len(piece)))
    assert given == [2 * 4096 + 1024]


def test_the_name_before_a_host_may_be_long_or_missing():
    assert redact_secrets("a" * 100 + "@b.com @c.de x@y@z.org") == "a" * 36 + "[redacted:email] @c.de x@[redacted:email]"
    assert redact_secrets("a@b.com@c.de") == "[redacted:email]@c.de"
