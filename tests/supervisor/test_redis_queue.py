"""The queue over a Redis: programs and deciders on many machines, and what befalls servers, clocks and askers."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import anyio
import anyio.to_thread
import pytest
import redis_servers
from approval_desk import Asked, desk, pending, requested, until
from redis_servers import said
from refund_gate import LARGE, Till, desk_gate, through

import ravi_otel
from ravi_otel import ConfigurationError
from ravi_otel.supervisor import ApprovalAnswer, ApprovalQueue, QueueError
from ravi_otel.supervisor._json import fingerprint
from ravi_otel.supervisor.approval._queue import seal_of
from ravi_otel.supervisor.approval._redis_store import RedisStore

YES = ApprovalAnswer(approved=True, who="anna")


def now_requested(**changes):
    now = time.time()
    return requested(requested_at=now, expires_at=now + 600, **changes)


@pytest.fixture
def url(redis_server):
    return redis_server.url


def answered(url, answer=YES):
    (stored,) = pending(url, time.time)
    return desk(url, time.time).answer(stored, answer, login="anna")


@pytest.mark.parametrize("times", range(8))
def test_of_many_deciders_at_once_on_many_machines_exactly_one_decides(url, times):
    request = requested(scope=f"run-{times}")
    stored = desk(url).enter(request, seal_of(request))
    gate = threading.Barrier(6)

    def decide(at):
        mine = desk(url)
        gate.wait(10)
        try:
            return mine.answer(stored, ApprovalAnswer(approved=at % 2 == 0, who=f"p{at}"), login=f"p{at}").who
        except QueueError as error:
            return error

    with ThreadPoolExecutor(6) as all_of_them:
        ends = list(all_of_them.map(decide, range(6)))
    last = desk(url).find(request.id)
    won = [each for each in ends if isinstance(each, str)]
    # A no takes back a yes that nobody has used; nothing takes back a no.
    assert won[-1:] == [last.who] or last.who in won
    assert len(won) <= 2
    for each in ends:
        if isinstance(each, QueueError):
            assert "was approved by" in str(each) or "was rejected by" in str(each)


def test_of_many_programs_that_ask_the_same_at_once_there_is_one_request(url):
    request = requested()
    gate = threading.Barrier(6)

    def enter(at):
        mine = desk(url)
        gate.wait(10)
        return mine.enter(replace(request, id=f"same-{at}"), seal_of(request)).id

    with ThreadPoolExecutor(6) as all_of_them:
        assert len(set(all_of_them.map(enter, range(6)))) == 1
    assert len(desk(url).all(pending=False, most=9)) == 1


def test_machines_whose_clocks_differ_agree_on_when_a_request_expires(url):
    hour_ahead = RedisStore(url)
    hour_ahead.clock = lambda: time.time() + 3_600
    request = requested(requested_at=hour_ahead.clock(), expires_at=hour_ahead.clock() + 60)
    hour_ahead.enter(request, seal_of(request))
    (here,) = RedisStore(url).all(pending=True, most=9)
    assert abs(here.request.expires_at - time.time() - 60) < 30
    (there,) = hour_ahead.all(pending=True, most=9)
    assert abs(there.request.expires_at - request.expires_at) < 30
    assert here.flaw is there.flaw is None
    RedisStore(url).answer(here, YES, login="anna")
    assert hour_ahead.enter(replace(request, id="again"), seal_of(request)).approved


def test_a_server_that_is_away_for_a_while_is_waited_for():
    with redis_servers.server(*redis_servers.DURABLE) as server:
        asked = Asked(ApprovalQueue(server.url), now_requested(), "asyncio")
        pending(server.url, time.time)
        server.kill()
        assert not asked.result.done()
        server.start()
        answered(server.url)
        assert asked.answer().approved


def test_a_server_that_forgot_everything_is_asked_anew(redis_server, url):
    asked = Asked(ApprovalQueue(url), now_requested(), "sync")
    pending(url, time.time)
    redis_server.say("FLUSHALL")
    answered(url)
    assert asked.answer().approved


def test_a_server_that_is_not_there_is_told_in_one_sentence_and_approves_nothing(monkeypatch):
    monkeypatch.setattr("ravi_otel.supervisor.approval._approvers._STEP_RETRY_S", 0.2)
    monkeypatch.setattr("ravi_otel.supervisor.approval._approvers.ApprovalQueue._retry_step.__defaults__", (0.2,), raising=False)
    queue = ApprovalQueue(f"redis://somebody:secret@127.0.0.1:{redis_servers.free_port()}/0")
    with pytest.raises(QueueError, match=r"the queue of approvals redis://127.0.0.1:\d+ cannot be used, because") as error:
        queue.ask(now_requested())
    assert "secret" not in str(error.value)
    assert "secret" not in repr(queue)


def test_an_answer_whose_confirmation_was_lost_counts_once(url):
    request = requested()
    stored = desk(url).enter(request, seal_of(request))
    at = desk(url)
    call, sent = at._client.call, []

    def twice(script, keys, args, **more):
        if script.name == "write" and not sent:
            sent.append(args)
            yield from call(script, keys, args, **more)
        return (yield from call(script, keys, args, **more))

    at._client.call = twice
    assert at.answer(stored, YES, login="anna").state == "approved"
    assert len(sent) == 1
    assert desk(url).find(request.id).who == "anna"


@pytest.mark.parametrize("answer", [YES, ApprovalAnswer(approved=False, comment="too much", who="anna")], ids=["yes", "no"])
def test_an_answer_that_the_server_gave_out_and_did_not_confirm_in_time_reaches_who_asked(proxy, url, answer):
    request = requested()
    stored = desk(url).enter(request, seal_of(request))
    desk(url).answer(stored, answer, login="anna")
    store = RedisStore(proxy.url)
    seen = proxy.swallow, len(store.all(pending=False, most=9))  # its scripts are known to the server
    call = store._client.call

    def silent(script, keys, args, **more):
        if script.name == "write" and not proxy.lost:
            proxy.swallow = 1
        return (yield from call(script, keys, args, **more))

    store._client.call = silent
    given = store.retry(lambda: store.enter(request, seal_of(request)))
    assert seen == (0, 1)
    assert proxy.lost == 1
    assert (given.approved, given.comment, given.who) == (answer.approved, answer.comment, "anna")
    assert len(desk(url).all(pending=False, most=9)) == 1
    if answer.approved:
        assert store.enter(request, seal_of(request)).comment == "already_answered"


def test_a_program_that_died_while_it_waited_is_told_as_one_that_waits_no_more(url):
    request = now_requested()
    stored = desk(url, time.time).enter(request, seal_of(request))
    assert stored.abandoned_note(time.time()) == ""
    assert "does not wait any more" in stored.abandoned_note(time.time() + 60)
    desk(url, lambda: time.time() + 50).wait(request.id)
    assert desk(url, time.time).find(request.id).abandoned_note(time.time() + 60) == ""


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("arguments", '"{\\"amount_usd\\":9999,\\"user_id\\":42}"'),
        ("arguments", "no json"),
        ("tool", '"send_refund_email"'),
        ("approvers", '"[\\"bob\\"]"'),
        ("state", '"blessed"'),
        ("requested_at", '"soon"'),
        ("fingerprint", '"0"'),
    ],
)
def test_a_request_that_somebody_wrote_to_cannot_be_answered_and_is_not_given_out(redis_server, url, field, value):
    request = requested()
    shown = desk(url).enter(request, seal_of(request))
    desk(url).answer(shown, YES, login="anna")
    redis_server.say("HSET", f"{{ravi-approvals:default}}:r:{request.id}", field, value)
    assert desk(url).find(request.id).flaw is not None
    again = desk(url).enter(replace(request, id="again"), seal_of(request))
    assert again.state == "pending"
    with pytest.raises(QueueError, match="somebody wrote to the queue"):
        desk(url).answer(shown, ApprovalAnswer(approved=False), login="anna")


def test_an_approval_is_not_for_arguments_that_changed(url):
    request = requested()
    desk(url).answer(desk(url).enter(request, seal_of(request)), YES, login="anna")
    more = {"user_id": 42, "amount_usd": 1201}
    other = requested(more, fingerprint=fingerprint("issue_refund", more, "run/agent", "v1"))
    assert desk(url).enter(other, seal_of(other)).state == "pending"


def test_a_beginning_of_an_id_finds_one_and_namespaces_keep_queues_apart(url):
    request = requested(id="abcdef12")
    desk(url).enter(request, seal_of(request))
    assert desk(url).find("abc").id == "abcdef12"
    with pytest.raises(ConfigurationError, match="names no request"):
        desk(f"{url}&namespace=other").find("abc")


def test_pruning_and_erasing_take_what_is_over_and_what_is_of_one_user(url):
    clock = [time.time()]
    at = desk(url, lambda: clock[0])
    for number in range(4):
        request = requested({"user_id": number}, id=f"row-{number}", expires_at=None, user_id=f"u{number}")
        at.enter(request, seal_of(request))
    at.answer(at.find("row-1"), YES, login="me")
    at.answer(at.find("row-2"), ApprovalAnswer(approved=False), login="me")
    clock[0] = 1_800_000_000.0 + 7_200
    assert at.prune(3_600, dry_run=True) == 1
    assert at.prune(3_600) == 1
    assert at.erase({"user_id": ["u1"], "run_id": []}, dry_run=True) == 1
    assert at.erase({"user_id": ["u1"], "run_id": []}) == 1
    assert sorted(each.id for each in at.all(pending=False, most=9)) == ["row-0", "row-3"]
    assert len(at.all(pending=True, most=9)) == 2


def test_a_program_in_an_event_loop_goes_on_while_the_server_is_silent():
    with redis_servers.server() as server:
        ticks = []

        async def ask(queue):
            await queue.ask(now_requested())

        async def work():
            async with anyio.create_task_group() as group:
                group.start_soon(ask, ApprovalQueue(server.url))
                await anyio.to_thread.run_sync(pending, server.url, time.time)
                server.pause()
                try:
                    for _ in range(20):
                        began = time.monotonic()
                        await anyio.sleep(0.01)
                        ticks.append(time.monotonic() - began)
                finally:
                    server.go_on()
                group.cancel_scope.cancel()

        anyio.run(work)
        assert sorted(ticks)[10] < 0.5


def test_what_names_no_queue_is_refused():
    for wrong, why in (
        ("memory://", "names no queue of approvals"),
        ("http://me:secret@127.0.0.1:1/0", "names no queue of approvals"),
        ("redis://127.0.0.1:1/0?colour=red", "unknown"),
    ):
        with pytest.raises(ConfigurationError, match=why) as error:
            ApprovalQueue(wrong)
        assert str(error.value).startswith("ApprovalQueue(path)")
        assert "secret" not in str(error.value)


def test_nothing_of_a_request_outlives_its_deletion(redis_server, url):
    request = now_requested()
    desk(url).enter(request, seal_of(request))
    desk(url).erase({"run_id": [], "user_id": []})
    at = desk(url)
    at._delete(lambda stored: True, dry_run=False)
    keys = said(redis_server.port, "KEYS", "*request*")
    assert keys == b"*0\r\n"
    assert until(lambda: at.all(pending=False, most=9) == [])


@pytest.mark.parametrize("colour", ["sync", "async", "trio"])
def test_a_gate_asks_over_it_goes_on_with_the_edit_and_writes_down_how_it_ended(url, colour):
    till = Till()
    gate = desk_gate(till, ApprovalQueue(url))

    def call():
        with ravi_otel.run("desk"):
            through(colour, gate, "refund", till.refund, LARGE)

    for number in (1, 2):  # the second event loop of one queue, too
        with ThreadPoolExecutor(1) as program:
            done = program.submit(call)
            answered(url, replace(YES, arguments={**LARGE, "amount": 800.0 + number}))
            done.result(20)
        assert till.paid[-1] == (42, 800.0 + number, "late")
    assert [each.outcome for each in desk(url, time.time).all(pending=False, most=9)] == ["ok", "ok"]
