"""Put this process into the launched run, once the program has imported a client, or us."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
from collections import deque
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Final

from ravi_otel._enforcement.ending import is_unkept
from ravi_otel._instrumentation.uncovered import UNCOVERED
from ravi_otel._instrumentation.uncovered_hosts import Uncovered
from ravi_otel._launch import notes
from ravi_otel._launch.around import Openings, of_service, run_of
from ravi_otel._launch.brake import Brake
from ravi_otel._launch.counting import chosen_by, open_in_program
from ravi_otel._launch.plan import VARIABLE, Plan
from ravi_otel._launch.uncaught import Threads, ended_by_limit, refusal_in, says
from ravi_otel._runtime.settings import Surroundings
from ravi_otel._runtime.state import STATE
from ravi_otel._setup import outside, surround, wrap_again
from ravi_otel.errors import BudgetError, RaviError
from ravi_otel.policy._grammar import parse_limit
from ravi_otel.policy._limits import Admission

_log = logging.getLogger("ravi_otel")

_SAID: Final[deque[str]] = deque(maxlen=64)
"""What the last refusals of this process said."""

_UNKEPT: Final[deque[str]] = deque(maxlen=64)
"""Those of them that were the store's doing."""


class _Begun:
    """Remember that this process, or the one it was forked from, is in the run already."""

    plan: Plan | None = None


def begin(text: str | None = None) -> None:
    """Hold the process to a plan: `text`, or what the environment says; nothing without one. Again, wrap a client imported anew.

    Never raises: what goes wrong is told to the launcher, whose report then says that limits were not in force.
    """
    text = text or os.environ.get(VARIABLE)
    if not text:
        return
    plan = _Begun.plan
    try:
        if plan is None:
            plan = _Begun.plan = Plan.read(text)
            surround(surroundings(plan))
        strange = wrap_again()
        for said in outside():
            _leave(plan, "outside", said)
        why = f"this version of {strange[0]} has other methods than the ones we wrap. Supported are {strange[1]}" if strange else ""
    except Exception as error:  # noqa: BLE001 - the program runs whatever is wrong with us, and is told of it
        why = str(error) if isinstance(error, RaviError) else f"ravi-otel could not be started in it ({type(error).__name__}: {error})."
    if why:
        _log.error("ravi-otel: process %d is not observed and its limits are not in force: %s", os.getpid(), why)
        if plan is not None:
            _leave(plan, "failed", why)


def surroundings(plan: Plan) -> Surroundings:
    """Make of a plan what is put around the process."""
    limits = tuple(parse_limit(spec) for spec, _ in plan.limits)
    openings = Openings(plan, partial(_leave, plan, "opened"))
    threads = Threads(lambda error: _uncaught(plan, error, thread=True), _SAID)

    def refused(sentence: str, unkept: bool) -> None:
        _SAID.append(sentence)
        if unkept:
            _UNKEPT.append(sentence)
        threads.watch()

    if plan.quiet:  # a handler that does nothing keeps them from logging's last resort, which prints what nobody else takes
        logging.getLogger("ravi_otel.limits").addHandler(logging.NullHandler())
    UNCOVERED.tell = partial(_uncovered, plan)
    return Surroundings(
        run=run_of(plan),
        of_service=of_service(plan),
        ledger=open_in_program(plan, lambda: STATE.engine.count("store_errors")),
        observe=plan.observe,
        admission=Admission(plan.admission),
        warn_at=plan.warn_at,
        prices=plan.prices or None,
        pause_after=Brake(plan, limits, refused),
        when_opened=openings or None,
        when_told=partial(_leave, plan, "working"),
        when_left=partial(_left, plan),
        store=Path(plan.directory).absolute().parents[1],
        content=plan.content,
        chosen=chosen_by(plan),
    )


def _left(plan: Plan) -> None:
    """Say that this process ends in order, and whether a refusal that nobody caught is why."""
    error = getattr(sys, "last_value", None)
    if isinstance(error, BaseException) and ended_by_limit(error, _SAID):
        _uncaught(plan, error)
    UNCOVERED.tell_all()
    _leave(plan, "left")


def _uncovered(plan: Plan, so_far: Uncovered) -> None:
    _leave(plan, "uncovered", json.dumps(asdict(so_far)))


def _uncaught(plan: Plan, error: BaseException, *, thread: bool = False) -> None:
    refusal = refusal_in(error, _SAID) or error
    unkept = is_unkept(refusal) or (not isinstance(refusal, BudgetError) and says(refusal, tuple(_UNKEPT)))
    _leave(plan, "uncaught", str(refusal), thread=thread, unkept=unkept)


def _leave(plan: Plan, what: notes.What, text: str = "", *, thread: bool = False, unkept: bool = False) -> None:
    with contextlib.suppress(OSError):  # a full disk must not change what the program sees
        notes.leave(plan.notes, what, text, thread=thread, unkept=unkept)
