"""Tell one process from every other, also after its number was given to another one."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def this_one() -> dict[str, Any]:
    """Describe this process: its number, when it started and on which machine, as far as the system tells."""
    return {"pid": os.getpid(), "start": _start(os.getpid()), "machine": _machine()}


def lives(described: Mapping[str, Any]) -> bool | None:
    """Tell whether a process that `this_one` described still runs; None when that cannot be known from here.

    None of an earlier boot of this machine does.
    """
    pid, start = described.get("pid"), described.get("start")
    if not isinstance(pid, int) or isinstance(pid, bool) or not 0 < pid < 2**31:
        return None
    if described.get("machine") != _machine():
        return False if _is_of_an_earlier_boot(described.get("machine")) else None
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # it is there, and another user's
    except OSError:
        return None
    now = _start(pid)
    return None if now is None or start is None else now == start


def is_there(pid: int) -> bool:
    """Tell whether some process has this number now."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except OSError:
        return False
    return True


def began(pid: int) -> float | None:
    """Give when a process started, in UTC epoch seconds; None when that cannot be known."""
    ticks = _start(pid)
    try:
        told = Path("/proc/stat").read_text(encoding="ascii", errors="replace")
        (boot,) = [line.split()[1] for line in told.splitlines() if line.startswith("btime ")]
        return None if ticks is None else int(boot) + int(ticks) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return None


def _start(pid: int) -> str | None:
    """Give when a process started, in the kernel's own ticks since boot; None where the system has no /proc."""
    try:
        told = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        return told.rpartition(")")[2].split()[19]  # the name before it may hold anything, a parenthesis too
    except (OSError, IndexError):
        return None


def _is_of_an_earlier_boot(machine: object) -> bool:
    """Tell that it names this machine, but not its present boot; of names that many machines have nobody can tell."""
    host, _, boot = machine.partition(" ") if isinstance(machine, str) else ("", "", "")
    own, _, own_boot = _machine().partition(" ")
    return bool(boot and own_boot) and host == own and boot != own_boot and not host.startswith("localhost")


def _machine() -> str:
    """Name the machine, in its present boot."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        boot = ""
    return f"{socket.gethostname()} {boot}".strip()
