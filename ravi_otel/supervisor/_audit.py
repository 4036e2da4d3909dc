"""The audit log: what was asked of tools, decided and done, one file a run, each line chained to the one before, so that changes show.

DIRECTORY/                          0700
├── RUN.audit.jsonl                 0600; one entry a line, each with the hash of the one before
└── RUN.audit.head                  how many entries and bytes there are, and the hash of the last
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import re
import stat
import time
import weakref
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from json import dumps, loads  # as it is now: the program may make tools of that module's functions
from pathlib import Path
from typing import Any, Final, Literal, cast

from ravi_otel._runtime.state import STATE
from ravi_otel.errors import ConfigurationError, RaviError
from ravi_otel.hooks._events import LimitChange
from ravi_otel.hooks._listeners import Listener
from ravi_otel.policy import _checks as checks
from ravi_otel.policy._limits import format_public_amount
from ravi_otel.supervisor._json import args_sha256, canonical, plain
from ravi_otel.supervisor.approval._request import freeze, read_arguments, sha256_of

GENESIS: Final = "0" * 64
MOST_LINE: Final = 1024 * 1024
"""The most bytes of an entry."""

_HEAD_BYTES: Final = 192
_LOCK_WAIT_S: Final = 5.0
_LOCK_PAUSE_S: Final = 0.0005
_OTHERS_WRITE: Final = 0o022
_OPEN_FLAGS: Final = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


class AuditError(RaviError):
    """An audit log that cannot be written, or was changed: nothing is executed."""


@dataclass(frozen=True, slots=True)
class Head:
    """The end of a chain: its number of entries, its bytes, those of the last entry, and that one's hash."""

    entries: int = 0
    size: int = 0
    last: int = 0
    hash: str = GENESIS

    def as_bytes(self) -> bytes:
        """Return it as bytes of constant length, so that one write replaces it."""
        text = dumps({"entries": self.entries, "bytes": self.size, "last": self.last, "hash": self.hash}, separators=(",", ":"))
        return text.ljust(_HEAD_BYTES - 1).encode("ascii") + b"\n"


def hash_of(entry: Mapping[str, Any]) -> str:
    """Return the SHA-256 of an entry without its own hash."""
    return hashlib.sha256(_canonical_bytes({name: value for name, value in entry.items() if name != "hash"})).hexdigest()


def line_of(entry: Mapping[str, Any]) -> bytes:
    """Return an entry in its canonical form."""
    line = _canonical_bytes(entry) + b"\n"
    if len(line) > MOST_LINE:
        raise AuditError(f"an entry of the audit log would have {len(line)} bytes, and may have {MOST_LINE}: leave `content` off.")
    return line


def line_flaw(line: bytes, before: Head, run_id: object) -> tuple[Head, str | None]:
    """Return what is wrong with the line after `before`, None if nothing is, and the end of the chain with it."""
    entry = read_entry(line)
    if entry is None:
        return before, "it is no JSON object"
    after = Head(before.entries + 1, before.size + len(line), len(line), str(entry.get("hash")))
    if entry.get("n") != after.entries:
        return after, f"it is entry {checks.show(entry.get('n'))} where {after.entries} belongs: some were taken out, put in or moved"
    if entry.get("prev") != before.hash:
        return after, "it does not follow from the entry before it"
    if not _is_as_written(entry, line):
        return after, "its content was changed"
    return after, None if entry.get("run_id") == run_id else "it is of another run"


def read_entry(line: bytes) -> dict[str, Any] | None:
    """Return the entry in a line, None if it is no JSON object."""
    try:
        entry = loads(line.decode())
    except (ValueError, RecursionError):
        return None
    return cast("dict[str, Any]", entry) if isinstance(entry, dict) else None


def _is_as_written(entry: Mapping[str, Any], line: bytes) -> bool:
    try:
        return hash_of(entry) == entry.get("hash") and line_of(entry) == line
    except (ValueError, RecursionError, RaviError):
        return False


def head_path(path: Path) -> Path:
    """Return the path of the record of a log's end."""
    return path.with_suffix(".head")


def read_head(path: Path) -> Head | None:
    """Return the recorded end of the log, None without a readable record."""
    try:
        opened = os.open(head_path(path), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        raw = os.read(opened, _HEAD_BYTES + 1)
        known = loads(raw.decode())
        head = Head(known["entries"], known["bytes"], known["last"], known["hash"])
        return head if head.as_bytes() == raw and head.entries >= 0 <= head.last <= head.size else None
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None
    finally:
        os.close(opened)


@contextmanager
def open_locked(path: Path) -> Generator[int, None, None]:
    """Open the log for its owner only and keep others out; OSError, or AuditError when another keeps it for five seconds."""
    opened = os.open(path, _OPEN_FLAGS | os.O_APPEND, 0o600)
    try:
        found = os.fstat(opened)
        if not stat.S_ISREG(found.st_mode) or found.st_mode & _OTHERS_WRITE or os.geteuid() != found.st_uid:
            raise AuditError(
                f"the audit log {checks.show(str(path))} is no regular file, belongs to another user or may be written by others: "
                "give AuditLog a directory of your own."
            )
        lock_file(path, opened, fcntl.LOCK_EX)
        try:
            yield opened
        finally:
            fcntl.flock(opened, fcntl.LOCK_UN)  # also of the descriptors that a fork has taken along meanwhile
    finally:
        os.close(opened)


def recover(path: Path, opened: int, run_id: object) -> tuple[Head, int]:
    """Find the end of the chain, and take off what a killed process left of a line; return how many bytes that was.

    Raises AuditError when the file is not the one that was written.
    """
    size, head = os.fstat(opened).st_size, read_head(path)
    if head is None:
        if size or _has_content(head_path(path)):
            raise _tampered(path, "the record of its end is gone or cannot be read")
        head = Head()
        _write_head(path, head, os.O_CREAT)
    if size < head.size:
        raise _tampered(path, f"it has {size} bytes where {head.size} were written: its end was cut off")
    if head.size and not _has_last_entry(opened, head):
        raise _tampered(path, f"its entry {head.entries} is not the one that was written")
    end = head.size
    for line in read_lines(opened, head.size, size):
        if not line.endswith(b"\n"):
            break
        head, flaw = line_flaw(line, head, run_id)
        if flaw is not None:
            raise _tampered(path, f"of its entry {head.entries}, {flaw}")
        end += len(line)
    if end < size:
        os.ftruncate(opened, end)
    return head, size - end


def append_line(path: Path, opened: int, line: bytes, head: Head, *, sync: bool) -> None:
    """Write a line and then where the log ends now; what of it could not be written is for `recover` to look at.

    With `sync` each is on the disk before the next, so that after a loss of power the record is never more than one entry behind.
    """
    left = memoryview(line)
    while left:
        left = left[os.write(opened, left) :]
    if sync:
        os.fsync(opened)
    _write_head(path, head, sync=sync)
    if sync and head.entries == 1:
        _sync_directory(path.parent)


def read_lines(opened: int, start: int, end: int) -> Generator[bytes, None, None]:
    """Yield lines with their ends; one that is longer than any entry comes in pieces."""
    at, kept = start, b""
    while at < end:
        part = os.pread(opened, min(end - at, 1024 * 1024), at)
        if not part:
            break
        at += len(part)
        *whole, kept = (kept + part).split(b"\n")
        for each in whole:
            yield each + b"\n"
        if len(kept) > MOST_LINE:
            yield kept
            kept = b""
    if kept:
        yield kept


def _has_last_entry(opened: int, head: Head) -> bool:
    """Whether the last entry in the record is in its place."""
    line = os.pread(opened, head.last, head.size - head.last)
    entry = read_entry(line)
    return entry is not None and entry.get("hash") == head.hash and _is_as_written(entry, line)


def _has_content(path: Path) -> bool:
    """Whether a file has something in it, or cannot be looked at: who was killed while making one leaves it empty."""
    try:
        return path.lstat().st_size > 0
    except FileNotFoundError:
        return False
    except OSError:
        return True


def _write_head(path: Path, head: Head, flags: int = 0, *, sync: bool = False) -> None:
    opened = os.open(head_path(path), os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | flags, 0o600)
    try:
        os.pwrite(opened, head.as_bytes(), 0)
        if sync:
            os.fsync(opened)
    finally:
        os.close(opened)


def _sync_directory(directory: Path) -> None:
    """Sync the directory, so that the names of new files are on the disk, too."""
    opened = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def lock_file(path: Path, opened: int, kind: int) -> None:
    """Wait for a lock of the file's; AuditError when another keeps it for five seconds."""
    until = time.monotonic() + _LOCK_WAIT_S
    while True:
        try:
            fcntl.flock(opened, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= until:
                raise AuditError(
                    f"the audit log {checks.show(str(path))} is kept locked by another process for {_LOCK_WAIT_S:g} s: end that one."
                ) from None
            time.sleep(_LOCK_PAUSE_S)
        else:
            return


def _tampered(path: Path, why: str) -> AuditError:
    return AuditError(
        f"the audit log {checks.show(str(path))} was changed: {why}. Nothing is executed; "
        "look at it with `ravi-otel audit verify`, keep it, and give AuditLog another directory."
    )


def _canonical_bytes(entry: Mapping[str, Any]) -> bytes:
    return dumps(entry, separators=(",", ":"), sort_keys=True, ensure_ascii=True, allow_nan=False).encode("ascii")


AuditStep = Literal["proposed", "reviewed", "approved", "effective", "executed"]
AUDIT_STEPS: Final = ("proposed", "reviewed", "approved", "effective", "executed")
LIMIT_SET: Final = "limit_set"
"""The kind of an entry about a limit that got another value."""

AUDIT_SUFFIX: Final = ".audit.jsonl"

_log = logging.getLogger("ravi_otel")

_OWN_FIELDS: Final = frozenset(
    {
        *("n", "at", "what", "run_id", "agent_name", "tool", "op_id", "args_sha256", "arguments", "prev", "hash", "recovered"),
        *("asked", "asked_sha256", "asked_unwritten"),
    }
)
_SAFE_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_MOST_TEXT: Final = 2_000
_MOST_FACTS: Final = 32
_MOST_REMEMBERED: Final = 1_024
_NO_RUN: Final = "no-run"
_NO_ENTRIES: Final = Head()


class AuditLog:
    """The audit logs in a directory, one a run. Arguments are written as their SHA-256, with `content` as they are too.

    Any number of threads and processes may write at once: an entry is one append under a lock of the file's, which the system takes
    back from a process that is killed. An entry that was written whole stays; what a killed process left of one is taken off by the next.
    With `sync` each entry is on the disk before `note` returns, so that it also survives a loss of power. See docs/approvals.md for what
    `verify` finds.
    """

    def __init__(self, directory: str | Path, *, content: bool = False, sync: bool = False) -> None:
        if not isinstance(cast("object", directory), (str, os.PathLike)) or not str(directory):
            raise ConfigurationError(f"AuditLog(directory={checks.show(directory)}) must be the path of a directory.")
        self.directory = Path(directory).expanduser().absolute()
        self._content = checks.flag("AuditLog(content)", content)
        self._sync = checks.flag("AuditLog(sync)", sync)
        self._written: dict[str, Head] = {}

    def __repr__(self) -> str:
        return f"<AuditLog {str(self.directory)!r}>"

    def path(self, run_id: str | None) -> Path:
        """Return the path of a run's log."""
        return self.directory / f"{log_name(run_id)}{AUDIT_SUFFIX}"

    def head(self, run_id: str | None) -> str | None:
        """Return the hash of the run's last entry, None when it has none: kept elsewhere, it shows whether the whole log was made anew."""
        known = read_head(self.path(run_id))
        return None if known is None or known.entries == 0 else known.hash

    def note(
        self,
        what: AuditStep,
        *,
        run_id: str | None,
        agent_name: str | None,
        tool: str,
        op_id: str,
        arguments: Mapping[str, Any] | str | None,
        asked: Mapping[str, Any] | None = None,
        **facts: Any,
    ) -> None:
        """Append one entry. `facts` are more of its fields; `arguments` may be a text that nobody could read.

        `asked` are the arguments that a person was shown, who approved `arguments`: written as these are.

        Raises AuditError when it cannot be written, or when what is there is not what was written: then nothing may be executed.
        """
        entry: dict[str, Any] = {
            "at": round(time.time(), 6),
            "what": checks.choice("note(what)", what, AUDIT_STEPS),
            "run_id": _storable_text(run_id),
        }
        entry |= {"agent_name": _storable_text(agent_name), "tool": _storable_text(tool), "op_id": _storable_text(op_id)}
        self._write(entry | self._arguments(tool, arguments) | self._asked(tool, asked) | _facts(facts))

    def note_limit(  # noqa: PLR0913 - one parameter a field
        self,
        limit: str,
        kind: str,
        before: float | None,
        now: float,
        *,
        run_id: str | None,
        agent_name: str | None,
        scope: str,
        scope_name: str | None,
        who: str | None,
        login: str | None,
    ) -> None:
        """Append that `limit`, which is one of `kind`, has the value `now` in the place of `before`, in the kind's public unit.

        `who` is the person who set it, None where the program did, and `login` the user of the system who asked. Raises AuditError as
        `note` does.
        """
        entry: dict[str, Any] = {
            "at": round(time.time(), 6),
            "what": LIMIT_SET,
            "run_id": _storable_text(run_id),
            "agent_name": _storable_text(agent_name),
        }
        entry |= {
            "limit": _storable_text(limit),
            "kind": kind,
            "before": before,
            "now": now,
            "scope": scope,
            "scope_name": _storable_text(scope_name),
        }
        self._write(entry | {"who": _storable_text(who), "login": _storable_text(login)})

    def _write(self, entry: dict[str, Any]) -> None:
        path = self.path(entry["run_id"])
        so = "The limit was set all the same" if entry["what"] == LIMIT_SET else "Nothing is executed without it"
        try:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            with open_locked(path) as opened:
                self._append(path, opened, entry)
        except OSError as error:
            raise AuditError(
                f"the audit log {checks.show(str(path))} cannot be written: {error.strerror or error}. {so}; "
                "make room there, or give AuditLog a directory you can write."
            ) from error

    def _append(self, path: Path, opened: int, entry: dict[str, Any]) -> None:
        """Write the entry behind those that are there, and then that it is."""
        head, cut = recover(path, opened, entry["run_id"])
        known = self._written.get(path.name, _NO_ENTRIES)
        if head.entries < known.entries or (head.entries == known.entries and head.hash != known.hash):
            raise AuditError(
                f"the audit log {checks.show(str(path))} was changed: {known.entries} entries were written, which are gone. "
                "Nothing is executed; give AuditLog another directory."
            )
        entry |= {"n": head.entries + 1, "prev": head.hash}
        if cut:
            entry["recovered"] = cut
        entry["hash"] = hash_of(entry)
        line = line_of(entry)
        head = Head(head.entries + 1, head.size + len(line), len(line), entry["hash"])
        append_line(path, opened, line, head, sync=self._sync)
        self._written[path.name] = head
        if len(self._written) > _MOST_REMEMBERED:
            self._written.pop(next(iter(self._written)), None)

    def _asked(self, tool: str, asked: Mapping[str, Any] | None) -> dict[str, Any]:
        if asked is None:
            return {}
        known = self._arguments(tool, asked)
        names = {"args_sha256": "asked_sha256", "arguments": "asked", "args_unwritten": "asked_unwritten"}
        return {names[name]: value for name, value in known.items()}

    def _arguments(self, tool: str, arguments: Mapping[str, Any] | str | None) -> dict[str, Any]:
        if arguments is None:
            return {"args_sha256": None}
        if isinstance(arguments, str):
            known: dict[str, Any] = {
                "args_sha256": sha256_of(_storable_text(tool), _storable_text(arguments, len(arguments))),
                "args_read": False,
            }
            return known | ({"arguments": _storable_text(arguments)} if self._content else {})
        known = {"args_sha256": None}
        try:
            known["args_sha256"] = args_sha256(tool, arguments)
            if self._content:
                known["arguments"] = read_arguments(freeze(arguments))
        except RaviError as error:
            known["args_unwritten"] = _storable_text(str(error))
        return known


class LimitChanges(Listener):
    """Write down in every log that a gate or an AuditTrail uses, one a directory, which limits were set to what, and by whom.

    The change has been made by then: a limit must be lowered, in need, also where no log can be written. That is said in the program's.
    """

    def __init__(self) -> None:
        self._logs: weakref.WeakValueDictionary[Path, AuditLog] = weakref.WeakValueDictionary()

    def note_in(self, log: object) -> None:
        """Write them into `log`, for as long as somebody else has it; what is no AuditLog hears of tools alone."""
        if isinstance(log, AuditLog):
            self._logs.setdefault(log.directory, log)
            STATE.listen(self)

    def limit_set(self, change: LimitChange) -> None:
        """Record one change."""
        facts = change.facts
        for log in list(self._logs.values()):
            try:
                log.note_limit(
                    change.limit,
                    change.kind,
                    change.before,
                    change.now,
                    run_id=facts.run_id,
                    agent_name=facts.agent_name,
                    scope=facts.kind.value,
                    scope_name=facts.name,
                    who=change.by,
                    login=change.login,
                )
            except AuditError as error:
                _log.error("ravi-otel: %s was set to %s by %s, and %s", change.limit, change.now, change.by or "the program", error)


LIMIT_CHANGES: Final = LimitChanges()


def log_name(run_id: str | None) -> str:
    """Return the beginning of the file's name for a run: its id, or a hash of one that is no name for a file."""
    if run_id is None:
        return _NO_RUN
    if _SAFE_NAME.fullmatch(run_id) and run_id != _NO_RUN:
        return run_id
    return f"run-{sha256_of(_storable_text(run_id))[:32]}"


def _facts(facts: Mapping[str, Any]) -> dict[str, Any]:
    taken = sorted(_OWN_FIELDS & facts.keys())
    if taken or len(facts) > _MOST_FACTS:
        what = f"the field {taken[0]!r} is the log's own" if taken else f"there are more than {_MOST_FACTS} of them"
        raise ConfigurationError(f"note(**facts) cannot be written: {what}; give others.")
    return {name: _fact(value) for name, value in facts.items()}


def _fact(value: object) -> Any:
    """Return a fact as a JSON value; what JSON does not have, as text."""
    if isinstance(value, str):
        return _storable_text(value)
    with contextlib.suppress(RaviError):
        known = plain(value)
        if len(canonical(known)) <= _MOST_TEXT:
            return known
    return checks.show(value)


def _storable_text(text: str | None, most: int = _MOST_TEXT) -> Any:
    """Return text that can be encoded, cut if it is too long."""
    if text is None:
        return None
    whole = str.__str__(text).encode("utf-8", "replace").decode("utf-8")
    return whole if len(whole) <= most else f"{whole[: most - 3]}..."


_MOST_AHEAD = 1


@dataclass(frozen=True, slots=True)
class Verified:
    """What was found in one log.

    `entries` follow from one another, the last of them has the hash `head`; `bad_line` is the number of the first line that does not,
    None when all do. `problems` say what is wrong, nothing when the log is as it was written. `remarks` are no fault of anybody's.
    """

    path: Path
    run_id: str | None = None
    entries: int = 0
    head: str | None = None
    bad_line: int | None = None
    problems: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether the log has no problem."""
        return not self.problems


@dataclass(slots=True)
class _Verification:
    """Collect what is found on the way."""

    end: Head = field(default_factory=Head)
    at_head: Head | None = None
    run_id: str | None = None
    anchored: bool = False
    bad_line: int | None = None
    torn: int = 0
    problems: list[str] = field(default_factory=list[str])
    remarks: list[str] = field(default_factory=list[str])


def verify(path: str | Path, *, head: str | None = None) -> Verified:
    """Check the log in a file; `head` is a hash of one of its entries that was kept elsewhere.

    Finds every line that was changed, taken out, put in or moved, an end that was cut off, and a file under another run's name. Whoever
    may write both the log and the record beside it can make a log anew, or delete it: that is found only with `head`, and only for the
    entries up to that one. Raises ConfigurationError for what is no file that can be read.
    """
    file = Path(path).absolute()
    found = _Verification()
    try:
        opened = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise ConfigurationError(f"FILE={checks.show(str(path))} cannot be read: {error.strerror}. Name an audit log.") from error
    try:
        if not stat.S_ISREG(os.fstat(opened).st_mode):
            raise ConfigurationError(f"FILE={checks.show(str(path))} is no regular file: name an audit log.")
        size, record = _size_and_head(file, opened)
        _read_chain(found, opened, size, record, head)
    finally:
        os.close(opened)
    _compare_with_head(found, file, size, record)
    if head is not None and not found.anchored:
        found.problems.append("no entry has the hash that was given: the log was made anew, cut, or is another run's")
    return Verified(
        file,
        found.run_id,
        found.end.entries,
        found.end.hash if found.end.entries else None,
        found.bad_line,
        tuple(found.problems),
        tuple(found.remarks),
    )


def verify_all(directory: str | Path) -> list[Verified]:
    """Check every log of a directory, and tell of those whose record is there and that are gone themselves.

    One that cannot be read keeps nobody from the others: that is its problem.
    """
    place = Path(directory).absolute()
    try:
        names = sorted(path.name for path in place.iterdir())
    except OSError as error:
        raise ConfigurationError(f"DIR={checks.show(str(directory))} cannot be read: {error.strerror}. Name a directory.") from error
    known = {name for name in names if name.endswith(AUDIT_SUFFIX)}
    ends = {head_path(place / name).name for name in known}
    checked = [_verify_one_of_many(place / name) for name in sorted(known)]
    gone = [name for name in names if name.endswith(".audit.head") and name not in ends]
    return checked + [Verified(place / name, problems=("its log is gone, and only the record of its end is left",)) for name in gone]


def _verify_one_of_many(path: Path) -> Verified:
    """Check one log of many; a link, a pipe or an unreadable file is reported as its problem."""
    if path.is_symlink():
        return Verified(path, problems=("it is a link, which is not followed: an audit log is a file of its own",))
    try:
        return verify(path)
    except (ConfigurationError, OSError) as error:
        return Verified(path, problems=(f"it was not read: {error}",))


def _size_and_head(path: Path, opened: int) -> tuple[int, Head | None]:
    """Look at how long the log is and where it says it ends, between two entries; where there are no locks, as it is."""
    with contextlib.suppress(OSError, AuditError):
        lock_file(path, opened, fcntl.LOCK_SH)
    try:
        return os.fstat(opened).st_size, read_head(path)
    finally:
        with contextlib.suppress(OSError):
            fcntl.flock(opened, fcntl.LOCK_UN)


def _read_chain(found: _Verification, opened: int, size: int, record: Head | None, anchor: str | None) -> None:
    """Check the lines up to the first that is wrong."""
    for number, line in enumerate(read_lines(opened, 0, size), 1):
        if not line.endswith(b"\n"):
            found.torn = len(line)
            return
        if number == 1:
            run_id = (read_entry(line) or {}).get("run_id")
            found.run_id = run_id if isinstance(run_id, str) else None
        end, flaw = line_flaw(line, found.end, found.run_id)
        if flaw is not None:
            found.bad_line = number
            found.problems.append(f"line {number}: {flaw}")
            return
        found.end = end
        found.anchored |= end.hash == anchor
        if record is not None and end.entries == record.entries:
            found.at_head = end


def _compare_with_head(found: _Verification, path: Path, size: int, record: Head | None) -> None:
    """Compare what was read with the record of the log's end and with the file's name."""
    if found.end.entries and path.name != f"{log_name(found.run_id)}{AUDIT_SUFFIX}":
        found.problems.append(f"line 1: it is of run {checks.show(found.run_id)}, and the file's name is not that run's")
    if found.bad_line is not None:
        return
    if record is None:
        if size or _has_content(head_path(path)):
            found.problems.append(f"{head_path(path).name} is gone or cannot be read: whether the log's end was cut off cannot be told")
        return
    if size < record.size or found.end.entries < record.entries:
        number = found.end.entries + 1
        found.problems.append(f"line {number}: its end was cut off, {found.end.entries} entries are left of {record.entries}")
        found.bad_line = number
        return
    if record.entries and found.at_head != record:
        found.problems.append(f"line {record.entries}: it is not the entry that was written there")
        found.bad_line = record.entries
    elif found.end.entries > record.entries + _MOST_AHEAD:
        found.problems.append(f"line {record.entries + 2}: it was put in by somebody else")
        found.bad_line = record.entries + 2
    elif found.torn:
        found.remarks.append(
            f"a writer was killed while it wrote: {found.torn} bytes after the last entry are none, and the next one removes them"
        )


_DECISION_WORDS: Final = {"approve": "let through", "revise": "revised", "block": "blocked", "escalate": "escalated"}
Tone = Literal["ok", "refused", "wait", "error", "paused", "run"]
_TONES: Final[Mapping[str, Tone]] = {
    "let through": "ok",
    "approved": "ok",
    "executed": "ok",
    "rejected": "refused",
    "blocked": "refused",
    "changed": "refused",
    "not run": "refused",
    "escalated": "wait",
    "failed": "error",
    "cancelled": "paused",
}
"""What became of a call, by the word for an entry; all others neither let through nor refuse."""

_END_WORDS: Final = {"refused": "not run", "error": "failed", "cancelled": "cancelled", "answered": "answered"}
"""What an `executed` is called that is not "ok": the gate writes one for every call that it judged, whatever became of it."""

_MOST_WORD: Final = 80
_MOST_SENTENCE: Final = 400
_MOST_FIELD: Final = 2_000
_HASH_SHOWN: Final = 8
_SHOWN_APART: Final = frozenset(
    {
        *("n", "at", "what", "run_id", "agent_name", "tool", "op_id", "prev", "hash", "who", "approved", "args_sha256", "asked_sha256"),
        *("asked", "arguments", "decision", "reason", "stop_reason", "status", "comment", "identity", "permitted", "fits", "executed_from"),
    }
)
_WHOSE: Final = {"original": "as asked", "supervisor_revised": "as the supervisor put it right", "human_revised": "as a person edited it"}
"""Whose arguments were executed."""


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One line of a log as it may be shown: `says` is what it says besides who, when and which tool, `fields` all that is in it.

    `what` is what happened in one or two words, and `tone` whether that lets through or refuses. `who` is a person where `person` says
    so. `fits` says whether it follows from the line before, None of what comes after one that does not.
    """

    file: str
    number: int
    at: float | None
    run: str
    tool: str
    what: str
    tone: Tone
    says: str
    who: str
    person: bool
    hash: str
    fits: bool | None
    fields: tuple[tuple[str, str], ...] = ()

    def is_of(self, *, run: str = "", tool: str = "", person: str = "", what: str = "", text: str = "") -> bool:
        """Whether it is of this run, this tool, this person and this kind, and has the text in it; what is empty is not asked."""
        wanted = ((run, self.run), (tool, self.tool), (person, self.who), (what, self.what))
        if any(each and each != known for each, known in wanted):
            return False
        written = " ".join(value for _, value in self.fields)
        return text.casefold() in f"{self.says} {self.tool} {self.run} {self.who} {written}".casefold()


def read_entries(verified: Verified, clean: Callable[[str, int], str]) -> list[AuditEntry]:
    """Return the entries of a log that was verified, the oldest first; `clean` cuts a text, and takes out what must not reach a screen."""
    if not verified.path.name.endswith(AUDIT_SUFFIX):
        return []
    try:
        opened = os.open(verified.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        if verified.ok:
            raise
        return []  # its problem says so
    try:
        about = os.fstat(opened)
        read = list(read_lines(opened, 0, about.st_size)) if stat.S_ISREG(about.st_mode) else []
    finally:
        os.close(opened)
    known = [read_entry(line) or {} for line in read if line.endswith(b"\n")]
    passed = _approved_reviews(known)
    return [_describe_entry(verified, number, entry, clean, passed=number in passed) for number, entry in enumerate(known, 1)]


def _approved_reviews(known: Sequence[Mapping[str, Any]]) -> set[int]:
    """Return the numbers of reviews that escalated what a person had approved by then: the call went on, and nobody was asked again."""
    latest: dict[str, int] = {}
    passed: set[int] = set()
    for number, entry in enumerate(known, 1):
        call, what = _text_of(entry, "op_id"), entry.get("what")
        before: Mapping[str, Any] = known[latest[call] - 1] if call in latest else {}
        if what == "effective" and before.get("decision") == "escalate":
            passed.add(latest[call])
        latest[call] = number
    return passed


def newest_first(every: list[AuditEntry]) -> list[AuditEntry]:
    """Return entries of any number of logs in the order in which a person looks for them."""
    return sorted(every, key=lambda entry: (-(entry.at or 0.0), entry.file, -entry.number))


def _describe_entry(
    verified: Verified, number: int, entry: Mapping[str, Any], clean: Callable[[str, int], str], *, passed: bool
) -> AuditEntry:
    what, bad = _text_of(entry, "what"), verified.bad_line == number
    person = _text_of(entry, "who") if what in ("approved", LIMIT_SET) else ""
    others = {"reviewed": "gate", LIMIT_SET: "the program"}.get(what, "")
    word = "changed" if bad else _DECISION_WORDS["approve"] if passed else _event_word(entry, what)
    at, says = entry.get("at"), _describe_limit(entry) if what == LIMIT_SET else _describe_event(entry, what, passed=passed)
    agent = "nobody" if what == "approved" else _text_of(entry, "agent_name")
    return AuditEntry(
        file=clean(verified.path.name, _MOST_SENTENCE),
        number=number,
        at=at if isinstance(at, (int, float)) and not isinstance(at, bool) else None,
        run=clean(_text_of(entry, "run_id"), _MOST_WORD),
        tool=clean(_text_of(entry, "tool"), _MOST_WORD),
        what=clean(word, _MOST_WORD),
        tone=_TONES.get(word, "run"),
        says=clean(" ".join(verified.problems) if bad else says, _MOST_SENTENCE),
        who=clean(person or others or agent, _MOST_WORD),
        person=bool(person),
        hash=clean(_text_of(entry, "hash"), 64),
        fits=True if verified.bad_line is None or number < verified.bad_line else False if bad else None,
        fields=tuple(
            (clean(name, _MOST_WORD), clean(_show_value(value), _MOST_FIELD)) for name, value in entry.items() if value is not None
        ),
    )


def _event_word(entry: Mapping[str, Any], what: str) -> str:
    """Return what happened in one or two words: of a review its decision, of an answer whether it counts, of an end how it ended."""
    if what == "approved" and not (entry.get("approved", True) and entry.get("permitted", True)):
        return "rejected"
    if what == "executed":
        return _END_WORDS.get(_text_of(entry, "status"), what)
    return _DECISION_WORDS.get(_text_of(entry, "decision"), what.replace("_", " "))


def _text_of(entry: Mapping[str, Any], name: str) -> str:
    value = entry.get(name)
    return value if isinstance(value, str) else ""


def _describe_limit(entry: Mapping[str, Any]) -> str:
    """Write which limit was set from what to what."""
    of = " ".join(filter(None, (_text_of(entry, "scope"), _text_of(entry, "scope_name"))))
    before, now = (_amount(_text_of(entry, "kind"), entry.get(name)) for name in ("before", "now"))
    return f"{_text_of(entry, 'limit')} of {of}: {before} before, {now} now"


def _amount(kind: str, amount: object) -> str:
    return format_public_amount(kind, amount) if isinstance(amount, (int, float)) else "none"


def _describe_event(entry: Mapping[str, Any], what: str, *, passed: bool) -> str:
    """Write what an entry says besides who, when and which tool: why, and with which arguments, where those were kept."""
    why = ", which was approved" if passed else ", a person is asked" if entry.get("decision") == "escalate" else ""
    parts = [f"{_text_of(entry, 'reason')}{why}"] if _text_of(entry, "reason") else []
    parts += [_text_of(entry, "stop_reason")]
    if what == "approved":
        parts += _describe_answer(entry)
    elif what != "reviewed":
        parts += [_show_arguments(entry), _WHOSE.get(_text_of(entry, "executed_from"), "")]
    kept = ((name, value) for name, value in entry.items() if name not in _SHOWN_APART and value is not None)
    parts += [f"{name}={_show_value(value)}" for name, value in kept]
    return "; ".join(filter(None, parts))


def _describe_answer(entry: Mapping[str, Any]) -> list[str]:
    """Write what a person said: to what was shown, or to what they put in its place, and whether it counts."""
    parts = [] if _event_word(entry, "approved") == "rejected" else [_describe_edit(entry)]
    if entry.get("permitted", True) is False:
        parts += ["who said it may not decide about it"]
    if entry.get("fits", True) is False:
        parts += ["the edit does not fit its tool"]
    comment = _text_of(entry, "comment")
    return [*parts, f"“{comment}”" if comment else ""]


def _describe_edit(entry: Mapping[str, Any]) -> str:
    """Write which arguments were edited to what: by their hashes where they were not kept."""
    asked, arguments = entry.get("asked"), entry.get("arguments")
    if isinstance(asked, Mapping) and isinstance(arguments, Mapping):
        before, after = cast("Mapping[str, Any]", asked), cast("Mapping[str, Any]", arguments)
        names = [name for name in dict.fromkeys([*before, *after]) if before.get(name) != after.get(name)]
        edits = [f"{name} {_show_argument(before, name)} → {_show_argument(after, name)}" for name in names]
        return f"edited: {', '.join(edits)}" if edits else f"as shown: {_list_arguments(after)}"
    if entry.get("asked_sha256") in (None, entry.get("args_sha256")):
        return "as shown"
    return f"edited: from {_short_hash(entry, 'asked_sha256')} to {_short_hash(entry, 'args_sha256')}, by the hashes of the arguments"


def _show_argument(arguments: Mapping[str, Any], name: str) -> str:
    """Write one argument beside another: a number with its thousands, and "left out" where there is none."""
    value = arguments.get(name)
    if name not in arguments:
        return "left out"
    return f"{value:,}" if isinstance(value, (int, float)) and not isinstance(value, bool) else json.dumps(value)


def _show_arguments(entry: Mapping[str, Any]) -> str:
    arguments = entry.get("arguments")
    if isinstance(arguments, Mapping):
        return _list_arguments(cast("Mapping[str, Any]", arguments))
    if isinstance(arguments, str):
        return arguments
    return f"its arguments were not kept, only their hash {_short_hash(entry, 'args_sha256')}" if _text_of(entry, "args_sha256") else ""


def _list_arguments(arguments: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={json.dumps(value)}" for name, value in arguments.items())


def _short_hash(entry: Mapping[str, Any], name: str) -> str:
    return _text_of(entry, name)[:_HASH_SHOWN]


def _show_value(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)
