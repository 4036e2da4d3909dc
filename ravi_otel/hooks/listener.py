"""Tell everybody who listens, in order, and survive every one of them."""

from __future__ import annotations

import logging
import os
import threading
import time
from contextlib import AbstractContextManager, ExitStack, nullcontext

from ravi_otel.hooks.records import CallRecord, CountEvent, LimitEvent, ScopeView, SpawnEvent, ToolRecord

_log = logging.getLogger("ravi_otel")


class Listener:
    """Hear what the engine does; override what you need.

    Synchronous and ordered. The three `…_started` and `scope_opened` may return a context manager: it is entered
    before the work and left after it, which is how a span becomes current. It never spans a return to the caller: a
    stream's call is ended by `call_ended`, long after its context manager was left.
    """

    def scope_opened(self, scope: ScopeView) -> AbstractContextManager[object] | None:
        """Hear that a run, agent or block was entered."""

    def scope_closed(self, scope: ScopeView) -> None:
        """Hear that it was left; its counters may still move when a stream outlives it."""

    def call_started(self, record: CallRecord) -> AbstractContextManager[object] | None:
        """Hear that a model call begins, before it is admitted."""

    def call_ended(self, record: CallRecord) -> None:
        """Hear that it ended, was refused, or that its stream is over; once per call."""

    def tool_started(self, record: ToolRecord) -> AbstractContextManager[object] | None:
        """Hear that a tool call begins, before it is admitted."""

    def tool_ended(self, record: ToolRecord) -> None:
        """Hear that it ended or was refused."""

    def limit_event(self, event: LimitEvent, at: CallRecord | ToolRecord | None) -> None:
        """Hear that a limit is near or exceeded, with the operation that brought it there, if any."""

    def spawn_event(self, event: SpawnEvent) -> None:
        """Hear what became of a request for a slot."""

    def counted(self, event: CountEvent) -> None:
        """Hear of something that is only counted."""
