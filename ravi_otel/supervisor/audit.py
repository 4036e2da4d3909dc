"""Write down what was asked of tools, decided and done, so that a later change shows: one file a run, each line chained to the one before.

::

    DIRECTORY/                          0700
    ├── RUN.audit.jsonl                 0600; one entry a line, each with the hash of the one before
    └── RUN.audit.head                  how many entries there are, how many bytes, and the hash of the last
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import time
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal, cast

from ravi_otel._runtime.state import STATE
from ravi_otel.errors import ConfigurationError, RaviError
from ravi_otel.hooks._events import LimitChange
from ravi_otel.hooks._listeners import Listener
from ravi_otel.policy import _checks as checks
from ravi_otel.supervisor import hashing
from ravi_otel.supervisor.approval import frozen
from ravi_otel.supervisor.audit_chain import AuditError, Head, append, hash_of, hold, line_of, read_head, recover

What = Literal["proposed", "reviewed", "approved", "effective", "executed"]
WHATS: Final = ("proposed", "reviewed", "approved", "effective", "executed")
LIMIT_SET: Final = "limit_set"
"""What an entry says of a limit that was given another value."""

SUFFIX: Final = ".audit.jsonl"

_log = logging.getLogger("ravi_otel")

_OWN: Final = frozenset(
    {
        *("n", "at", "what", "run_id", "agent_name", "tool", "op_id", "args_sha256", "arguments", "prev", "hash", "recovered"),
        *("asked", "asked_sha256", "asked_unwritten"),
    }
)
_SAFE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_MOST_TEXT: Final = 2_000
_MOST_FACTS: Final = 32
_MOST_REMEMBERED: Final = 1_024
_NOWHERE: Final = "no-run"
_NONE: Final = Head()


class AuditLog:
    """Be the audit logs in a directory, one a run. Arguments are written as their SHA-256, with `content` as they are too.

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
        """Say where the entries of a run are."""
        return self.directory / f"{name_of(run_id)}{SUFFIX}"

    def head(self, run_id: str | None) -> str | None:
        """Give the hash of the run's last entry, None when it has none: kept elsewhere, it shows whether the whole log was made anew."""
        known = read_head(self.path(run_id))
        return None if known is None or known.entries == 0 else known.hash

    def note(
        self,
        what: What,
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
        entry: dict[str, Any] = {"at": round(time.time(), 6), "what": checks.choice("note(what)", what, WHATS), "run_id": _text(run_id)}
        entry |= {"agent_name": _text(agent_name), "tool": _text(tool), "op_id": _text(op_id)}
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
        entry: dict[str, Any] = {"at": round(time.time(), 6), "what": LIMIT_SET, "run_id": _text(run_id), "agent_name": _text(agent_name)}
        entry |= {"limit": _text(limit), "kind": kind, "before": before, "now": now, "scope": scope, "scope_name": _text(scope_name)}
        self._write(entry | {"who": _text(who), "login": _text(login)})

    def _write(self, entry: dict[str, Any]) -> None:
        path = self.path(entry["run_id"])
        so = "The limit was set all the same" if entry["what"] == LIMIT_SET else "Nothing is executed without it"
        try:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            with hold(path) as opened:
                self._append(path, opened, entry)
        except OSError as error:
            raise AuditError(
                f"the audit log {checks.show(str(path))} cannot be written: {error.strerror or error}. {so}; "
                "make room there, or give AuditLog a directory you can write."
            ) from error

    def _append(self, path: Path, opened: int, entry: dict[str, Any]) -> None:
        """Write the entry behind those that are there, and then that it is."""
        head, cut = recover(path, opened, entry["run_id"])
        known = self._written.get(path.name, _NONE)
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
        append(path, opened, line, head, sync=self._sync)
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
            known: dict[str, Any] = {"args_sha256": frozen.digest(_text(tool), _text(arguments, len(arguments))), "args_read": False}
            return known | ({"arguments": _text(arguments)} if self._content else {})
        known = {"args_sha256": None}
        try:
            known["args_sha256"] = hashing.args_sha256(tool, arguments)
            if self._content:
                known["arguments"] = frozen.read(frozen.exact(arguments))
        except RaviError as error:
            known["args_unwritten"] = _text(str(error))
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
        """Write down one change."""
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


def name_of(run_id: str | None) -> str:
    """Give the beginning of the file's name for a run: its id, or a hash of one that is no name for a file."""
    if run_id is None:
        return _NOWHERE
    if _SAFE.fullmatch(run_id) and run_id != _NOWHERE:
        return run_id
    return f"run-{frozen.digest(_text(run_id))[:32]}"


def _facts(facts: Mapping[str, Any]) -> dict[str, Any]:
    taken = sorted(_OWN & facts.keys())
    if taken or len(facts) > _MOST_FACTS:
        what = f"the field {taken[0]!r} is the log's own" if taken else f"there are more than {_MOST_FACTS} of them"
        raise ConfigurationError(f"note(**facts) cannot be written: {what}; give others.")
    return {name: _fact(value) for name, value in facts.items()}


def _fact(value: object) -> Any:
    """Give a fact as JSON has it; what JSON has not, as a text that tells it."""
    if isinstance(value, str):
        return _text(value)
    with contextlib.suppress(RaviError):
        plain = hashing.plain(value)
        if len(hashing.canonical(plain)) <= _MOST_TEXT:
            return plain
    return checks.show(value)


def _text(text: str | None, most: int = _MOST_TEXT) -> Any:
    """Give a text that any file can hold, cut where it is too long."""
    if text is None:
        return None
    whole = str.__str__(text).encode("utf-8", "replace").decode("utf-8")
    return whole if len(whole) <= most else f"{whole[: most - 3]}..."
