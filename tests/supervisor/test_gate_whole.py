"""The gate with everything real behind it: rules, a queue in a file that outlives the process, and an audit log that can be verified."""

import asyncio
import threading

import anyio
import anyio.lowlevel
import pytest
from refund_gate import Desk, Policy, Till, through

import ravi_otel
from ravi_otel._runtime.tool_call import ToolCall
from ravi_otel.errors import StopRun, ToolDeniedError
from ravi_otel.supervisor import ApprovalAnswer, ApprovalQueue, AuditLog, Gate, QueueError, _sync_async
from ravi_otel.supervisor._audit import verify_all
from ravi_otel.supervisor.approval._queue import QueueBusy, QueueFile

LARGE = {"user_id": 42, "amount": 1200.0, "reason": "late"}
YES = ApprovalAnswer(approved=True, who="ann")


@pytest.fixture
def till():
    return Till()


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.setattr(_sync_async, "LONGEST_PAUSE_S", 0.01)
    return tmp_path / "approvals.db"


def gate(till, file, **more):
    return Gate(Desk(), tools=till.tools, policy=Policy(per_run=9000), approver=ApprovalQueue(file), loops=False, expires_s=60, **more)


async def pending(file):
    """Wait for a request in the file, with a deadline."""
    with anyio.fail_after(60):
        while True:
            try:
                found = QueueFile(file).all(pending=True, most=5)
            except (QueueError, QueueBusy):  # not made yet, or just being written
                found = []
            if found:
                return found[0]
            await anyio.lowlevel.checkpoint()


def answer(file, request, said):
    """Answer as the command does: with patience where another writes just now."""
    queue = QueueFile(file)
    queue.retry(lambda: queue.answer(request, said, login="ann"))


async def asked_and_gone(till, file):
    """Ask, and end before anybody answers: what a restart leaves behind."""
    waiting = asyncio.ensure_future(ToolCall("refund", till.refund, LARGE, gate(till, file)).run_async())
    found = await pending(file)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    return found


def test_an_approval_that_was_given_while_nobody_ran_is_used_after_the_restart_and_once(till, file):
    async def main():
        with ravi_otel.run("desk", run_id="r-1"):
            request = await asked_and_gone(till, file)
            assert till.paid == []
            answer(file, request, YES)
            await ToolCall("refund", till.refund, LARGE, gate(till, file)).run_async()
            assert till.paid == [(42, 1200.0, "late")]
            again = await asked_and_gone(till, file)
            assert again.id != request.id

    asyncio.run(main())
    assert len(till.paid) == 1


def test_an_approval_is_not_used_for_other_arguments_nor_in_another_run(till, file):
    async def main():
        with ravi_otel.run("desk", run_id="r-1"):
            answer(file, await asked_and_gone(till, file), YES)
        with ravi_otel.run("desk", run_id="r-2"):
            assert (await asked_and_gone(till, file)).request.run_id == "r-2"

    asyncio.run(main())
    assert till.paid == []


def test_a_synchronous_call_waits_for_the_answer_from_another_thread(till, file):
    def decide():
        answer(file, anyio.run(pending, file), ApprovalAnswer(approved=True, who="ann", arguments={**LARGE, "amount": 1100.0}))

    person = threading.Thread(target=decide)
    person.start()
    with ravi_otel.run("desk"):
        through("sync", gate(till, file), "refund", till.refund, LARGE)
    person.join()
    assert till.paid == [(42, 1100.0, "late")]


def test_everything_is_written_down_and_can_be_verified(till, file, tmp_path):
    with ravi_otel.run("desk", run_id="r-1"):
        door = gate(till, file, audit=AuditLog(tmp_path / "audit"))
        through("sync", door, "refund", till.refund, {"user_id": 42, "amount": 100.0})
        with pytest.raises(ToolDeniedError):
            through("sync", door, "refund", till.refund, {"user_id": 42, "amount": -1.0})
    (verified,) = verify_all(tmp_path / "audit")
    assert verified.ok
    assert verified.entries == 8


def test_where_the_audit_cannot_be_written_nothing_runs(till, file, tmp_path):
    (tmp_path / "audit").write_text("in the way", encoding="utf-8")
    with ravi_otel.run("desk"), pytest.raises(StopRun, match="'refund' could not be written down as proposed") as caught:
        through("sync", gate(till, file, audit=AuditLog(tmp_path / "audit")), "refund", till.refund, {"user_id": 42, "amount": 100.0})
    assert caught.value.reason == "supervisor_block:audit_failed"
    assert till.paid == []
