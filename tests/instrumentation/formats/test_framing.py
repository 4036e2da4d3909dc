"""A stream's events are the same however its bytes are cut, and no bytes raise, or make a parser keep more than its bound."""

from __future__ import annotations

import json
import sys
from binascii import crc32
from itertools import pairwise
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ravi_otel._instrumentation.formats.framing import MOST_EVENT, Framing, StreamParser

EVENTS: list[Any] = [
    {"type": "a", "text": 'two\nlines, a "quote" and a \\'},
    {"list": [1, [2, {"three": "]}"}]], "empty": {}},
    {"text": "größer, 大", "end": True},
]


def header(name: str, value: str) -> bytes:
    said = value.encode()
    return bytes([len(name)]) + name.encode() + b"\x07" + len(said).to_bytes(2, "big") + said


def message(payload: bytes, headers: bytes) -> bytes:
    """Write one message of an AWS event stream."""
    prelude = (16 + len(headers) + len(payload)).to_bytes(4, "big") + len(headers).to_bytes(4, "big")
    whole = prelude + crc32(prelude).to_bytes(4, "big") + headers + payload
    return whole + crc32(whole).to_bytes(4, "big")


def aws(name: str, payload: Any, kind: str = "event") -> bytes:
    headers = header(f":{kind}-type", name) + header(":content-type", "application/json") + header(":message-type", kind)
    return message(json.dumps(payload).encode(), headers)


WRITTEN: dict[Framing, bytes] = {
    Framing.SSE: b": a comment\r\n\r\n"
    + b"".join(b"event: x\r\nid: 1\r\ndata: " + json.dumps(one).encode() + b"\r\n\r\n" for one in EVENTS),
    Framing.NDJSON: b"".join(json.dumps(one, ensure_ascii=False).encode() + b"\n" for one in EVENTS),
    Framing.JSON_ARRAY: json.dumps(EVENTS, indent=2, ensure_ascii=False).encode(),
    Framing.EVENT_STREAM: b"".join(aws("e", one) for one in EVENTS),
}
EXPECTED: dict[Framing, list[Any]] = dict.fromkeys(Framing, EVENTS) | {Framing.EVENT_STREAM: [{"e": one} for one in EVENTS]}


def read(framing: Framing, data: bytes, cuts: list[int]) -> tuple[list[Any], bool]:
    parser = framing.parser()
    places = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    found: list[Any] = []
    for begins, ends in pairwise(places):
        found += parser.feed(data[begins:ends])
    return found + parser.end(), parser.lossy


every_framing = pytest.mark.parametrize("framing", Framing)


@every_framing
@given(cuts=st.lists(st.integers(0, 2_000), max_size=40))
def test_any_cut_of_a_stream_yields_the_same_events(framing: Framing, cuts: list[int]) -> None:
    assert read(framing, WRITTEN[framing], cuts) == (EXPECTED[framing], False)


@every_framing
def test_a_stream_byte_by_byte_yields_the_same_events(framing: Framing) -> None:
    assert read(framing, WRITTEN[framing], list(range(len(WRITTEN[framing])))) == (EXPECTED[framing], False)


@every_framing
@given(data=st.binary(max_size=300), cuts=st.lists(st.integers(0, 300), max_size=8))
def test_no_bytes_raise_and_no_cut_of_them_matters(framing: Framing, data: bytes, cuts: list[int]) -> None:
    assert read(framing, data, cuts) == read(framing, data, [])


@every_framing
@given(data=st.data())
def test_a_stream_with_a_byte_changed_raises_nothing(framing: Framing, data: st.DataObject) -> None:
    whole = bytearray(WRITTEN[framing])
    whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    found, _ = read(framing, bytes(whole), data.draw(st.lists(st.integers(0, 2_000), max_size=4)))
    assert len(found) <= len(whole)


LARGE = b"x" * (MOST_EVENT + 10)
TOO_LARGE: dict[Framing, tuple[bytes, bytes]] = {
    Framing.SSE: (b'data: {"t": "', b'"}\n\n'),
    Framing.NDJSON: (b'{"t": "', b'"}\n'),
    Framing.JSON_ARRAY: (b'[{"t": "', b'"}, '),
    Framing.EVENT_STREAM: (b"", b""),
}


def held(parser: StreamParser) -> int:
    """Return how many bytes a parser has in its lists."""
    slots: list[str] = [name for kind in type(parser).__mro__ for name in getattr(kind, "__slots__", ())]
    values: list[Any] = [getattr(parser, name, None) for name in slots]
    return sum(sys.getsizeof(one) for value in values if isinstance(value, list) for one in cast("list[bytes]", value))


@every_framing
def test_an_event_that_is_too_large_is_passed_over_without_being_kept(framing: Framing) -> None:
    before, after = TOO_LARGE[framing]
    large = message(LARGE, header(":event-type", "e")) if framing is Framing.EVENT_STREAM else before + LARGE + after
    parser, most = framing.parser(), 0
    found: list[Any] = []
    for at in range(0, len(large), 64 * 1024):
        found += parser.feed(large[at : at + 64 * 1024])
        most = max(most, held(parser))
    rest = WRITTEN[framing]
    found += parser.feed(rest[1:] if framing is Framing.JSON_ARRAY else rest) + parser.end()
    assert (found, parser.lossy) == (EXPECTED[framing], True)
    assert most <= MOST_EVENT + 256 * 1024


def test_server_sent_events_end_at_done_and_join_lines_of_data() -> None:
    parser = Framing.SSE.parser()
    assert parser.feed(b'data: {"a":\ndata: 1}\n\ndata: [DONE]\n\ndata: {"b": 2}\n\n') == [{"a": 1}]
    assert parser.feed(b'data: {"c": 3}\n\n') == []
    assert not parser.lossy


def test_a_last_event_without_its_blank_line_is_read_and_half_of_one_is_not() -> None:
    whole, half = Framing.SSE.parser(), Framing.SSE.parser()
    assert whole.feed(b'data: {"a": 1}') + whole.end() == [{"a": 1}]
    assert half.feed(b'data: {"a": ') + half.end() == []
    assert half.lossy


def test_events_with_a_name_that_their_data_lacks_are_wrapped_with_it() -> None:
    assert Framing.SSE.parser().feed(b'event: thread.run.completed\ndata: {"id": 1}\n\n') == [
        {"event": "thread.run.completed", "data": {"id": 1}}
    ]


def test_an_object_alone_is_one_event_of_an_array() -> None:
    parser = Framing.JSON_ARRAY.parser()
    assert parser.feed(b' {"error": {"code": 429}}') + parser.end() == [{"error": {"code": 429}}]


def test_an_exception_of_an_event_stream_is_an_event_by_its_name() -> None:
    found = Framing.EVENT_STREAM.parser().feed(aws("throttlingException", {"message": "slow down"}, "exception"))
    assert found == [{"throttlingException": {"message": "slow down"}}]


@pytest.mark.parametrize("at", [0, 5, 9, 14, 60, -1])
def test_nothing_after_a_wrong_checksum_or_length_is_read(at: int) -> None:
    broken = bytearray(aws("e", {"n": 1}))
    broken[at] ^= 0xFF
    parser = Framing.EVENT_STREAM.parser()
    assert parser.feed(aws("e", {"n": 0}) + bytes(broken) + aws("e", {"n": 2})) == [{"e": {"n": 0}}]
    assert parser.lossy


def test_an_event_stream_that_ends_within_a_message_is_known_to() -> None:
    parser = Framing.EVENT_STREAM.parser()
    assert parser.feed(aws("e", {"n": 1})[:-1]) + parser.end() == []
    assert parser.lossy


def test_headers_of_every_type_are_passed_over() -> None:
    values = {0: b"", 1: b"", 2: b"1", 3: b"12", 4: b"1234", 5: b"12345678", 6: b"\x00\x02hi", 8: b"12345678", 9: b"1" * 16}
    others = b"".join(b"\x01x" + bytes([kind]) + value for kind, value in values.items())
    assert Framing.EVENT_STREAM.parser().feed(message(b'{"n": 1}', others + header(":event-type", "e"))) == [{"e": {"n": 1}}]


@pytest.mark.parametrize(
    ("content_type", "framing"),
    [
        ("text/event-stream; charset=utf-8", Framing.SSE),
        ("application/x-ndjson", Framing.NDJSON),
        ("application/vnd.amazon.eventstream", Framing.EVENT_STREAM),
        ("Application/JSON", Framing.JSON_ARRAY),
        ("text/html", None),
        (None, None),
    ],
)
def test_a_framing_is_told_by_the_content_type(content_type: str | None, framing: Framing | None) -> None:
    assert Framing.of(content_type) is framing
