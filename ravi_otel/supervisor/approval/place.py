"""Say where the queue of approvals is."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from ravi_otel.errors import ConfigurationError
from ravi_otel.policy import _checks as checks

VARIABLE: Final = "RAVI_APPROVALS"
NAME: Final = "approvals.db"
_STORE: Final = "RAVI_STORE"
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


def is_url(named: str) -> bool:
    """Whether it names a server, and no file."""
    return _SCHEME.match(named) is not None


def read_place(named: str | Path) -> str | Path:
    """Return a URL as it is, and of a path the whole of it; raise OSError or RuntimeError for a home of nobody."""
    if isinstance(named, str) and is_url(named):
        return named
    return Path(named).expanduser().absolute()


def place(environ: Mapping[str, str] = os.environ) -> str | Path:
    """Give RAVI_APPROVALS, else `approvals.db` in RAVI_STORE, else in `.ravi` of the working directory; ConfigurationError for nowhere."""
    named, store = environ.get(VARIABLE, "").strip(), environ.get(_STORE, "").strip()
    try:
        if named:
            return read_place(named)
        return (Path(store).expanduser().absolute() if store else Path.cwd() / ".ravi") / NAME
    except (RuntimeError, OSError) as error:  # a home of nobody, or a working directory that was deleted
        what = f"{VARIABLE}={checks.show(named)}" if named else "the queue of approvals"
        raise ConfigurationError(f"{what} cannot be placed: {error}. Set {VARIABLE} to a file in a directory you can write.") from error
