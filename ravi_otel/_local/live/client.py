"""Find the processes of a store, ask them what they do, follow them, and tell them to do otherwise.

::

    .ravi/live/                 0700, its owner's
    ├── 4711-9a2c1f.json        who listens, and where: the process as `this_process()` describes it, and the socket's path
    └── 4711-9a2c1f.sock        the socket, 0600; in a 0700 directory of its own below the temporary one where this path is too long

The number after the process's keeps containers apart that share a store and its process numbers. Whoever answers is not trusted: no
answer is longer, later or of another shape than it may be.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import secrets
import shutil
import socket
import stat
import struct
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

from ravi_otel._files import create
from ravi_otel._local.live.protocol import (
    MOST_ANSWER,
    MOST_SENTENCE,
    VERSION,
    CommandError,
    Happened,
    LiveError,
    NonsenseError,
    Op,
    ProcessState,
    RunState,
    ScopeState,
    read,
    read_line,
    read_state,
    write_line,
)
from ravi_otel._local.store import is_alive, this_process
from ravi_otel._local.wording import clean
from ravi_otel.policy import _checks as checks

DIRECTORY: Final = "live"
MOST_PATH: Final = 100
"""Bytes of a socket's path: systems take 104 or 108, the last of them a 0."""

MOST_ENTRIES: Final = 1_000
"""Processes of one store that are looked at, the newest."""

TIMEOUT_S: Final = 2.0
SILENCE_S: Final = 10.0
"""How long a process that is followed may say nothing before it is asked anew: it says every other second how it is."""

LATE_S: Final = 3.0
"""How long it may, before that is told."""

SEEK_S: Final = 0.25
"""How soon processes are looked for again."""

_NAME: Final = re.compile(r"[0-9]{1,10}-[0-9a-f]{6}\.json")
_APART: Final = "ravi-live-"
_MODE: Final = 0o700
_YOUNG_S: Final = 10.0
_MOST_TOLD: Final = 4_096
_PIECE: Final = 64 * 1024
_PAUSE_S: Final = 0.01
_MOST_SAID: Final = 300
_LINUX: Final = struct.Struct("3i")
_NOBODY: Final = (ConnectionRefusedError, FileNotFoundError)


# -- where they listen --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Entry:
    """The place of one process: the file that tells of it, the socket, and what it says of the process."""

    path: Path
    socket: Path
    process: dict[str, Any]

    @property
    def pid(self) -> int:
        """Return the process's number."""
        return int(self.path.name.partition("-")[0])

    def announce(self) -> None:
        """Write who listens there, for its owner only; OSError when that is impossible."""
        beside = self.path.with_suffix(".tmp")
        create(beside, json.dumps({**self.process, "socket": str(self.socket)}).encode("ascii"))
        beside.replace(self.path)

    def remove(self) -> None:
        """Take both away, and the directory that was made for the socket; nothing that is missing matters."""
        with contextlib.suppress(OSError):
            self.socket.unlink()
        if self.socket.parent != self.path.parent:
            with contextlib.suppress(OSError):
                self.socket.parent.rmdir()
        with contextlib.suppress(OSError):
            self.path.unlink()

    def is_left_over(self, *, young: bool = False) -> bool:
        """Whether, of one that does not answer, the process is gone, or listens no more and never will.

        With `young`, only whether its process is gone. An entry of another machine, where nobody can know, is not left over.
        """
        alive = is_alive(self.process)
        return alive is False or (alive is True and not young and time.time() - _written(self.path) > _YOUNG_S)


def _written(path: Path) -> float:
    try:
        return path.lstat().st_mtime
    except OSError:
        return time.time()


def make(store: Path) -> Entry:
    """Choose a place for this process, and make the directories; OSError or LiveError where that is impossible."""
    directory = store / DIRECTORY
    with contextlib.suppress(FileExistsError):
        directory.mkdir(mode=_MODE)
        if stat.S_IMODE(directory.lstat().st_mode) != _MODE:
            directory.chmod(_MODE)  # a umask may take from its owner, too
    check_directory(directory)
    name = f"{os.getpid()}-{secrets.token_hex(3)}"
    beside = directory / f"{name}.sock"
    if len(os.fsencode(beside)) > MOST_PATH:
        apart = Path(tempfile.mkdtemp(prefix=_APART))  # which nobody else can read or foresee
        beside = apart / "s"
        if len(os.fsencode(beside)) > MOST_PATH:
            shutil.rmtree(apart, ignore_errors=True)
            raise LiveError(f"{checks.show(str(beside))} is too long a path for a socket.")
    return Entry(directory / f"{name}.json", beside, this_process())


def entries(store: Path) -> list[Entry]:
    """List the places that processes of a store have told of; what is none of ours is left out."""
    directory = store / DIRECTORY
    try:
        check_directory(directory)
        told = [path for path in directory.iterdir() if _NAME.fullmatch(path.name)]
    except (OSError, LiveError):
        return []
    if len(told) > MOST_ENTRIES:  # what was left long ago hides nobody that runs
        told.sort(key=_written, reverse=True)
    return [entry for path in sorted(told[:MOST_ENTRIES]) if (entry := entry_at(path)) is not None]


def entry_at(path: Path) -> Entry | None:
    """Read what a process told of itself; None for what is not one of ours."""
    known = _object_in(path)
    named = known.get("socket")
    if not isinstance(named, str) or "\0" in named or len(named) > MOST_PATH:
        return None
    if not _NAME.fullmatch(path.name) or known.get("pid") != int(path.name.partition("-")[0]):
        return None
    listens, beside = Path(named), path.with_suffix(".sock")
    if listens.is_absolute() and listens.name == "s" and listens.parent.name.startswith(_APART):
        return Entry(path, listens, known)
    return Entry(path, beside, known) if listens.name == beside.name else None  # a store that was moved still has it beside


def _object_in(path: Path) -> dict[str, Any]:
    try:
        opened = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)  # a pipe would hold up who opens it
        try:
            known = json.loads(os.read(opened, _MOST_TOLD)) if stat.S_ISREG(os.fstat(opened).st_mode) else None
        finally:
            os.close(opened)
    except (OSError, ValueError, RecursionError):
        return {}
    return cast("dict[str, Any]", known) if isinstance(known, dict) else {}


def check_directory(directory: Path) -> None:
    """Raise LiveError unless it is a real directory that nobody but this user can look into; OSError when there is none."""
    about = directory.lstat()
    if not stat.S_ISDIR(about.st_mode):
        raise LiveError(f"{checks.show(str(directory))} is no directory: remove it, it is in the way of the live view.")
    if about.st_uid != os.geteuid() or about.st_mode & 0o077:
        raise LiveError(f"{checks.show(str(directory))} is not yours alone. Make it so: chmod 700, as its owner.")


def check_socket(path: Path) -> None:
    """Raise LiveError unless it is a socket of this user's in a directory of this user's; OSError when there is none."""
    check_directory(path.parent)
    about = path.lstat()
    if not stat.S_ISSOCK(about.st_mode) or about.st_uid != os.geteuid():
        raise LiveError(f"{checks.show(str(path))} is not a socket of yours.")


class Peer(NamedTuple):
    """The process at the other end of a socket; None is what the system does not tell."""

    uid: int | None = None
    pid: int | None = None

    def check(self) -> None:
        """Raise LiveError when it is another user's, as far as the system tells."""
        if self.uid not in (None, os.geteuid()):
            raise LiveError(f"another user, {self.uid}, listens there.")

    @classmethod
    def of(cls, connection: socket.socket) -> Peer:
        """Ask the system, which cannot be lied to; OSError when the connection is gone."""
        option: Any = getattr(socket, "SO_PEERCRED", None)
        if option is not None:
            pid, uid, _ = _LINUX.unpack(connection.getsockopt(socket.SOL_SOCKET, option, _LINUX.size))
            return cls(uid, pid)
        option = getattr(socket, "LOCAL_PEERCRED", None)
        if option is not None:  # struct xucred of the BSDs and macOS: its version, the effective user, its groups
            return cls(struct.unpack_from("2I", connection.getsockopt(0, option, 76))[1])
        return cls()


def sweep(store: Path) -> None:
    """Remove what processes that are gone have left; one that lives is not asked."""
    for entry in entries(store):
        if entry.is_left_over(young=True):
            try:
                _knock(entry.socket)
            except _NOBODY:
                entry.remove()
            except (OSError, LiveError):  # somebody is there, and busy, or it is no socket of ours
                continue


def _knock(path: Path) -> None:
    """Raise as `connect` does when nobody listens, BlockingIOError when too many wait there already; nothing is asked or waited for."""
    check_socket(path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(0)
        connection.connect(os.fsencode(path))
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)


# -- one of them --------------------------------------------------------------------------------------------------


class _Lines:
    """Read lines from a connection, each in time and of a fair size; OSError and LiveError when there is none."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self._got = bytearray()

    def next(self, timeout_s: float) -> bytes:
        deadline = time.monotonic() + timeout_s
        begin = 0
        while (end := self._got.find(b"\n", begin)) < 0:
            begin = len(self._got)
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            self.connection.settimeout(left)
            piece = self.connection.recv(_PIECE)
            if not piece:
                raise LiveError("it closed the connection before it answered.")
            self._got += piece
            if len(self._got) > MOST_ANSWER and b"\n" not in piece:
                raise LiveError(f"its answer is longer than {MOST_ANSWER} bytes.")
        line = bytes(self._got[:end])
        del self._got[: end + 1]
        return line


@dataclass(frozen=True, slots=True)
class Session:
    """One process that can be asked, in any thread; each question is a connection of its own.

    Every method raises LiveError when the process is gone or does not answer within `timeout_s` seconds, and CommandError, with
    the process's own sentence, when it refuses. The sentence and all texts of a state may hold anything: clean them before they
    are shown. `by` is for whom a command is given, such as whoever is signed in at a page; the user of the system who gives it is told
    by the system.
    """

    path: Path
    pid: int
    timeout_s: float = TIMEOUT_S

    def state(self) -> ProcessState:
        """Return what it has open."""
        return read_state(self._ask("state"))

    def follow(self, connected: Callable[[socket.socket], object] = lambda _: None) -> Generator[ProcessState | Happened]:
        """Yield what it has open, now and whenever that changed, and what happens, as it does; it ends with LiveError, with the process.

        `connected` gets the connection: to shut it down, from any thread, ends this too.
        """
        with self._asked("follow") as lines:
            connected(lines.connection)
            while True:
                answer = self._answer(lines.next(SILENCE_S))
                try:
                    yield read(Happened, answer) if "events" in answer else read_state(answer)
                except NonsenseError as error:
                    raise LiveError(f"it told {error}.") from None

    def command(self, op: Op, scope_id: str, *, by: str | None = None, **details: Any) -> None:
        """Have it do something with a scope.

        "cancel" ends a run or an agent with all below it, for a `reason`, and closes any other scope; "close" refuses its next call, tool
        or charge and ends what is in flight in it. "pause" has an agent's next call or tool wait, or end it, as `ScopeState.pauses`
        says; "resume" lets it go on, as soon as there is a slot. "reprioritize" gives an agent another `priority`. "set_limit" sets another
        `value` on the limit of that `kind`, as `LimitState.kind` writes it, in the kind's public unit.
        """
        self._ask(op, scope_id=scope_id, by=by, **details)

    def _ask(self, op: str, **more: Any) -> dict[str, Any]:
        with self._asked(op, **more) as lines:
            return self._answer(lines.next(self.timeout_s))

    @contextmanager
    def _asked(self, op: str, **more: Any) -> Generator[_Lines]:
        """Connect and ask; give what the answer is read from. What goes wrong inside is a LiveError that names the process."""
        request = {"v": VERSION, "op": op, **{name: value for name, value in more.items() if value is not None}}
        try:
            check_socket(self.path)
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                _connect(connection, self.path, self.timeout_s)
                Peer.of(connection).check()
                connection.sendall(write_line(request))
                yield _Lines(connection)
        except CommandError:
            raise
        except LiveError as error:
            raise LiveError(f"process {self.pid} cannot be asked: {error}") from error
        except OSError as error:
            why = "it did not answer in time" if isinstance(error, TimeoutError) else error.strerror or str(error)
            raise LiveError(f"process {self.pid} cannot be asked: {why}.") from error

    def _answer(self, line: bytes) -> dict[str, Any]:
        answer = read_line(line)
        if answer.get("ok") is True:
            return answer
        said = answer.get("error")
        if answer.get("ok") is not False or not isinstance(said, str) or len(said) > MOST_SENTENCE:
            raise LiveError(f"it answered ok={checks.show(answer.get('ok'))} without a sentence.")
        raise CommandError(said)


def _connect(connection: socket.socket, path: Path, timeout_s: float) -> None:
    """Connect, and wait for a place where many do; TimeoutError when none comes free."""
    deadline = time.monotonic() + timeout_s
    while (left := deadline - time.monotonic()) > 0:
        connection.settimeout(left)
        try:
            connection.connect(os.fsencode(path))
        except BlockingIOError:  # as many as may be stand in line; the system tells nobody when that is over
            time.sleep(min(left, _PAUSE_S))
        else:
            return
    raise TimeoutError


# -- all of them --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Watched:
    """One process as it was seen last; `trouble` says in a few words why it is not seen now, None where all is well."""

    session: Session
    process: ProcessState | None = None
    trouble: str | None = None

    @property
    def key(self) -> str:
        """Name it for as long as it is there."""
        return str(self.session.path)


@dataclass(eq=False, slots=True)
class _Followed:
    """One process that is followed: what it told last, when, and why it cannot be followed now.

    `is_settled` says that nobody waits for its first word any more. `connection` is there to be shut down, `thread` reads from it.
    """

    entry: Entry
    session: Session
    process: ProcessState | None = None
    heard_at: float = field(default_factory=time.monotonic)
    trouble: str | None = None
    is_settled: bool = False
    connection: socket.socket | None = None
    thread: threading.Thread | None = None

    @property
    def is_read(self) -> bool:
        """Whether somebody listens to it."""
        return self.thread is not None and self.thread.is_alive()

    def seen(self) -> Watched:
        """Return it as it was seen last; one that says nothing for longer than it may is told to be silent."""
        silent_s, trouble = time.monotonic() - self.heard_at, self.trouble
        if trouble is None and (self.process is None or silent_s > LATE_S):
            trouble = f"has not answered for {int(silent_s)} s"
        return Watched(self.session, self.process, trouble)


class Watch:
    """Follow every process of a store, each in a thread of ours; one that is slow holds up nobody.

    `changed()` is called, in any of those threads, when there is something new. Nobody is followed before the first `look`, and
    processes that begin are found when it is asked again.
    """

    def __init__(self, store: Path, changed: Callable[[], object] = lambda: None) -> None:
        self._store = store
        self._changed = changed
        self._news = threading.Condition()
        self._followed: dict[Path, _Followed] = {}
        self._sought_at = -math.inf
        self._is_over = False

    def look(self, patience_s: float = 0.0) -> list[Watched]:
        """Return what is known of each process, by number; those that are new are waited for, so long at most, and once."""
        self._seek()
        with self._news:
            self._news.wait_for(lambda: all(each.is_settled for each in self._followed.values()), patience_s)
            for each in self._followed.values():
                each.is_settled = True
            return [each.seen() for each in sorted(self._followed.values(), key=lambda each: each.session.pid)]

    def close(self) -> None:
        """Follow nobody any more."""
        with self._news:
            self._is_over = True
            for each in self._followed.values():
                self._hang_up(each)

    def _seek(self) -> None:
        """Follow the processes that are not followed, and forget those that are gone."""
        with self._news:
            if self._is_over or time.monotonic() - self._sought_at < SEEK_S:
                return
            self._sought_at = time.monotonic()
        there = {entry.socket: entry for entry in entries(self._store)}
        with self._news:
            for place in [place for place, each in self._followed.items() if place not in there and not each.is_read]:
                del self._followed[place]
            for place, entry in there.items():
                one = self._followed.setdefault(place, _Followed(entry, Session(place, entry.pid)))
                if not one.is_read:
                    one.thread = threading.Thread(target=self._follow, args=(one,), name="ravi-otel-follow", daemon=True)
                    one.thread.start()

    def _follow(self, one: _Followed) -> None:
        try:
            with contextlib.closing(one.session.follow(partial(self._connected, one))) as told:
                for each in told:
                    self._hear(one, each)
        except LiveError as error:
            self._lose(one, error)
        self._changed()

    def _connected(self, one: _Followed, connection: socket.socket) -> None:
        with self._news:
            one.connection = connection
            if self._is_over:
                self._hang_up(one)

    def _hear(self, one: _Followed, told: ProcessState | Happened) -> None:
        with self._news:
            one.heard_at, one.trouble = time.monotonic(), None
            if isinstance(told, ProcessState):
                one.process, one.is_settled = told, True
                self._news.notify_all()
        self._changed()

    def _lose(self, one: _Followed, error: LiveError) -> None:
        """Note why a process is followed no more; one that has ended is forgotten, and what it left removed."""
        is_gone = isinstance(error.__cause__, _NOBODY) or is_alive(one.entry.process) is False
        if is_gone and one.entry.is_left_over():
            one.entry.remove()
        with self._news:
            one.connection, one.is_settled = None, True
            if is_gone:
                self._followed.pop(one.session.path, None)
            elif not isinstance(error.__cause__, TimeoutError):
                one.trouble = clean(str(error), _MOST_SAID)
            self._news.notify_all()

    @staticmethod
    def _hang_up(one: _Followed) -> None:
        if one.connection is not None:
            with contextlib.suppress(OSError):
                one.connection.shutdown(socket.SHUT_RDWR)


# -- in rows ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Row:
    """Be one line: a process, or a scope in it, with the run that it is in.

    `guide` says for each level whether more follows there, own level last; it is empty for a process. `parent` is the key
    of the row it is in. `held` says that an agent around it is paused, so that its own calls are refused, too; `ended` that it is
    not there any more, and is shown because it is selected.
    """

    key: str
    parent: str | None
    guide: tuple[bool, ...]
    watched: Watched
    scope: ScopeState | None = None
    run: RunState | None = None
    held: bool = False
    ended: bool = False

    @property
    def state(self) -> str:
        """Give the scope's state; of a run that was told to end and goes on still, how it was told."""
        if self.scope is None:
            return ""
        if self.ended:
            return "ended"
        if self.scope.kind == "run" and self.run is not None and self.run.status != "open":
            return self.run.status
        return "paused above" if self.held and self.scope.status in ("open", "waiting") else self.scope.status

    @property
    def trouble(self) -> str | None:
        """Say why its process is not seen now, None where all is well."""
        return "has ended" if self.ended else self.watched.trouble


def rows(processes: Iterable[Watched]) -> list[Row]:
    """Give every row, in the order in which processes are numbered and told of their scopes."""
    found: list[Row] = []
    for watched in processes:
        found.append(Row(watched.key, None, (), watched))
        if watched.process is not None:
            found.extend(_tree(watched, watched.process))
    return found


def _tree(watched: Watched, process: ProcessState) -> Iterator[Row]:
    """Walk a process from its outermost scopes down; a run within a run stands where it was opened.

    A scope stands in one that was told before it, since outer ones are told first: so no answer makes a ring of them.
    """
    runs: dict[str | None, RunState] = {}
    below: defaultdict[str | None, list[ScopeState]] = defaultdict(list)
    for run in process.runs:
        for scope in run.scopes:
            if scope.scope_id not in runs:
                below[scope.parent_id if scope.parent_id in runs else None].append(scope)
                runs[scope.scope_id] = run
    waiting: list[tuple[ScopeState, tuple[bool, ...], str, bool]]
    waiting = [(scope, (more,), watched.key, False) for scope, more in _with_more(below[None])]
    while waiting:
        scope, guide, parent, held = waiting.pop()
        key = f"{watched.key}/{scope.scope_id}"
        yield Row(key, parent, guide, watched, scope, runs[scope.scope_id], held)
        held = held or scope.status == "paused"
        waiting.extend((child, (*guide, more), key, held) for child, more in _with_more(below[scope.scope_id]))


def _with_more(scopes: Sequence[ScopeState]) -> Iterator[tuple[ScopeState, bool]]:
    """Yield the last first, each with whether more follow it."""
    return ((scope, at > 0) for at, scope in enumerate(reversed(scopes)))
