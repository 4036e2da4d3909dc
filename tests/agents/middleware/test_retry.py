"""Trying again: after which errors, how often, how soon, and what ends it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import anyio
import httpx
import pytest
import stamina
import stamina.instrumentation

import ravi_otel
from ravi_otel import errors
from ravi_otel.agents.middleware import MiddlewarePipeline, Retry, chat_middleware
from ravi_otel.policy import parse_limit
from ravi_otel.policy._contracts import ChatMessage, Generation
from ravi_otel.testing import Disconnect, Failure, Text

pytestmark = pytest.mark.anyio
BOTH = pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
QUICK = {"wait_s": 0, "jitter_s": 0}
BUSY = Failure(503, headers={"x-should-retry": "true"})


@pytest.fixture
def waits():
    """List how long the library was going to wait each time; `then` is called with it."""
    seen = []
    seen_by = {"then": lambda wait_s: None}

    def hook(details):
        seen.append(details.wait_for)
        seen_by["then"](details.wait_for)

    stamina.instrumentation.set_on_retry_hooks([hook])
    yield seen, seen_by
    stamina.instrumentation.set_on_retry_hooks(None)


@pytest.fixture(autouse=True)
def _quiet(waits):
    """Keep the library from finding sinks of its own."""


async def answer(context):
    context.response = Generation(ChatMessage("assistant", "fine"))


def failing(*raised):
    """Be a call that raises these, one after the other, and then answers."""
    left = list(raised)

    async def final(context):
        if left:
            raise left.pop(0)
        await answer(context)

    return final


@pytest.mark.parametrize("broken", [BUSY, Failure(429), Failure(500), Disconnect()], ids=["503", "429", "500", "cut"])
@BOTH
async def test_a_call_that_failed_for_the_moment_is_made_again(stage, ask, broken):
    stage.play(broken, Text("at last"))
    context = await ask(Retry(**QUICK))
    assert context.response.message.content == "at last"
    assert (context.calls, stage.sent) == (2, 2)


@pytest.mark.parametrize("status", [400, 401, 404, 422])
async def test_a_request_that_is_wrong_is_not_made_again(stage, ask, status):
    stage.play(Failure(status))
    with pytest.raises(Exception, match=str(status)):
        await ask(Retry(**QUICK))
    assert stage.sent == 1


async def test_a_spent_quota_is_not_busy(stage, ask):
    stage.play(Failure(429, "You exceeded your current quota.", "insufficient_quota"))
    with pytest.raises(Exception, match="quota"):
        await ask(Retry(**QUICK))
    assert stage.sent == 1


async def test_what_the_server_says_is_final_is_final(stage, ask):
    stage.play(Failure(503, headers={"x-should-retry": "false"}))
    with pytest.raises(Exception, match="503"):
        await ask(Retry(**QUICK))
    assert stage.sent == 1


async def test_the_last_error_is_the_callers(stage, ask):
    stage.play(Failure(500), Failure(502), Failure(503), Text("never"))
    with pytest.raises(Exception, match="503"):
        await ask(Retry(3, **QUICK))
    assert stage.sent == 3


@pytest.mark.parametrize(("attempts", "requests"), [(2, 3), (3, 3), (5, 3), (6, 6)])
@BOTH
async def test_the_clients_own_retries_are_counted_and_not_multiplied(stage, ask, attempts, requests):
    stage.play(Failure(500, headers={"retry-after-ms": "1"}))
    async with stage.client(max_retries=2) as client:
        with pytest.raises(Exception, match="500"):
            await ask(Retry(attempts, **QUICK), client=client)
    assert stage.sent == requests


async def test_each_attempt_is_a_call_that_is_told_and_charged(stage, ask, heard):
    stage.play(Failure(500), Text("ok", usage=(10, 20)))
    with ravi_otel.run("r") as run:
        await ask(Retry(**QUICK))
    assert [record.status for record in heard.calls] == ["error", "ok"]
    assert run.stats().requests == 2


async def test_a_limit_ends_it(stage, ask):
    stage.play(Failure(500))
    with ravi_otel.run("r", limits=[parse_limit("requests=2")]), pytest.raises(errors.BudgetExhaustedError):
        await ask(Retry(5, **QUICK))
    assert stage.sent == 2


REFUSALS = [
    errors.BudgetExhaustedError("b"),
    errors.BudgetContendedError("b"),
    errors.DeadlineExceededError(),
    errors.CancellationError(),
    errors.AgentPausedError("p"),
    errors.ToolDeniedError("d", tool="t"),
    errors.StopRun("loop_detected:signature_repeat"),
    errors.MiddlewareTermination("m"),
    errors.SpawnDeniedError("s"),
]


@pytest.mark.parametrize("refusal", REFUSALS, ids=lambda error: type(error).__name__)
async def test_a_refusal_is_never_tried_again_whatever_is_asked(instrumented, chat, refusal):
    context = chat()
    with pytest.raises(type(refusal)) as raised:
        await MiddlewarePipeline(Retry(on=Exception, **QUICK)).run_chat(context, failing(refusal))
    assert raised.value is refusal
    assert context.calls == 1


async def test_what_was_raised_from_a_refusal_is_one(instrumented, chat):
    wrapped = ValueError("wrapped")
    wrapped.__cause__ = errors.BudgetExhaustedError("b")
    for refusal in (wrapped, ExceptionGroup("g", [ValueError(), errors.StopRun("x")])):
        context = chat()
        with pytest.raises(type(refusal)):
            await MiddlewarePipeline(Retry(on=Exception, **QUICK)).run_chat(context, failing(refusal))
        assert context.calls == 1


@pytest.mark.parametrize("error", [errors.LLMTimeout("t"), errors.LLMEmpty("e"), TimeoutError(), ConnectionResetError()], ids=repr)
async def test_an_answer_that_did_not_come_or_was_empty_is_asked_for_again(instrumented, chat, error):
    context = chat()
    await MiddlewarePipeline(Retry(**QUICK)).run_chat(context, failing(error))
    assert context.calls == 2


@pytest.mark.parametrize("on", [KeyError, (KeyError, IndexError), lambda error: isinstance(error, LookupError)], ids=["one", "two", "told"])
async def test_the_program_says_which_errors(instrumented, chat, on):
    context = chat()
    pipeline = MiddlewarePipeline(Retry(on=on, **QUICK))
    await pipeline.run_chat(context, failing(KeyError("k")))
    assert context.calls == 2
    with pytest.raises(errors.LLMEmpty):
        await pipeline.run_chat(chat(), failing(errors.LLMEmpty("e")))


@BOTH
async def test_a_tool_is_tried_again_where_that_is_asked_for(instrumented, tool):
    context = tool()

    async def final(context):
        if context.calls == 1:
            raise OSError("locked")
        context.result = 7

    await MiddlewarePipeline(Retry(level="tool", on=OSError, **QUICK)).run_tool(context, final)
    assert (context.result, context.calls) == (7, 2)


@BOTH
async def test_it_waits_as_long_as_the_server_asks(stage, ask, waits):
    told, seen_by = waits
    stage.play(Failure(429, retry_after_s=37), Text("never"))
    with ravi_otel.run("r") as run:
        seen_by["then"] = lambda wait_s: run.cancel("seen enough")
        with pytest.raises(errors.CancellationError):
            await ask(Retry(wait_s=1))
    assert told == [37]
    assert stage.sent == 1


async def test_a_pause_that_is_longer_than_the_time_left_is_not_begun(stage, ask, waits):
    stage.play(Failure(429, retry_after_s=50))
    with ravi_otel.run("r", limits=[parse_limit("time=30s")]), pytest.raises(Exception, match="429"):
        await ask(Retry())
    assert waits[0] == []


async def test_a_server_cannot_have_it_wait_for_ever(stage, ask, waits):
    stage.play(Failure(429, retry_after_s=10**9))
    with pytest.raises(Exception, match="429"):
        await ask(Retry())
    assert waits[0] == []


async def test_the_pause_doubles_up_to_the_longest(instrumented, chat, waits):
    with ravi_otel.run("r") as run:
        waits[1]["then"] = lambda wait_s: run.cancel() if len(waits[0]) == 4 else None
        busy = failing(*[errors.LLMEmpty("e") for _ in range(9)])
        with pytest.raises(errors.CancellationError):
            await MiddlewarePipeline(Retry(9, wait_s=0.001, longest_wait_s=0.003, jitter_s=0)).run_chat(chat(), busy)
    assert [round(wait_s, 4) for wait_s in waits[0]] == [0.001, 0.002, 0.003, 0.003]


@BOTH
async def test_a_deadline_ends_the_pause(instrumented, chat):
    with ravi_otel.run("r", limits=[parse_limit("time=0.1s")]), pytest.raises(errors.DeadlineExceededError):
        await MiddlewarePipeline(Retry(wait_s=60, longest_wait_s=60)).run_chat(chat(), failing(errors.LLMEmpty("e")))


@BOTH
async def test_the_pause_is_a_declared_wait(instrumented, chat, waits):
    with ravi_otel.run("r") as run:
        waited = []
        waits[1]["then"] = lambda wait_s: waited.append(run.scope.clock.waits[0])
        await MiddlewarePipeline(Retry(**QUICK)).run_chat(chat(), failing(errors.LLMEmpty("e")))
    assert waited == [1]
    assert run.scope.clock.waits[0] == 0


@BOTH
async def test_the_programs_own_cancellation_ends_the_pause(instrumented, chat, waits):
    context = chat()
    with anyio.CancelScope() as mine:
        waits[1]["then"] = lambda wait_s: mine.cancel()
        await MiddlewarePipeline(Retry(wait_s=60, longest_wait_s=60)).run_chat(context, failing(errors.LLMEmpty("e")))
    assert mine.cancelled_caught
    assert context.calls == 1


async def test_it_tells_that_it_tried_again(stage, ask, effects):
    stage.play(Failure(500), Text("ok"))
    with ravi_otel.run("r"):
        await ask(Retry(**QUICK))
    assert effects() == [
        (
            "retried",
            {"ravi.middleware.effect": "retried", "gen_ai.request.model": "gpt-4o-mini", "error.type": "InternalServerError"},
        )
    ]


async def test_inner_middlewares_see_each_attempt(stage, ask):
    seen = []

    @chat_middleware
    async def watch(context, call_next):
        seen.append(len(context.messages))
        context.messages.append(ChatMessage("user", "more"))
        await call_next()

    stage.play(Failure(500), Text("ok"))
    await ask(Retry(**QUICK), watch)
    assert seen == [1, 1]
    assert [len(request.body["messages"]) for request in stage.requests] == [2, 2]


class AnsweredError(Exception):
    def __init__(self, **headers):
        self.response = httpx.Response(429, headers={name.replace("_", "-"): value for name, value in headers.items()})


@pytest.mark.parametrize("wrap", [False, True], ids=["itself", "cause"])
@pytest.mark.parametrize(
    ("error", "seconds"),
    [
        (AnsweredError(retry_after="7"), 7),
        (AnsweredError(retry_after="0.5"), 0.5),
        (AnsweredError(retry_after_ms="1500", retry_after="9"), 1.5),
        (lambda: AnsweredError(retry_after=format_datetime(datetime.now(tz=UTC) + timedelta(hours=1))), 3_600),
        (AnsweredError(retry_after="Thu, 01 Jan 1970 00:00:01 GMT"), 0),
        (AnsweredError(retry_after="-3"), 0),
        (AnsweredError(retry_after="nan"), 0),
        (AnsweredError(retry_after="inf"), 0),
        (AnsweredError(retry_after="soon"), 0),
        (AnsweredError(), 0),
        (ValueError(), 0),
    ],
)
async def test_the_pause_is_what_the_server_asks_for_where_that_makes_sense(instrumented, chat, waits, error, seconds, wrap):
    answered = error if isinstance(error, Exception) else error()
    raised = errors.LLMTimeout("t") if wrap else answered
    if wrap:
        raised.__cause__ = answered
    seen, _ = waits
    with anyio.move_on_after(0.01):  # the pause itself
        await MiddlewarePipeline(Retry(2, on=Exception, longest_retry_after_s=7_200, **QUICK)).run_chat(chat(), failing(raised))
    assert seen == [pytest.approx(seconds, abs=60 if seconds == 3_600 else 0.001)]


@pytest.mark.parametrize(("written", "calls"), [("0", 3), ("1", 1), ("2", 1), ("-1", 3), ("9999999", 3), ("²", 3), ("x", 3), (None, 3)])
async def test_how_often_the_client_tried_is_read_with_care(instrumented, chat, written, calls):
    error = ValueError()
    if written is not None:
        error.request = type("Request", (), {"headers": {"x-stainless-retry-count": written}})()
    context = chat()
    with pytest.raises(ValueError):
        await MiddlewarePipeline(Retry(3, on=Exception, **QUICK)).run_chat(context, failing(*[error] * 3))
    assert context.calls == calls


@pytest.mark.parametrize("error", [ValueError(), httpx.ReadTimeout("t")], ids=repr)
async def test_an_error_of_another_kind_is_final(instrumented, chat, error):
    context = chat()
    with pytest.raises(type(error)):
        await MiddlewarePipeline(Retry(**QUICK)).run_chat(context, failing(error))
    assert context.calls == 1


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"attempts": 0}, "Retry(attempts)=0"),
        ({"attempts": 101}, "Retry(attempts)=101"),
        ({"wait_s": -1}, "Retry(wait_s)=-1"),
        ({"on": "x"}, "Retry(on)="),
        ({"on": ()}, "Retry(on)=()"),
        ({"on": KeyboardInterrupt}, "Retry(on)="),
        ({"level": "agent"}, "Retry(level)='agent'"),
        ({"level": "tool"}, "needs on="),
    ],
)
async def test_what_cannot_be_used_is_refused_in_a_sentence(given, said):
    with pytest.raises(errors.ConfigurationError) as refused:
        Retry(**given)
    assert said in str(refused.value)


async def test_what_a_server_says_is_not_handed_to_the_librarys_log(instrumented, chat):
    causes = []
    stamina.instrumentation.set_on_retry_hooks([lambda details: causes.append(repr(details.caused_by))])
    context = chat()
    await MiddlewarePipeline(Retry(2, **QUICK)).run_chat(context, failing(TimeoutError("the prompt: hunter2")))
    assert context.response.message.content == "fine"
    assert len(causes) == 1
    assert "TimeoutError" in causes[0]
    assert "hunter2" not in causes[0]


@pytest.mark.parametrize(
    "turn_off", [lambda: stamina.set_active(False), lambda: stamina.set_testing(True, attempts=1)], ids=["off", "testing"]
)
async def test_where_the_library_is_told_to_try_nothing_again_the_error_is_the_models(instrumented, chat, turn_off):
    mine = TimeoutError("mine")
    turn_off()
    try:
        with pytest.raises(TimeoutError) as raised:
            await MiddlewarePipeline(Retry(3, **QUICK)).run_chat(chat(), failing(mine))
    finally:
        stamina.set_active(True)
        stamina.set_testing(False)
    assert raised.value is mine
