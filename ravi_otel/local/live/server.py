"""Listen on this process's socket, in one thread of our own, to at most eight at a time, for a few seconds each.

A program may close every descriptor it finds, ours too, and then be given their numbers for files and sockets of its own. So each
is asked what it is before it is used, and let go of, as it is, when it is none of ours any more.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import stat
import time
from collections.abc import Callable
from typing import Final

from ravi_otel.hooks._listeners import swallow
from ravi_otel.local.live import place
from ravi_otel.local.live.peers import Peer, peer_of
from ravi_otel.local.live.protocol import MOST_REQUEST, VERSION, write_line

MOST_CONNECTIONS: Final = 8
IDLE_S: Final = 30.0
REQUEST_S: Final = 5.0
GRACE_S: Final = 1.0
"""How long one that says nothing keeps its place when others wait for it."""

_MOST_WAITING: Final = 64
_PIECE: Final = 64 * 1024
_BREATHER_S: Final = 0.5
_BURST_S: Final = 0.05
"""How long a program takes to close every descriptor it finds."""

_MODE: Final = 0o600

Mark = tuple[int, int]
Answer = Callable[[bytes, Peer], bytes]
# Nothing of it is in the kernel: a forked child can drop its copy, and the parent's goes on.
_Selector: Final[type[selectors.BaseSelector]] = getattr(selectors, "PollSelector", selectors.SelectSelector)


def _mark(of: socket.socket) -> Mark | None:
    """Tell what its descriptor is, apart from its number; None when it is nothing."""
    try:
        about = os.fstat(of.fileno())
    except OSError:
        return None
    return about.st_dev, about.st_ino


def _let_go(of: socket.socket, mark: Mark | None) -> None:
    """Close it, or leave it alone when the program has it by now."""
    with contextlib.suppress(OSError):
        if mark is not None and _mark(of) == mark:
            of.close()
        else:
            of.detach()


class Connection:
    """Be one who asks: what came of a request, what is still to be sent of an answer, and until when that may take."""

    __slots__ = ("inbox", "last", "mark", "outbox", "peer", "socket", "until")

    def __init__(self, connected: socket.socket, peer: Peer) -> None:
        self.socket = connected
        self.mark = _mark(connected)
        self.peer = peer
        self.inbox = bytearray()
        self.outbox = memoryview(b"")
        self.last = False
        self.until = time.monotonic() + IDLE_S

    @property
    def silent_since(self) -> float | None:
        """Give since when it has asked nothing, None while it asks or is answered."""
        return None if self.inbox or self.outbox else self.until - IDLE_S

    def read(self, answer: Answer) -> bool:
        """Take what came, and answer it if it is a whole line; False when the connection is over."""
        if not self.inbox:
            self.until = time.monotonic() + REQUEST_S
        piece = self.socket.recv(_PIECE)
        self.inbox += piece
        return bool(piece) and self.go_on(answer)

    def write(self, answer: Answer) -> bool:
        """Send what goes, and take the next line when all is sent; False when the connection is over."""
        self.outbox = self.outbox[self.socket.send(self.outbox) :]
        if self.outbox:
            return True
        self.until = time.monotonic() + IDLE_S
        return not self.last and self.go_on(answer)

    def go_on(self, answer: Answer) -> bool:
        """Answer the next line, if one is there whole."""
        line, found, rest = self.inbox.partition(b"\n")
        if len(line) >= MOST_REQUEST:
            self.last = True
            self._send(write_line({"v": VERSION, "ok": False, "error": f"a request is at most {MOST_REQUEST} bytes long."}))
        elif found:
            self.inbox = rest
            self._send(answer(bytes(line), self.peer))
        return True

    def _send(self, line: bytes) -> None:
        self.outbox = memoryview(line)
        self.until = time.monotonic() + REQUEST_S


class Server:
    """Serve one socket, once it is open, until it is told to stop; `answer` gives the line for a line, and never raises."""

    def __init__(self, entry: place.Entry, answer: Answer) -> None:
        self.entry = entry
        self._answer = answer
        self._stopping = False
        self._connections: dict[int, Connection] = {}
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._rung, self._bell = socket.socketpair()
        except BaseException:
            self._listener.close()
            raise
        self._marks = {each: _mark(each) for each in (self._listener, self._rung, self._bell)}

    def open(self) -> None:
        """Bind in a directory that only its owner can enter, so that nobody connects before the mode is right."""
        for each in (self._listener, self._rung, self._bell):
            each.settimeout(0)
        path = self.entry.socket
        with contextlib.suppress(OSError):  # Linux gives the file the mode of the socket; others give it none of ours
            os.fchmod(self._listener.fileno(), _MODE)
        self._listener.bind(os.fsencode(path))
        if stat.S_IMODE(path.lstat().st_mode) != _MODE:
            path.chmod(_MODE)  # whatever the umask took
        place.check_socket(path)
        self._listener.listen(_MOST_WAITING)

    def stop(self) -> None:
        """Have the thread end soon; takes no lock and waits for nothing."""
        self._stopping = True
        with contextlib.suppress(OSError):
            if self._is_ours(self._bell):
                self._bell.send(b"x")

    def drop(self) -> None:
        """Close what is open in this process: at the end, and in a forked child, where all of it is a copy of the parent's."""
        for each, mark in self._marks.items():
            _let_go(each, mark)
        for one in list(self._connections.values()):
            _let_go(one.socket, one.mark)
        self._connections = {}

    def _is_ours(self, one: socket.socket) -> bool:
        mark = self._marks[one]
        return mark is not None and _mark(one) == mark

    def _is_robbed(self) -> bool:
        """Tell that the program has closed something of ours: then all of it is over."""
        alive = all(self._is_ours(each) for each in self._marks)
        return not alive or any(one.mark is None or _mark(one.socket) != one.mark for one in self._connections.values())

    def serve(self) -> None:
        """Answer until stopped."""
        try:
            while not self._stopping and not self._is_robbed():
                self._turn()
        finally:
            self.drop()

    def _turn(self) -> None:
        """Wait for something to do, and do it; a fault costs the connection it came from, and no more."""
        with _Selector() as selector:
            selector.register(self._rung, selectors.EVENT_READ)
            if len(self._connections) < MOST_CONNECTIONS or self._spare() is not None:
                selector.register(self._listener, selectors.EVENT_READ)
            for one in self._connections.values():
                selector.register(one.socket, selectors.EVENT_WRITE if one.outbox else selectors.EVENT_READ)
            ready = [key.fd for key, _ in selector.select(self._patience())]
        if self._is_robbed():  # meanwhile: what is ready is the program's
            return
        for descriptor in ready:
            asks = self._connections.get(descriptor)
            if asks is not None:
                self._serve(descriptor, asks)
            elif descriptor == self._listener.fileno():
                self._accept()
        self._end_the_late()

    def _end_the_late(self) -> None:
        now = time.monotonic()
        for descriptor, one in list(self._connections.items()):
            if one.until <= now:
                self._close(descriptor, one)

    def _spare(self) -> int | None:
        """Give the one that has said nothing for longest, if that is long enough to give its place to another."""
        silent = {number: since for number, one in self._connections.items() if (since := one.silent_since) is not None}
        longest = min(silent, key=silent.__getitem__, default=None)
        return None if longest is None or silent[longest] + GRACE_S > time.monotonic() else longest

    def _patience(self) -> float | None:
        ends = [one.until for one in self._connections.values()]
        if len(ends) >= MOST_CONNECTIONS and self._spare() is None:
            ends.extend(since + GRACE_S for one in self._connections.values() if (since := one.silent_since) is not None)
        until = min(ends, default=None)
        return None if until is None else max(0.0, until - time.monotonic())

    def _accept(self) -> None:
        try:
            connected, _ = self._listener.accept()
        except BlockingIOError:  # it has gone again
            return
        except OSError:  # no more descriptors, say: who waits is not answered before there are
            time.sleep(_BREATHER_S)
            return
        try:
            connected.settimeout(0)
            peer = peer_of(connected)
        except OSError:
            connected.close()
            return
        if peer.uid is not None and peer.uid != os.geteuid():
            connected.close()
            return
        spare = self._spare() if len(self._connections) >= MOST_CONNECTIONS else None
        if spare is not None:
            self._close(spare, self._connections[spare])
        closed = self._connections.pop(connected.fileno(), None)  # by the program, or its number could not be another's
        if closed is not None:
            closed.socket.detach()
        self._connections[connected.fileno()] = Connection(connected, peer)

    def _serve(self, descriptor: int, one: Connection) -> None:
        try:
            goes_on = one.write(self._answer) if one.outbox else one.read(self._answer)
        except BlockingIOError:
            return
        except OSError:  # it has gone
            goes_on = False
        except Exception as error:  # noqa: BLE001 - our own bug ends one connection
            swallow("live.serve", error)
            goes_on = False
        if not goes_on and one.peer.pid == os.getpid():
            time.sleep(_BURST_S)  # the program may be closing all it finds, this connection next, and open others under its number
        if not goes_on and not self._is_robbed():
            self._close(descriptor, one)

    def _close(self, descriptor: int, one: Connection) -> None:
        self._connections.pop(descriptor, None)
        _let_go(one.socket, one.mark)
