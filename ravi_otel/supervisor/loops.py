"""Notice that an agent goes round in circles: the same call, two calls in turn, one tool too often, one error again and again."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from ravi_otel._forksafe import ForkLock

PER_TOOL: Final = "loop_detected:per_tool_limit"
REPEATED: Final = "loop_detected:signature_repeat"
ALTERNATING: Final = "loop_detected:alternation"
SAME_ERROR: Final = "loop_detected:same_error"

_SAME_ERRORS: Final = 3
_REPEATS: Final = 1
_TURNS: Final = 4
_MOST_ERRORS: Final = 1000


@dataclass(frozen=True, slots=True)
class LoopRules:
    """Say when a call is one too many.

    A call with the same tool and arguments runs `read_only_repeat_limit` times for a tool of `read_only`, once for any other.
    `per_tool_limit` is how often one tool runs at all, a number for each or by name; None has no ceiling.
    """

    read_only: frozenset[str] = frozenset()
    read_only_repeat_limit: int = 2
    per_tool_limit: int | Mapping[str, int] | None = None


class Loops:
    """Remember the calls of one run that were executed; threads may share it."""

    def __init__(self, rules: LoopRules) -> None:
        self._rules = rules
        self._lock = ForkLock()
        self._tools: Counter[str] = Counter()
        self._calls: Counter[tuple[str, str]] = Counter()
        self._latest: deque[tuple[str, str]] = deque(maxlen=_TURNS - 1)
        self._errors: Counter[tuple[str, str]] = Counter()

    def enter(self, tool: str, signature: str) -> str | None:
        """Count one call that is about to run, in one step with the look at it; give the loop it would close, and then it is not counted.

        `signature` stands for the exact arguments.
        """
        call, rules = (tool, signature), self._rules
        limit = rules.per_tool_limit
        ceiling = limit.get(tool) if isinstance(limit, Mapping) else limit
        with self._lock.own:
            if ceiling is not None and self._tools[tool] >= ceiling:
                return PER_TOOL
            if self._calls[call] >= (rules.read_only_repeat_limit if tool in rules.read_only else _REPEATS):
                return REPEATED
            if len(self._latest) == _TURNS - 1:
                first, second, third = self._latest
                if first == third and second == call and first != second:
                    return ALTERNATING
            stuck = self._stuck(tool) if self._errors else None
            if stuck is None:
                self._tools[tool] += 1
                self._calls[call] += 1
                self._latest.append(call)
            return stuck

    def failed(self, tool: str, error: str) -> str | None:
        """Count one error of a tool, by its text; give the loop when it came for the third time, from then on each time."""
        with self._lock.own:
            if len(self._errors) >= _MOST_ERRORS:
                self._errors = Counter(dict(self._errors.most_common(_MOST_ERRORS // 2)))
            self._errors[(tool, error)] += 1
            return self._stuck(tool)

    def _stuck(self, tool: str) -> str | None:
        return SAME_ERROR if any(times >= _SAME_ERRORS and where == tool for (where, _), times in self._errors.items()) else None
