"""A body that swallows what stopped it has not made a success of it, and errors say what is true (enforcement §7)."""

import pickle
import threading

import openai
import pydantic
import pytest

import ravi_otel
from ravi_otel import BudgetContendedError, BudgetError, BudgetExhaustedError, CancellationError, DeadlineExceededError
from ravi_otel._enforcement import ending, errors_text
from ravi_otel.testing import Text


@ravi_otel.tool
def search():
    return "found"


class Fact(pydantic.BaseModel):
    text: str


def until_refused(client, ask):
    with pytest.raises(BudgetExhaustedError) as caught:  # noqa: PT012 - the requests before it are let through
        while True:
            ask(client)
    return caught.value


# How a scope ends whose body raised nothing


@pytest.mark.parametrize("limit", ["requests=2", "turns=2", "tokens=300", "cost=0.3usd"])
@pytest.mark.parametrize(
    ("outcome", "status"),
    [("raise", "stopped"), ("stop", "stopped"), ("final", "stopped"), ("pause", "paused"), ("ask", "stopped"), ("observe", "ok")],
)
def test_a_swallowed_refusal_for_good_is_no_success(client, ask, outcome, status, limit):
    with ravi_otel.run("r", limits=[f"{limit}:on={outcome}"]) as run:
        for _ in range(3):
            try:
                ask(client)
            except BudgetExhaustedError:
                break
    reason = "success" if outcome == "observe" else f"limit_{limit.partition('=')[0]}"
    assert (run.status, run.stop_reason) == (status, reason)


def test_nor_is_a_swallowed_refusal_of_a_charge():
    with ravi_otel.run("r", limits=["charge.rows=10"]) as run:
        run.scope.charge("rows", 9)
        with pytest.raises(BudgetExhaustedError):
            run.scope.charge("rows", 5)
    assert (run.status, run.stop_reason) == ("stopped", "limit_custom")


@pytest.mark.parametrize(("limit", "end"), [("time=5", ("stopped", "deadline")), ("working=5:on=pause", ("paused", "limit_working"))])
def test_nor_is_a_swallowed_deadline(on_clock, limit, end):
    with ravi_otel.run("r", limits=[limit]) as run:
        on_clock.advance(6)
        with pytest.raises(DeadlineExceededError):
            run.scope.checkpoint()
    assert (run.status, run.stop_reason) == end


def test_a_deadline_that_refused_nothing_ended_nothing(on_clock):
    with ravi_otel.run("r", limits=["time=5"]) as run:
        on_clock.advance(6)
    assert (run.status, run.stop_reason) == ("ok", "success")


@pytest.mark.parametrize("limit", ["tool.search=0", "tool_calls=0", "tool_calls=0:on=deny_tool"])
def test_a_run_that_went_on_without_a_tool_is_one(client, ask, limit):
    with ravi_otel.run("r", limits=[limit]) as run:
        with pytest.raises(BudgetExhaustedError):
            search()
        ask(client)
    assert (run.status, run.stop_reason) == ("ok", "success")


def test_so_is_one_whose_call_was_too_large(client, ask):
    with ravi_otel.run("r", limits=["tokens=5000"]) as run:
        with pytest.raises(BudgetExhaustedError) as caught:
            ask(client, "word " * 9_000)
        ask(client)
    assert (caught.value.reason, run.status) == ("too_large", "ok")


def test_so_is_one_whose_limit_was_raised(client, ask):
    with ravi_otel.run("r", limits=["requests=2"]) as run:
        until_refused(client, ask)
        run.set_limit("requests", 9)
        ask(client)
    assert (run.status, run.stop_reason) == ("ok", "success")


def test_an_inner_scope_answers_for_its_own_limits_alone(client, ask):
    with ravi_otel.run("r", limits=["requests=2"]) as run:
        with ravi_otel.agent("outermost") as agent:
            until_refused(client, ask)
        with ravi_otel.apply_limits(["requests=0"]) as block:
            pass
    assert (agent.status, block.status, run.status) == ("ok", "ok", "stopped")


@pytest.mark.parametrize(("how", "end"), [("cancel", ("cancelled", "cancelled")), ("close", ("stopped", "closed"))])
@pytest.mark.parametrize("swallows", [True, False])
def test_a_run_that_was_ended_from_outside_says_so(stage, client, ask, how, end, swallows):
    caught = None
    try:
        with ravi_otel.run("r") as run, ravi_otel.agent("a") as agent:
            getattr(run, how)()
            try:
                ask(client)
            except ravi_otel.RaviError:
                if not swallows:
                    raise
    except ravi_otel.RaviError as error:
        caught = error
    assert (run.status, run.stop_reason, caught is None, stage.sent) == (*end, swallows, 0)
    assert (agent.status, agent.stop_reason) == (("ok", "success") if swallows else end)


@pytest.mark.parametrize("limit", ["time=5", "working=5"])
def test_a_deadline_that_is_raised_is_an_error_like_any_limit(on_clock, limit):
    with pytest.raises(DeadlineExceededError), ravi_otel.run("r", limits=[limit]) as run:  # noqa: PT012 - the run must end by it
        on_clock.advance(6)
        run.scope.checkpoint()
    assert (run.status, run.stop_reason) == ("error", "deadline")


# What the sentences say


@pytest.mark.parametrize(
    ("limit", "words"),
    [
        (
            "requests=3:on=final",
            r"^2 of 3 requests used in run 'r', and 1 is kept back for run\.wrap_up\(\); this one is refused \(2 \+ 1 > 2\)\. Raise req",
        ),
        (
            "tokens=1000:on=final",
            r"^800 of 1000 tokens used in run 'r', and 100 are kept back for run\.wrap_up\(\); .* \(800 \+ \d+ > 900\)",
        ),
        ("cost=1usd:on=final", r"^\$0\.80 of \$1\.00 used in run 'r', and \$0\.10 is kept back for run\.wrap_up"),
    ],
)
def test_what_is_kept_back_is_said(client, ask, limit, words):
    with ravi_otel.run("r", limits=[limit]):
        for _ in range(0 if "requests" in limit else 4):
            ask(client, max_tokens=10)
        more = "word " * 100 if "requests" not in limit else "hi"
        with pytest.raises(BudgetExhaustedError, match=words):  # noqa: PT012 - the requests before it are let through
            while True:
                ask(client, more)


def test_a_limit_that_was_set_anew_is_told_as_it_is(client, ask):
    with ravi_otel.run("r", limits=["requests=2"]) as run:
        run.set_limit("requests", 3)
        error = until_refused(client, ask)
    assert str(error).endswith("this one is refused (3 + 1 > 3). Raise requests=3 (set by set_limit(), instead of requests=2).")


def test_a_deadline_is_told_in_the_words_it_was_written_in(on_clock):
    with ravi_otel.run("r", limits=["time=300ms"]) as run:
        on_clock.advance(0.34672461)
        with pytest.raises(
            DeadlineExceededError, match=r"^0\.347 s of 300ms used in run 'r', so the work is stopped \(deadline exceeded\)\. Raise"
        ):
            run.scope.checkpoint()


def test_a_cancellation_names_the_run(client, ask):
    with ravi_otel.run("outer") as outer, ravi_otel.run("inner"):
        outer.cancel("enough")
        with pytest.raises(CancellationError, match=r"^run 'outer' was cancelled: enough$") as caught:
            ask(client)
    assert caught.value.reason == "enough"


def test_an_answer_cut_by_our_cap_is_told_with_what_it_used(stage, client):
    stage.answer = Text("no json " * 10, usage=(10, 700), finish_reason="length")
    chat = client.beta.chat if openai.__version__.startswith("1.") else client.chat
    with (
        ravi_otel.run("r", limits=["tokens=1000:admission=strict"]),
        pytest.raises(BudgetExhaustedError, match=r"^710 of 1000 tokens used") as caught,
    ):
        chat.completions.parse(model="gpt-4o-mini", messages=[{"role": "user", "content": "hi"}], response_format=Fact)
    assert (caught.value.used, caught.value.remaining, caught.value.reason) == (710, 290, "truncated")


def test_the_refused_last_call_has_the_figures_too(client, ask):
    with ravi_otel.run("r", limits=["requests=3:on=final"]) as run, run.wrap_up():
        ask(client)
        with pytest.raises(BudgetExhaustedError) as caught:
            ask(client)
    assert (caught.value.threshold, caught.value.used, caught.value.remaining) == (3, 1, 2)


# Streams


@pytest.mark.parametrize("outcome", ["raise", "stop", "pause"])
def test_a_stream_cut_because_others_hold_the_rest_is_contended_and_never_swallowed(stage, client, ask, outcome):
    stage.answer = Text("word " * 400, chunks=100)
    with pytest.raises(BudgetContendedError) as caught, ravi_otel.run("r", limits=[f"output_tokens=200:on={outcome}"]) as run:  # noqa: PT012 - it is within the run
        other = ask(client, stream=True, max_tokens=150)
        mine = ask(client, stream=True, max_tokens=10_000)
        try:
            for _ in mine:
                pass
        finally:
            other.close()
    error = caught.value
    assert "held by other calls, so the stream was cut. " in str(error)
    assert "Lower the concurrency, or raise output_tokens=200" in str(error)
    assert "by our count" in str(error)
    assert ("word " * 400).startswith(error.partial)
    assert (error.reason, run.status) == ("contended", "error")


@pytest.mark.parametrize(("limits", "kept"), [(["tokens=5000"], True), (["time=60"], True), (["requests=5"], False), ([], False)])
def test_a_cancelled_stream_that_a_limit_could_end_keeps_its_text(stage, client, ask, limits, kept):
    stage.answer = Text("word " * 40, chunks=40)
    came = []
    with pytest.raises(CancellationError) as caught, ravi_otel.run("r", limits=limits) as run:  # noqa: PT012 - it is within the run
        for chunk in ask(client, stream=True):
            came.append(chunk.choices[0].delta.content or "" if chunk.choices else "")
            if len(came) == 5:
                run.cancel("enough")
    error = pickle.loads(pickle.dumps(caught.value))
    assert (error.partial, error.reason) == (run.partial, "enough")
    assert error.partial == ("".join(came) if kept else None)


def test_our_own_count_is_called_that_and_a_settled_one_is_not():
    with ravi_otel.run("r", limits=["tokens=100"]) as run:
        account = run.scope.accounts[0]
    counted, settled = (errors_text.LimitErrors(account).cut("exhausted", 110, 0, counted=counted) for counted in (True, False))
    assert (counted.estimated, settled.estimated) == (True, False)
    assert ("by our count" in str(counted), "by our count" in str(settled)) == (True, False)
    assert pickle.loads(pickle.dumps(counted)).estimated
    assert not ending.swallows("x", counted)


def test_nothing_is_noted_of_a_refusal_that_is_not_for_good(stage, client, ask):
    stage.server.hold()
    with ravi_otel.run("r", limits=["output_tokens=100"]) as run:
        first = threading.Thread(target=ask, args=(client,), kwargs={"max_tokens": 100})
        thread_scope = ravi_otel.current_scope()
        first.start()
        stage.wait_for(1)
        account = thread_scope.accounts[0]
        error = errors_text.LimitErrors(account).cut("contended", 10, 90, counted=True)
        assert isinstance(errors_text.owned(error, account), BudgetError)
        stage.server.release()
        first.join(20)
    assert (run.status, account.refused_at) == ("ok", None)
