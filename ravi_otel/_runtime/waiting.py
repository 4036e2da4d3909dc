"""Declare that the program waits for a person or another system: `working` limits stand still meanwhile, `time` goes on."""

from __future__ import annotations

from functools import partial
from types import TracebackType
from typing import Self

from ravi_otel._enforcement.scope import Scope
from ravi_otel._runtime.late import drain, later
from ravi_otel._runtime.state import STATE
from ravi_otel.errors import ConfigurationError
from ravi_otel.policy import checks


class Waiting:
    """Be one declared wait: `with` and `async with`, once at a time."""

    __slots__ = ("_chosen", "_open", "reason")

    def __init__(self, reason: str, scope: Scope | None = None) -> None:
        self.reason = checks.name("waiting(reason)", reason)
        self._chosen = scope
        self._open: Scope | None = None

    def __repr__(self) -> str:
        return f"<Waiting for {self.reason!r} {'open' if self._open is not None else 'not open'}>"

    def __enter__(self) -> Self:
        if self._open is not None:
            raise ConfigurationError(f"waiting({self.reason!r}) is already open. Give each with block a waiting() of its own.")
        drain()  # waits that finalisers found over, before another begins
        inner, _ = STATE.locate()
        chosen = self._chosen
        scope = inner if chosen is None or chosen in inner.upwards() else chosen
        scope.begin_wait()
        self._open = scope
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        scope, self._open = self._open, None
        if scope is None:
            return
        if isinstance(error, GeneratorExit):
            later(partial(scope.end_wait, scope.engine.clock.monotonic_ns()))  # a finaliser may be running
        else:
            drain()
            scope.end_wait()

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.__exit__(kind, error, trace)


def waiting(reason: str) -> Waiting:
    """Declare a wait of the code that runs here, such as for a person's approval: `with ravi_otel.waiting("approval"):`.

    Until the block is left, `working` limits of the innermost scope and of every one around it stand still; waits at the same
    time count once. `time` limits go on. `stats().waited_s` tells what was waited. `reason` is for the reader of the code.
    """
    return Waiting(reason)
