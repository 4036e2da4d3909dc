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
            _send(plan, "outside", said)
        why = f"this version of {strange[0]} has other methods than the ones we wrap. Supported are {strange[1]}" if strange else ""
    except Exception as error:  # noqa: BLE001 - the program runs whatever is wrong with us, and is told of it
        why = str(error) if isinstance(error, RaviError) else f"ravi-otel could not be started in it ({type(error).__name__}: {error})."
    if why:
        _log.error("ravi-otel: process %d is not observed and its limits are not in force: %s", os.getpid(), why)
        if plan is not None:
            _send(plan, "failed", why)


def surroundings(plan: Plan) -> Surroundings:
    """Return what a plan puts around the process."""
    limits = tuple(parse_limit(spec) for spec, _ in plan.limits)
    openings = OpenedScopes(plan, partial(_send, plan, "opened"))
    threads = ThreadExceptions(lambda error: _report_uncaught(plan, error, thread=True), _SAID)

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
    """Report that this process ends in order, and whether a refusal that nobody caught is why."""
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
"""How long each one after them is held back."""

MOST_UNHEARD: Final = 100
"""Refusals after which a process ends itself where the launcher cannot be told of them."""


class RefusalThrottle:
    """Slow a program down that swallows refusals of the plan's limits, and tell the launcher of each.

    Those of the program's own limits are its own affair.
    """

    def __init__(self, plan: Plan, limits: tuple[Limit, ...], on_refusal: Callable[[str, bool], object]) -> None:
        self._plan = plan
        self._limits = frozenset(limits)
        self._on_refusal = on_refusal
        self._count = itertools.count(1)

    def __call__(self, error: BaseException) -> float:
        """Count a refusal, and return the seconds to hold it back."""
        if not self._is_ours(error):
            return 0.0
        number = next(self._count)
        unkept = is_unkept(error)
        self._on_refusal(str(error), unkept)
        if number <= MOST_MESSAGES:
            try:
                Messages(self._plan.messages).send("refused", str(error), unkept=unkept)
            except OSError:  # a full disk: the launcher hears nothing, so the process ends itself
                if self._plan.terminate and number >= MOST_UNHEARD:
                    os.kill(os.getpid(), signal.SIGTERM)
        return PAUSE_S if self._plan.terminate and number > FREE else 0.0

    def _is_ours(self, error: BaseException) -> bool:
        if isinstance(error, (BudgetContendedError, SpawnDeniedError)) or not isinstance(error, BudgetError):
            return False
        return limit_of(error) in self._limits or is_unkept(error)


_MOST_LINKS: Final = 64


class ThreadExceptions:
    """Report threads that a limit ended: a hook before the one for exceptions in threads, from the first refusal on, and not before.

    A program may set a hook of its own at any time and forget ours: `watch` stands before that one then. `said` is asked each time.
    """

    def __init__(self, report: Callable[[BaseException], object], said: Iterable[str] = ()) -> None:
        self._report = report
        self._said = said
        self._hook: Callable[..., Any] | None = None
        self._reported: BaseException | None = None

    def watch(self) -> None:
        """Stand before whatever hook is set now."""
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
    """Whether `error` is a refusal, was raised because of one, is a group that holds one, or says one of the sentences `said`."""
    return refusal_in(error, said) is not None


def refusal_in(error: BaseException, said: Iterable[str] = ()) -> BaseException | None:
    """Return the refusal in it, or what says one of the sentences."""
    sentences = tuple(said)  # at once: other threads may be refused meanwhile
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
    """Whether the text of an error has one of these sentences in it."""
    try:
        text = str(error) if sentences else ""
    except Exception:  # noqa: BLE001 - the program's own class, and our only question
        return False
    return any(sentence in text for sentence in sentences)
