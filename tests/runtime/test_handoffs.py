"""Handoffs: a scope of their own in a run, with templates by name (enforcement §2)."""

import pytest

import ravi_otel
from ravi_otel import BudgetExhaustedError, ConfigurationError


def test_a_template_gives_each_handoff_of_its_name_a_counter_of_its_own(client, ask):
    with ravi_otel.run("r", limits=["handoff.researcher.requests=1"]) as run:
        for name in ("researcher", "researcher", "writer"):
            with ravi_otel.handoff(name):
                ask(client)
                if name == "researcher":
                    with pytest.raises(BudgetExhaustedError, match=r"^1 of 1 request used in handoff 'researcher'; this one is refused"):
                        ask(client)
                else:
                    ask(client)
    assert run.stats().requests == 4


def test_messages_are_those_of_the_conversation_that_was_handed_over(stage, client, ask):
    with ravi_otel.run("r", limits=["handoff.researcher.message=2"]):
        with ravi_otel.handoff("researcher"):
            ask(client)
            with pytest.raises(
                BudgetExhaustedError, match=r"^2 messages are allowed in handoff 'researcher'; this call makes it 4"
            ) as caught:
                ask(client, messages=[{"role": "user", "content": "hi"}] * 3)
        ask(client, messages=[{"role": "user", "content": "hi"}] * 3)
    assert (caught.value.scope, stage.sent) == ("handoff", 2)


def test_a_template_for_a_handoff_holds_for_the_agents_in_it_together(client, ask):
    with ravi_otel.run("r", limits=["handoff.requests=2"]), ravi_otel.handoff("any") as handoff:
        for name in ("a", "b"):
            with ravi_otel.agent(name):
                ask(client)
        with ravi_otel.agent("c"), pytest.raises(BudgetExhaustedError, match="handoff 'any'"):
            ask(client)
    assert (handoff.stats().requests, handoff.limits[0].used) == (2, 2)


def test_a_template_for_another_name_on_a_handoff_is_for_those_inside(client, ask):
    with ravi_otel.run("r"), ravi_otel.handoff("outer", limits=["handoff.inner.requests=0"]) as outer:
        ask(client)
        with ravi_otel.handoff("inner"), pytest.raises(BudgetExhaustedError, match="handoff 'inner'"):
            ask(client)
    assert outer.limits == []


def test_a_handoff_decorates_functions_of_both_colours_and_stops_quietly(client, ask):
    @ravi_otel.handoff("h", limits=["requests=1:on=stop"])
    def twice():
        ask(client)
        ask(client)
        return "done"

    @ravi_otel.handoff("h", limits=["requests=1:on=stop"])
    async def twice_awaited():
        ask(client)
        ask(client)
        return "done"

    with ravi_otel.run("r") as run:
        assert (twice(), twice()) == (None, None)
    assert run.stats().requests == 2
    with ravi_otel.run("r"):
        coroutine = twice_awaited()
        with pytest.raises(StopIteration) as ended:
            coroutine.send(None)
        assert ended.value.value is None


@pytest.mark.anyio
async def test_a_handoff_is_entered_in_both_colours(aclient, ask):
    async with ravi_otel.run("r"), ravi_otel.handoff("h", limits=["requests=1:on=stop"]) as handoff:
        await ask(aclient)
        await ask(aclient)
    assert (handoff.status, handoff.stop_reason) == ("stopped", "limit_requests")


def test_a_handoff_needs_a_name(instrumented):
    with pytest.raises(ConfigurationError, match=r"handoff\(name\)"):
        ravi_otel.handoff(None)
