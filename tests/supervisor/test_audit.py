"""A log of what was asked, decided and done, in which every later change shows."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from ravi_otel import ConfigurationError
from ravi_otel.supervisor import AuditError, AuditLog
from ravi_otel.supervisor._audit import hash_of, head_path, line_of, verify, verify_all
from ravi_otel.supervisor._audit import read_entries as shown_entries
from ravi_otel.supervisor._json import args_sha256


@pytest.fixture
def log(tmp_path):
    return AuditLog(tmp_path / "audit")


def noted(log, number=5, *, run_id="run-1", **facts):
    for at in range(number):
        log.note("proposed", run_id=run_id, agent_name="a", tool="t", op_id=f"op-{at}", arguments={"x": at}, **facts)
    return log.path(run_id)


def entries(path):
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def test_a_log_is_whole_as_it_was_written(log):
    found = verify(noted(log))
    assert (found.ok, found.entries, found.run_id, found.remarks) == (True, 5, "run-1", ())
    assert found.head == log.head("run-1") == entries(found.path)[-1]["hash"]


def test_arguments_are_told_by_their_hash_unless_content_is_on(log, tmp_path):
    (entry,) = entries(noted(log, 1))
    assert entry["args_sha256"] == args_sha256("t", {"x": 0})
    assert "arguments" not in entry
    (entry,) = entries(noted(AuditLog(tmp_path / "open", content=True), 1))
    assert entry["arguments"] == {"x": 0}


@pytest.mark.parametrize("content", [False, True])
def test_what_was_asked_is_told_as_what_was_approved_is(tmp_path, content):
    log = AuditLog(tmp_path / "audit", content=content)
    log.note("approved", run_id="r", agent_name=None, tool="t", op_id="1", arguments={"x": 800}, asked={"x": 1200})
    (entry,) = entries(log.path("r"))
    assert (entry["args_sha256"], entry["asked_sha256"]) == (args_sha256("t", {"x": 800}), args_sha256("t", {"x": 1200}))
    assert (entry.get("arguments"), entry.get("asked")) == (({"x": 800}, {"x": 1200}) if content else (None, None))


def test_with_sync_the_log_its_record_and_their_names_are_flushed_in_this_order(tmp_path, monkeypatch):
    flushed, real = [], os.fsync

    def spy(opened):
        flushed.append((os.fstat(opened).st_ino, os.fstat(opened).st_size))
        real(opened)

    monkeypatch.setattr(os, "fsync", spy)
    path = noted(AuditLog(tmp_path / "audit", sync=True), 2)
    inode = {name: at.stat().st_ino for name, at in (("log", path), ("head", path.with_suffix(".head")), ("names", path.parent))}
    assert [at for at, _ in flushed] == [inode["log"], inode["head"], inode["names"], inode["log"], inode["head"]]
    assert flushed[0][1] < flushed[3][1] == path.stat().st_size


def test_each_run_has_a_file_of_its_own_for_its_owner_only(log):
    first, second = noted(log, 2), noted(log, 3, run_id="run-2")
    assert [each.entries for each in verify_all(log.directory)] == [2, 3]
    for path in (first, second, head_path(first)):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(log.directory.stat().st_mode) == 0o700


@pytest.mark.parametrize("run_id", ["../../etc/passwd", ".", "a/b", "x" * 300, "run\n\x1b[2J", "", "no-run"])
def test_no_id_of_a_run_leads_anywhere_else(log, run_id):
    path = noted(log, 1, run_id=run_id)
    assert path.parent == log.directory
    assert path.name.startswith("run-")
    assert verify(path).ok


def test_what_cannot_be_written_as_json_is_told_in_words(log):
    log.note(
        "executed",
        run_id="r",
        agent_name=None,
        tool="t",
        op_id="o",
        arguments={"x": float("nan")},
        error=ValueError("no"),
        score=0.5,
        deep={"a": [1]},
    )
    log.note("proposed", run_id="r", agent_name=None, tool="t\ud800", op_id="o", arguments='{"x": ', reason="x" * 9_000)
    first, second = entries(log.path("r"))
    assert (first["args_sha256"], first["error"], first["score"], first["deep"]) == (None, "ValueError('no')", 0.5, {"a": [1]})
    assert "nan" in first["args_unwritten"]
    assert (second["args_read"], len(second["reason"])) == (False, 2_000)
    assert verify(log.path("r")).ok


@pytest.mark.parametrize("facts", [{"hash": "0"}, {"prev": "0"}, {"n": 1}, {f"f{at}": at for at in range(40)}])
def test_a_fact_cannot_take_the_place_of_what_the_log_writes(log, facts):
    with pytest.raises(ConfigurationError, match="cannot be written"):
        noted(log, 1, **facts)


def test_another_word_than_the_five_is_refused(log):
    with pytest.raises(ConfigurationError, match="did you mean 'approved'"):
        log.note("aproved", run_id="r", agent_name=None, tool="t", op_id="o", arguments=None)


# -- what is found ----------------------------------------------------------------------------------------------------


def changed(lines, at, **fields):
    entry = json.loads(lines[at]) | fields
    entry["hash"] = hash_of(entry)
    return line_of(entry)


CHANGES = {
    "a value": (lambda lines: [*lines[:2], lines[2].replace(b'"op-2"', b'"op-9"'), *lines[3:]], 3, "its content was changed"),
    "a value and its hash": (lambda lines: [*lines[:2], changed(lines, 2, tool="u"), *lines[3:]], 4, "does not follow"),
    "white space": (lambda lines: [*lines[:2], lines[2].replace(b'":', b'": ', 1), *lines[3:]], 3, "its content was changed"),
    "a doubled key": (lambda lines: [*lines[:2], lines[2].replace(b"{", b'{"tool":"u",', 1), *lines[3:]], 3, "its content was changed"),
    "one taken out": (lambda lines: [*lines[:2], *lines[3:]], 3, "taken out, put in or moved"),
    "the first taken out": (lambda lines: lines[1:], 1, "taken out, put in or moved"),
    "two exchanged": (lambda lines: [lines[0], lines[2], lines[1], *lines[3:]], 2, "taken out, put in or moved"),
    "one twice": (lambda lines: [*lines[:3], lines[2], *lines[3:]], 4, "taken out, put in or moved"),
    "no json": (lambda lines: [*lines[:2], b"what?\n", *lines[3:]], 3, "no JSON object"),
    "nested": (lambda lines: [*lines[:2], b"[" * 9_000 + b"\n", *lines[3:]], 3, "no JSON object"),
    "the end cut at an entry": (lambda lines: lines[:3], 4, "its end was cut off, 3 entries are left of 5"),
    "the end cut in an entry": (lambda lines: [*lines[:4], lines[4][:20]], 5, "its end was cut off, 4 entries are left of 5"),
    "all of it": (lambda lines: [], 1, "0 entries are left of 5"),
    "the last made anew": (lambda lines: [*lines[:4], changed(lines, 4, tool="u")], 5, "not the entry that was written"),
}


@pytest.mark.parametrize("what", CHANGES)
def test_the_first_line_that_was_changed_is_named(log, what):
    change, line, why = CHANGES[what]
    path = noted(log)
    path.write_bytes(b"".join(change(path.read_bytes().splitlines(keepends=True))))
    found = verify(path)
    assert (found.ok, found.bad_line) == (False, line)
    assert why in found.problems[0]
    assert found.problems[0].startswith(f"line {line}: ")


@pytest.mark.parametrize("what", ["the end cut at an entry", "the end cut in an entry", "all of it", "the last made anew"])
def test_a_log_whose_end_was_changed_is_not_written_to_any_more(log, what):
    path = noted(log)
    path.write_bytes(b"".join(CHANGES[what][0](path.read_bytes().splitlines(keepends=True))))
    before = path.read_bytes()
    with pytest.raises(AuditError, match=r"was changed: .*Nothing is executed"):
        noted(AuditLog(log.directory), 1)
    assert path.read_bytes() == before


def test_a_log_that_was_deleted_is_missed_by_its_record_and_by_who_wrote_it(log):
    path = noted(log)
    path.unlink()
    (found,) = verify_all(log.directory)
    assert found.problems == ("its log is gone, and only the record of its end is left",)
    head_path(path).unlink()
    with pytest.raises(AuditError, match="5 entries were written, which are gone"):
        noted(log, 1)


def test_without_its_record_nobody_can_tell_whether_the_end_is_there(log):
    path = noted(log)
    head_path(path).unlink()
    assert "cannot be told" in verify(path).problems[0]
    with pytest.raises(AuditError, match="the record of its end is gone"):
        noted(log, 1)


def test_a_log_under_another_runs_name_is_found(log):
    path = noted(log)
    other = path.with_name("run-9.audit.jsonl")
    path.rename(other)
    head_path(path).rename(head_path(other))
    assert verify(other).problems == ("line 1: it is of run 'run-1', and the file's name is not that run's",)


def test_a_log_that_was_made_anew_is_found_by_a_hash_that_was_kept_elsewhere(log, tmp_path):
    path = noted(log)
    kept = entries(path)[2]["hash"]
    assert verify(path, head=kept).ok
    forged = noted(AuditLog(tmp_path / "forged"), 5)
    assert verify(forged).ok
    assert "made anew" in verify(forged, head=kept).problems[0]


def test_what_is_no_file_is_refused(tmp_path):
    for path in (tmp_path, tmp_path / "none"):
        with pytest.raises(ConfigurationError, match="FILE="):
            verify(path)


# -- many writers, and killed ones ------------------------------------------------------------------------------------

WRITER = """
import sys
from ravi_otel.supervisor import AuditLog
log = AuditLog(sys.argv[1])
for at in range(int(sys.argv[2])):
    log.note("reviewed", run_id="run-1", agent_name="a", tool="t", op_id=str(at), arguments={"x": at})
"""


def test_threads_and_processes_write_one_chain(log):
    with subprocess.Popen([sys.executable, "-c", WRITER, str(log.directory), "40"]) as other, ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda _: noted(log, 20), range(4)))
        assert other.wait(30) == 0
    found = verify(log.path("run-1"))
    assert (found.ok, found.entries) == (True, 120)


KILLED = """
import os, signal, sys
from ravi_otel.supervisor import AuditLog, _audit
where, write, pwrite, at = sys.argv[2], os.write, os.pwrite, [0]
def die():
    os.kill(os.getpid(), signal.SIGKILL)
def writing(opened, data):
    at[0] += 1
    if at[0] == 3 and where == "in the line":
        write(opened, bytes(data)[:30])
        die()
    done = write(opened, data)
    if at[0] == 3 and where == "after the line":
        die()
    return done
def heading(opened, data, offset):
    if where == "before the first record":
        die()
    return pwrite(opened, data, offset)
os.write, os.pwrite = writing, heading
log = AuditLog(sys.argv[1])
for number in range(5):
    log.note("reviewed", run_id="run-1", agent_name="a", tool="t", op_id=str(number), arguments={"x": number})
"""


@pytest.mark.parametrize(
    ("where", "left", "torn"), [("in the line", 2, True), ("after the line", 3, False), ("before the first record", 0, False)]
)
def test_what_a_killed_writer_leaves_is_no_fault_and_the_next_goes_on(log, where, left, torn):
    done = subprocess.run([sys.executable, "-c", KILLED, str(log.directory), where], check=False)
    assert done.returncode == -signal.SIGKILL
    path = log.path("run-1")
    found = verify(path)
    assert (found.problems, found.entries, bool(found.remarks)) == ((), left, torn)
    noted(log, 1)
    found = verify(path)
    assert (found.ok, found.entries, found.remarks) == (True, left + 1, ())
    assert entries(path)[-1].get("recovered") == (30 if torn else None)


@pytest.mark.parametrize("what", ["a directory", "a link", "a pipe", "for others"])
def test_a_file_that_is_not_ours_alone_is_not_written(log, tmp_path, what):
    path = log.path("run-1")
    path.parent.mkdir(parents=True)
    if what == "a directory":
        path.mkdir()
    elif what == "a link":
        path.symlink_to(tmp_path / "elsewhere")
    elif what == "a pipe":
        os.mkfifo(path)
    else:
        path.touch()
        path.chmod(0o622)
    with pytest.raises(AuditError, match="audit log"):
        noted(log, 1)
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("what", ["a directory", "a link", "a pipe"])
def test_what_is_no_log_among_others_is_told_and_keeps_nobody_from_them(log, what):
    noted(log, 1)
    path = log.path("run-2")
    if what == "a directory":
        path.mkdir()
    elif what == "a link":
        path.symlink_to(log.path("run-1"))
    else:
        os.mkfifo(path)
    sound, other = verify_all(log.directory)
    assert (sound.ok, sound.entries) == (True, 1)
    assert (other.path.name, other.ok, len(other.problems)) == (path.name, False, 1)
    shown = [entry for each in (sound, other) for entry in shown_entries(each, lambda text, most: text[:most])]
    assert [entry.file for entry in shown] == [sound.path.name]


def test_where_nothing_can_be_written_the_error_says_so(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(AuditError, match="Nothing is executed without it"):
        noted(AuditLog(tmp_path / "file" / "audit"), 1)
