"""Model calls under limits that begin anew, and that count by the model, the user or a tag: over the real client, in both colours."""

import asyncio

import pytest

import ravi_otel
from ravi_otel import BudgetExhaustedError
from ravi_otel.errors import ConfigurationError
from ravi_otel.testing import Failure, Text

DAY = 86_400
OTHER = "gpt-4o"


@pytest.fixture(params=["sync", "async"])
def call(request, stage, on_clock, ask):
    """Ask once, in one colour."""

    def now(**more):
        if request.param == "sync":
            with stage.client(max_retries=1) as client:
                return ask(client, **more)

        async def later():
            async with stage.async_client(max_retries=1) as client:
                return await ask(client, **more)

        return asyncio.run(later())

    return now


def test_calls_are_refused_until_the_next_day(call, clock):
    with ravi_otel.run("shop", limits=["requests=1:per=day"]):
        call()
        with pytest.raises(BudgetExhaustedError, match=r"in run 'shop', day \d{4}-\d\d-\d\d in UTC"):
            call()
        clock.advance(DAY)
        call()


def test_calls_are_refused_until_enough_has_left_a_rolling_window(call, clock, stage):
    stage.answer = Text("ok", usage=(400, 100))
    with ravi_otel.run(limits=["tokens=1000:per=90m"]) as run:
        call(max_tokens=10)
        call(max_tokens=10)
        with pytest.raises(BudgetExhaustedError, match="in 90m"):
            call(max_tokens=10)
        clock.advance(91 * 60 + 30)
        call(max_tokens=10)
        assert run.limits[0].used == 500


def test_each_model_has_a_counter(call):
    with ravi_otel.run(limits=["requests=1:by=model"]) as run:
        call()
        call(model=OTHER)
        with pytest.raises(BudgetExhaustedError, match=f"model '{OTHER}'"):
            call(model=OTHER)
        assert sorted(reading.counted_for for reading in run.limits) == ["gpt-4o", "gpt-4o-mini"]


def test_a_retry_counts_for_the_model_that_is_asked_again(call, stage):
    answers = iter([Failure(500, retry_after_s=0.01), Text("ok", usage=(1, 1))])
    stage.answer = lambda _: next(answers)
    with ravi_otel.run(limits=["requests=9:by=model"]) as run:
        call()
        assert {reading.counted_for: reading.used for reading in run.limits} == {"gpt-4o-mini": 2}


def test_a_strict_limit_by_model_caps_the_answer_at_what_is_left_for_that_model(call, stage):
    stage.answer = Text("ok", usage=(10, 90))
    with ravi_otel.run(limits=["output_tokens=100:by=model:admission=strict"]):
        call()
        stage.answer = Text("ok", usage=(10, 10))
        call()
        assert stage.server.requests[-1].body["max_tokens"] == 10
        call(model=OTHER)
        assert stage.server.requests[-1].body["max_tokens"] == 100


def test_each_user_of_a_tenant_has_a_part_of_the_day(call):
    def ask_for(user):
        with ravi_otel.run(tenant_id="acme", user_id=user, limits=["tenant.requests=1:per=day:by=user"]):
            call()

    ask_for("ann")
    ask_for("bob")
    with pytest.raises(BudgetExhaustedError, match=r"tenant 'acme', day .*, user 'ann'"):
        ask_for("ann")


def test_a_stream_that_ends_after_midnight_is_charged_to_the_day_it_began_in(stage, on_clock, clock, ask):
    stage.answer = Text("a b c", usage=(50, 50))
    with ravi_otel.run(limits=["tokens=1000:per=day"]) as run, stage.client() as client:
        chunks = ask(client, stream=True, stream_options={"include_usage": True})
        next(iter(chunks))
        (began,) = run.scope.series[0].living()
        clock.advance(DAY)
        list(chunks)
        assert run.limits[0].used == 0
        assert (began.used, began.held) == (100, 0)


def test_what_is_set_aside_is_counted_for_its_user_and_not_refused(call):
    with ravi_otel.run(user_id="ann", limits=["requests=1:per=day:by=user:suspend=allow"]) as run:
        call()
        with ravi_otel.suspend_limits("a summary"):
            call()
        assert run.limits[0].used == 2
        with pytest.raises(BudgetExhaustedError):
            call()


def test_tools_count_by_user_too(on_clock):
    @ravi_otel.tool
    def search():
        return "found"

    with ravi_otel.run(limits=["tool.search=1:per=hour:by=user"]):
        for user in ("ann", "bob"):
            with ravi_otel.run(user_id=user):
                search()
                with pytest.raises(BudgetExhaustedError, match=f"user '{user}'"):
                    search()


def test_nearing_and_exceeded_say_which_window_and_whose(call, heard):
    with ravi_otel.run(user_id="ann", limits=["requests=1:per=day:by=user"]):
        call()
        with pytest.raises(BudgetExhaustedError):
            call()

    told = [(event.event, event.per, event.by, event.counted_for) for event in heard.limits]
    assert told == [("limit_nearing", "day", "user", "ann"), ("limit_exceeded", "day", "user", "ann")]
    assert all(event.window for event in heard.limits)


@pytest.mark.parametrize("wrong", ["", "a\nb", 5, "x" * 257])
def test_a_user_needs_a_name(wrong):
    with pytest.raises(ConfigurationError, match=r"run\(user_id\)"):
        ravi_otel.run(user_id=wrong)
