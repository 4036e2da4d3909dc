"""What connects the launcher with the processes of the program: the plan, their messages back, and the ledger that they share."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, Protocol, cast

from ravi_otel._enforcement.ledger.account import Account
from ravi_otel._enforcement.ledger.choosing import Choice, read_choice
from ravi_otel._enforcement.ledger.contract import Ledger
from ravi_otel._enforcement.ledger.sqlite.ledger import SqliteLedger
from ravi_otel.errors import BudgetExhaustedError, ConfigurationError
from ravi_otel.policy._grammar import parse_limit
from ravi_otel.policy._limits import Limit, ScopeKind

VARIABLE: Final = "RAVI_LAUNCH"
"""The environment variable that carries the plan."""

SITE: Final = "RAVI_LAUNCH_SITE"
"""The variable for `site/sitecustomize.py`, which reads no JSON: our version, whether there are limits, and the messages' file."""

DESCRIPTOR: Final = "RAVI_LAUNCH_FD"
"""The variable with the inherited descriptor, and its inode, on which the first process reports that it is attached."""

Price = Mapping[str, Any]
FREE: Final = 10
"""Refusals before a program is slowed down."""
MOST_MESSAGES: Final = 1_000
"""The most refusals that a process reports to the launcher; later ones are in the ledger only."""


# -- the ledger ---------------------------------------------------------------------------------------------------

Place = tuple[ScopeKind, str | None]
"""A kind of scope that the program opens itself, and its name, None for any."""
_INSIDE: Final = frozenset({ScopeKind.HANDOFF, ScopeKind.BLOCK, ScopeKind.AGENT})
_SHARED: Final = frozenset({ScopeKind.SESSION, ScopeKind.TENANT})


def is_shared(account: Account) -> bool:
    """Whether other processes of the program count against the same limit."""
    return account.facts.surrounding or account.facts.kind in _SHARED


def places_of(limit: Limit) -> tuple[Place, ...]:
    """Return the scopes that the program must open for a limit to apply; none if it applies to the whole program."""
    places: list[Place] = []
    if limit.scope is not None and limit.scope in _INSIDE:
        places.append((limit.scope, limit.scope_name))
    if limit.agent is not None:
        places.append((ScopeKind.AGENT, limit.agent))
    return tuple(places)


def spell(place: Place) -> str:
    """Return a place as a unique text, such as `agent researcher`."""
    kind, name = place
    return str(kind) if name is None else f"{kind} {name}"


class Counters(Ledger, Protocol):
    """A ledger that can also be read and closed."""

    def read(self, account: Account) -> bool:
        """Update the account from the store; return False if the store has no value for it."""
        ...

    def reap(self, *, everybody: bool = False) -> int:
        """Settle what silent processes left open; return how many."""
        ...

    def close(self) -> None:
        """Close the store."""
        ...


def _is_shared_by_many(account: Account) -> bool:
    """Whether others count in the account: all accounts of the program's run, and those that every shared ledger shares."""
    return is_shared(account) or account.is_shareable()


# -- the plan -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Plan:
    """The policy of a launched program as its processes get it: the run's identity, its limits, and what to do past them.

    `limits` are pairs of a limit in the grammar and what a refusal advises to change. `began_ns` is a reading of the
    machine's monotonic clock, which all processes share. `prices` are as for `instrument(prices=)`. `lease_s` is how long
    the reservations of a silent process last. `quiet` suppresses limit events on standard error. With `content` the store has
    the text of the calls. `counted_in` names the ledger that other programs count in, too; it may contain a password.
    """

    version: str
    run_id: str
    name: str
    directory: str
    began_ns: int
    limits: tuple[tuple[str, str], ...] = ()
    tags: Mapping[str, str] = field(default_factory=dict[str, str])
    prices: Mapping[str, Any] = field(default_factory=dict[str, Any])
    observe: bool = False
    admission: str = "estimate"
    warn_at: float | None = None
    terminate: bool = True
    lease_s: float = 30.0
    quiet: bool = False
    content: bool = False
    counted_in: str = field(default="", repr=False)

    @property
    def ledger(self) -> Path:
        """The file of the counters of this run alone."""
        return Path(self.directory) / "ledger.db"

    @property
    def messages(self) -> Path:
        """The file of the messages to the launcher."""
        return Path(self.directory) / "notes.jsonl"

    def write(self) -> str:
        """Return the plan as the environment variable's text."""
        return json.dumps(asdict(self), separators=(",", ":"), allow_nan=False)

    @classmethod
    def read(cls, text: str) -> Plan:
        """Return the plan in an environment variable's text; raise ConfigurationError for anything else."""
        try:
            given = json.loads(text)
            given["limits"] = tuple((str(spec), str(source)) for spec, source in given["limits"])
            return cls(**given)
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise ConfigurationError(
                f"{VARIABLE} is not what `ravi-otel run` wrote. Start the program with `ravi-otel run -- ...`."
            ) from error

    @property
    def choice(self) -> Choice | None:
        """The ledger that other programs count in, too; None if the run has a file of its own."""
        return read_choice(VARIABLE, self.counted_in) if self.counted_in else None

    def open_in_program(self, failed: Callable[[], object]) -> Ledger:
        """Open the counters in a process of the program; a missing file is an error, since the launcher has created it."""
        choice = self.choice
        if choice is None:
            return SqliteLedger(self.ledger, shares=is_shared, lease_s=self.lease_s, create=False, failed=failed)
        return choice.open(shares=_is_shared_by_many, lease_s=self.lease_s, failed=failed)

    def open_in_launcher(self) -> Counters:
        """Open the counters, and check that they can be used.

        Raise BudgetExhaustedError if they cannot, and if a limit would therefore refuse everything.
        """
        choice = self.choice
        if choice is None:
            ledger = SqliteLedger(self.ledger, shares=is_shared, lease_s=self.lease_s)
            ledger.prepare()
            return cast("Counters", ledger)  # it delegates the other methods to its store
        opened = cast("Counters", choice.open(shares=_is_shared_by_many, lease_s=self.lease_s))
        try:
            opened.reap()
        except BudgetExhaustedError:
            if not self.observe and any(parse_limit(spec).on_store_failure in (None, "closed") for spec, _ in self.limits):
                raise
        return opened


# -- messages to the launcher -------------------------------------------------------------------------------------

What = Literal["attached", "working", "failed", "refused", "uncaught", "left", "outside", "uncovered", "opened"]
_KNOWN: Final = frozenset({"attached", "working", "failed", "refused", "uncaught", "left", "outside", "uncovered", "opened"})
_LONGEST: Final = 2_000
_MOST: Final = 64 << 20


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a process.

    "attached": a Python process of the program has the plan. "working": it imported a client, and the limits apply from now
    on. "failed": they should apply and do not; `text` says why. "refused": a limit of the run refused something; `text` is
    the sentence of the refusal. "uncaught": an uncaught refusal ended a process or a thread. "left": the process ended
    normally, after all its messages. "outside": it has a client in an unsupported version; `text` says which.
    "uncovered": it has called models past all limits; `text` has the fields of an `Uncovered`, so far, as JSON.
    "opened": it has opened a scope of a limit; `text` is the scope's kind, and its name if the limit has one.
    `at_ns` is monotonic; `thread` is true if only a thread ended, `unkept` if the store caused the refusal.
    """

    what: What
    pid: int
    at_ns: int
    text: str = ""
    thread: bool = False
    unkept: bool = False

    @classmethod
    def read(cls, line: bytes) -> Message | None:
        """Return the message in a line, None for anything else."""
        try:
            given: Any = json.loads(line)
            if given["what"] not in _KNOWN:
                return None
            pid, at_ns, text = int(given["pid"]), int(given["at_ns"]), str(given.get("text", ""))
            return cls(given["what"], pid, at_ns, text, given.get("thread") is True, given.get("unkept") is True)
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
            return None


class Messages:
    """The messages to the launcher: lines of JSON at the end of one file, from any process of the program.

    A line is one `write` to a descriptor opened for appending, so that lines of many processes do not mix, and a process
    that is killed leaves whole lines behind.
    """

    def __init__(self, path: Path | str) -> None:
        self._path = Path(path)
        self._at = 0
        self._rest = b""

    def send(self, what: What, text: str = "", *, thread: bool = False, unkept: bool = False) -> None:
        """Append a message; raise OSError if it cannot be written."""
        message: dict[str, Any] = {"what": what, "pid": os.getpid(), "at_ns": time.monotonic_ns(), "text": text[:_LONGEST]}
        message.update(thread=thread, unkept=unkept)
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.write(descriptor, (json.dumps(message) + "\n").encode("ascii"))
        finally:
            os.close(descriptor)

    def new(self) -> Iterator[Message]:
        """Yield the messages since the last call; skip what is no message."""
        try:
            if self._path.stat().st_size <= self._at:
                return
            with self._path.open("rb") as file:
                file.seek(self._at)
                read = file.read(_MOST)
        except OSError:
            return
        self._at += len(read)
        *lines, self._rest = (self._rest + read).split(b"\n")
        for line in lines:
            message = Message.read(line)
            if message is not None:
                yield message
