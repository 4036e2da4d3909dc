"""A queue of requests that a person answers: bound to its content, used once."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import anyio
import anyio.to_thread
import pytest
from approval_desk import COLOURS, Asked, Clock, answered, desk, patiently, pending, requested, until
from refund_gate import LARGE, Person, Till, desk_gate, through

import ravi_otel
from ravi_otel import CancellationError, DeadlineExceededError
from ravi_otel.supervisor import ApprovalAnswer, ApprovalQueue, Approver, QueueError
from ravi_otel.supervisor._json import fingerprint
from ravi_otel.supervisor.approval._queue import seal_of


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture(params=["file", "redis"])
def path(request, tmp_path):
    """Be where the queue is, as a program names it."""
    if request.param == "file":
        return tmp_path / "desk" / "approvals.db"
    return request.getfixturevalue("redis_server").url


@pytest.fixture
def queue(path, clock):
    return ApprovalQueue(path, clock=clock)


def test_it_is_an_approver(queue):
    assert isinstance(queue, Approver)


@pytest.mark.parametrize("colour", COLOURS)
def test_an_answer_from_elsewhere_ends_the_wait_and_says_who_and_why(queue, path, colour):
    asked = Asked(queue, requested(), colour)
    answered(path)
    assert asked.answer() == ApprovalAnswer(approved=True, comment="fine", who="anna")


@pytest.mark.parametrize("colour", COLOURS)
def test_a_rejection_ends_the_wait(queue, path, colour):
    asked = Asked(queue, requested(), colour)
    answered(path, approved=False, comment="too much")
    assert asked.answer() == ApprovalAnswer(approved=False, comment="too much", who="anna")


def test_an_edit_reaches_who_asked(queue, path):
    asked = Asked(queue, requested(), "sync")
    answered(path, arguments={"user_id": 42, "amount_usd": 800})
    assert asked.answer().arguments == {"user_id": 42, "amount_usd": 800}


@pytest.mark.parametrize("colour", COLOURS)
def test_past_its_end_the_answer_is_expired_and_stays_so(queue, path, clock, colour):
    asked = Asked(queue, requested(), colour)
    (stored,) = pending(path)
    clock.now += 60
    assert asked.answer() == ApprovalAnswer(approved=False, comment="expired")
    with pytest.raises(QueueError, match=r"expired at 2027.*counts as rejected"):
        desk(path, clock).answer(stored, ApprovalAnswer(approved=True), login="me")


def test_an_approval_that_was_not_used_in_time_is_none(queue, path, clock):
    request = requested()
    desk(path).enter(request, seal_of(request))
    answered(path)
    clock.now += 61
    assert queue.ask(replace(request, id="again")).comment == "expired"
    late = replace(request, id="later", requested_at=clock.now, expires_at=clock.now + 60)
    asked = Asked(queue, late, "sync")
    assert pending(path, clock)[0].request.expires_at == late.expires_at
    answered(path, approved=False, clock=clock)
    assert asked.answer().approved is False


# -- once -------------------------------------------------------------------------------------------------------------


def test_an_approval_that_waits_is_given_out_at_once_and_once(queue, path):
    request = requested()
    desk(path).enter(request, seal_of(request))
    answered(path)
    assert queue.ask(replace(request, id="after-a-restart")).approved
    asked = Asked(queue, replace(request, id="once-more"), "sync")
    (stored,) = pending(path)
    assert stored.id == "once-more"
    answered(path, approved=False)
    assert asked.answer().approved is False


def test_of_many_who_wait_for_one_request_one_gets_the_approval(path, clock):
    request = requested()
    asked = [Asked(ApprovalQueue(path, clock=clock), replace(request, id=f"same-{at}"), "sync") for at in range(4)]
    pending(path)
    answered(path)

    def the_others_are_rejected():
        for stored in patiently(path, clock, lambda at: at.all(pending=True, most=9)):
            patiently(path, clock, lambda at, shown=stored: at.answer(shown, ApprovalAnswer(approved=False), login="me"))
        return all(each.result.done() for each in asked)

    until(the_others_are_rejected)
    assert sorted(each.answer().approved for each in asked) == [False, False, False, True]


def test_the_very_same_request_is_not_answered_twice(queue, path):
    request = requested()
    asked = Asked(queue, request, "sync")
    answered(path)
    assert asked.answer().approved
    assert queue.ask(request) == ApprovalAnswer(approved=False, comment="already_answered")


def test_an_approval_whose_call_never_ran_can_be_used_still(queue, path):
    request = requested()
    asked = Asked(queue, request, "sync")
    answered(path)
    assert asked.answer().approved
    queue.executed(request, "refused")
    again = replace(request, id="again")
    assert queue.ask(again).approved
    queue.executed(again, "ok")
    assert desk(path).find(request.id).outcome == "ok"


@pytest.mark.parametrize("status", ["ok", "error", "cancelled"])
def test_an_approval_whose_call_began_is_used(queue, path, status):
    request = requested()
    asked = Asked(queue, request, "sync")
    answered(path)
    assert asked.answer().approved
    queue.executed(request, status)
    queue.executed(request, "refused")
    stored = desk(path).find(request.id)
    assert (stored.state, stored.outcome) == ("taken", status)
    with pytest.raises(QueueError, match=f"was approved by anna .*and was used: the call ended with {status}"):
        desk(path).answer(stored, ApprovalAnswer(approved=True), login="me")


def test_of_two_who_answer_at_once_one_wins_and_the_other_is_told(path):
    request = requested()
    stored = desk(path).enter(request, seal_of(request))
    gate = threading.Barrier(2)

    def answer(who):
        gate.wait(10)
        try:
            return desk(path).retry(lambda: desk(path).answer(stored, ApprovalAnswer(approved=True, who=who), login=who))
        except QueueError as error:
            return str(error)

    with ThreadPoolExecutor(2) as both:
        said = list(both.map(answer, ["anna", "ben"]))
    won = desk(path).find(request.id)
    (told,) = [each for each in said if isinstance(each, str)]
    assert f"{won.state} by {won.who}" in told
    assert "waits to be used" in told


def test_an_approval_that_nobody_took_is_taken_back_by_a_rejection_and_nothing_takes_back_that(queue, path):
    request = requested()
    desk(path).enter(request, seal_of(request))
    approved = answered(path, arguments={"user_id": 42, "amount_usd": 800})
    no = ApprovalAnswer(approved=False, who="boss", comment="wrong customer")
    rejected = desk(path).answer(approved, no, login="boss")
    assert (rejected.state, rejected.who, rejected.edited) == ("rejected", "boss", None)
    with pytest.raises(QueueError, match="was rejected by boss"):
        desk(path).answer(rejected, ApprovalAnswer(approved=True), login="me")
    assert queue.ask(replace(request, id="later")) == no


def test_of_a_rejection_and_a_call_that_takes_the_approval_at_once_one_wins(path):
    for at in range(12):
        request = requested(scope=f"run-{at}/agent")
        desk(path).enter(request, seal_of(request))
        approved = answered(path)
        gate = threading.Barrier(2)

        def taken(request=request, gate=gate):
            gate.wait(10)
            return desk(path).retry(lambda: desk(path).enter(replace(request, id=f"{request.id}-taker"), seal_of(request))).approved

        def withdrawn(approved=approved, gate=gate):
            gate.wait(10)
            try:
                desk(path).retry(lambda: desk(path).answer(approved, ApprovalAnswer(approved=False), login="boss"))
            except QueueError as error:
                return "was used by process" not in str(error)
            return True

        with ThreadPoolExecutor(2) as both:
            ends = [both.submit(taken), both.submit(withdrawn)]
        assert sorted(each.result() for each in ends) == [False, True]


def test_an_approval_outside_any_run_is_for_this_process_alone():
    till, person = Till(), Person()
    through("sync", desk_gate(till, person), "refund", till.refund, LARGE)
    assert len(till.paid) == 1
    assert f"outside any run, process {os.getpid()} " in person.asked[0].scope


def test_an_approval_says_until_when_its_own_request_counts(queue, path):
    request = requested()
    desk(path).enter(request, seal_of(request))
    answered(path)
    assert queue.ask(replace(request, id="later", expires_at=None)).expires_at == request.expires_at


def test_an_approval_that_is_spent_is_not_given_out_again(queue, path):
    request = requested()
    asked = Asked(queue, request, "sync")
    answered(path)
    asked.answer()
    queue.executed(request, "spent")
    stored = desk(path).find(request.id)
    with pytest.raises(QueueError, match=r"is over since .*nothing ran by it"):
        desk(path).answer(stored, ApprovalAnswer(approved=False), login="me")


def test_another_scope_other_arguments_and_another_policy_are_other_requests(path):
    first = requested()
    desk(path).enter(first, seal_of(first))
    answered(path)
    other_version = replace(requested(), policy_version="v2", fingerprint=fingerprint("issue_refund", first.arguments, "run/agent", "v2"))
    for other in (requested(scope="another/agent"), requested({"user_id": 42, "amount_usd": 1200.0}), other_version):
        found = desk(path).enter(other, seal_of(other))
        assert found.state == "pending"
        assert found.id == other.id


# -- what ends a wait -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("colour", COLOURS)
def test_a_run_that_is_cancelled_waits_no_more_and_its_request_stays(queue, path, colour):
    token = ravi_otel.CancellationToken()
    thread, ended = ThreadPoolExecutor(1), []

    def work():
        with ravi_otel.run("r") as run:
            run.scope.cancellation = token
            with pytest.raises(CancellationError) as error:
                _ask_in(colour, queue)
        ended.append(error.value.reason)

    done = thread.submit(work)
    pending(path)
    token.cancel("changed my mind")
    done.result(20)
    thread.shutdown()
    assert ended == ["changed my mind"]
    assert [each.state for each in pending(path)] == ["pending"]


@pytest.mark.parametrize("colour", COLOURS)
def test_a_deadline_ends_the_wait(queue, colour):
    with pytest.raises(DeadlineExceededError) as error, ravi_otel.run("r", limits=["time=0.2s"]):
        _ask_in(colour, queue)
    assert error.value.limit_kind == "time"


def _ask_in(colour, queue):
    async def ask():
        await queue.ask(requested())

    if colour == "sync":
        queue.ask(requested())
    else:
        anyio.run(ask, backend=colour)


@pytest.mark.parametrize("colour", ["asyncio", "trio"])
def test_the_programs_own_cancellation_passes_unchanged(queue, path, colour):
    async def work():
        async with anyio.create_task_group() as group:
            group.start_soon(ask)
            await anyio.to_thread.run_sync(pending, path)
            group.cancel_scope.cancel()

    async def ask():
        await queue.ask(requested())

    anyio.run(work, backend=colour)
    assert [each.state for each in pending(path)] == ["pending"]


@pytest.mark.anyio
async def test_dropping_a_question_asks_nobody(queue, path):
    queue.ask(requested())
    assert desk(path).all(pending=True, most=9) == []
