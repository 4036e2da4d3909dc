"""Tell people of limits while the program runs, where it has not said what becomes of log records."""

from __future__ import annotations

import json
import logging
import sys
from typing import Final

from ravi_otel.local.wording import amount, clean, percent
from ravi_otel.policy.limits import Kind

_LOGGER: Final = "ravi_otel.limits"
_AGENTS: Final = frozenset({Kind.AGENTS, Kind.AGENTS_TOTAL, Kind.FAN_OUT, Kind.DEPTH})


class Telling(logging.Handler):
    """Write the JSON lines of limit events as sentences on standard error, unless the program's own handlers get them."""

    def __init__(self, *, quiet: bool) -> None:
        super().__init__()
        self._quiet = quiet

    def emit(self, record: logging.LogRecord) -> None:
        """Write one event, if nobody else does."""
        if self._quiet or logging.getLogger().handlers or sys.stderr is None:
            return
        try:
            sys.stderr.write(f"ravi-otel: {sentence(record.getMessage())}\n")
        except Exception:  # noqa: BLE001 - what logging asks of a handler: report, never raise
            self.handleError(record)


def sentence(line: str) -> str:
    """Put the JSON line of a limit event into words."""
    told = json.loads(line)
    kind = told["limit_kind"]
    used, most = amount(kind, told["used"]), amount(kind, told["threshold"])
    where = f"{told['scope']} {clean(told['scope_name'], 40)}".rstrip()
    if told["event"] == "limit_nearing":
        return f"{percent(told['ratio'])} of the {clean(kind, 30)} of {where}: {used} of {most}"
    what = "observed only: would be refused" if told["decision"] == "observed" else _consequence(kind)
    return f"{clean(kind, 30)} of {where} exceeded: {used} of {most}, {what}"


def _consequence(kind: str) -> str:
    """Say what is refused from now on: limits of agents and tools do not stop model calls."""
    if kind.partition("@")[0] in _AGENTS:
        return "no more agents are let in" if kind != Kind.DEPTH else "no agents are let in below that"
    if kind.startswith("tool"):
        return "no more tool calls are let through"
    return "nothing more is sent"


def install(*, quiet: bool) -> None:
    """Stand in for logging's last resort, which would write the lines as they are."""
    logger = logging.getLogger(_LOGGER)
    if not any(isinstance(handler, Telling) for handler in logger.handlers):
        logger.addHandler(Telling(quiet=quiet))
