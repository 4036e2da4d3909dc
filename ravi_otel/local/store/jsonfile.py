"""Read and write the store's small JSON files: whole or not at all, for their owner only, and never something else than a file."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from ravi_otel._files import create

MOST_BYTES: Final = 16 * 1024 * 1024
"""How long such a file may be; a longer one is none of ours."""

_PLAIN: Final = sum(getattr(os, name, 0) for name in ("O_CLOEXEC", "O_BINARY"))
_READ: Final = os.O_RDONLY | _PLAIN | getattr(os, "O_NONBLOCK", 0)  # a pipe would hold up who opens it
_BESIDE: Final = re.compile(r"\.(run|store)\.json\.[0-9]+-[0-9a-f]+")


def read(path: Path) -> dict[str, Any] | None:
    """Give the object in a file; None for what cannot be read, has another shape, or is no regular file."""
    try:
        opened = os.open(path, _READ)
        try:
            raw = _whole(opened)
        finally:
            os.close(opened)
        known = None if raw is None else json.loads(raw)
    except (OSError, ValueError, RecursionError):
        return None
    return known if isinstance(known, dict) else None  # pyright: ignore[reportUnknownVariableType]  # JSON of anybody's


def write(path: Path, content: Mapping[str, Any]) -> None:
    """Replace a file in one step: a reader sees the old one or the new one. OSError leaves the old one and nothing beside it."""
    beside = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(3)}")
    create(beside, f"{json.dumps(content, indent=1, allow_nan=False)}\n".encode("ascii"))
    try:
        beside.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)
        raise


def is_beside(name: str) -> bool:
    """Tell whether a file's name is the one that `write` gives to what is not yet in its place."""
    return _BESIDE.fullmatch(name) is not None


def _whole(opened: int) -> bytes | None:
    about = os.fstat(opened)
    if not stat.S_ISREG(about.st_mode) or about.st_size > MOST_BYTES:
        return None
    parts: list[bytes] = []
    left = MOST_BYTES + 1
    while left > 0 and (part := os.read(opened, min(left, 1024 * 1024))):
        parts.append(part)
        left -= len(part)
    return b"".join(parts) if left > 0 else None
