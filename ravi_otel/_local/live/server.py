"""Listen on this process's socket from its first work to its end, answer, and do what an operator asks.

Only where a store is: under `ravi-otel run`, or with `RAVI_STORE`. `RAVI_LIVE=off` keeps it shut. One thread of ours accepts, and each
of at most eight connections has another; a request takes a few seconds at most. A program may close every descriptor it finds, ours
too, and then be given their numbers for files and sockets of its own. So each is asked what it is before it is used, and let go of, as
it is, when it is none of ours any more.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import selectors
import socket
import stat
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, get_args

from ravi_otel._enforcement.scope import Scope
from ravi_otel._enforcement.spawn_tracker import Lease, SpawnTracker
from ravi_otel._extras import load
from ravi_otel._forksafe import renew_in_child, without_signals
from ravi_otel._local.live.client import Entry, Peer, check_socket, make, sweep
from ravi_otel._local.live.open_scopes import OpenScopes
from ravi_otel._local.live.protocol import (
    MOST_REQUEST,
    MOST_SENTENCE,
    PRIORITIES,
    VERSION,
    NonsenseError,
    Op,
    Request,
    cut,
    read,
    read_line,
    write_line,
)
from ravi_otel._local.store import Store
from ravi_otel.errors import RaviError
from ravi_otel.hooks._events import Notice
from ravi_otel.hooks._listeners import swallow
from ravi_otel.policy import _checks as checks
from ravi_otel.policy._limits import ScopeKind

_log = logging.getLogger("ravi_otel")

VARIABLE: Final = "RAVI_LIVE"
MOST_CONNECTIONS: Final = 8
IDLE_S: Final = 30.0
REQUEST_S: Final = 5.0
GRACE_S: Final = 1.0
"""How long one that says nothing keeps its place when others wait for it."""

STATE_S: Final = 0.25
"""How soon who follows is told anew what is open, when that changed."""

ALIVE_S: Final = 2.0
"""How soon who follows is told so when nothing changed."""

GATHER_S: Final = 0.1
SHARE: Final = 200
"""How much longer than it took to write what happened, or what is open, is waited before that is done again: half a percent of a CPU."""

_MOST_WAITING: Final = 64
_PIECE: Final = 64 * 1024
_BREATHER_S: Final = 0.5
_BURST_S: Final = 0.05
"""How long a program takes to close every descriptor it finds."""

_MODE: Final = 0o600
_BY_HAND: Final = "cancelled by an operator"
_CANCELLED: Final = (ScopeKind.RUN, ScopeKind.AGENT)  # which have a token of their own; whatever else has none is closed
# Nothing of it is in the kernel: a forked child can drop its copy, and the parent's goes on.
_Selector: Final[type[selectors.BaseSelector]] = getattr(selectors, "PollSelector", selectors.SelectSelector)


# -- commands -----------------------------------------------------------------------------------------------------


class RefusalError(RaviError):
    """Say in one sentence why something is not done; it is an answer, and no error of the program."""


_WANTED: Final[Mapping[str, str]] = {
    "op": f"is unknown. It is one of: {', '.join(get_args(Op))}",
    "scope_id": "must be the id of a scope, as `state` gives it",
    "reason": f"must be a text of at most {MOST_SENTENCE} characters",
    "priority": f"is unknown. It is one of: {', '.join(PRIORITIES)}",
    "kind": "must be the kind of a limit, as `state` gives it",
    "value": "must be a number, in the kind's unit",
    "by": "must be the name of whoever asks",
}


_ENDING: Final = ("cancel", "close")
"""Commands that are told before they are done: with them the run may end, and with the run who listens."""

_NEEDS: Final[Mapping[Op, tuple[str, ...]]] = {"reprioritize": ("priority",), "set_limit": ("kind", "value")}
"""What has to be said for a command, besides its scope."""


class Order(NamedTuple):
    """Be what an operator has done to an open scope; `by` is the person, as whoever asks says, `login` the user whom the system knows."""

    scope: Scope
    details: Mapping[str, Any]
    by: str
    login: str

    def cancel(self) -> None:
        """Cancel a run or an agent; close what has no token."""
        token = self.scope.cancellation if self.scope.facts.kind in _CANCELLED else None
        if token is None:
            self.scope.close()
        else:
            token.cancel(self.details.get("reason", _BY_HAND))

    def close(self) -> None:
        """Close the scope."""
        self.scope.close()

    def pause(self) -> None:
        """Pause an agent."""
        spawn, lease = self._slot()
        if lease.is_root:
            raise RefusalError(f"{self._agent} is the root of its run, which is never paused: cancel the run instead.")
        if lease.paused:
            raise RefusalError(f"{self._agent} is paused already.")
        if not spawn.pause(lease):
            raise RefusalError(f"{self._agent} has no slot any more: it is about to end.")

    def resume(self) -> None:
        """Let an agent go on."""
        spawn, lease = self._slot()
        if not spawn.resume(lease):
            raise RefusalError(f"{self._agent} is not paused.")

    def reprioritize(self) -> None:
        """Give an agent another priority."""
        spawn, lease = self._slot()
        spawn.reprioritize(lease, PRIORITIES[self.details["priority"]])

    def set_limit(self) -> None:
        """Set another value on a limit."""
        self.scope.set_limit(self.details["kind"], self.details["value"], by=self.by, login=self.login)

    @property
    def _agent(self) -> str:
        lease = self.scope.lease
        return f"agent {checks.show(self.scope.facts.name if lease is None else lease.agent_id)}"

    def _slot(self) -> tuple[SpawnTracker, Lease]:
        """Return the tracker of an agent's slot, and the slot itself, since several agents may have one id."""
        facts, spawn, lease = self.scope.facts, self.scope.spawn, self.scope.lease
        if facts.kind is not ScopeKind.AGENT:
            raise RefusalError(f"{facts.kind.value} {checks.show(facts.name)} has no slot: only agents have.")
        if spawn is None or lease is None:
            raise RefusalError(f"{self._agent} has no slot: it is in no run that counts its agents.")
        return spawn, lease


def read_request(line: bytes) -> Request:
    """Read what is asked; LiveError, in one sentence, for what makes no sense."""
    try:
        request = read(Request, read_line(line))
    except NonsenseError as error:
        raise RefusalError(f"{error.place}={checks.show(error.value)} {_WANTED[error.place]}.") from None
    for name in () if request.op in ("state", "follow") else ("scope_id", *_NEEDS.get(request.op, ())):
        if getattr(request, name) is None:
            raise RefusalError(f"{name}=None {_WANTED[name]}.")
    return request


def answer(line: bytes, scopes: OpenScopes, peer: Peer) -> bytes | None:
    """Return the line that answers a request, None for one who wants to follow; never raises for anything that is in it."""
    try:
        request = read_request(line)
        if request.op == "follow":
            return None
        if request.op == "state":
            return scopes.line()
        _obey(request, scopes, peer)
        return write_line({"v": VERSION, "ok": True})
    except RaviError as error:
        return _no(str(error))
    except Exception as error:  # noqa: BLE001 - our own bug ends neither the program nor the server
        swallow("live.answer", error)
        return _no("the process cannot do that, because of a fault of ravi-otel's own. Its log says more.")


def _no(sentence: str) -> bytes:
    return write_line({"v": VERSION, "ok": False, "error": cut(sentence, MOST_SENTENCE)})


def _obey(request: Request, scopes: OpenScopes, peer: Peer) -> None:
    """Do what is asked, and leave a trace of who asked; RefusalError, or another error of ours, says in one sentence why it is not done."""
    scope = scopes.find(str(request.scope_id))
    if scope is None:
        raise RefusalError(f"scope_id={checks.show(request.scope_id)} is not open any more.")
    details = {name: value for name in _NEEDS.get(request.op, ()) if (value := getattr(request, name)) is not None}
    reason = _printable(request.reason or "")  # it stands in an exception's text, in logs and on terminals
    if request.op == "cancel" and reason:
        details["reason"] = reason
    if "value" in details and float(details["value"]).is_integer():
        details["value"] = int(details["value"])
    user, by = _name_of(peer.uid), _printable(request.by or "")
    uid, pid = ("?" if each is None else each for each in (peer.uid, peer.pid))
    words = ", ".join(f"{name}={checks.show(value)}" for name, value in details.items())
    place = f"{request.op} of {scope.facts.kind.value} {checks.show(scope.facts.name)}{f' ({words})' if words else ''}"
    for_whom = "" if request.by is None else f" for {checks.show(by)}"
    about = {"op": request.op, **details, "by": request.by, "by_user": user, "by_uid": peer.uid, "by_pid": peer.pid}
    notice = Notice("command", scope.facts, f"{place} by {user or '?'} (uid {uid}, pid {pid}){for_whom}", about)
    login = user or f"uid {uid}"
    order = Order(scope, details, by or login, login)
    steps: list[Callable[[], object]] = [getattr(order, request.op), partial(_leave_trace, notice, scope)]
    for step in reversed(steps) if request.op in _ENDING else steps:
        step()


def _leave_trace(notice: Notice, scope: Scope) -> None:
    _log.warning("ravi-otel: %s, over the live socket", notice.text)
    scope.engine.listeners.told(notice)


def _name_of(uid: int | None) -> str | None:
    """Return the name of a user of this system; None where it has none."""
    try:
        return None if uid is None else str(load("pwd").getpwuid(uid).pw_name)
    except (KeyError, OSError, RaviError):
        return None


def _printable(text: str) -> str:
    return "".join(each if each.isprintable() else " " for each in text).strip()


# -- the socket ---------------------------------------------------------------------------------------------------


@dataclass(eq=False, slots=True)
class _Socket:
    """A socket of ours, which knows whether its number is still its own."""

    raw: socket.socket
    mark: tuple[int, int] | None = field(init=False)

    def __post_init__(self) -> None:
        self.mark = self._now()

    def _now(self) -> tuple[int, int] | None:
        try:
            about = os.fstat(self.raw.fileno())
        except OSError:
            return None
        return about.st_dev, about.st_ino

    @property
    def is_ours(self) -> bool:
        """Whether its number is that of what was opened, and not of something that the program has opened since."""
        return self.mark is not None and self._now() == self.mark

    def wait(self, event: int, seconds: float | None) -> bool:
        """Wait until it can be read or written, for so long at most; return whether it can, and is ours still."""
        if not self.is_ours:
            return False
        with _Selector() as selector:
            try:
                selector.register(self.raw, event)
            except ValueError:  # another thread has closed it meanwhile
                return False
            ready = selector.select(seconds)
        return bool(ready) and self.is_ours  # meanwhile it may be the program's

    def wake(self) -> None:
        """End what waits for it, in any thread; waits for nothing."""
        with contextlib.suppress(OSError):
            if self.is_ours:
                self.raw.shutdown(socket.SHUT_RDWR)

    def let_go(self) -> None:
        """Close it, or leave it alone when the program has it by now."""
        with contextlib.suppress(OSError):
            if self.is_ours:
                self.raw.close()
            else:
                self.raw.detach()


class _Connection(_Socket):
    """Somebody who asks, and is answered in a thread of ours; `silent_since` is None while a request is read or answered."""

    def __init__(self, raw: socket.socket) -> None:
        super().__init__(raw)
        self.peer = Peer()
        self.inbox = bytearray()
        self.silent_since: float | None = time.monotonic()

    def line(self) -> bytes | None:
        """Return the next request, None when there is none in time or it is too long, which is said."""
        self.silent_since = None if self.inbox else time.monotonic()
        until = time.monotonic() + (REQUEST_S if self.inbox else IDLE_S)
        while (end := self.inbox.find(b"\n")) < 0 and len(self.inbox) < MOST_REQUEST:
            piece = self.raw.recv(_PIECE) if self.wait(selectors.EVENT_READ, max(0.0, until - time.monotonic())) else b""
            if not piece:
                return None
            if not self.inbox:
                until = time.monotonic() + REQUEST_S
            self.inbox += piece
            self.silent_since = None
        line = bytes(self.inbox[:end]) if end >= 0 else bytes(self.inbox)
        if len(line) >= MOST_REQUEST:
            self.send(_no(f"a request is at most {MOST_REQUEST} bytes long."))
            return None
        del self.inbox[: end + 1]
        return line

    def send(self, line: bytes) -> bool:
        """Send a line; False where the other end does not take it in time."""
        left, until = memoryview(line), time.monotonic() + REQUEST_S
        while left:
            if not self.wait(selectors.EVENT_WRITE, max(0.0, until - time.monotonic())):
                return False
            left = left[self.raw.send(left) :]
        return True


class Server:
    """Serve one socket, once it is open, until it is told to stop."""

    def __init__(self, entry: Entry, scopes: OpenScopes) -> None:
        self.entry = entry
        self._scopes = scopes
        self._stopping = False
        self._connections: dict[_Connection, None] = {}
        self._listener = _Socket(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))

    def open(self) -> None:
        """Bind in a directory that only its owner can enter, so that nobody connects before the mode is right."""
        listener, path = self._listener.raw, self.entry.socket
        listener.settimeout(0)
        with contextlib.suppress(OSError):  # Linux gives the file the mode of the socket; others give it none of ours
            os.fchmod(listener.fileno(), _MODE)
        listener.bind(os.fsencode(path))
        if stat.S_IMODE(path.lstat().st_mode) != _MODE:
            path.chmod(_MODE)  # whatever the umask took
        check_socket(path)
        listener.listen(_MOST_WAITING)

    def stop(self) -> None:
        """Have the threads end soon; takes no lock and waits for nothing."""
        self._stopping = True
        for each in (self._listener, *tuple(self._connections)):
            each.wake()
        self._scopes.wake()

    def drop(self) -> None:
        """Close what is open in this process: at the end, and in a forked child, where all of it is a copy of the parent's."""
        for each in (self._listener, *tuple(self._connections)):
            each.let_go()
        self._connections = {}

    def serve(self) -> None:
        """Accept until stopped, or until the program closes the socket."""
        try:
            while not self._stopping and self._listener.wait(selectors.EVENT_READ, None) and self._has_room():
                self._accept()
        finally:
            self._listener.let_go()

    def _has_room(self) -> bool:
        """Wait for a place, and take that of who has said nothing for longest; False when there is none any more."""
        while len(self._connections) >= MOST_CONNECTIONS and not self._stopping and self._listener.is_ours:
            silent = [(since, each) for each in tuple(self._connections) if (since := each.silent_since) is not None]
            longest = min(silent, key=lambda pair: pair[0], default=None)
            if longest is not None and longest[0] + GRACE_S <= time.monotonic():
                self._connections.pop(longest[1], None)
                longest[1].wake()
            else:
                time.sleep(_BURST_S)
        return not self._stopping and self._listener.is_ours

    def _accept(self) -> None:
        try:
            connected, _ = self._listener.raw.accept()
        except BlockingIOError:  # it has gone again
            return
        except OSError:  # no more descriptors, say: who waits is not answered before there are
            time.sleep(_BREATHER_S)
            return
        one = _Connection(connected)
        try:
            connected.settimeout(0)
            one.peer = Peer.of(connected)
            one.peer.check()
            self._connections[one] = None
            with without_signals():
                threading.Thread(target=self._serve, args=(one,), name="ravi-otel-live-answer", daemon=True).start()
        except (OSError, RaviError, RuntimeError):  # it is gone, another user's, or there is no room for a thread
            self._connections.pop(one, None)
            connected.close()

    def _serve(self, one: _Connection) -> None:
        try:
            while not self._stopping and one in self._connections and (line := one.line()) is not None:
                said = answer(line, self._scopes, one.peer)
                if not (self._tell(one) if said is None else one.send(said)):
                    break
        except OSError:  # it has gone
            pass
        except Exception as error:  # noqa: BLE001 - our own bug ends one connection
            swallow("live.serve", error)
        if one.peer.pid == os.getpid():
            time.sleep(_BURST_S)  # the program may be closing all it finds, this connection next, and open others under its number
        self._connections.pop(one, None)
        one.let_go()

    def _tell(self, one: _Connection) -> bool:
        """Tell who follows what is open, when that changed, and what happens; it gives up nothing else for that but a little time."""
        follower = self._scopes.follow()
        one.silent_since = None
        soonest, latest, changed = 0.0, 0.0, True
        try:
            while not self._stopping:
                now = time.monotonic()
                if now >= (soonest if changed else latest):
                    took = time.thread_time()
                    if not one.send(self._scopes.line()):
                        break
                    soonest, changed = now + max(STATE_S, SHARE * (time.thread_time() - took)), False
                    latest = max(soonest, now + ALIVE_S)
                follower.sleep((soonest if changed else latest) - time.monotonic())
                took = time.thread_time()
                happened = follower.take()
                if happened is not None:
                    changed = True
                    if not one.send(write_line({"v": VERSION, "ok": True, "events": happened[0], "missed": happened[1]})):
                        break
                time.sleep(max(GATHER_S, SHARE * (time.thread_time() - took)))
        finally:
            self._scopes.leave(follower)
        return False


# -- its life -----------------------------------------------------------------------------------------------------


class Live:
    """The live view of this process: a listener that knows what is open, and the server that tells."""

    def __init__(self, store: Path) -> None:
        self._store = store
        self._server: Server | None = None
        self._stopped = False
        self._pid = os.getpid()
        self.scopes = OpenScopes(self.begin, stop)

    def begin(self) -> None:
        """Open the socket, in a thread: nothing of it is done on the way of whoever works."""
        self._pid = os.getpid()
        try:
            with without_signals():
                threading.Thread(target=self._live, name="ravi-otel-live", daemon=True).start()
        except RuntimeError:  # the interpreter is ending, or has no room: it is not to be watched
            return

    def _live(self) -> None:
        try:
            with ExitStack() as opened:
                server = self._open(opened)
                if server is not None:
                    server.serve()
        except Exception as error:  # noqa: BLE001 - our own bug never reaches the program
            swallow("live", error)

    def _open(self, opened: ExitStack) -> Server | None:
        """Listen, unless that is impossible or nobody may watch any more; `opened` closes and removes what was made on the way."""
        try:
            store = Store.open(self._store).root
            entry = make(store)
            opened.callback(entry.remove)
            server = self._server = Server(entry, self.scopes)  # known before it listens: a fork may come meanwhile
            opened.callback(server.drop)
            entry.announce()
            server.open()
        except (OSError, RaviError) as error:
            _log.info("ravi-otel: this process cannot be watched live: %s", error)
            return None
        sweep(store)
        return None if self._stopped else server  # meanwhile

    def stop(self) -> None:
        """Take the socket away; the threads end by themselves. Nothing is waited for."""
        self._stopped = True
        server, self._server = self._server, None
        if server is not None and self._pid == os.getpid():
            server.entry.remove()
            server.stop()

    def renew(self) -> None:
        """Begin anew in a forked child: the socket and its scopes are the parent's, and the child opens its own when it works."""
        server, self._server = self._server, None
        if server is not None:
            server.drop()
        self.scopes.renew(_nothing if self._stopped else self.begin)


def _nothing() -> None:
    """Begin nothing: it was stopped."""


_now: dict[Path, Live] = {}


def listeners(store: Path | None = None) -> tuple[OpenScopes, ...]:
    """Return what is to be told of all that happens; nothing where nobody may watch, or the system knows no such sockets.

    Without `store` it is the one that the environment names. Never raises.
    """
    if not checks.switch(os.environ, VARIABLE, default=True, safe=False) or not hasattr(socket, "AF_UNIX"):
        return ()
    try:
        place = Store.place() if store is None else store
    except RaviError:  # who keeps the store says so
        return ()
    known = _now.get(place)
    if known is None:
        stop()
        known = _now[place] = Live(place)
    return (known.scopes,)


def stop() -> None:
    """Let nobody watch any more: at the end of the process."""
    while _now:
        _now.popitem()[1].stop()


@renew_in_child
def _renew() -> None:
    for each in list(_now.values()):
        each.renew()


atexit.register(stop)
