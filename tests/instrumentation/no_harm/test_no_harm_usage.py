"""The one change we make to a request: a stream is asked for its usage, on hosts that are known to tell it, and nobody sees."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from memory_wire import Answers
from odd_answers import ANSWERS
from operations import Operation, present
from programs import MODES, program
from side_by_side import COLOURS, Case

STREAMS = {name: operation for name, operation in present().items() if name in {"chat stream", "completions stream", "chat helper"}}
ASKED = '"stream_options":{"include_usage":true}'


def as_asked(name: str, operation: Operation) -> tuple[Answers, ...]:
    """Answer as servers do: with usage, and null before it, when that was asked for, and else without."""
    events = [(kind, _untold(data)) for kind, data in operation.events or () if data == "[DONE]" or data["choices"]]
    both = zip(ANSWERS[name](operation), ANSWERS[name](replace(operation, events=events)), strict=True)
    return tuple(lambda request, told=told, untold=untold: told if b"include_usage" in request.content else untold for told, untold in both)


def _untold(data: Any) -> Any:
    return data if isinstance(data, str) else {key: value for key, value in data.items() if key != "usage"}


def cases(name: str, client: str) -> list[Case]:
    operation = STREAMS[name]
    names = ["as ever", "error event", "429, then well", "no end"]
    return [
        Case(f"{each} {mode} {way} {colour}", program(operation, mode, "as it is", way), as_asked(each, operation), colour, client)
        for each in names
        for mode in MODES
        for way in ("whole", "some")
        for colour in COLOURS
    ]


@pytest.mark.parametrize("client", ["openai's host", "azure"])
@pytest.mark.parametrize("name", STREAMS)
def test_nothing_but_that_option_differs_where_usage_is_asked_for(name: str, client: str, side_by_side: Any) -> None:
    found = side_by_side.differences(cases(name, client), usage=True)
    other = {case: [line for line in lines if not (line.startswith(".sent[") and _only_asked(line))] for case, lines in found.items()}
    told = {case: lines for case, lines in other.items() if lines}
    assert told == {}, "\n".join(f"{name}\n    {line}" for name, lines in told.items() for line in lines)
    assert STREAMS[name].helper or all("with_" not in case for case in found), "bytes that the program reads itself are left alone"


def _only_asked(line: str) -> bool:
    """Tell that the two requests differ in the option, and in the length that this makes."""
    return ASKED in line or "content-length" in line


@pytest.mark.parametrize("name", STREAMS)
def test_on_hosts_nobody_knows_nothing_is_asked(name: str, side_by_side: Any) -> None:
    assert side_by_side.differences(cases(name, "plain"), usage=True) == {}
