"""Say what a launched program is held to: written by the launcher, read in every process of the program."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from ravi_otel.errors import ConfigurationError

VARIABLE: Final = "RAVI_LAUNCH"
"""The environment variable that carries the plan."""

SITE: Final = "RAVI_LAUNCH_SITE"
"""The one that tells `site/sitecustomize.py`, which reads no JSON, our version, whether there are limits, and where notes go."""

DESCRIPTOR: Final = "RAVI_LAUNCH_FD"
"""The one that names the inherited descriptor on which the first process says that it is attached, and its inode."""

Price = Mapping[str, Any]
FREE: Final = 10
"""Refusals that cost a program nothing."""
MOST_NOTES: Final = 1_000
"""Refusals that a process tells the launcher of; those after them are in the ledger only."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Hold the run's identity, its limits, and what to do past them.

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
        """Say where the counters are that are this run's alone."""
        return Path(self.directory) / "ledger.db"

    @property
    def notes(self) -> Path:
        """Say where notes for the launcher go."""
        return Path(self.directory) / "notes.jsonl"

    def write(self) -> str:
        """Give it as the environment variable's text."""
        return json.dumps(asdict(self), separators=(",", ":"), allow_nan=False)

    @classmethod
    def read(cls, text: str) -> Plan:
        """Read it from the environment variable; ConfigurationError when it is not what a launcher wrote."""
        try:
            given = json.loads(text)
            given["limits"] = tuple((str(spec), str(source)) for spec, source in given["limits"])
            return cls(**given)
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise ConfigurationError(
                f"{VARIABLE} is not what `ravi-otel run` wrote. Start the program with `ravi-otel run -- ...`."
            ) from error
