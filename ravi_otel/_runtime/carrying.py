"""Carry the scope into threads: what a run starts on a thread or hands to an executor belongs to the run.

Tasks inherit the OpenTelemetry context by themselves; threads do not. A pool's worker threads carry nothing of their
own, or one run's scope would leak into the next run's work: each submission carries its own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from opentelemetry import context as otel_context
from opentelemetry.context import Context

from ravi_otel import _current
from ravi_otel._flow import Inside, enclosures
from ravi_otel._runtime.patching import Wraps
from ravi_otel.hooks._manager import is_inside

_POOLED = frozenset({"DummyProcess"})
"""Thread classes whose instances are workers of a pool that serves everybody (`multiprocessing.pool.ThreadPool`)."""


class Carrying:
    """Make threads and thread pools carry the scope, while installed."""

    def __init__(self) -> None:
        self._wraps = Wraps()
        self._active = False
        self._hiring = threading.local()

    def install(self) -> None:
        """Wrap `Thread.start` and `ThreadPoolExecutor.submit`; nothing to do where they are wrapped already."""
        if self._active:
            return
        # Gevent puts a subclass in the place of `threading.Thread`, which inherits `start`.
        starts = next((kind for kind in threading.Thread.__mro__ if "start" in kind.__dict__), threading.Thread)
        self._wraps.wrap(starts, "start", self._start)
        self._wraps.wrap(ThreadPoolExecutor, "submit", self._submit)
        self._active = True

    def remove(self) -> None:
        """Put both back."""
        self._active = False
        self._wraps.restore()

    def _start(self, wrapped: Callable[..., Any], thread: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        context = self._carried()
        hired = getattr(self._hiring, "now", False) or type(thread).__name__ in _POOLED
        if context is None or hired or thread.ident is not None or "run" in thread.__dict__:
            return wrapped(*args, **kwargs)
        run, known = thread.run, enclosures()

        def carried_run() -> None:
            thread.__dict__.pop("run", None)
            with _current.Attachment(context), Inside(known):
                run()

        thread.run = carried_run
        try:
            return wrapped(*args, **kwargs)
        except BaseException:
            thread.__dict__.pop("run", None)  # no thread was started, and the object is as it was
            raise

    def _submit(self, wrapped: Callable[..., Any], _pool: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not self._active:
            return wrapped(*args, **kwargs)
        context = self._carried()
        self._hiring.now = True
        try:
            if context is None or not args or not callable(args[0]):
                return wrapped(*args, **kwargs)
            return wrapped(_Carried(context, args[0]), *args[1:], **kwargs)
        finally:
            self._hiring.now = False

    def _carried(self) -> Context | None:
        if not self._active:
            return None
        context = otel_context.get_current()
        return None if _current.entered(context) is None and not is_inside(context) else context


class _Carried:
    """Run a function in the context it was submitted from."""

    __slots__ = ("_context", "_fn", "_known")

    def __init__(self, context: Context, fn: Callable[..., Any]) -> None:
        self._context = context
        self._fn = fn
        self._known = enclosures()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with _current.Attachment(self._context), Inside(self._known):
            return self._fn(*args, **kwargs)
