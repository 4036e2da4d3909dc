"""What the launcher and the processes of the program tell each other: the plan one way, messages the other; and the ledger they share."""

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
"""The one that tells `site/sitecustomize.py`, which reads no JSON, our version, whether there are limits, and where messages go."""

DESCRIPTOR: Final = "RAVI_LAUNCH_FD"
"""The one that names the inherited descriptor on which the first process says that it is attached, and its inode."""

Price = Mapping[str, Any]
FREE: Final = 10
"""Refusals that cost a program nothing."""
MOST_MESSAGES: Final = 1_000
"""Refusals that a process tells the launcher of; those after them are in the ledger only."""


# -- the ledger ---------------------------------------------------------------------------------------------------

Place = tuple[ScopeKind, str | None]
"""A kind of scope that the program opens itself, and of which name: None is any."""
_INSIDE: Final = frozenset({ScopeKind.HANDOFF, ScopeKind.BLOCK, ScopeKind.AGENT})
_SHARED: Final = frozenset({ScopeKind.SESSION, ScopeKind.TENANT})


def is_shared(account: Account) -> bool:
    """Whether other processes of the program count for the same limit."""
    return account.facts.surrounding or account.facts.kind in _SHARED


def places_of(limit: Limit) -> tuple[Place, ...]:
    """Return the scopes that the program has to open for a limit to hold; none where it holds for the whole program."""
    places: list[Place] = []
    if limit.scope is not None and limit.scope in _INSIDE:
        places.append((limit.scope, limit.scope_name))
    if limit.agent is not None:
        places.append((ScopeKind.AGENT, limit.agent))
    return tuple(places)


def spell(place: Place) -> str:
    """Return a place as one text, `agent researcher`, which no other place is written as."""
    kind, name = place
    return str(kind) if name is None else f"{kind} {name}"


class Counters(Ledger, Protocol):
    """A ledger that can also be read and closed."""

    def read(self, account: Account) -> bool:
        """Show in the account what the store says; return False when it says nothing."""
        ...

    def reap(self, *, everybody: bool = False) -> int:
        """End what silent processes left behind; return how many."""
        ...

    def close(self) -> None:
        """Close the store."""
        ...


def _is_shared_by_many(account: Account) -> bool:
    """Whether others count in it: everything of the run around the program, and what every shared ledger shares."""
    return is_shared(account) or account.is_shareable()


# -- the plan -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Plan:
    """What a launched program is held to: the run's identity, its limits, and what to do past them.

    `limits` are pairs of the grammar's text and what a refusal tells its reader to change. `began_ns` is a reading of the
    machine's monotonic clock, which all processes share. `prices` are as for `instrument(prices=)`. `lease_s` is how long
    a silent process keeps what it holds. `quiet` keeps limit events off standard error. With `content` the store keeps what is
    said. `counted_in` names the ledger that more than
    this program counts in; it may have a password in it.
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
        """Where the counters are that are this run's alone."""
        return Path(self.directory) / "ledger.db"

    @property
    def messages(self) -> Path:
        """Where messages for the launcher go."""
        return Path(self.directory) / "notes.jsonl"

    def write(self) -> str:
        """Return it as the environment variable's text."""
        return json.dumps(asdict(self), separators=(",", ":"), allow_nan=False)

    @classmethod
    def read(cls, text: str) -> Plan:
        """Read it from the environment variable; raise ConfigurationError when it is not what a launcher wrote."""
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
        """The ledger that more than this program counts in, None where the run has a file of its own."""
        return read_choice(VARIABLE, self.counted_in) if self.counted_in else None

    def open_in_program(self, failed: Callable[[], object]) -> Ledger:
        """Open the counters in a process of the program; the launcher made the run's file, so that one that is gone is lost."""
        choice = self.choice
        if choice is None:
            return SqliteLedger(self.ledger, shares=is_shared, lease_s=self.lease_s, create=False, failed=failed)
        return choice.open(shares=_is_shared_by_many, lease_s=self.lease_s, failed=failed)

    def open_in_launcher(self) -> Counters:
        """Open the counters, and see that they can be used.

        Raise BudgetExhaustedError when they cannot, and a limit would refuse everything then.
        """
        choice = self.choice
        if choice is None:
            ledger = SqliteLedger(self.ledger, shares=is_shared, lease_s=self.lease_s)
            ledger.prepare()
            return cast("Counters", ledger)  # which passes on to its store what it does not do itself
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

    "attached": a Python process of the program knows of the plan. "working": it imported the client, and is held to the
    limits from now on. "failed": it should have been and is not; `text` says why. "refused": a limit of the run refused
    something; `text` is its sentence. "uncaught": a refusal that nobody caught ended a process or a thread. "left": the process came to
    its end in order, and everything it had to tell was told. "outside": it has a client in a version that is none of those we support;
    `text` says which.
    "uncovered": it has asked models past all limits; `text` is JSON of the fields of an `Uncovered`, so far.
    "opened": it has opened a scope that a limit waits for; `text` is its kind, and its name where the limit has one.
    `at_ns` is monotonic; `thread` is true where only a thread ended, `unkept` where the refusal was the store's doing.
    """

    what: What
    pid: int
    at_ns: int
    text: str = ""
    thread: bool = False
    unkept: bool = False

    @classmethod
    def read(cls, line: bytes) -> Message | None:
        """Read a line; None for what is no message."""
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
        """Append one; raise OSError when it cannot be written."""
        message: dict[str, Any] = {"what": what, "pid": os.getpid(), "at_ns": time.monotonic_ns(), "text": text[:_LONGEST]}
        message.update(thread=thread, unkept=unkept)
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.write(descriptor, (json.dumps(message) + "\n").encode("ascii"))
        finally:
            os.close(descriptor)

    def new(self) -> Iterator[Message]:
        """Yield those that came since the last call; what is no message is skipped."""
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
