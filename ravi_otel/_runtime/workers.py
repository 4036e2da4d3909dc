"""End in order in the workers of pools: they leave without `atexit`, by what their own libraries do then."""

from __future__ import annotations

import os
from collections.abc import Callable
from types import ModuleType
from typing import Any, Final

from ravi_otel._runtime.packages import Package
from ravi_otel.hooks.guard import swallow

_FIRST: Final = 100
"""Before the finalisers of others, which may take away what ours needs."""


class Leaving:
    """Be what is done when a worker ends; nothing while nobody is instrumented."""

    def __init__(self) -> None:
        self.act: Callable[[], object] | None = None

    def __call__(self, *_: object, **__: object) -> None:
        """Do it; never raises."""
        act = self.act
        if act is None:
            return
        try:
            act()
        except Exception as error:  # noqa: BLE001 - a worker ends as it would without us
            swallow("leave", error)


LEAVING: Final = Leaving()


class _Finalisers:
    """Be among the finalisers of each process that `multiprocessing` starts: whatever was there before its start is not run at its end."""

    def __init__(self, util: Any) -> None:
        self._util = util
        self._registered = False
        self._pid = 0

    def install(self) -> None:
        """Be told of each process that is started from here on, and of the end of this one, if it is such a process."""
        if not self._registered:
            self._registered = True
            self._util.register_after_fork(self, _Finalisers.join)
        if self._util.process.parent_process() is not None:
            self.join()

    def join(self) -> None:
        """Be run at the end of this process."""
        if self._pid != os.getpid():
            self._pid = os.getpid()
            self._util.Finalize(None, LEAVING, exitpriority=_FIRST)

    def remove(self) -> None:
        """Leave it to `LEAVING`, which does nothing now: nobody is taken off that list again."""


class _Signals:
    """Hear from Celery that a worker process ends."""

    def __init__(self, signals: ModuleType) -> None:
        self._signal: Any = signals.worker_process_shutdown

    def install(self) -> None:
        """Be told of it."""
        self._signal.connect(LEAVING, weak=False, dispatch_uid=id(LEAVING))

    def remove(self) -> None:
        """Be told no more."""
        self._signal.disconnect(LEAVING, dispatch_uid=id(LEAVING))


def _package(module: str, make: Callable[[Any], _Finalisers | _Signals]) -> Package:
    return Package(module, make, f"ravi-otel: workers of {module.partition('.')[0]} end without telling us: %s is missing.")


WORKERS: Final = (_package("multiprocessing.util", _Finalisers), _package("celery.signals", _Signals))
