"""What is said of a target that no tools can be made of."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import ravi_otel
from ravi_otel import ConfigurationError, instrument_tools


def steps() -> Iterator[int]:
    yield 1


def search(query: str) -> str:
    return query


@pytest.mark.parametrize("target", [max, {max}, 3])
def test_what_instrument_is_given_is_refused_in_its_own_words(target: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"^instrument\(tools="):
        ravi_otel.instrument(tools=target)
    with pytest.raises(ConfigurationError, match=r"^instrument_tools\("):
        instrument_tools(target)


def test_a_target_without_a_function_is_said_once_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with instrument_tools({"steps": steps}) as found:
        assert found.names == ()
    (said,) = caplog.messages
    assert said.startswith("ravi-otel: instrument_tools({'steps': ")
    assert "found no function to make a tool of: steps is a generator function: give back the whole result" in said


def test_an_empty_target_is_said_to_be(caplog: pytest.LogCaptureFixture) -> None:
    instrument_tools([]).remove()
    assert caplog.messages == ["ravi-otel: instrument_tools([]) found no function to make a tool of."]


def test_a_target_whose_functions_are_tools_already_is_nothing_to_speak_of(caplog: pytest.LogCaptureFixture) -> None:
    tools = {"search": search}
    with instrument_tools(tools), instrument_tools(tools) as again:
        assert again.names == ()
    assert caplog.messages == []
