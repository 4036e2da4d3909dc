"""Hold a refusal back for a moment, in either colour: a program that swallows refusals must not spin."""

from __future__ import annotations

from functools import partial

from ravi_otel._enforcement.engine import Engine
from ravi_otel._enforcement.sleeper import Sleeper
from ravi_otel._flow import Step
from ravi_otel.errors import RaviError
from ravi_otel.hooks.guard import swallow


def pause_after(engine: Engine, error: BaseException) -> float:
    """Say for how many seconds to hold `error` back; 0 for what is no refusal of ours, and where nobody asked for pauses."""
    asked = engine.pause_after
    if asked is None or not isinstance(error, RaviError):
        return 0.0
    try:
        return asked(error)
    except Exception as bug:  # noqa: BLE001 - our own bug never replaces the refusal
        swallow("pause", bug)
        return 0.0


def pause(seconds: float) -> Step:
    """Give the step that sleeps; synchronous code on a thread that runs an event loop does not."""
    sleeper = Sleeper()
    return Step(partial(sleeper.block, seconds), partial(sleeper.wait, seconds))
