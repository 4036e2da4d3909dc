"""One last call may use what a limit with `on_exceed="final"` keeps back (enforcement §7)."""

import asyncio
from contextlib import contextmanager
from contextvars import copy_context

import pytest

import ravi_otel
from ravi_otel import BudgetExhaustedError, ConfigurationError
from ravi_otel.testing import Text


@ravi_otel.tool
def search():
    return "found"


@contextmanager
def spent(ask, client, limit="requests=3:on=final"):
    """Open a run that its limit has refused already."""
    with ravi_otel.run("r", limits=[limit]) as run:
        with pytest.raises(BudgetExhaustedError):  # noqa: PT012 - whichever call it is
            for _ in range(9):
                ask(client, max_tokens=20)
        yield run


@pytest.mark.parametrize(("limit", "sent"), [("requests=3:on=final", 2), ("turns=3:on=final", 2), ("tokens=1000:on=final", 5)])
def test_one_call_is_kept_back_and_made_after_the_refusal(stage, client, ask, limit, sent):
    stage.answer = Text("ok", usage=(100, 100)) if "tokens" not in limit else Text("ok", usage=(90, 90))
    with spent(ask, client, limit) as run:
        before = stage.sent
        with run.wrap_up():
            assert ask(client, max_tokens=20).choices[0].message.content == "ok"
    assert (before, stage.sent) == (sent, sent + 1)
    assert (run.status, run.stop_reason) == ("stopped", f"limit_{limit.partition('=')[0]}")


def test_a_second_call_in_the_block_is_refused_in_so_many_words(stage, client, ask):
    with spent(ask, client) as run, run.wrap_up():
        ask(client)
        with pytest.raises(BudgetExhaustedError, match="has made its last call already") as caught:
            ask(client)
    assert (caught.value.reason, stage.sent) == ("wrapping_up", 3)


def test_a_second_block_gets_no_call_of_its_own(stage, client, ask):
    with ravi_otel.run("r", limits=["tokens=10000:on=final"]) as run:
        with run.wrap_up():
            ask(client, max_tokens=1)
        with run.wrap_up(), pytest.raises(BudgetExhaustedError, match="last call already"):
            ask(client, max_tokens=1)


def test_the_refused_second_call_ends_the_run_as_stopped(client, ask):
    with ravi_otel.run("r", limits=["requests=3:on=final"]) as run, run.wrap_up():
        ask(client)
        ask(client)
    assert (run.status, run.stop_reason) == ("stopped", "limit_requests")


def test_tools_are_refused_inside_and_run_again_after(client):
    with ravi_otel.run("r", limits=["requests=3:on=final"]) as run:
        with run.wrap_up(), pytest.raises(BudgetExhaustedError, match="tool 'search' is not run while run 'r' wraps up") as caught:
            search()
        assert search() == "found"
    assert (caught.value.reason, run.stats().refused, run.stats().tool_calls) == ("wrapping_up", 1, 1)


def test_what_is_refused_in_the_block_is_counted_for_the_limit_that_keeps_it_back(client, ask, heard):
    with ravi_otel.run("r", limits=["requests=3:on=final", "tokens=10000:on=final"]) as run, run.wrap_up():
        with pytest.raises(BudgetExhaustedError):
            search()
        ask(client, max_tokens=1)
        with pytest.raises(BudgetExhaustedError):
            ask(client, max_tokens=1)
    assert [count for count in heard.counts if count[0] == "denied"] == [("denied", "requests")] * 2


def test_other_limits_hold_inside(stage, client, ask):
    with ravi_otel.run("r", limits=["requests=3:on=final", "turns=0"]) as run, run.wrap_up(), pytest.raises(BudgetExhaustedError) as caught:
        ask(client)
    assert (caught.value.limit_kind, stage.sent) == ("turns", 0)


def test_a_call_that_another_limit_refused_leaves_what_is_kept_back(stage, client, ask):
    with ravi_otel.run("r", limits=["requests=3:on=final"]) as run:
        with run.wrap_up(), pytest.raises(BudgetExhaustedError, match="no known price"), ravi_otel.apply_limits(["cost=1"]):
            ask(client, model="nobody-knows-this-model")
        with run.wrap_up():
            ask(client)
    assert stage.sent == 1


@pytest.mark.anyio
async def test_of_two_at_once_one_gets_it(stage, aclient, ask):
    with ravi_otel.run("r", limits=["tokens=100000:on=final"]) as run:

        async def last():
            async with run.wrap_up():
                return await ask(aclient)

        answers = await asyncio.gather(last(), last(), last(), return_exceptions=True)
    assert sorted(type(answer).__name__ for answer in answers) == ["BudgetExhaustedError", "BudgetExhaustedError", "ChatCompletion"]
    assert stage.sent == 1


def test_it_is_reached_from_wherever_the_code_is(stage, client, ask):
    with ravi_otel.run("r", limits=["requests=2:on=final"]) as run, ravi_otel.agent("a") as agent:
        ask(client)
        with pytest.raises(BudgetExhaustedError):
            ask(client)
        with ravi_otel.current_scope().wrap_up():
            ask(client)
    assert (stage.sent, agent.stats().requests, run.status) == (2, 2, "stopped")


def test_an_agent_in_the_block_makes_the_one_call_and_runs_no_tool(stage, client, ask):
    with ravi_otel.run("r"), ravi_otel.agent("p", limits=["tokens=10000:on=final"]) as parent, parent.wrap_up():
        with ravi_otel.agent("child", limits=["requests=5:on=final"]) as child:
            with pytest.raises(BudgetExhaustedError, match="tool 'search' is not run while agent 'p'"):
                search()
            ask(client, max_tokens=1)
            for block in (child.wrap_up(), ravi_otel.apply_limits(["turns=9"])):
                with block, pytest.raises(BudgetExhaustedError, match="last call already") as caught:
                    ask(client, max_tokens=1)
        with pytest.raises(BudgetExhaustedError, match=r"agent 'p'.*last call already"):
            ask(client, max_tokens=1)
    assert (caught.value.reason, stage.sent) == ("wrapping_up", 1)


def test_a_block_of_an_agent_further_out_refuses_the_tools_of_the_one_inside(client):
    with (
        ravi_otel.run("r"),
        ravi_otel.agent("p", limits=["tokens=10000:on=final"]) as parent,
        ravi_otel.agent("child"),
        parent.wrap_up(),
        pytest.raises(BudgetExhaustedError) as caught,
    ):
        search()
    assert caught.value.reason == "wrapping_up"


@pytest.mark.anyio
@pytest.mark.parametrize("again", [False, True])
async def test_what_a_block_left_running_gets_nothing_of_it_once_it_is_over(stage, aclient, ask, again):
    with ravi_otel.run("r", limits=["requests=3:on=final"]) as run:
        for _ in range(2):
            await ask(aclient)
        over = asyncio.Event()

        async def late():
            await over.wait()
            assert search() == "found"
            return await ask(aclient)

        block = run.wrap_up()
        with block:
            left = asyncio.create_task(late())
            await asyncio.sleep(0)
        with block if again else run.wrap_up():
            over.set()
            with pytest.raises(BudgetExhaustedError) as caught:
                await left
            await ask(aclient)
    assert (caught.value.limit_kind, stage.sent) == ("requests", 3)
    assert caught.value.reason != "wrapping_up"


def test_without_anything_kept_back_it_says_what_to_write(instrumented):
    with ravi_otel.run("r", limits=["requests=2"]) as run, pytest.raises(ConfigurationError, match='on_exceed="final"'), run.wrap_up():
        pytest.fail("it opened")


def test_a_block_opens_once_at_a_time(instrumented):
    with ravi_otel.run("r", limits=["requests=2:on=final"]) as run:
        block = run.wrap_up()
        with block, pytest.raises(ConfigurationError, match="already open"), block:
            pytest.fail("it opened twice")
        with block:
            pass


def test_shadow_mode_refuses_nothing_inside(stage, ask, client, settings):
    with settings(observe=True), ravi_otel.run("r", limits=["requests=2:on=final"]) as run, run.wrap_up():
        ask(client)
        ask(client)
        assert search() == "found"
    assert (stage.sent, run.stats().refused) == (2, 0)


def test_a_raised_limit_keeps_something_back_again(stage, client, ask):
    with ravi_otel.run("r", limits=["requests=2:on=final"]) as run:
        with run.wrap_up():
            ask(client)
        run.scope.set_limit("requests", 5)
        with run.wrap_up():
            ask(client)
    assert stage.sent == 2


def test_what_was_kept_back_is_spent_in_a_run_that_goes_on_and_kept_anew_under_a_higher_limit(stage, client, ask):
    with ravi_otel.run("r", limits=["requests=2:on=final"]) as run, run.wrap_up():
        ask(client)
    snapshot = run.snapshot()
    with ravi_otel.run("r", limits=["requests=2:on=final"], resume=snapshot) as run, run.wrap_up():
        ask(client)
    assert (stage.sent, run.status) == (1, "stopped")
    with ravi_otel.run("r", limits=["requests=3:on=final"], resume=snapshot) as run, run.wrap_up():
        ask(client)
    assert stage.sent == 2


def test_a_limit_that_is_raised_in_a_block_gives_the_block_no_second_call(stage, client, ask, heard):
    with ravi_otel.run("r", limits=["requests=2:on=final", "turns=9:on=final"]) as run, run.wrap_up():
        ask(client)
        run.scope.set_limit("requests", 5)
        with pytest.raises(BudgetExhaustedError, match="last call already") as caught:
            ask(client)
        with run.wrap_up(), pytest.raises(BudgetExhaustedError, match="last call already"):
            ask(client)
    assert (caught.value.reason, stage.sent) == ("wrapping_up", 1)
    assert [count for count in heard.counts if count[0] == "denied"] == [("denied", "requests")] * 2


def test_what_a_block_left_running_makes_the_one_call_of_the_block_around_it(stage, client, ask):
    with ravi_otel.run("r", limits=["requests=3:on=final"]) as run, ravi_otel.agent("a", limits=["turns=9:on=final"]) as agent:
        for _ in range(2):
            ask(client)
        with run.wrap_up():
            with agent.wrap_up():
                left = copy_context()
            with pytest.raises(BudgetExhaustedError) as caught:
                left.run(search)
            left.run(ask, client)
            with pytest.raises(BudgetExhaustedError, match="last call already"):
                left.run(ask, client)
    assert (caught.value.reason, stage.sent) == ("wrapping_up", 3)
