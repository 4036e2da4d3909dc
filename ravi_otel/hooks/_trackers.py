"""Listen to hooks, and keep what they tell for whoever looks later: what model calls cost, and the events themselves."""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Self, cast
from weakref import WeakSet

from ravi_otel._forksafe import ForkLock
from ravi_otel.hooks._events import Callback, HookEvent, ReadOnly, read_only
from ravi_otel.hooks._manager import HookManager, read_manager
from ravi_otel.policy import _checks as checks
from ravi_otel.policy._limits import NANO

_log = logging.getLogger("ravi_otel.cost")
_MOST_NAMES: Final = 2_000
_MOST_CALLS: Final = 10_000
_MOST: Final = 2**53
_OTHER: Final = "_other"
MAX_EVENTS: Final = 1_000


class _Tracker:
    """Hear what managers hear, each attached once."""

    def __init__(self, hooks: HookManager | None) -> None:
        self._lock = ForkLock()
        self._attached: WeakSet[HookManager] = WeakSet()
        if hooks is not None:
            self.attach(read_manager(f"{type(self).__name__}(hooks)", hooks))

    def attach(self, hooks: HookManager) -> Self:
        """Hear what `hooks` hears, from the next event on; attached twice it hears it once."""
        read_manager(f"{type(self).__name__}.attach(hooks)", hooks)
        with self._lock.own:
            if hooks in self._attached:
                return self
            self._attached.add(hooks)
        for event, callback in self._callbacks().items():
            hooks.register(event, callback)
        return self

    def register(self, hooks: HookManager) -> Self:
        """Do what `attach` does."""
        return self.attach(hooks)

    def _callbacks(self) -> Mapping[HookEvent, Callback]:
        return {}


@dataclass(frozen=True, slots=True)
class Cost:
    """Total some calls: `usd` is what is known, and `unknown_calls` of the `calls` are not in it, because nobody knows their price.

    `unsplit_tokens` are those of answers that told their total alone: how much of it was input nobody knows.
    """

    calls: int = 0
    unknown_calls: int = 0
    usd: float = 0.0
    input_tokens: int = 0
    output_tokens: int = 0
    unsplit_tokens: int = 0


class _Sum:
    __slots__ = ("calls", "input_tokens", "nano", "output_tokens", "unknown", "unsplit_tokens")

    def __init__(self) -> None:
        self.calls = self.unknown = self.nano = self.input_tokens = self.output_tokens = self.unsplit_tokens = 0

    def cost(self) -> Cost:
        """Return a copy of it."""
        return Cost(self.calls, self.unknown, self.nano / NANO, self.input_tokens, self.output_tokens, self.unsplit_tokens)


class CostTracker(_Tracker):
    """Total spend from LLM_END by agent and model, and log it at RUN_END, on the logger `ravi_otel.cost`.

    Attach it to a HookManager, or to several: a call that more than one of them tells counts once. After 2,000 names of agents or
    models the others are counted as `_other`. Safe in threads.
    """

    def __init__(self, hooks: HookManager | None = None) -> None:
        self._total = _Sum()
        self._agents: dict[str | None, _Sum] = {}
        self._models: dict[str | None, _Sum] = {}
        self._known: dict[str, None] = {}
        super().__init__(hooks)

    def _callbacks(self) -> Mapping[HookEvent, Callback]:
        return {HookEvent.LLM_END: self.on_llm_end, HookEvent.RUN_END: self.on_run_end}

    @property
    def total_usd(self) -> float:
        """Return what is known of the cost; `unknown_calls` are not in it."""
        return self.total.usd

    @property
    def unknown_calls(self) -> int:
        """Return the number of calls whose cost nobody knows."""
        return self.total.unknown_calls

    @property
    def total(self) -> Cost:
        """Return a copy of the total."""
        with self._lock.own:
            return self._total.cost()

    @property
    def by_agent(self) -> Mapping[str | None, Cost]:
        """Return a copy of it by agent; None is what was called outside any agent."""
        return self._photographed(self._agents)

    @property
    def by_model(self) -> Mapping[str | None, Cost]:
        """Return a copy of it by the model that answered, or else was asked; None where nobody said."""
        return self._photographed(self._models)

    def _photographed(self, sums: dict[str | None, _Sum]) -> Mapping[str | None, Cost]:
        with self._lock.own:
            return MappingProxyType({name: each.cost() for name, each in sums.items()})

    def on_llm_end(self, context: Mapping[str, Any]) -> None:
        """Add one call."""
        usd, usage = context.get("cost_usd"), context.get("usage")
        nano = _nano(usd)
        sent, answered = (_tokens(usage, name) for name in ("input_tokens", "output_tokens"))
        whole = 0 if sent or answered else _tokens(usage, "total_tokens")
        with self._lock.own:
            if self._is_known(context.get("call_id")):
                return
            agent, model = _named(context.get("agent_name")), _named(context.get("model"))
            for each in (self._total, _sum_of(self._agents, agent), _sum_of(self._models, model)):
                each.calls += 1
                each.unknown += nano is None
                each.nano += nano or 0
                each.input_tokens += sent
                each.output_tokens += answered
                each.unsplit_tokens += whole

    def on_run_end(self, context: Mapping[str, Any]) -> None:
        """Log the total so far, and what of it is this agent's."""
        agent = _named(context.get("agent_name"))
        with self._lock.own:
            total, own = self._total.cost(), self._agents.get(agent, _Sum()).cost()
        if _log.isEnabledFor(logging.INFO):
            _log.info("agent %s: %s; all agents: %s", ascii(agent), _words(own), _words(total))

    def reset(self) -> None:
        """Begin at zero."""
        with self._lock.own:
            self._total = _Sum()
            self._agents.clear()
            self._models.clear()

    def _is_known(self, call_id: object) -> bool:
        """Whether another manager told of this call already; keeps the last 10,000 in mind."""
        if not isinstance(call_id, str):
            return False
        if call_id in self._known:
            return True
        self._known[call_id] = None
        if len(self._known) > _MOST_CALLS:
            del self._known[next(iter(self._known))]
        return False


class Logged(NamedTuple):
    """One event that was heard, with its read-only context; `at` is when, in seconds since 1970."""

    event: HookEvent
    context: ReadOnly
    at: float


class RunLogger(_Tracker):
    """Keep every event, the last `max_events` of them; `dropped` says how many older ones are gone. Safe in threads."""

    def __init__(self, hooks: HookManager | None = None, *, max_events: int = MAX_EVENTS) -> None:
        most = checks.count("RunLogger(max_events)", max_events, least=1, way_out="older ones give way")
        self._kept: deque[Logged] = deque(maxlen=most)
        self._heard = 0
        super().__init__(hooks)

    def __len__(self) -> int:
        return len(self._kept)

    def __iter__(self) -> Iterator[Logged]:
        return iter(self.events)

    def _callbacks(self) -> Mapping[HookEvent, Callback]:
        return {event: partial(self._keep, event) for event in HookEvent}

    @property
    def events(self) -> list[Logged]:
        """Return a copy of what is kept, oldest first."""
        with self._lock.own:
            return list(self._kept)

    @property
    def dropped(self) -> int:
        """Return the number of events that are gone, because newer ones took their place."""
        with self._lock.own:
            return self._heard - len(self._kept)

    def clear(self) -> None:
        """Forget everything, the number of those that are gone too."""
        with self._lock.own:
            self._kept.clear()
            self._heard = 0

    def _keep(self, event: HookEvent, context: ReadOnly) -> None:
        one = Logged(event, context if isinstance(context, ReadOnly) else read_only(context), time.time())  # pyright: ignore[reportUnnecessaryIsInstance]  # whoever calls it by hand
        with self._lock.own:
            self._kept.append(one)
            self._heard += 1


def _sum_of(sums: dict[str | None, _Sum], name: str | None) -> _Sum:
    if name not in sums and len(sums) >= _MOST_NAMES:
        name = _OTHER
    return sums.setdefault(name, _Sum())


def _named(name: object) -> str | None:
    return name if isinstance(name, str) else None


def _nano(usd: object) -> int | None:
    """Read an amount that anybody may have written; what is none is unknown."""
    if isinstance(usd, bool) or not isinstance(usd, int | float) or not math.isfinite(usd) or not 0 <= usd <= _MOST:
        return None
    return round(usd * NANO)


def _tokens(usage: object, name: str) -> int:
    count = cast("Mapping[str, object]", usage).get(name) if isinstance(usage, Mapping) else getattr(usage, name, None)
    return count if isinstance(count, int) and not isinstance(count, bool) and 0 <= count <= _MOST else 0


def _words(cost: Cost) -> str:
    unknown = f", and {cost.unknown_calls} of unknown cost" if cost.unknown_calls else ""
    known = replace(cost, calls=cost.calls - cost.unknown_calls)
    apart = f", and {known.unsplit_tokens} of which nobody told which they are" if known.unsplit_tokens else ""
    return f"${known.usd:.6f} for {known.calls} calls{unknown}, {known.input_tokens} input and {known.output_tokens} output tokens{apart}"
