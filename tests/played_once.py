"""Play what is dear once for all workers of a session: tests of one story may run in several."""

from __future__ import annotations

import fcntl
import os
import pickle
from collections.abc import Callable
from typing import TypeVar

import pytest

T = TypeVar("T")


def played_once(folders: pytest.TempPathFactory, name: str, play: Callable[[], T]) -> T:
    """Give what `play` gives, from whichever worker came first; the others wait for it."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        return play()
    kept = folders.getbasetemp().parent / f"{name}.pickle"  # the session's, above the workers' own
    with kept.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not kept.exists():
            kept.write_bytes(pickle.dumps(play()))
        told: T = pickle.loads(kept.read_bytes())
    return told
