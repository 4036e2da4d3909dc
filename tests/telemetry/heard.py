"""Telemetry whose listeners are told by hand, one after the other, as the engine tells them."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from typing import Any

from ravi_otel._telemetry import telemetry
from ravi_otel.hooks._listeners import Listener


class Telemetry(telemetry.Telemetry):
    """Every method of a `Listener` tells all of them; what they return to be entered is entered together, or None."""

    def __getattr__(self, name: str) -> Callable[..., AbstractContextManager[None] | None]:
        if not hasattr(Listener, name):
            raise AttributeError(name)
        return partial(self._tell, name)

    def _tell(self, name: str, *told: Any) -> AbstractContextManager[None] | None:
        entered = [given for each in self.listeners if (given := getattr(each, name)(*told)) is not None]
        return _together(entered) if entered else None


@contextmanager
def _together(managers: Sequence[AbstractContextManager[object]]) -> Generator[None]:
    with ExitStack() as stack:
        for each in managers:
            stack.enter_context(each)
        yield
