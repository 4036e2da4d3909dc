"""Remember which files are outputs of batches, and what their batch says all of it used."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from typing import Final

from ravi_otel.policy.usage import Spent

_MOST: Final = 10_000
_LONGEST: Final = 256

Key = tuple[str, str]
"""Who is known to keep a file, empty where that is a guess, and its id: what a stranger says of a file is about none of another's."""


class BatchFiles:
    """Hold file ids that are not too long, the oldest out first beyond 10,000. Safe from any thread."""

    def __init__(self) -> None:
        self._known: OrderedDict[Key, Spent | None] = OrderedDict()
        self.renew()

    def __contains__(self, key: Key) -> bool:
        return key in self._known

    def add(self, key: Key, spent: Spent | None) -> None:
        """Note a file; what its batch told before is kept where it tells nothing now."""
        if len(key[1]) > _LONGEST:
            return
        with self._lock:
            self._known[key] = spent or self._known.get(key)
            while len(self._known) > _MOST:
                self._known.popitem(last=False)

    def usage(self, key: Key) -> Spent | None:
        """Give what the batch of a file says it used, None where it does not."""
        return self._known.get(key)

    def renew(self) -> None:
        """Start with a lock of one's own: a thread of the parent may have held it at a fork."""
        self._lock = threading.RLock()


FILES: Final = BatchFiles()
"""The process's one table."""

os.register_at_fork(after_in_child=FILES.renew)
