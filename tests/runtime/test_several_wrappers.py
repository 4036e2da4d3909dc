"""Several of us wrap the same method, and every order of coming and going leaves the identical objects."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest

from ravi_otel._runtime.patching import Wraps

NAMES = ("a", "b", "c")
EVENTS = [(step, name) for name in NAMES for step in ("wrap", "restore")]


class Speaker:
    def say(self, word: str) -> list[str]:
        return [word]

    async def awaited(self, word: str) -> list[str]:
        return [word]


def adds(name: str) -> Any:
    def added(wrapped: Any, _instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[str]:
        return [*wrapped(*args, **kwargs), name]

    return added


def adds_awaited(name: str) -> Any:
    async def added(wrapped: Any, _instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[str]:
        return [*(await wrapped(*args, **kwargs)), name]

    return added


def fresh() -> type[Any]:
    return type("Fresh", (Speaker,), {"say": Speaker.say, "awaited": Speaker.awaited})


def orders() -> list[tuple[tuple[str, str], ...]]:
    return [
        order
        for order in itertools.permutations(EVENTS)
        if all(order.index(("wrap", name)) < order.index(("restore", name)) for name in NAMES)
    ]


def test_every_order_of_wrapping_and_restoring_runs_who_is_there_once_and_leaves_the_identical_method() -> None:
    for order in orders():
        owner, here = fresh(), dict[str, Wraps]()
        for step, name in order:
            if step == "wrap":
                here[name] = Wraps()
                here[name].wrap(owner, "say", adds(name))
                here[name].wrap(owner, "awaited", adds_awaited(name))
            else:
                wraps = here.pop(name)
                wraps.restore()
            assert owner().say("hi") == ["hi", *here]
            assert asyncio.run(owner().awaited("hi")) == ["hi", *here]
        assert (owner.__dict__["say"], owner.__dict__["awaited"]) == (Speaker.__dict__["say"], Speaker.__dict__["awaited"])


@pytest.mark.parametrize("order", list(itertools.permutations(NAMES)), ids="".join)
def test_who_comes_again_is_inside_or_outside_the_others_as_before(order: tuple[str, ...]) -> None:
    owner = fresh()
    wraps = {name: Wraps() for name in NAMES}
    for name in NAMES:
        wraps[name].wrap(owner, "say", adds(name))
    replacement = owner.__dict__["say"]
    for name in order:
        wraps[name].restore()
        wraps[name].wrap(owner, "say", adds("another"))
    assert owner.__dict__["say"] is replacement
    assert owner().say("hi") == ["hi", *NAMES]


def test_somebody_who_wrapped_over_us_keeps_the_method_and_hears_nothing_of_ours_once_we_are_gone() -> None:
    owner, ours, others = fresh(), Wraps(), Wraps()
    ours.wrap(owner, "say", adds("ours"))
    beneath = owner.say

    def say(self: Any, word: str) -> list[str]:
        return [*beneath(self, word), "theirs"]

    owner.say = say
    theirs = owner.__dict__["say"]
    others.wrap(owner, "say", adds("others"))
    assert owner().say("hi") == ["hi", "ours", "others", "theirs"]
    ours.restore()
    others.restore()
    assert owner.__dict__["say"] is theirs
    assert owner().say("hi") == ["hi", "theirs"]


def test_a_method_that_somebody_replaced_by_another_is_wrapped_anew_by_all_who_were_there() -> None:
    owner, first, second = fresh(), Wraps(), Wraps()
    first.wrap(owner, "say", adds("first"))

    def new(_: Any, word: str) -> list[str]:
        return [word, "new"]

    owner.say = new
    second.wrap(owner, "say", adds("second"))
    assert owner().say("hi") == ["hi", "new", "first", "second"]
    second.restore()
    assert owner().say("hi") == ["hi", "new", "first"]
    first.restore()
    assert owner.__dict__["say"] is new
