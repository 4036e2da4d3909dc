"""What the keys of `ravi-otel top` do, and that they reach what was selected and nothing else."""

from __future__ import annotations

from functools import partial

import pytest
from live_actors import limit, run, scope
from top_seats import actors, seated, tree

from ravi_otel._cli.top_screen import Confirm, RaiseLimit
from ravi_otel._local.store import Store

pytestmark = pytest.mark.anyio


@pytest.fixture
def store(tmp_path):
    return Store.open(tmp_path / ".ravi").root


@pytest.fixture
def actor(store):
    with actors(store) as enter:
        yield enter


@pytest.fixture
def sit(store):
    return partial(seated, store)


@pytest.mark.parametrize("key", ["p", "plus", "minus", "c", "l"])
@pytest.mark.parametrize("selected", ["agent critic", "agent.py"])
async def test_a_key_on_what_has_ended_reaches_nothing_else(selected, key, actor, sit):
    gone = actor(tree())
    stays = actor(run("daily", scope("writer", "daily")), program="other.py")
    async with sit() as seat:
        await seat.select(selected)
        gone.leave()
        await seat.until(lambda: "ended" in seat.selected)
        await seat.press(key)
        await seat.shows("has ended. Select another row.")
        assert (gone.heard, stays.heard) == ([], [])


async def test_what_comes_back_while_it_is_selected_is_not_ended(actor, sit):
    one = actor(tree())
    async with sit() as seat:
        await seat.select("agent critic")
        one.say(run("nightly"))
        await seat.until(lambda: "ended" in seat.selected)
        one.say(tree())
        await seat.until(lambda: "ended" not in seat.text)
        await seat.press("p")
        await seat.shows("agent critic is paused.")
        assert one.heard == [{"op": "pause", "scope_id": "critic"}]


@pytest.mark.parametrize(
    ("priority", "key", "told"),
    [
        ("normal", "plus", "agent critic is high now, and goes on as soon as there is a slot."),
        ("high", "minus", "agent critic is normal now, and goes on as soon as there is a slot."),
        ("normal", "minus", "agent critic is low now."),
    ],
)
async def test_a_priority_that_lets_a_paused_agent_go_on_says_so(priority, key, told, actor, sit):
    actor(run("nightly", scope("critic", "nightly", status="paused", priority=priority)))
    async with sit() as seat:
        await seat.select("agent critic")
        await seat.press(key)
        await seat.shows(told)


@pytest.mark.parametrize(
    ("keys", "asked", "told"),
    [
        ("p", {"op": "pause"}, "agent critic is paused."),
        ("+", {"op": "reprioritize", "priority": "high"}, "agent critic is high now."),
        ("-", {"op": "reprioritize", "priority": "low"}, "agent critic is low now."),
        ("cy", {"op": "cancel", "reason": "cancelled in ravi-otel top"}, "agent critic was told to end."),
    ],
)
async def test_a_key_asks_the_process_and_says_what_came_of_it(keys, asked, told, actor, sit):
    one = actor(tree())
    async with sit() as seat:
        await seat.select("agent critic")
        await seat.press(*({"+": "plus", "-": "minus"}.get(key, key) for key in keys))
        await seat.shows(told)
        assert one.heard == [asked | {"scope_id": "critic"}]


async def test_a_paused_agent_is_resumed_with_the_same_key(actor, sit):
    one = actor(run("nightly", scope("critic", "nightly", status="paused")))
    async with sit() as seat:
        await seat.select("agent critic")
        await seat.press("p")
        await seat.shows("agent critic may go on.")
        assert one.heard == [{"op": "resume", "scope_id": "critic"}]


@pytest.mark.parametrize("answer", ["n", "escape", "q"])
async def test_nothing_is_cancelled_without_a_yes(answer, actor, sit):
    one = actor(tree())
    async with sit() as seat:
        await seat.select("run nightly")
        await seat.press("c")
        await seat.shows("Cancel run nightly of agent.py", "y yes   n no")
        await seat.press("enter", "x")
        assert isinstance(seat.app.screen, Confirm)
        await seat.press(answer)
        await seat.shows("Nothing was cancelled.")
        assert one.heard == []


async def test_a_limit_is_raised_from_the_value_that_counts(actor, sit):
    one = actor(run("nightly", limits=(limit("tokens", 100, 1_000), limit("cost", 0.45, 0.5))))
    async with sit() as seat:
        await seat.select("run nightly")
        await seat.press("l")
        await seat.shows("Raise which limit of run nightly?", "cost", "0.5")
        await seat.press("down")
        assert seat.app.screen.query_one("Input").value == "1000"
        await seat.press(*"20k", "enter")
        await seat.shows("The tokens limit of run nightly is 20,000 now.")
        assert one.heard == [{"op": "set_limit", "scope_id": "nightly", "kind": "tokens", "value": 20_000}]


async def test_a_value_that_is_none_is_said_and_a_lower_one_is_asked_for_twice(actor, sit):
    one = actor(run("nightly", limits=(limit("cost", 0.05, 0.5),)))
    async with sit() as seat:
        await seat.select("run nightly")
        await seat.press("l")
        await seat.press(*"abc", "enter")
        await seat.shows("'abc' is no value for cost: write a number such as 2.50.")
        await seat.press("ctrl+u", *"0.25", "enter")
        await seat.shows("That is less than the $0.50 of now. Enter again lowers cost.")
        assert one.heard == []
        await seat.press("enter")
        await seat.shows("The cost limit of run nightly is $0.25 now.")
        assert one.heard == [{"op": "set_limit", "scope_id": "nightly", "kind": "cost", "value": 0.25}]


async def test_what_is_typed_is_the_value_of_the_fullest_of_several_limits_without_another_key(actor, sit):
    slots = limit("agents", 4, 4)
    one = actor(run("nightly", limits=(slots, limit("tokens", 900, 1_000), limit("cost", 0.1, 0.5))))
    async with sit() as seat:
        await seat.select("run nightly")
        await seat.press("l", *"2M", "enter")
        await seat.shows("The tokens limit of run nightly is 2,000,000 now.")
        assert one.heard == [{"op": "set_limit", "scope_id": "nightly", "kind": "tokens", "value": 2_000_000}]


async def test_a_value_below_what_is_used_is_asked_for_with_what_comes_of_it_as_it_is_now(actor, sit):
    one = actor(run("nightly", limits=(limit("tokens", 100, 1_000),)))
    async with sit() as seat:
        await seat.select("run nightly")
        await seat.press("l")
        one.say(run("nightly", limits=(limit("tokens", 700, 1_000),)))
        await seat.until(lambda: seat.app._limits_now(seat.app._tree.selected)[0].used == 700)
        await seat.press(*"600", "enter")
        await seat.shows("700 of it are used already: with less, all that counts as tokens is refused")
        assert one.heard == []
        await seat.press("enter")
        await seat.shows("The tokens limit of run nightly is 600 now.")


@pytest.mark.parametrize("typed", ["2,50", "20,000,5", "1,0000"])
async def test_a_decimal_comma_is_never_read_as_a_larger_value(typed, actor, sit):
    one = actor(run("nightly", limits=(limit("cost", 0.45, 2.0),)))
    async with sit() as seat:
        await seat.select("run nightly")
        await seat.press("l", *({",": "comma"}.get(char, char) for char in typed), "enter")
        await seat.shows("is no value for cost: write a number such as 2.50.")
        assert one.heard == []


async def test_a_limit_is_left_as_it_is_with_escape(actor, sit):
    one = actor(run("nightly", limits=(limit(),)))
    async with sit() as seat:
        await seat.select("run nightly")
        await seat.press("l")
        assert isinstance(seat.app.screen, RaiseLimit)
        await seat.press("escape")
        await seat.shows("No limit was changed.")
        assert one.heard == []


@pytest.mark.parametrize(
    ("changes", "key", "told"),
    [
        ({"priority": "critical"}, "plus", "agent critic is critical already."),
        ({"priority": "background"}, "minus", "agent critic is background already."),
        ({}, "l", "agent critic has no limits of its own."),
    ],
)
async def test_what_cannot_be_is_said_without_asking(changes, key, told, actor, sit):
    one = actor(run("nightly", scope("critic", "nightly", **changes)))
    async with sit() as seat:
        await seat.select("agent critic")
        await seat.press(key)
        await seat.shows(told)
        assert one.heard == []


@pytest.mark.parametrize("key", ["p", "plus", "minus", "c", "l"])
async def test_a_key_on_a_process_asks_to_select_what_is_in_it(key, actor, sit):
    one = actor(run("nightly"))
    async with sit() as seat:
        await seat.select("agent.py")
        await seat.press(key)
        await seat.shows("Select a run, an agent or a block first.")
        assert one.heard == []
