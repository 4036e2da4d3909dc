"""Notes of many processes in one file, read while they are written."""

import json
import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from ravi_otel._launch import notes


@pytest.fixture
def path(tmp_path):
    return tmp_path / "notes.jsonl"


def test_a_note_is_read_as_it_was_left(path):
    notes.leave(path, "refused", "Token budget exceeded: 5 > 4", thread=True)
    (note,) = notes.Reader(path).new()
    assert (note.what, note.pid, note.text, note.thread) == ("refused", os.getpid(), "Token budget exceeded: 5 > 4", True)


def test_a_reader_gives_each_note_once(path):
    reader = notes.Reader(path)
    assert list(reader.new()) == []
    notes.leave(path, "attached")
    assert [note.what for note in reader.new()] == ["attached"]
    notes.leave(path, "working")
    assert [note.what for note in reader.new()] == ["working"]
    assert list(reader.new()) == []


def test_half_a_line_waits_for_its_other_half(path):
    reader = notes.Reader(path)
    notes.leave(path, "attached")
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
    notes.leave(path, "attached")
    path.write_bytes(line + b"\n" + path.read_bytes())
    assert [note.what for note in notes.Reader(path).new()] == ["attached"]


def test_notes_of_many_writers_do_not_mix(path):
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda number: notes.leave(path, "refused", str(number) * 200), range(400)))
    assert len(list(notes.Reader(path).new())) == 400


def test_a_long_text_is_cut_and_a_strange_one_escaped(path):
    notes.leave(path, "refused", "\ud800\n" + "x" * 10_000)
    (line,) = path.read_text().splitlines()
    assert len(json.loads(line)["text"]) == 2_000


def test_notes_are_for_their_owner_only(path):
    notes.leave(path, "attached")
    assert path.stat().st_mode & 0o777 == 0o600
