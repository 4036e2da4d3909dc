"""Tell whether the process that kept something for a run is still there."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

_MOST_PID: Final = 2**31
_ENDED: Final = "ended"
"""What stands for the start of a process that is over, and whose parent has not asked for its end."""


@dataclass(frozen=True, slots=True)
class Owner:
    """Name a process among all that were: its number, when it started, and where that number means something."""

    pid: int
    start: str
    place: str

    @classmethod
    def this(cls) -> Owner:
        """Name the process that runs this."""
        return cls(os.getpid(), _start(os.getpid()), _place())

    @property
    def is_gone(self) -> bool:
        """Tell that it has surely ended; False where nobody can know, such as in another container."""
        if self.place != _place() or not 0 < self.pid < _MOST_PID:
            return False
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except OSError:
            return False  # it is there, and another user's
        now = _start(self.pid)
        return now == _ENDED or bool(now and self.start and now != self.start)


def _start(pid: int) -> str:
    """Give when a process started, in the kernel's ticks since boot; "" where the system does not say."""
    try:
        told = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        state, *fields = told.rpartition(")")[2].split()  # the name before it may hold anything, a parenthesis too
        return _ENDED if state in "ZX" else fields[18]
    except (OSError, IndexError, ValueError):
        return ""


@cache
def _place() -> str:
    """Name the boot of this machine and its space of process numbers."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except (OSError, ValueError):
        return socket.gethostname()
