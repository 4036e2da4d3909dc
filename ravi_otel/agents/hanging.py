"""End what hangs in a scope when the scope is over: nothing in it may go on, and nothing of it looks."""

from __future__ import annotations

from typing import Final

import anyio

from ravi_otel.enforcement import clocks
from ravi_otel.enforcement.line import Sleeper
from ravi_otel.enforcement.scope import Scope
from ravi_otel.runtime.stopping import IN_FLIGHT

GRACE_S: Final = 0.25
"""What a model call that the runtime ends is given to end."""


class _Hanging:
    """Be what is at work in a scope, as something that can be stopped: an `InFlight`, which alarms and whoever stops its run wake."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self._sleeper = Sleeper()

    @property
    def scope(self) -> Scope:
        """Give the scope."""
        return self._scope

    def stop(self) -> None:
        """Look at the scope again."""
        self._sleeper.wake()

    async def until_over(self) -> None:
        """Wait until nothing may go on in the scope."""
        forget = self._scope.on_stop(self.stop)
        IN_FLIGHT.add(self)
        try:
            while True:
                sleeper = self._sleeper = Sleeper()  # before it looks, so that nobody wakes one that is left
                if clocks.is_over(self._scope):
                    return
                await sleeper.wait(None)
        finally:
            IN_FLIGHT.discard(self)
            forget()
            self._sleeper.wake()  # where it sleeps in a thread, that ends too


async def cut_when_over(scope: Scope, stop: anyio.CancelScope) -> None:
    """Cancel what still hangs when the run is over: a tool that waits for ever. A model call ends by itself, in words of its own."""
    await _Hanging(scope).until_over()
    await anyio.sleep(GRACE_S)
    stop.cancel()
