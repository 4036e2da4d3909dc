"""Keep what hooks hear, for whoever looks later."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from functools import partial
from typing import Final, NamedTuple, Self
from weakref import WeakSet

from ravi_otel._forksafe import ForkLock
from ravi_otel.errors import ConfigurationError
from ravi_otel.hooks.dispatch import HookManager, read_manager
from ravi_otel.hooks.events import HookEvent, ReadOnly, read_only
from ravi_otel.policy import checks

MAX_EVENTS: Final = 1_000


class Logged(NamedTuple):
    """Be one event that was heard, with its read-only context; `at` is when, in seconds since 1970."""

    event: HookEvent
    context: ReadOnly
    at: float


class RunLogger:
    """Keep every event, the last `max_events` of them; `dropped` says how many older ones are gone. Safe in threads."""

    def __init__(self, hooks: HookManager | None = None, *, max_events: int = MAX_EVENTS) -> None:
        if isinstance(max_events, bool) or not isinstance(max_events, int) or max_events < 1:  # pyright: ignore[reportUnnecessaryIsInstance]  # the caller may not type-check
            raise ConfigurationError(f"RunLogger(max_events={checks.show(max_events)}) must be a whole number, 1 or more.")
        self._lock = ForkLock()
        self._attached: WeakSet[HookManager] = WeakSet()
        self._kept: deque[Logged] = deque(maxlen=max_events)
        self._heard = 0
        if hooks is not None:
            self.attach(read_manager("RunLogger(hooks)", hooks))

    def __len__(self) -> int:
        return len(self._kept)

    def __iter__(self) -> Iterator[Logged]:
        return iter(self.events)

    def attach(self, hooks: HookManager) -> Self:
        """Keep what `hooks` hears, from the next event on; attached twice it hears it once."""
        read_manager("RunLogger.attach(hooks)", hooks)
        with self._lock.own:
            if hooks in self._attached:
                return self
            self._attached.add(hooks)
        for event in HookEvent:
            hooks.register(event, partial(self._keep, event))
        return self

    def register(self, hooks: HookManager) -> Self:
        """Do what `attach` does."""
        return self.attach(hooks)

    @property
    def events(self) -> list[Logged]:
        """Photograph what is kept, oldest first."""
        with self._lock.own:
            return list(self._kept)

    @property
    def dropped(self) -> int:
        """Give the number of events that are gone, because newer ones took their place."""
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
