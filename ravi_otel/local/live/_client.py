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
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

from ravi_otel._files import create
from ravi_otel.local._store import is_alive, this_process
from ravi_otel.local._wording import clean
from ravi_otel.local.live._protocol import (
    MOST_ANSWER,
    MOST_EVENTS,
    MOST_SENTENCE,
    VERSION,
    CommandError,
    Happened,
    LiveError,
    LiveEvent,
    NonsenseError,
    ProcessState,
    RunState,
    ScopeState,
    read,
    read_line,
    read_state,
    write_line,
)
from ravi_otel.policy import _checks as checks

DIRECTORY: Final = "live"
MOST_PATH: Final = 100
"""Bytes of a socket's path: systems take 104 or 108, the last of them a 0."""

MOST_ENTRIES: Final = 1_000
"""Processes of one store that are looked at, the newest."""

TIMEOUT_S: Final = 2.0
ANSWER_S: Final = 1.0
"""How long a process is waited for before it is asked anew."""

SILENCE_S: Final = 10.0
"""How long a process that is followed may say nothing: it says every other second how it is."""

_NAME: Final = re.compile(r"[0-9]{1,10}-[0-9a-f]{6}\.json")
_APART: Final = "ravi-live-"
_MODE: Final = 0o700
_YOUNG_S: Final = 10.0
_MOST_TOLD: Final = 4_096
_PIECE: Final = 64 * 1024
_PAUSE_S: Final = 0.01
_AT_ONCE: Final = 16
_REST_S: Final = 2.0
_LOOK_S: Final = 1.0
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

    def cancel(self, scope_id: str, reason: str | None = None, *, by: str | None = None) -> None:
        """Cancel a run or an agent, with all below it; close any other scope."""
        self._ask("cancel", scope_id=scope_id, reason=reason, by=by)

    def close(self, scope_id: str, *, by: str | None = None) -> None:
        """Close a scope: its next call, tool or charge is refused, and what is in flight in it is ended."""
        self._ask("close", scope_id=scope_id, by=by)

    def pause(self, scope_id: str, *, by: str | None = None) -> None:
        """Pause an agent: its next call or tool waits, or ends it, with what it has, as `ScopeState.pauses` says."""
        self._ask("pause", scope_id=scope_id, by=by)

    def resume(self, scope_id: str, *, by: str | None = None) -> None:
        """Let a paused agent go on, as soon as there is a slot."""
        self._ask("resume", scope_id=scope_id, by=by)

    def reprioritize(self, scope_id: str, priority: str, *, by: str | None = None) -> None:
        """Give an agent another priority: "background", "low", "normal", "high" or "critical"."""
        self._ask("reprioritize", scope_id=scope_id, priority=priority, by=by)

    def set_limit(self, scope_id: str, kind: str, value: float, *, by: str | None = None) -> None:
        """Set another value on a limit of the scope, in the kind's public unit; `kind` as `LimitState.kind` writes it."""
        self._ask("set_limit", scope_id=scope_id, kind=kind, value=value, by=by)

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


@dataclass(slots=True)
class _Question:
    """What is under way with one process, since when it owes an answer, what it said last, and whether nobody listens there."""

    last: Watched
    entry: Entry
    answer: Future[ProcessState] | None = None
    asked_at: float = 0.0
    owing_since: float | None = None
    not_before: float = 0.0
    absent: bool = False

    def tidy(self) -> None:
        """Remove what a process has left that is gone; one that only does not listen yet, or any more, is asked again."""
        self.owing_since, self.absent = None, True
        if self.entry.is_left_over():
            self.entry.remove()


class Watch:
    """Ask every process of a store for its state, all at once; for one thread at a time.

    One that is slow holds up nobody. A process that does not answer is asked every other second only, so that many of them do not take
    the threads from others.
    """

    def __init__(self, store: Path) -> None:
        self._store = store
        self._questions: dict[Path, _Question] = {}
        self._threads = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="ravi-otel-top")

    def look(self, patience_s: float) -> list[Watched]:
        """Ask all, wait so long at most for the ones that are not known to be slow, and return what is known of each, by number."""
        found = sorted(entries(self._store), key=lambda entry: entry.pid)
        for gone in self._questions.keys() - {entry.socket for entry in found}:
            del self._questions[gone]
        asked = [self._questions.setdefault(entry.socket, _question(entry)) for entry in found]
        for question in asked:
            self._begin(question)
        wait([each.answer for each in asked if each.answer is not None and each.owing_since is None], patience_s)
        return [seen for question in asked if (seen := self._seen(question)) is not None]

    def close(self) -> None:
        """Ask no more; what is under way ends by itself."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _begin(self, question: _Question) -> None:
        if question.answer is None and time.monotonic() >= question.not_before:
            question.asked_at = time.monotonic()
            question.answer = self._threads.submit(question.last.session.state)

    def _seen(self, question: _Question) -> Watched | None:
        answer = question.answer
        if question.absent and (answer is None or not answer.done()):
            return None
        if answer is None or not answer.done():
            return self._owing(question, marked=answer is None or question.last.process is None)
        question.answer, question.absent = None, False
        try:
            question.last = Watched(question.last.session, answer.result())
        except LiveError as error:
            if isinstance(error.__cause__, _NOBODY):
                question.tidy()
                return None
            if isinstance(error.__cause__, TimeoutError):
                question.not_before = time.monotonic() + _REST_S
                return self._owing(question, marked=True)
            question.last = replace(question.last, trouble=clean(str(error), _MOST_SAID))
        question.owing_since = None
        return question.last

    def _owing(self, question: _Question, *, marked: bool) -> Watched:
        """Return what was known of a process that has not answered; one that needs a moment longer is not marked yet."""
        if question.owing_since is None:
            if not marked:
                return question.last
            question.owing_since = question.asked_at
        question.last = replace(question.last, trouble=f"has not answered for {int(time.monotonic() - question.owing_since)} s")
        return question.last


def _question(entry: Entry) -> _Question:
    return _Question(Watched(Session(entry.socket, entry.pid, ANSWER_S)), entry)


class Following:
    """Follow every process of a store, each in a thread of ours; `changed()` is called, in any of them, when there is something new.

    `seen()` and `events()` wait for nothing. Processes that begin are found within a second.
    """

    def __init__(self, store: Path, changed: Callable[[], object] = lambda: None) -> None:
        self._store = store
        self._changed = changed
        self._lock = threading.Lock()
        self._known: dict[Path, Watched] = {}
        self._connections: dict[Path, socket.socket] = {}
        self._events: deque[tuple[int, str, LiveEvent]] = deque(maxlen=MOST_EVENTS)
        self._number = 0
        self._unheard: set[Path] | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._find, name="ravi-otel-follow", daemon=True)
        self._thread.start()

    @property
    def is_settled(self) -> bool:
        """Whether each process was heard that was there at the beginning, or is known not to answer."""
        with self._lock:
            return self._unheard is not None and not self._unheard

    def seen(self) -> list[Watched]:
        """Return what is known of each process, by number."""
        with self._lock:
            return sorted(self._known.values(), key=lambda each: each.session.pid)

    def events(self, after: int = 0) -> list[tuple[int, str, LiveEvent]]:
        """Return what happened after the event of that number, of at most the last 250: its number, its process's key, and the event."""
        with self._lock:
            return [each for each in self._events if each[0] > after]

    def close(self) -> None:
        """Follow nobody any more."""
        self._over.set()
        with self._lock:
            connections = list(self._connections.values())
        for each in connections:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def _find(self) -> None:
        following: dict[Path, threading.Thread] = {}
        while not self._over.is_set():
            there = entries(self._store)
            with self._lock:
                if self._unheard is None:
                    self._unheard = {entry.socket for entry in there}
                for gone in self._known.keys() - {entry.socket for entry in there} - self._connections.keys():
                    del self._known[gone]
            for entry in there:
                if entry.socket not in following or not following[entry.socket].is_alive():
                    thread = threading.Thread(target=self._follow, args=(entry,), name="ravi-otel-follow", daemon=True)
                    following[entry.socket] = thread
                    thread.start()
            self._over.wait(_LOOK_S)

    def _follow(self, entry: Entry) -> None:
        session = Session(entry.socket, entry.pid)
        trouble: str | None = None
        try:
            with contextlib.closing(session.follow(partial(self._connected, entry.socket))) as told:
                for each in told:
                    self._take(session, each)
        except LiveError as error:
            trouble = None if isinstance(error.__cause__, _NOBODY) or is_alive(entry.process) is False else clean(str(error), _MOST_SAID)
        with self._lock:
            self._connections.pop(entry.socket, None)
            self._hear(entry.socket)
            if trouble is None:
                self._known.pop(entry.socket, None)
            else:
                self._known[entry.socket] = replace(self._known.get(entry.socket, Watched(session)), trouble=trouble)
        if trouble is None and entry.is_left_over():
            entry.remove()
        self._changed()

    def _connected(self, place: Path, connection: socket.socket) -> None:
        with self._lock:
            self._connections[place] = connection
            if self._over.is_set():
                connection.shutdown(socket.SHUT_RDWR)

    def _hear(self, place: Path) -> None:
        if self._unheard is not None:
            self._unheard.discard(place)

    def _take(self, session: Session, told: ProcessState | Happened) -> None:
        with self._lock:
            self._hear(session.path)
            if isinstance(told, ProcessState):
                self._known[session.path] = Watched(session, told)
            else:
                for event in told.events:
                    self._number += 1
                    self._events.append((self._number, str(session.path), event))
        self._changed()


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
    """Walk a process from its outermost scopes down; a run within a run stands where it was opened."""
    runs = {scope.scope_id: run for run in reversed(process.runs) for scope in run.scopes}
    scopes = list({scope.scope_id: scope for run in process.runs for scope in run.scopes}.values())
    below = _children(scopes)
    roots = _roots(scopes, below)
    tops = {scope.scope_id for scope in roots}
    waiting: list[tuple[ScopeState, tuple[bool, ...], str, bool]] = [
        (scope, (at < len(roots),), watched.key, False) for at, scope in enumerate(roots, 1)
    ]
    waiting.reverse()
    while waiting:
        scope, guide, parent, held = waiting.pop()
        key = f"{watched.key}/{scope.scope_id}"
        yield Row(key, parent, guide, watched, scope, runs[scope.scope_id], held)
        held = held or scope.status == "paused"
        children = [child for child in below.get(scope.scope_id, ()) if child.scope_id not in tops]
        waiting.extend((child, (*guide, at < len(children)), key, held) for at, child in reversed(list(enumerate(children, 1))))


def _children(scopes: Sequence[ScopeState]) -> dict[str, list[ScopeState]]:
    found: dict[str, list[ScopeState]] = {}
    for scope in scopes:
        if scope.parent_id is not None:
            found.setdefault(scope.parent_id, []).append(scope)
    return found


def _roots(scopes: Sequence[ScopeState], below: dict[str, list[ScopeState]]) -> list[ScopeState]:
    """Find the scopes in nothing that we know, and one of each ring, so that every scope is below one root."""
    known = {scope.scope_id for scope in scopes}
    reached: set[str] = set()
    roots: list[ScopeState] = []
    for scope in (*(scope for scope in scopes if scope.parent_id not in known), *scopes):
        if scope.scope_id in reached:
            continue
        roots.append(scope)
        waiting = [scope]
        while waiting:
            at = waiting.pop()
            if at.scope_id not in reached:
                reached.add(at.scope_id)
                waiting.extend(below.get(at.scope_id, ()))
    return roots
