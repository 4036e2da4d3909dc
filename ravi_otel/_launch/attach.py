"""Put this process into the launched run, once the program has imported a client, or us."""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Final

from ravi_otel._enforcement.ending import is_unkept
from ravi_otel._enforcement.errors_text import limit_of
from ravi_otel._instrumentation.uncovered import UNCOVERED
from ravi_otel._instrumentation.uncovered_hosts import Uncovered
from ravi_otel._launch.limits import OpenedScopes, of_service, run_of
from ravi_otel._launch.plan import FREE, MOST_MESSAGES, VARIABLE, Messages, Plan, What
from ravi_otel._runtime.settings import Surroundings
from ravi_otel._runtime.state import STATE
from ravi_otel._setup import outside, surround, wrap_again
from ravi_otel.errors import BudgetContendedError, BudgetError, RaviError, SpawnDeniedError
from ravi_otel.policy._grammar import parse_limit
from ravi_otel.policy._limits import Admission, Limit

_log = logging.getLogger("ravi_otel")

_SAID: Final[deque[str]] = deque(maxlen=64)
"""The sentences of the last refusals of this process."""

_UNKEPT: Final[deque[str]] = deque(maxlen=64)
"""The sentences of those that the store caused."""


class _Begun:
    """The plan of this process, or of the one it was forked from, None before `begin`."""

    plan: Plan | None = None


def begin(text: str | None = None) -> None:
    """Apply the plan in `text`, or in the environment, to this process; called again, wrap a client that was imported again.

    Never raises: an error is sent to the launcher, which then reports that limits were not in force.
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
            _send(plan, "outside", said)
        why = f"this version of {strange[0]} has other methods than the ones we wrap. Supported are {strange[1]}" if strange else ""
    except Exception as error:  # noqa: BLE001 - the program runs on, and the error is logged
        why = str(error) if isinstance(error, RaviError) else f"ravi-otel could not be started in it ({type(error).__name__}: {error})."
    if why:
        _log.error("ravi-otel: process %d is not observed and its limits are not in force: %s", os.getpid(), why)
        if plan is not None:
            _send(plan, "failed", why)


def surroundings(plan: Plan) -> Surroundings:
    """Return the settings and scopes that a plan puts around the process."""
    limits = tuple(parse_limit(spec) for spec, _ in plan.limits)
    openings = OpenedScopes(plan, partial(_send, plan, "opened"))
    threads = ThreadExceptions(lambda error: _report_uncaught(plan, error, thread=True), _SAID)

    def refused(sentence: str, unkept: bool) -> None:
        _SAID.append(sentence)
        if unkept:
            _UNKEPT.append(sentence)
        threads.watch()

    if plan.quiet:  # without any handler, logging's last resort would print the events
        logging.getLogger("ravi_otel.limits").addHandler(logging.NullHandler())
    UNCOVERED.tell = partial(_uncovered, plan)
    return Surroundings(
        run=run_of(plan),
        of_service=of_service(plan),
        ledger=plan.open_in_program(lambda: STATE.engine.count("store_errors")),
        observe=plan.observe,
        admission=Admission(plan.admission),
        warn_at=plan.warn_at,
        prices=plan.prices or None,
        pause_after=RefusalThrottle(plan, limits, refused),
        when_opened=openings or None,
        when_told=partial(_send, plan, "working"),
        when_left=partial(_left, plan),
        store=Path(plan.directory).absolute().parents[1],
        content=plan.content,
        chosen=plan.choice,
    )


def _left(plan: Plan) -> None:
    """Report that this process ends normally, and whether an uncaught refusal is why."""
    error = getattr(sys, "last_value", None)
    if isinstance(error, BaseException) and ended_by_limit(error, _SAID):
        _report_uncaught(plan, error)
    UNCOVERED.tell_all()
    _send(plan, "left")


def _uncovered(plan: Plan, so_far: Uncovered) -> None:
    _send(plan, "uncovered", json.dumps(asdict(so_far)))


def _report_uncaught(plan: Plan, error: BaseException, *, thread: bool = False) -> None:
    refusal = refusal_in(error, _SAID) or error
    unkept = is_unkept(refusal) or (not isinstance(refusal, BudgetError) and says(refusal, tuple(_UNKEPT)))
    _send(plan, "uncaught", str(refusal), thread=thread, unkept=unkept)


def _send(plan: Plan, what: What, text: str = "", *, thread: bool = False, unkept: bool = False) -> None:
    with contextlib.suppress(OSError):  # a full disk must not change what the program sees
        Messages(plan.messages).send(what, text, thread=thread, unkept=unkept)


PAUSE_S: Final = 0.1
"""How long each refusal after the free ones is delayed."""

MOST_UNHEARD: Final = 100
"""Refusals after which a process ends itself if they cannot be reported to the launcher."""


class RefusalThrottle:
    """A throttle for a program that swallows refusals of the plan's limits, which reports each to the launcher.

    Refusals of the program's own limits are ignored.
    """

    def __init__(self, plan: Plan, limits: tuple[Limit, ...], on_refusal: Callable[[str, bool], object]) -> None:
        self._plan = plan
        self._limits = frozenset(limits)
        self._on_refusal = on_refusal
        self._count = itertools.count(1)

    def __call__(self, error: BaseException) -> float:
        """Count a refusal, and return the seconds to delay it."""
        if not self._is_ours(error):
            return 0.0
        number = next(self._count)
        unkept = is_unkept(error)
        self._on_refusal(str(error), unkept)
        if number <= MOST_MESSAGES:
            try:
                Messages(self._plan.messages).send("refused", str(error), unkept=unkept)
            except OSError:  # such as a full disk: the launcher cannot end the process, so it ends itself
                if self._plan.terminate and number >= MOST_UNHEARD:
                    os.kill(os.getpid(), signal.SIGTERM)
        return PAUSE_S if self._plan.terminate and number > FREE else 0.0

    def _is_ours(self, error: BaseException) -> bool:
        if isinstance(error, (BudgetContendedError, SpawnDeniedError)) or not isinstance(error, BudgetError):
            return False
        return limit_of(error) in self._limits or is_unkept(error)


_MOST_LINKS: Final = 64


class ThreadExceptions:
    """A reporter of threads that a limit ended: a hook before `threading.excepthook`, from the first refusal on.

    If the program has set another hook in the meantime, `watch` wraps that one. `said` is read each time.
    """

    def __init__(self, report: Callable[[BaseException], object], said: Iterable[str] = ()) -> None:
        self._report = report
        self._said = said
        self._hook: Callable[..., Any] | None = None
        self._reported: BaseException | None = None

    def watch(self) -> None:
        """Wrap the hook that is set now, unless it is ours."""
        if threading.excepthook is not self._hook:
            threading.excepthook = self._hook = self._before(threading.excepthook)

    def _before(self, previous: Callable[..., Any]) -> Callable[..., Any]:
        def heard(args: threading.ExceptHookArgs) -> Any:
            error = args.exc_value
            if error is not None and self._reported is not error and ended_by_limit(error, self._said):
                self._reported = error
                self._report(error)
            return previous(args)

        return heard


def ended_by_limit(error: BaseException, said: Iterable[str] = ()) -> bool:
    """Whether `error` is a refusal, was raised because of one, is a group with one, or has one of the sentences `said`."""
    return refusal_in(error, said) is not None


def refusal_in(error: BaseException, said: Iterable[str] = ()) -> BaseException | None:
    """Return the first error in the chain of `error` that is a refusal or has one of the sentences, None without one."""
    sentences = tuple(said)  # a copy, as other threads may append meanwhile
    waiting: list[BaseException] = [error]
    for _ in range(_MOST_LINKS):
        if not waiting:
            return None
        one = waiting.pop()
        if isinstance(one, BudgetError) or says(one, sentences):
            return one
        if isinstance(one, BaseExceptionGroup):
            waiting.extend(one.exceptions)  # pyright: ignore[reportUnknownArgumentType, reportUnknownMemberType]  # of whatever type
        behind = one.__cause__ or (None if one.__suppress_context__ else one.__context__)
        if behind is not None:
            waiting.append(behind)
    return None


def says(error: BaseException, sentences: Sequence[str]) -> bool:
    """Whether the text of an error contains one of these sentences."""
    try:
        text = str(error) if sentences else ""
    except Exception:  # noqa: BLE001 - an error of the program's own class
        return False
    return any(sentence in text for sentence in sentences)
