"""Find the stack's files: in the wheel, else in the checkout; and put a copy of them where an engine may read them."""

from __future__ import annotations

import difflib
import hashlib
import os
import re
import stat
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

from ravi_otel._local.wording import clean
from ravi_otel.errors import ConfigurationError

PARTS: Final = ("collector", "dashboards")
_NEVER: Final = frozenset({"__pycache__", "source", "tests", "builder.yaml"})
"""What the checkout has beside what is shipped: how dashboards are made, tests of rules, the collector of our own tests."""

_OURS: Final = frozenset({".yaml", ".json"})
_LINE: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)")
_MOST_BYTES: Final = 1_000_000
_NEAR: Final = 0.9
_BEGINNINGS: Final = ("RAVI_PORT_", "RAVI_MEMORY_", "RAVI_GOMEMLIMIT_", "RAVI_OVERLAY_")


def shipped() -> Path:
    """Return the folder that holds `collector` and `dashboards`."""
    inside, checkout = Path(__file__).parent / "files", Path(__file__).parents[2]
    for place in (inside, checkout):
        if (place / "collector" / "compose.yaml").is_file():
            return place
    raise ConfigurationError(f"The stack's files are not in this installation of ravi-otel ({clean(str(inside), 200)}). Install it again.")


def listed(place: Path) -> Iterator[Path]:
    """Return every file of the stack below `place`, relative to it, in order."""
    for part in PARTS:
        for path in sorted((place / part).rglob("*")):
            relative = path.relative_to(place)
            if path.is_file() and not _NEVER.intersection(relative.parts):
                yield relative


def copied(to: Path) -> None:
    """Write the shipped files below `to`, over what is there, readable by the users that containers run as.

    An engine may read neither where Python keeps its packages nor what only we may read, so it is given a copy. What an
    earlier version had and this one has not goes, as rules and dashboards are read by the folder; a file of another kind stays.
    """
    source = shipped()
    _check_place(to)
    wanted = list(listed(source))
    try:
        to.mkdir(parents=True, exist_ok=True)
        for old in set(listed(to)) - set(wanted):
            if old.suffix in _OURS:
                (to / old).unlink()
        for relative in wanted:
            _copy(source / relative, to / relative, to)
    except OSError as error:
        raise ConfigurationError(
            f"The stack's files cannot be written below {clean(str(to), 200)}: {error.strerror}. Name another folder with --files."
        ) from error


def _copy(source: Path, target: Path, top: Path) -> None:
    for folder in reversed([each for each in target.parents if top in each.parents]):
        folder.mkdir(exist_ok=True)
        if folder.is_symlink():  # planted, or somebody's own arrangement: neither is to be written through
            raise ConfigurationError(
                f"{clean(str(folder), 200)} is a link, and the stack's files go there. Remove it, or name another folder."
            )
        folder.chmod(stat.S_IMODE(folder.stat().st_mode) | 0o755)
    aside = target.with_name(f".{target.name}.new")
    aside.unlink(missing_ok=True)
    with os.fdopen(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644), "wb") as file:
        file.write(source.read_bytes())
        os.fchmod(file.fileno(), 0o644)
    aside.replace(target)


def _check_place(to: Path) -> None:
    for part in (to, *(to / name for name in PARTS)):
        if part.is_symlink() or (part.exists() and not part.is_dir()):
            raise ConfigurationError(
                f"{clean(str(part), 200)} is not a folder, and the stack's files go there. Move it, or name another one."
            )


def digest(place: Path) -> str:
    """Return a hash over all files: what an engine sees change, so that it makes the containers again."""
    whole = hashlib.sha256()
    for relative in listed(place):
        whole.update(f"{relative.as_posix()}\0".encode())
        whole.update(hashlib.sha256((place / relative).read_bytes()).digest())
    return whole.hexdigest()[:16]


def usual_place(environ: Mapping[str, str] = os.environ) -> Path:
    """Return where the copy lives when nobody names a place: in the user's folder for state."""
    state = environ.get("XDG_STATE_HOME", "")
    base = Path(state) if state.startswith("/") else Path.home() / ".local" / "state"
    return base / "ravi-otel" / "stack"


def settings(place: Path, beside: Path | None = None, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return every variable of `.env`; a file `beside` it is stronger, and the environment stronger still.

    What is set to nothing counts as not set. The file `beside` may set variables that `.env` does not know.
    """
    found = _read(place / "collector" / ".env")
    if beside is not None:
        more = _read(beside)
        _check_names(more, found, beside)
        found |= {name: value for name, value in more.items() if value}
    return found | {name: environ[name] for name in found if environ.get(name)}


def _check_names(names: Iterable[str], known: Collection[str], beside: Path) -> None:
    """Raise ConfigurationError for a name that is nearly one of ours, or has its beginning; others are for compose."""
    for name in names:
        close = [] if name in known else difflib.get_close_matches(name.upper(), known, n=1, cutoff=_NEAR)
        if close or (name not in known and name.startswith(_BEGINNINGS)):
            meant = f"Write {close[0]}." if close else "`collector/.env` has all of them."
            raise ConfigurationError(f"{clean(str(beside), 200)} sets {clean(name, 80)}, which is no variable of the stack. {meant}")


def _read(path: Path) -> dict[str, str]:
    try:
        if path.exists() and not path.is_file():
            raise ConfigurationError(f"{clean(str(path), 200)} is no file. Name one with lines of NAME=VALUE.")
        with path.open("rb") as file:
            text = file.read(_MOST_BYTES).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigurationError(f"{clean(str(path), 200)} cannot be read: {reason}.") from error
    found: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        pair = _LINE.fullmatch(line.strip())
        if pair is None or "\0" in line:  # the line itself is not shown: it may hold a password
            raise ConfigurationError(f"Line {number} of {clean(str(path), 200)} is no NAME=VALUE.")
        found[pair[1]] = _unquoted(pair[2].strip())
    return found


def _unquoted(value: str) -> str:
    return value[1:-1] if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"" else value
