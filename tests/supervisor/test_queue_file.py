"""The queue's file, which somebody may have written to, or keeps from us."""

from __future__ import annotations

import os
import sqlite3
import stat
from dataclasses import replace
from pathlib import Path

import pytest
from approval_desk import NOW, Asked, Clock, answered, desk, pending, requested, until

from ravi_otel import ConfigurationError
from ravi_otel.supervisor import ApprovalAnswer, ApprovalQueue, QueueError
from ravi_otel.supervisor.approval import _queue
from ravi_otel.supervisor.approval._queue import QueueFile, connect, queue_place, seal_of


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "desk" / "approvals.db"


@pytest.fixture
def queue(path, clock):
    return ApprovalQueue(path, clock=clock)


# -- what others may do meanwhile ------------------------------------------------------------------------------------


def test_nothing_is_locked_or_open_while_a_person_thinks(queue, path):
    asked = Asked(queue, requested(), "sync")
    pending(path)
    with sqlite3.connect(path, timeout=5) as connection:
        connection.execute("BEGIN EXCLUSIVE")
        connection.execute("ROLLBACK")
    connection.close()
    answered(path)
    assert asked.answer().approved


def test_a_file_that_another_program_keeps_locked_for_a_while_is_waited_for(path):
    request = requested()
    desk(path).enter(request, seal_of(request))
    answered(path)
    blocker = sqlite3.connect(path, timeout=5, isolation_level=None, check_same_thread=False)
    blocker.execute("BEGIN EXCLUSIVE")
    tries = []
    asked = Asked(ApprovalQueue(path, clock=lambda: tries.append(1) or NOW), replace(request, id="another"), "sync")
    until(lambda: len(tries) > 2)
    blocker.execute("ROLLBACK")
    blocker.close()
    assert asked.answer().approved


# -- what nobody may change -------------------------------------------------------------------------------------------


def forge(path, **columns):
    with sqlite3.connect(path) as connection:
        for name, value in columns.items():
            connection.execute(f"UPDATE requests SET {name} = ?", (value,))
    connection.close()


@pytest.mark.parametrize(
    ("columns", "why"),
    [
        ({"arguments": '{"amount_usd":9999,"user_id":42}'}, "what it asks for was changed"),
        ({"tool": "send_refund_email"}, "what it asks for was changed"),
        ({"scope": "another run"}, "what it asks for was changed"),
        ({"fingerprint": "0" * 64}, "what it asks for was changed"),
        ({"arguments": '{"amount_usd": 1200, "user_id": 42}'}, "what it asks for was changed"),
        ({"arguments": '{"user_id":42,"user_id":43}'}, "cannot be read"),
        ({"arguments": "[" * 5_000}, "cannot be read"),
        ({"arguments": b"\xff\xfe"}, "cannot be read"),
        ({"risk_score": "a lot"}, "its risk_score cannot be read"),
        ({"requested_at": 1e300}, "its requested_at cannot be read"),
        ({"state": "blessed"}, "its state cannot be read"),
    ],
)
def test_a_row_that_was_changed_cannot_be_answered(path, columns, why):
    request = requested()
    shown = desk(path).enter(request, seal_of(request))
    forge(path, **columns)
    stored = desk(path).find(request.id)
    assert why in stored.flaw
    with pytest.raises(QueueError, match="somebody wrote to the queue"):
        desk(path).answer(shown, ApprovalAnswer(approved=True), login="me")


def test_a_row_with_its_seal_made_anew_has_not_the_fingerprint_of_its_arguments(path):
    from ravi_otel.supervisor.approval._request import sha256_of

    request = requested()
    desk(path).enter(request, seal_of(request))
    text = '{"amount_usd":1,"user_id":42}'
    forge(path, arguments=text, seal=sha256_of("ravi-approvals-1", request.tool, text, request.fingerprint, request.scope, "v1"))
    assert desk(path).find(request.id).flaw == "its fingerprint is not that of its arguments"


def test_an_approval_of_something_else_is_not_given_out(queue, path):
    request = requested()
    desk(path).enter(request, seal_of(request))
    answered(path)
    forge(path, seen="0" * 64)
    asked = Asked(queue, replace(request, id="another"), "sync")
    assert pending(path)[0].id == "another"
    answered(path, approved=False)
    assert asked.answer().approved is False


def test_a_row_that_is_changed_while_it_is_waited_for_is_asked_anew(queue, path):
    request = requested()
    asked = Asked(queue, request, "sync")
    pending(path)
    forge(path, arguments='{"amount_usd":1,"user_id":42}', state="approved")
    fresh = until(lambda: [each for each in pending(path) if each.flaw is None])
    assert fresh[0].request.arguments == request.arguments
    answered(path, approved=False)
    assert asked.answer().approved is False


def test_arguments_that_are_changed_while_a_person_thinks_are_refused(queue, path):
    request = requested()
    asked = Asked(queue, request, "sync")
    (stored,) = pending(path)
    request.arguments["amount_usd"] = 9_999
    desk(path).answer(stored, ApprovalAnswer(approved=True), login="me")
    assert asked.answer() == ApprovalAnswer(approved=False, comment="arguments_changed")
    assert desk(path).find(request.id).state == "approved"


def test_a_fingerprint_of_something_else_is_refused_before_anybody_is_asked(queue, path):
    assert queue.ask(requested(fingerprint="0" * 64)) == ApprovalAnswer(approved=False, comment="arguments_changed")
    assert not path.exists()


def test_arguments_that_nobody_can_be_shown_whole_are_refused(queue):
    with pytest.raises(ConfigurationError, match="a person is asked about at most 65536"):
        queue.ask(requested({"text": "x" * 70_000}))


# -- the file ---------------------------------------------------------------------------------------------------------


def test_the_file_is_its_owners_alone_and_in_no_version_control(path):
    request = requested()
    desk(path).enter(request, seal_of(request))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert (path.parent / ".gitignore").read_text() == "*\n"


@pytest.mark.parametrize("mode", [0o660, 0o644, 0o602])
def test_a_file_that_others_may_use_approves_nothing(queue, path, mode):
    request = requested()
    desk(path).enter(request, seal_of(request))
    path.chmod(mode)
    with pytest.raises(QueueError, match=r"others than its owner may use it .*chmod 600"):
        queue.ask(request)


def test_a_directory_that_others_may_write_approves_nothing(queue, path):
    request = requested()
    desk(path).enter(request, seal_of(request))
    path.parent.chmod(0o1777)  # sticky: nobody can take the file's place, and anybody can put a journal beside it
    with pytest.raises(QueueError, match=r"others may write its directory \(mode 1777\).*chmod go-w"):
        queue.ask(request)


def test_a_file_of_another_user_approves_nothing_for_root_either_who_may_answer_it(path, monkeypatch):
    request = requested()
    desk(path).enter(request, seal_of(request))
    if os.geteuid() == 0:
        os.chown(path, 65_534, 65_534)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(QueueError, match="belongs to another user"):
        desk(path).enter(request, seal_of(request))
    at = QueueFile(path, desk(path).clock, create=False)
    assert at.answer(at.find(request.id), ApprovalAnswer(approved=False), login="root").state == "rejected"


def test_an_error_about_the_file_names_what_named_the_file(path, tmp_path):
    path.parent.mkdir(mode=0o755)
    path.write_text("no database")
    path.chmod(0o600)
    with pytest.raises(QueueError, match=r"give ApprovalQueue\(path=\.\.\.\) a file"):
        ApprovalQueue(path).ask(replace(requested(), expires_at=None))
    with pytest.raises(QueueError, match="set RAVI_APPROVALS to a file"):
        desk(path).all(pending=True, most=1)


@pytest.mark.parametrize("content", [b"no database at all, just some text" * 9, b"SQLite format 3\0" + b"\0" * 500])
def test_what_is_no_queue_is_refused_and_left_as_it_is(queue, path, content):
    path.parent.mkdir()
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(QueueError, match="cannot be used"):
        queue.ask(requested())
    assert path.read_bytes() == content


def test_a_file_that_another_process_makes_at_the_same_moment_is_a_queue(path, monkeypatch):
    asked, real = [], connect

    def while_another_makes_it(*args, **more):
        connection = real(*args, **more)

        def each(statement):
            if "application_id" in statement and not asked:
                asked.append(statement)
                assert desk(path).all(pending=True, most=1) == []

        connection.set_trace_callback(each)
        return connection

    monkeypatch.setattr(_queue, "connect", while_another_makes_it)
    assert desk(path).all(pending=True, most=1) == []
    assert asked


def test_another_programs_database_is_refused(queue, path):
    path.parent.mkdir()
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE theirs (a)")
    connection.close()
    path.chmod(0o600)
    with pytest.raises(QueueError, match="a database of another program"):
        queue.ask(requested())


def test_a_directory_or_a_pipe_is_no_queue(tmp_path):
    with pytest.raises(QueueError, match="no regular file"):
        ApprovalQueue(tmp_path).ask(requested())


def test_a_queue_that_is_deleted_while_it_is_waited_for_is_asked_anew(queue, path):
    asked = Asked(queue, requested(), "sync")
    pending(path)
    path.unlink()
    answered(path)
    assert asked.answer().approved


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"RAVI_APPROVALS": "/a/b.db", "RAVI_STORE": "/store"}, "/a/b.db"),
        ({"RAVI_STORE": "/store"}, "/store/approvals.db"),
        ({}, f"{Path.cwd()}/.ravi/approvals.db"),
    ],
)
def test_the_environment_says_where_it_is(environ, expected):
    assert str(queue_place(environ)) == expected


def test_the_directory_is_a_store_for_runs_as_well(tmp_path):
    from ravi_otel._local.store import Store

    request = requested()
    desk(tmp_path / ".ravi" / "approvals.db").enter(request, seal_of(request))
    assert Store.open(tmp_path / ".ravi").root.joinpath("runs.db").exists()


def test_pruning_takes_what_is_over_and_old_and_nothing_else(path, clock):
    at = desk(path, clock)
    for number in range(4):
        request = requested({"user_id": number}, id=f"row-{number}", expires_s=None)
        at.enter(request, seal_of(request))
    at.answer(at.find("row-1"), ApprovalAnswer(approved=True), login="me")
    at.answer(at.find("row-2"), ApprovalAnswer(approved=False), login="me")
    taken = at.find("row-3")
    at.answer(taken, ApprovalAnswer(approved=True), login="me")
    assert at.enter(replace(taken.request, id="use"), taken.seal).approved
    assert at.prune(3_600) == 0
    clock.now += 7_200
    assert at.prune(3_600, dry_run=True) == 2
    assert at.prune(3_600) == 2
    assert sorted(each.id for each in at.all(pending=False, most=9)) == ["row-0", "row-1"]
