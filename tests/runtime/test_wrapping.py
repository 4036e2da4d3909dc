"""A method we wrapped is copied and pickled as the method itself would be."""

from __future__ import annotations

import asyncio
import copy
import inspect
import pickle
from collections.abc import Iterator
from typing import Any

import pytest

from ravi_otel._runtime.patching import Wraps


class Greeter:
    def __init__(self, name: str) -> None:
        self.name = name

    def greet(self) -> str:
        return f"hello {self.name}"


class Child(Greeter):
    pass


def louder(wrapped: Any, _instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return wrapped(*args, **kwargs) + "!"


@pytest.fixture(autouse=True)
def _wrapped() -> Iterator[None]:
    wraps = Wraps()
    wraps.wrap(Greeter, "greet", louder)
    yield
    wraps.restore()


def through_pickle(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))


@pytest.mark.parametrize("again", [through_pickle, copy.copy, copy.deepcopy])
@pytest.mark.parametrize("owner", [Greeter, Child])
def test_a_method_looked_up_on_its_class_is_itself_again(again: Any, owner: type[Greeter]) -> None:
    found = again(owner.greet)
    assert found == owner.greet
    assert found(Greeter("Ann")) == "hello Ann!"


@pytest.mark.parametrize("again", [through_pickle, copy.copy, copy.deepcopy])
def test_a_method_as_its_class_holds_it_is_itself_again(again: Any) -> None:
    assert again(Greeter.__dict__["greet"])(Greeter("Ann")) == "hello Ann!"


@pytest.mark.parametrize(("again", "follows"), [(through_pickle, False), (copy.copy, True), (copy.deepcopy, False)])
def test_a_bound_method_takes_its_object_along_as_a_plain_one_does(again: Any, follows: bool) -> None:
    one = Greeter("Ann")
    found = again(one.greet)
    one.name = "Bob"
    assert found() == ("hello Bob!" if follows else "hello Ann!")
    assert (found.__self__ is one) is follows


def test_what_was_pickled_with_us_can_be_had_without_us() -> None:
    data = pickle.dumps(Greeter.greet)
    wraps = Wraps()
    ours = Greeter.__dict__["greet"]
    Greeter.greet = ours.__wrapped__  # type: ignore[method-assign]  # as in a process that never had us
    try:
        assert pickle.loads(data) is Greeter.greet
    finally:
        Greeter.greet = ours  # type: ignore[method-assign]  # as it was
        wraps.restore()


class Slow:
    def at_once(self, word: str, *, loud: bool = False) -> str:
        return word.upper() if loud else word

    async def awaited(self) -> str:
        return "slowly"

    def one_by_one(self) -> Iterator[int]:
        yield 1


def test_what_stands_for_a_method_can_be_told_from_it_by_nobody_who_asks_what_it_is() -> None:
    questions = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.signature)
    names = ("at_once", "awaited", "one_by_one")
    before = [[ask(getattr(Slow, name)) for ask in questions] for name in names]
    wraps = Wraps()
    for name in names:
        wraps.wrap(Slow, name, lambda wrapped, _instance, args, kwargs: wrapped(*args, **kwargs))
    try:
        assert [[ask(getattr(Slow, name)) for ask in questions] for name in names] == before
        assert inspect.isfunction(Slow.at_once)
        assert Slow().at_once("a", loud=True) == Slow.at_once(Slow(), "a", loud=True) == "A"
        assert Slow.at_once(None, "a") == "a"  # type: ignore[arg-type]  # whoever asks it of nothing gets what the method says
        assert Slow.at_once(self=Slow(), word="a") == "a"
        with pytest.raises(TypeError, match=r"Slow\.at_once\(\) missing 2 required positional arguments: 'self' and 'word'"):
            Slow.at_once()  # type: ignore[call-arg]  # which the method itself refuses
        assert asyncio.run(Slow().awaited()) == "slowly"
        assert list(Slow().one_by_one()) == [1]
    finally:
        wraps.restore()
