"""Lock what hooks share, also in a forked child, and where a signal handler comes in between."""

from __future__ import annotations

import os
import threading
from typing import Final
from weakref import WeakSet

_ALL: Final[WeakSet[ForkLock]] = WeakSet()


class ForkLock:
    """Have a lock, `own`, that one thread may take twice, and that is free in a forked child whoever held it in the parent.

    Take it by `with lock.own:` alone. It is no context manager itself: what a signal's handler raises in code of ours around the
    lock's own would leave it held for ever.
    """

    __slots__ = ("__weakref__", "own")

    def __init__(self) -> None:
        self.renew()
        _ALL.add(self)

    def renew(self) -> None:
        """Be free, in a child that has none of the threads which may have held it."""
        self.own = threading.RLock()  # a signal handler of the program's may come back here


def _renew() -> None:
    for lock in _ALL:
        lock.renew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)
