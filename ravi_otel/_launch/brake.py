"""Slow a program down that swallows refusals, and tell the launcher of each."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Callable
from typing import Final

from ravi_otel._enforcement.ending import is_unkept
from ravi_otel._enforcement.errors_text import limit_of
from ravi_otel._launch import notes
from ravi_otel._launch.plan import FREE, MOST_NOTES, Plan
from ravi_otel.errors import BudgetContendedError, BudgetError, SpawnDeniedError
from ravi_otel.policy._limits import Limit

PAUSE_S: Final = 0.1
"""How long each one after them is held back."""

MOST_UNHEARD: Final = 100
"""Refusals after which a process ends itself where the launcher cannot be told of them."""


class Brake:
    """Count the refusals of the plan's limits in this process; those of the program's own limits are its own affair."""

    def __init__(self, plan: Plan, limits: tuple[Limit, ...], on_refusal: Callable[[str, bool], object]) -> None:
        self._plan = plan
        self._limits = frozenset(limits)
        self._on_refusal = on_refusal
        self._count = itertools.count(1)

    def __call__(self, error: BaseException) -> float:
        """Note a refusal; give the seconds to hold it back."""
        if not self._is_ours(error):
            return 0.0
        number = next(self._count)
        unkept = is_unkept(error)
        self._on_refusal(str(error), unkept)
        if number <= MOST_NOTES:
            try:
                notes.leave(self._plan.notes, "refused", str(error), unkept=unkept)
            except OSError:  # a full disk: the launcher hears nothing, so the process ends itself
                if self._plan.terminate and number >= MOST_UNHEARD:
                    os.kill(os.getpid(), signal.SIGTERM)
        return PAUSE_S if self._plan.terminate and number > FREE else 0.0

    def _is_ours(self, error: BaseException) -> bool:
        if isinstance(error, (BudgetContendedError, SpawnDeniedError)) or not isinstance(error, BudgetError):
            return False
        return limit_of(error) in self._limits or is_unkept(error)
