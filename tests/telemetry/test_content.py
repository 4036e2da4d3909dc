from __future__ import annotations

import base64
import dataclasses
import datetime as dt
import hashlib
import json
import math
import os

import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ravi_otel._telemetry.content import (
    CAPTURE,
    FAILED,
    NO_CONTENT,
    TEXT_BYTES,
    WHOLE_BYTES,
    Content,
    as_text,
    read_content,
    redact_secrets,
)
from ravi_otel.policy._usage import Asked

SPANS = Content(on_spans=True)
PIXEL = base64.b64encode(b"\x89PNG" + bytes(range(200))).decode()
SHA = hashlib.sha256(base64.b64decode(PIXEL)).hexdigest()


def said(*parts, content=SPANS, role="user"):
    """Give the parts of one message as they are told, by way of the JSON text."""
    told = as_text(content.asked(Asked(messages=[{"role": role, "parts": list(parts)}])))
    return json.loads(told["gen_ai.input.messages"])[0]["parts"]


def argument(value, content=SPANS):
    return json.loads(content.argument(value))


# -- modes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stated", "mode"),
    [
        *(("", (False, False)), ("NO_CONTENT", (False, False)), ("false", (False, False))),
        *(("SPAN_ONLY", (True, False)), (" span_only ", (True, False)), ("true", (True, False))),
        *(("EVENT_ONLY", (False, True)), ("SPAN_AND_EVENT", (True, True))),
    ],
)
def test_the_environment_says_where_content_goes(stated, mode, caplog):
    content = read_content(environ={CAPTURE: stated})
    assert (content.on_spans, content.on_events) == mode
    assert content.captured is any(mode)
    assert not caplog.records


def test_nothing_is_captured_unless_it_is_asked_for():
    assert not read_content(environ={}).captured
    assert not NO_CONTENT.captured


def test_an_unknown_mode_captures_nothing_and_warns_once(caplog):
    assert not read_content(environ={CAPTURE: "EVERYTHING"}).captured
    assert [record.getMessage() for record in caplog.records] == [
        f"ravi-otel: {CAPTURE}='EVERYTHING' is unknown, no content is captured. Use NO_CONTENT, SPAN_ONLY, EVENT_ONLY or SPAN_AND_EVENT."
    ]


def test_the_environment_bounds_texts_and_attributes():
    content = read_content(environ={CAPTURE: "SPAN_ONLY", TEXT_BYTES: "512", WHOLE_BYTES: "2048"})
    assert (content.text_bytes, content.whole_bytes) == (512, 2048)


@pytest.mark.parametrize("stated", ["-1", "0", "many", "1e6", "٣٣٣٣", "9" * 30])
def test_a_bound_that_is_no_number_keeps_the_default_and_warns(stated, caplog):
    assert read_content(environ={TEXT_BYTES: stated}).text_bytes == 4096
    assert TEXT_BYTES in caplog.text


def test_an_attribute_is_no_longer_than_the_sdk_lets_it_be():
    content = read_content(environ={CAPTURE: "SPAN_ONLY", "OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT": "600"})
    told = as_text(content.asked(Asked(messages=[{"role": "user", "parts": [{"type": "text", "content": "word " * 900}]}])))
    assert len(told["gen_ai.input.messages"]) <= 600
    json.loads(told["gen_ai.input.messages"])


# -- texts ------------------------------------------------------------------------------------------------------------


def test_a_short_text_is_told_as_it_is():
    assert said({"type": "text", "content": "Grüße 👋"}) == [{"type": "text", "content": "Grüße 👋"}]


def test_a_long_text_is_cut_and_says_so():
    told = said({"type": "text", "content": "wörd " * 10_000})[0]["content"]
    assert len(told.encode()) <= 4096
    assert told.startswith("wörd wörd")
    assert told.endswith(" [truncated from 50000 characters]")


def test_system_instructions_and_tools_have_attributes_of_their_own():
    tool = {"type": "function", "name": "f", "description": "d", "parameters": {"type": "object"}}
    told = SPANS.asked(Asked(system=[{"type": "text", "content": "Be brief."}], tools=[tool]))
    assert told == {"gen_ai.system_instructions": [{"type": "text", "content": "Be brief."}], "gen_ai.tool.definitions": [tool]}


def test_an_answer_without_a_finish_reason_says_how_it_ended():
    told = SPANS.answered([{"role": "assistant", "parts": []}, {"role": "assistant", "parts": [], "finish_reason": "stop"}], ended="error")
    assert [message["finish_reason"] for message in told["gen_ai.output.messages"]] == ["error", "stop"]
    assert SPANS.answered(None, ended="stop") == {}


def test_the_newest_messages_are_kept_when_there_are_too_many():
    asked = Asked(messages=[{"role": "user", "parts": [{"type": "text", "content": f"{number} " + "x y" * 1000}]} for number in range(100)])
    told = SPANS.asked(asked)["gen_ai.input.messages"]
    assert len(json.dumps(told, ensure_ascii=False, separators=(",", ":")).encode()) <= 64 * 1024
    assert told[-1]["parts"][0]["content"].startswith("99 ")
    kept = len(told) - 1
    assert 20 < kept < 25
    assert told[0] == {"role": "omitted", "parts": [{"type": "omitted", "messages": 100 - kept}]}


def test_what_is_asked_is_copied_when_it_is_asked():
    arguments = {"city": "Paris"}
    asked = Asked(messages=[{"role": "assistant", "parts": [{"type": "tool_call", "id": "c", "name": "f", "arguments": arguments}]}])
    told = SPANS.asked(asked)
    arguments["city"] = "Rome"
    assert told["gen_ai.input.messages"][0]["parts"][0]["arguments"] == {"city": "Paris"}


# -- media and addresses ----------------------------------------------------------------------------------------------


def test_media_are_told_by_hash_and_size():
    told = said({"type": "blob", "modality": "image", "mime_type": "image/png", "content": PIXEL})
    assert told == [{"type": "blob", "modality": "image", "mime_type": "image/png", "sha256": SHA, "size": 204}]
    assert said({"type": "blob", "modality": "image", "content": base64.b64decode(PIXEL)}) == [
        {"type": "blob", "modality": "image", "sha256": SHA, "size": 204}
    ]


def test_a_data_url_is_a_medium():
    told = said({"type": "uri", "modality": "image", "mime_type": None, "uri": f"data:image/png;base64,{PIXEL}"})
    assert told == [{"type": "blob", "modality": "image", "mime_type": "image/png", "sha256": SHA, "size": 204}]
    inside = said({"type": "text", "content": f"see ![x](data:image/png;base64,{PIXEL}) here"})[0]["content"]
    assert inside == f"see ![x]([image/png, 204 bytes, sha256 {SHA}]) here"
    assert argument({"url": f"data:image/png;base64,{PIXEL}"}) == {"url": f"[image/png, 204 bytes, sha256 {SHA}]"}


def test_bytes_in_base64_are_media_wherever_they_stand():
    encoded = base64.b64encode(bytes(range(256)) * 4).decode()
    assert argument({"screenshot": encoded})["screenshot"].startswith("[media, 1024 bytes, sha256 ")
    assert argument(b"abc") == {"sha256": hashlib.sha256(b"abc").hexdigest(), "size": 3}


def test_addresses_lose_what_may_hold_a_key():
    part = {"type": "uri", "modality": "image", "mime_type": None, "uri": "https://me:pw@h.example:8443/a/b.png?sig=SECRET#SECRET"}
    assert said(part) == [{"type": "uri", "modality": "image", "uri": "https://h.example:8443/a/b.png"}]
    assert argument({"url": "https://h/x?key=SECRET"}) == {"url": "https://h/x"}


# -- redaction --------------------------------------------------------------------------------------------------------


def test_every_text_is_redacted_names_and_keys_and_numbers_too():
    content = Content(on_spans=True, redact=redact_secrets)
    told = content.argument({"a@b.com": ["mail c@d.com", {"card": 4111111111111111}], "x@y.com": 3})
    assert json.loads(told) == {"[redacted:email]": ["mail [redacted:email]", {"card": "[redacted:card]"}], "[redacted:email] 2": 3}
    parts = said({"type": "tool_call", "id": "a@b.com", "name": "mail_a@b.com", "arguments": {"to": "a@b.com"}}, content=content)
    assert "a@b.com" not in json.dumps(parts)


def test_a_hook_that_fails_leaves_no_text():
    content = Content(on_spans=True, redact=lambda _: 1 / 0)
    assert said({"type": "text", "content": "my secret"}, content=content) == [{"type": "text", "content": FAILED}]


@pytest.mark.parametrize("length", [4_000, 4_090, 8_190, 9_100, 9_200, 9_214])
def test_a_secret_at_the_edge_of_a_cut_is_not_told_in_part(length):
    content = Content(on_spans=True, redact=redact_secrets)
    key = "sk-proj-" + "A1b2" * 30
    told = content.argument("w " * (length // 2) + key + " tail" * 50_000)
    assert "A1b2" not in told
    shrinking = Content(on_spans=True, redact=lambda text: redact_secrets(text).replace("w ", ""))
    assert "A1b2" not in shrinking.argument("w " * (length // 2) + key + " tail" * 50_000)


# -- hostile values ---------------------------------------------------------------------------------------------------


class Angry(dict):
    def items(self):
        raise RuntimeError("no")


class Sly(str):
    __slots__ = ()

    def __str__(self):
        raise RuntimeError("no")


class Thing:
    def __repr__(self):
        raise RuntimeError("no")


class Row(pydantic.BaseModel):
    name: str
    when: dt.date


@dataclasses.dataclass
class Point:
    x: int
    y: float


def test_values_that_are_no_json_are_told_as_what_they_are():
    read = iter([1, 2])
    assert argument([math.nan, math.inf, 2**70, 10**5000, "\ud800", Thing(), read, {1}, Sly("ok"), Angry(a=1)]) == [
        *("nan", "inf", str(2**70), "[number]", "?", "[Thing]", "[list_iterator]", [1], "ok", "[unreadable]")
    ]
    assert list(read) == [1, 2]
    assert argument({"row": Row(name="n", when=dt.date(2026, 1, 2)), "point": Point(1, 2.5), None: 1, 3: 4}) == {
        "row": {"name": "n", "when": "2026-01-02"},
        "point": {"x": 1, "y": 2.5},
        "[unreadable]": 1,
        "3": 4,
    }


def test_cycles_and_depth_end():
    cycle: list = []
    cycle.append(cycle)
    wide: list = []
    for _ in range(60):
        wide = [wide, wide]
    for value in (cycle, wide):
        assert len(SPANS.argument(value).encode()) <= 64 * 1024
    deep: dict = {}
    for _ in range(100_000):
        deep = {"a": deep}
    assert "[nested too deep]" in SPANS.argument(deep)
    while deep:  # a hundred thousand dictionaries are not freed one inside the other
        deep = deep["a"]


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(exclude_categories=())) | st.binary() | st.just(PIXEL),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner) | st.tuples(inner),
)


@settings(deadline=None, max_examples=1000 if os.environ.get("RAVI_LONG") else 30)
@given(ANYTHING, st.integers(256, 4096), st.sampled_from([None, redact_secrets, lambda text: text * 3]))
def test_whatever_was_said_is_valid_json_within_the_bound(value, whole, redact):
    content = Content(on_spans=True, text_bytes=min(300, whole), whole_bytes=whole, redact=redact)
    told = content.argument(value)
    json.loads(told, parse_constant=pytest.fail)
    assert len(told.encode()) <= whole


@settings(deadline=None, max_examples=1000 if os.environ.get("RAVI_LONG") else 30)
@given(
    st.lists(st.lists(st.dictionaries(st.sampled_from(["type", "content", "uri"]), ANYTHING), max_size=5), max_size=5),
    st.integers(256, 2000),
)
def test_messages_are_valid_json_within_the_bound(messages, whole):
    content = Content(on_spans=True, text_bytes=256, whole_bytes=whole)
    given = [{"role": "user", "parts": parts} for parts in messages]
    for told in (*as_text(content.asked(Asked(messages=given))).values(), *as_text(content.answered(given, ended="stop")).values()):
        assert isinstance(json.loads(told, parse_constant=pytest.fail), list)
        assert len(told.encode()) <= whole
