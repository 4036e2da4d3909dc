"""Every public method of the installed client, once a flavour, and once with an odd answer."""

from __future__ import annotations

import functools
import os
from typing import Any

import openai
import pytest
from client_walk import CLIENT_ITSELF, answer_for, call, connects, methods
from memory_wire import Served
from odd_answers import ANSWERS
from operations import Operation
from programs import MODES
from side_by_side import COLOURS, Case, Program

ODD = [name for name in ANSWERS if "event" not in name and "stream" not in name]
_WAITING = ("poll", "wait_for", "upload")
"""Methods that ask again until the answer says that it is done."""


@functools.cache
def every_method() -> list[str]:
    return [path for path in methods(openai.OpenAI(api_key="k")) if path not in CLIENT_ITSELF and not connects(path)]


def program(path: str, mode: str) -> Program:
    async def run(client: Any) -> Any:
        return await call(client, path, mode)

    return run


def every(mode: str, colour: str) -> list[Case]:
    """Give each method; of the other two modes, each colour here has its half, and both have all in the long form."""
    whole = mode == "plain" or "RAVI_LONG" in os.environ
    chosen = every_method() if whole else every_method()[COLOURS.index(colour) :: 2]
    return [Case(path, program(path, mode), (answer_for(path),), colour, "admin") for path in chosen]


def oddly(colour: str) -> list[Case]:
    """Give each method another odd answer, the next one for the other colour; each colour has its half, and all in the long form."""
    cases: list[Case] = []
    for at, path in enumerate(every_method()):
        mine = "RAVI_LONG" in os.environ or at % 2 == COLOURS.index(colour)
        if mine and not any(word in path for word in _WAITING):
            name = ODD[(at * 2 + COLOURS.index(colour)) % len(ODD)]
            answers: tuple[Served, ...] = ANSWERS[name](Operation(path, dict, ""))
            cases.append(Case(f"{path} answered {name}", program(path, "plain"), answers, colour, "admin"))
    return cases


@pytest.mark.parametrize("mode", MODES)
def test_every_method_of_the_client_does_the_same(mode: str, colour: str, side_by_side: Any) -> None:
    assert side_by_side.differences(every(mode, colour), capturing=mode != "plain") == {}


def test_every_method_of_the_client_meets_an_odd_answer_the_same(colour: str, side_by_side: Any) -> None:
    assert side_by_side.differences(oddly(colour)) == {}


def test_nearly_every_method_could_be_called(side_by_side: Any) -> None:
    silent: list[str] = []
    for case in every("plain", "sync"):
        side_by_side._seen(case)
        if not side_by_side.wire.sent:
            silent.append(case.name)
    assert set(silent) <= {"beta.agents.sessions.artifacts.for_result", "webhooks.unwrap", "webhooks.verify_signature", "get_api_list"}
    assert len(every_method()) > (100 if openai.__version__.startswith("1.") else 400)
