"""Keep what a program does that instruments itself, where `RAVI_STORE` names a store."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import time
from pathlib import Path

from ravi_otel._runtime.stopping import TERMINATION
from ravi_otel._version import __version__
from ravi_otel.local.store.directory import Store, StoredRun
from ravi_otel.local.store.pruning import prune
from ravi_otel.local.store.writing import FileSink
from ravi_otel.policy import _checks as checks


def begin() -> FileSink:
    """Begin a run in the store that the environment names, and give its end in this process."""
    store = Store.open()
    name = Path(sys.argv[0]).name if sys.argv and sys.argv[0] not in ("", "-c") else "python"
    run = store.begin(checks.show(name).strip("'")[:80], argv=tuple(sys.argv), version=__version__)
    process = os.getpid()
    atexit.register(_end, store, run, process)
    TERMINATION.ends.append(lambda number: _end(store, run, process, terminated_by=number))
    return FileSink.of(run.path)


def _end(store: Store, run: StoredRun, process: int, *, terminated_by: int | None = None) -> None:
    if os.getpid() != process:
        return  # a forked child: the run is its parent's
    with contextlib.suppress(OSError):  # a full disk at the end is no reason to fail
        if terminated_by is None:
            failed = getattr(sys, "last_value", None) is not None
            run.write(outcome="failed" if failed else "ok", ended=time.time())
        else:
            run.write(outcome="signal", status=-terminated_by, ended=time.time())
        prune(store, keep=run.run_id)
