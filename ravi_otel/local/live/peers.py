"""Find out who is at the other end of a socket."""

from __future__ import annotations

import socket
import struct
from dataclasses import dataclass
from typing import Any, Final

_LINUX: Final = struct.Struct("3i")


@dataclass(frozen=True, slots=True)
class Peer:
    """Be the process at the other end; None is what the system does not tell."""

    uid: int | None = None
    pid: int | None = None

    def __str__(self) -> str:
        return f"uid {'?' if self.uid is None else self.uid}, pid {'?' if self.pid is None else self.pid}"


def peer_of(connection: socket.socket) -> Peer:
    """Ask the system, which cannot be lied to; OSError when the connection is gone."""
    option: Any = getattr(socket, "SO_PEERCRED", None)
    if option is not None:
        pid, uid, _ = _LINUX.unpack(connection.getsockopt(socket.SOL_SOCKET, option, _LINUX.size))
        return Peer(uid, pid)
    option = getattr(socket, "LOCAL_PEERCRED", None)
    if option is not None:  # struct xucred of the BSDs and macOS: its version, the effective user, its groups
        told = connection.getsockopt(0, option, 76)
        return Peer(struct.unpack_from("2I", told)[1])
    return Peer()
