"""What was sent and nobody answered may be billed whole: strict limits are charged what they held for it, and a retry holds it again."""

import asyncio
import sys

import openai
import openai._base_client as client_module
import pytest

import ravi_otel
from ravi_otel import BudgetContendedError, BudgetExhaustedError, token_limit
from ravi_otel._enforcement.engine import Engine
from ravi_otel._enforcement.ledger.sqlite.ledger import SqliteLedger
from ravi_otel._runtime import charging
from ravi_otel._runtime.state import STATE
from ravi_otel.testing import Disconnect, Failure, Text

SOME = 500


def create(client, **more):
    return client.chat.completions.create(model="gpt-4o-mini", messages=[{"role": "user", "content": "hi"}], **more)


def limits(tokens=100_000):
    return [token_limit(tokens, admission="strict"), "requests=50", "turns=50"]


def used(run):
    return run.limits[0].used, run.limits[0].held


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch):
    monkeypatch.setattr(client_module, "INITIAL_RETRY_DELAY", 0.0)
    monkeypatch.setattr(client_module, "MAX_RETRY_DELAY", 0.0)


@pytest.fixture
def retrying(stage, instrumented):
    with stage.client(max_retries=2) as client:
        yield client


@pytest.fixture
def hold(client, stage):
    """Tell what is held for a call, by letting one go unanswered."""
    stage.answer = Disconnect()
    with ravi_otel.run("measure", limits=limits()) as run, pytest.raises(openai.APIConnectionError):
        create(client, max_tokens=SOME)
    assert run.limits[0].held == 0
    assert run.limits[0].used > SOME
    stage.answer = Text("ok", usage=(10, 10))
    return run.limits[0].used


def test_a_lost_connection_is_charged_at_its_hold_and_an_estimate_beside_it_at_what_was_sent(client, stage, hold):
    stage.answer = Disconnect()
    with (
        ravi_otel.run("outer", limits=["tokens=90000"]) as outer,
        ravi_otel.run("r", limits=limits()) as run,
        pytest.raises(openai.APIConnectionError),
    ):
        create(client, max_tokens=SOME)
    assert used(run) == (hold, 0)
    assert 0 < outer.limits[0].used < 100
    assert run.stats().output_tokens == 0


@pytest.mark.parametrize("ledger_limit", ["tokens", "output_tokens", "cost"])
def test_every_kind_of_spend_is_charged_at_its_hold(client, stage, ledger_limit):
    stage.answer = Disconnect()
    with ravi_otel.run("r", limits=[f"{ledger_limit}=9000:admission=strict"]) as run, pytest.raises(openai.APIConnectionError):
        create(client, max_tokens=SOME)
    assert run.limits[0].used >= (0.5 if ledger_limit == "cost" else SOME)


@pytest.mark.anyio
async def test_a_cancelled_call_is_charged_at_its_hold(aclient, stage, hold):
    stage.server.hold()
    with ravi_otel.run("r", limits=limits()) as run:
        sent = stage.sent + 1
        task = asyncio.ensure_future(create(aclient, max_tokens=SOME))
        await asyncio.to_thread(stage.wait_for, sent)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert used(run) == (hold, 0)


def test_a_stream_that_is_left_is_charged_at_its_hold(client, stage, hold):
    stage.answer = Text("one two three four")
    with ravi_otel.run("r", limits=limits()) as run, create(client, max_tokens=SOME, stream=True) as stream:
        next(iter(stream))
    assert hold <= used(run)[0] <= hold + 100
    assert used(run)[1] == 0


@pytest.mark.parametrize("status", [400, 429, 500, 503])
def test_an_answer_with_an_error_status_is_not_charged_at_its_hold(client, stage, status, hold):
    stage.answer = Failure(status, "no")
    with ravi_otel.run("r", limits=limits()) as run, pytest.raises(openai.APIStatusError):
        create(client, max_tokens=SOME)
    assert used(run)[0] < 100


def test_a_shared_ledger_keeps_the_same_count(retrying, stage, hold, tmp_path):
    before, ledger = (STATE.engine, STATE.limits), SqliteLedger(tmp_path / "ledger.db")
    STATE.install(Engine(ledger=ledger), ())
    try:
        answers = iter([Disconnect(), Text("ok", usage=(10, 10)), Disconnect(), Disconnect()])
        stage.answer = lambda request: next(answers)
        with ravi_otel.run("r", limits=limits(3 * hold + 20)) as run:
            create(retrying, max_tokens=SOME)
            assert used(run) == (hold + 20, 0)
            with pytest.raises(BudgetExhaustedError):
                create(retrying, max_tokens=SOME)
        assert used(run) == (3 * hold + 20, 0)
    finally:
        STATE.install(*before)
        ledger.close()


def test_each_retry_after_a_lost_connection_holds_the_worst_case_again(retrying, stage, hold):
    answers = iter([Disconnect(), Disconnect(), Text("ok", usage=(10, 10))])
    stage.answer = lambda request: next(answers)
    with ravi_otel.run("r", limits=limits()) as run:
        create(retrying, max_tokens=SOME)
    assert used(run) == (2 * hold + 20, 0)
    assert run.stats().requests == 3


def test_a_retry_after_an_error_status_holds_nothing_more(retrying, stage, hold):
    answers = iter([Failure(500, "no"), Failure(429, "no"), Text("ok", usage=(10, 10))])
    stage.answer = lambda request: next(answers)
    with ravi_otel.run("r", limits=limits(hold)) as run:
        create(retrying, max_tokens=SOME)
    assert used(run) == (20, 0)


def test_what_was_answered_at_last_with_an_error_status_is_paid_for_the_lost_attempt_only(retrying, stage, hold):
    answers = iter([Disconnect(), Failure(500, "no"), Failure(400, "no")])
    stage.answer = lambda request: next(answers)
    with ravi_otel.run("r", limits=limits()) as run, pytest.raises(openai.BadRequestError):
        create(retrying, max_tokens=SOME)
    assert used(run) == (hold, 0)


def test_a_retry_that_does_not_fit_beside_the_lost_attempt_is_refused_instead_of_sent(retrying, stage, hold):
    stage.answer = Disconnect()
    before = stage.sent
    with ravi_otel.run("r", limits=limits(2 * hold - 1)) as run, pytest.raises(BudgetExhaustedError) as refused:
        create(retrying, max_tokens=SOME)
    assert f"needs at least {hold} more, which does not fit ({hold} + {hold} > {2 * hold - 1})" in str(refused.value)
    assert refused.value.__cause__ is not None
    assert stage.sent == before + 1
    assert used(run) == (hold, 0)


def test_a_retry_that_others_leave_no_room_for_is_contended_and_never_waits(retrying, client, stage, hold):
    stage.answer = lambda request: Text("one two three") if request.body.get("stream") else Disconnect()
    with (
        ravi_otel.run("r", limits=limits(3 * hold)) as run,
        create(client, max_tokens=SOME, stream=True) as stream,
    ):
        next(iter(stream))
        with pytest.raises(BudgetContendedError):
            create(retrying, max_tokens=SOME)
    assert used(run)[1] == 0
    assert used(run)[0] <= 3 * hold


def test_attempts_nobody_answers_never_pass_the_limit(retrying, stage, hold):
    stage.answer = Disconnect()
    before = stage.sent
    with ravi_otel.run("r", limits=limits(5 * hold)) as run:
        for _ in range(4):
            with pytest.raises((openai.APIConnectionError, BudgetExhaustedError)):
                create(retrying, max_tokens=SOME)
    assert used(run) == (5 * hold, 0)
    assert stage.sent - before == 5


@pytest.mark.skipif(sys.gettrace() is not None, reason="something else traces")
def test_a_retry_that_a_signal_interrupts_when_it_is_paid_for_holds_nothing(retrying, stage, hold):
    def interrupt(frame, event, arg):
        if frame.f_code is not charging.Attempts._pay_again.__code__:
            return None
        if event == "return":
            sys.settrace(None)
            raise KeyboardInterrupt
        return interrupt

    stage.answer = Disconnect()
    with ravi_otel.run("r", limits=limits()) as run:
        sys.settrace(interrupt)
        try:
            with pytest.raises(KeyboardInterrupt):
                create(retrying, max_tokens=SOME)
        finally:
            sys.settrace(None)
        assert len(STATE.engine.ledger) == 0
    assert used(run) == (hold, 0)
