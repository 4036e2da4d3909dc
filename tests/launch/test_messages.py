"""Notes of many processes in one file, read while they are written."""

import json
import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from ravi_otel._launch.plan import Messages


@pytest.fixture
def path(tmp_path):
    return tmp_path / "notes.jsonl"


def test_a_note_is_read_as_it_was_left(path):
    Messages(path).send("refused", "Token budget exceeded: 5 > 4", thread=True)
    (message,) = Messages(path).new()
    assert (message.what, message.pid, message.text, message.thread) == ("refused", os.getpid(), "Token budget exceeded: 5 > 4", True)


def test_a_reader_gives_each_note_once(path):
    reader = Messages(path)
    assert list(reader.new()) == []
    Messages(path).send("attached")
    assert [message.what for message in reader.new()] == ["attached"]
    Messages(path).send("working")
    assert [message.what for message in reader.new()] == ["working"]
    assert list(reader.new()) == []


def test_half_a_line_waits_for_its_other_half(path):
    reader = Messages(path)
    Messages(path).send("attached")
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:10])
    assert len(list(reader.new())) == 1
    with path.open("ab") as file:
        file.write(whole[10:])
    assert len(list(reader.new())) == 1


@pytest.mark.parametrize(
    "line",
    [b"", b"nothing", b"[]", b"null", b'{"what": "exploded", "pid": 1, "at_ns": 1}', b'{"what": "refused"}', b"\xff\xfe",
     b'{"what": "refused", "pid": "x", "at_ns": 1}', b'{"what": "refused", "pid": 1e400, "at_ns": 1}', b"[" * 100_000],
)  # fmt: skip
def test_what_is_no_note_is_passed_over(path, line):
    Messages(path).send("attached")
    path.write_bytes(line + b"\n" + path.read_bytes())
    assert [message.what for message in Messages(path).new()] == ["attached"]


def test_notes_of_many_writers_do_not_mix(path):
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda number: Messages(path).send("refused", str(number) * 200), range(400)))
    assert len(list(Messages(path).new())) == 400


def test_a_long_text_is_cut_and_a_strange_one_escaped(path):
    Messages(path).send("refused", "\ud800\n" + "x" * 10_000)
    (line,) = path.read_text().splitlines()
    assert len(json.loads(line)["text"]) == 2_000


def test_notes_are_for_their_owner_only(path):
    Messages(path).send("attached")
    assert path.stat().st_mode & 0o777 == 0o600
