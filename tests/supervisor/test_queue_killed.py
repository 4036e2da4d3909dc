"""Whoever is killed at a queue loses nothing that was approved, and uses nothing twice."""

from __future__ import annotations

import signal
import subprocess
import sys
from dataclasses import replace

import pytest
import warm_starts
from approval_desk import NOW, answered, desk, pending, requested

from ravi_otel.supervisor import ApprovalAnswer
from ravi_otel.supervisor._json import fingerprint
from ravi_otel.supervisor.approval._queue import seal_of


@pytest.fixture
def path(tmp_path):
    return tmp_path / "desk" / "approvals.db"


PROGRAM = """
import sys, os, signal
from ravi_otel.supervisor import ApprovalAnswer, ApprovalQueue, ApprovalRequest
from ravi_otel.supervisor._json import fingerprint
from ravi_otel.supervisor.approval import _queue
from ravi_otel.supervisor.approval._queue import QueueFile

path, act, die_at = sys.argv[1], sys.argv[2], sys.argv[3]
connect = _queue.sqlite3.connect
class Dying(_queue.sqlite3.Connection):
    def execute(self, statement, *values):
        if die_at == "before " + statement.split()[0]:
            os.kill(os.getpid(), signal.SIGKILL)
        done = super().execute(statement, *values)
        if die_at == "after " + statement.split()[0]:
            os.kill(os.getpid(), signal.SIGKILL)
        return done
known = {"user_id": 42}
request = ApprovalRequest("killed", "refund", known, fingerprint("refund", known, "s", "v"), "s", "why", NOW, LATER, policy_version="v")
queue = ApprovalQueue(path, clock=lambda: NOW)
print("ready", flush=True)
if act == "ask":
    _queue.sqlite3.connect = lambda *a, **k: connect(*a, factory=Dying, **k)
    answer = queue.ask(request)
    print(answer.approved, flush=True)
elif act == "answer":
    at = QueueFile(queue.path, lambda: NOW)
    shown = at.find("killed")
    _queue.sqlite3.connect = lambda *a, **k: connect(*a, factory=Dying, **k)
    at.answer(shown, ApprovalAnswer(True, "fine", "anna"), login="me")
    print("answered", flush=True)
"""
PROGRAM = PROGRAM.replace("LATER", repr(NOW + 60)).replace("NOW", repr(NOW))


def played(path, act, die_at):
    return warm_starts.run([sys.executable, "-c", PROGRAM, str(path), act, die_at])


def killed_request():
    return requested(
        {"user_id": 42},
        id="killed",
        tool="refund",
        scope="s",
        policy_version="v",
        fingerprint=fingerprint("refund", {"user_id": 42}, "s", "v"),
    )


@pytest.mark.parametrize(
    ("act", "die_at", "found"),
    [
        ("answer", "before UPDATE", "pending"),
        ("answer", "before COMMIT", "pending"),
        ("answer", "after COMMIT", "approved"),
        ("ask", "before UPDATE", "approved"),
        ("ask", "before COMMIT", "approved"),
        ("ask", "after COMMIT", "taken"),
    ],
)
def test_whoever_is_killed_leaves_either_all_of_a_step_or_nothing(path, act, die_at, found):
    request = killed_request()
    at = desk(path)
    stored = at.enter(request, seal_of(request))
    if act == "ask":
        at.answer(stored, ApprovalAnswer(approved=True), login="me")
    assert played(path, act, die_at).returncode == -signal.SIGKILL
    after = at.retry(lambda: at.find("killed"))
    assert (after.state, after.flaw) == (found, None)
    again = at.enter(replace(request, id="restarted"), seal_of(request))
    if found == "approved":
        assert again.approved
    else:
        assert again.state == "pending"  # for a person to decide: what was taken may have been done
        assert [each.state for each in at.earlier(again)] == (["taken"] if found == "taken" else [])


def test_a_program_that_is_killed_while_it_waits_finds_its_answer_when_it_comes_back(path):
    with warm_starts.start([sys.executable, "-c", PROGRAM, str(path), "ask", "never"], stdout=subprocess.PIPE, text=True) as first:
        pending(path)
        first.kill()
    answered(path)
    assert played(path, "ask", "never").stdout.split() == ["ready", "True"]
    assert desk(path).find("killed").state == "taken"
