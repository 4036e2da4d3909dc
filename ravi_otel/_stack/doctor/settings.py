"""The check of our own variables: policy and limits, what crosses to other processes, the spool, and unknown names."""

from __future__ import annotations

import difflib
import math
import os
import re
import shlex
import stat
import time
from collections.abc import Collection, Iterator
from itertools import islice
from pathlib import Path
from typing import Final

from ravi_otel._enforcement.ledger.choosing import LEASE, lease_of
from ravi_otel._enforcement.ledger.choosing import VARIABLE as LEDGER
from ravi_otel._extras import load
from ravi_otel._local.wording import clean
from ravi_otel._runtime.config import effective
from ravi_otel._stack import files
from ravi_otel._stack.doctor import Finding, Inputs, broken, left_out, odd, well
from ravi_otel._stack.doctor.ledger import file_system
from ravi_otel._telemetry.export.spool import SPOOL, SPOOL_AGE_S, SPOOL_BYTES
from ravi_otel.carrier._configuration import BAGGAGE, KEYS, NAMES, TO, TRUST, check_configuration
from ravi_otel.errors import RaviError
from ravi_otel.policy._limits import Kind

OURS: Final = frozenset(
    {
        *(f"RAVI_LIMIT_{kind.upper()}" for kind in Kind),
        "RAVI_ADMISSION",
        "RAVI_ALLOW_UNSEEN",
        "RAVI_APPROVALS",
        "RAVI_CARRY_AS",
        "RAVI_CARRY_BAGGAGE",
        "RAVI_CARRY_KEYS",
        "RAVI_CARRY_TO",
        "RAVI_CARRY_TRUST",
        "RAVI_CONTENT_BYTES",
        "RAVI_CONTENT_TEXT_BYTES",
        "RAVI_DETAIL",
        "RAVI_ENFORCEMENT",
        "RAVI_EXPORT_SPOOL",
        "RAVI_EXPORT_SPOOL_AGE_S",
        "RAVI_EXPORT_SPOOL_BYTES",
        "RAVI_FOOTERS",
        "RAVI_FRAMEWORKS",
        "RAVI_INCLUDE_USAGE",
        "RAVI_JAEGER_URL",
        "RAVI_LAUNCH",
        "RAVI_LAUNCH_FD",
        "RAVI_LAUNCH_SITE",
        "RAVI_LEASE_S",
        "RAVI_LEDGER",
        "RAVI_LIMIT_LOG",
        "RAVI_LIVE",
        "RAVI_POLICY",
        "RAVI_PROFILE",
        "RAVI_FORMATS",
        "RAVI_PROVIDERS",
        "RAVI_RAISE_BUGS",
        "RAVI_REDACT",
        "RAVI_SHORTEN_TIMEOUTS",
        "RAVI_SIGTERM",
        "RAVI_STEP_SPANS",
        "RAVI_STORE",
        "RAVI_TIME_PER_OUTPUT_CHUNK",
        "RAVI_USAGE_HOSTS",
        "RAVI_WARN_AT",
    }
)
"""Every variable of ours that a program reads; those of the stack's servers are in its `.env`."""

_PREFIX: Final = "RAVI_"
_LIMITING: Final = frozenset({"RAVI_LEDGER", "RAVI_POLICY"})
_NEAR: Final = 0.75
_LONGEST: Final = 80


def examine(inputs: Inputs) -> Iterator[Finding]:
    """Yield findings about RAVI_* variables, and about the policy file."""
    yield from _policy(inputs)
    yield from _carrying(inputs)
    yield from _lease(inputs)
    yield from _spool(inputs)
    yield from _unknown(inputs)


def _policy(inputs: Inputs) -> Iterator[Finding]:
    environ = {name: value for name, value in inputs.environ.items() if name != LEDGER}  # which is looked at by itself
    try:
        policy = effective(environ=environ, file=inputs.policy)
        if policy.gate is not None:
            load("ravi_otel.supervisor.rules._kinds").read_rules(policy.gate)
    except RaviError as error:
        yield broken("settings.policy", str(error), "Mend what the sentence names; `ravi-otel limits` shows what counts then.")
        return
    named = inputs.policy or inputs.value("RAVI_POLICY")
    limits = len(policy.limits)
    said = f"{limits} limit{'' if limits == 1 else 's'} from environment and policy file"
    yield well("settings.policy", f"{said} ({clean(str(named), 120)})" if named else said)
    if policy.observe and limits:
        yield odd("settings.policy", "limits only observe: nothing is refused", "Unset RAVI_ENFORCEMENT, or set it to enforce.")


def _carrying(inputs: Inputs) -> Iterator[Finding]:
    try:
        check_configuration(inputs.environ)
    except RaviError as error:
        yield broken("settings.carrying", f"{error} Nothing is carried to or from other processes.", "Mend the variable it names.")
        return
    keys, to, trust = inputs.value(KEYS), inputs.value(TO), inputs.value(TRUST)
    if to and not keys:
        yield odd("settings.carrying", f"{TO} is set and {KEYS} is not: what is carried is not signed", f"Set {KEYS} on both sides.")
    if inputs.value(NAMES) and not (keys or trust):
        yield odd("settings.carrying", f"{NAMES} is set, and nothing from outside is believed", f"Set {KEYS}, or {TRUST}.")
    if trust and not keys:
        yield odd(
            "settings.carrying",
            f"{TRUST} believes peers by their address, without a signature",
            f"Set {KEYS} on both sides, and unset {TRUST}.",
        )
    if keys and (to or trust or inputs.value(NAMES)):
        yield well("settings.carrying", "what crosses to other processes is signed")
    if inputs.value(BAGGAGE) and not to:
        yield left_out("settings.carrying", f"{BAGGAGE} is set, and {TO} names no host that our entry goes to")


def _lease(inputs: Inputs) -> Iterator[Finding]:
    try:
        lease_of(inputs.value(LEASE))
    except RaviError as error:
        yield broken("settings.lease", str(error), f"Set {LEASE} to seconds such as 30, or unset it.")


def _unknown(inputs: Inputs) -> Iterator[Finding]:
    known = OURS | set(files.settings(files.shipped(), environ={}))
    for name in sorted(inputs.environ):
        if not name.upper().startswith(_PREFIX) or name in known or name.startswith(("RAVI_LIMIT_", "RAVI_LAUNCH")):
            continue
        close = _meant(name, known)
        way_out = f"Write {close}." if close else "Take it away, or write the name that was meant."
        tell = broken if close and close in _LIMITING and not inputs.value(close) else odd
        yield tell("settings.names", f"{clean(name, 80)} is no variable of ours", way_out)
    if "RAVI_RAISE_BUGS" in inputs.environ:
        yield odd("settings.bugs", "RAVI_RAISE_BUGS is set: a bug of ours ends a call of yours", "Unset it outside of tests.")


def _meant(name: str, known: Collection[str]) -> str | None:
    """Return the variable that a name was meant to be; None when none is near."""
    stems = {each.removeprefix(_PREFIX): each for each in known}
    stem = name.upper().removeprefix(_PREFIX)
    close = [each for each in stems if each.endswith(f"_{stem}")]  # RAVI_SPOOL is RAVI_EXPORT_SPOOL
    if len(close) != 1 and len(stem) <= _LONGEST:
        close = difflib.get_close_matches(stem, sorted(stems), n=1, cutoff=_NEAR)
    return stems[close[0]] if len(close) == 1 else None


# -- the spool ----------------------------------------------------------------------------------------------------

_BATCHES: Final = re.compile(r"(?:traces|metrics|logs)-[0-9a-f]{16}")
"""What the export makes in it. What else lies there is somebody else's, and is neither looked at nor advised upon."""

_KERNELS: Final = frozenset({"proc", "sysfs", "cgroup", "cgroup2", "devpts", "debugfs", "tracefs", "securityfs", "bpf"})
_MOST_LISTED: Final = 10_000
_OLD_S: Final = 300.0
_OWN: Final = f"Set {SPOOL} to a directory of its own, which nobody else may write; it is made when it is needed."


def _spool(inputs: Inputs) -> Iterator[Finding]:
    """Look at the directory that RAVI_EXPORT_SPOOL names, where it does; nothing in it is changed."""
    named = inputs.value(SPOOL)
    if not named:
        return
    yield from _bounds(inputs)
    try:
        path = Path(named).expanduser().absolute()
        found = path.stat() if path.exists() else None
    except (OSError, RuntimeError, ValueError):
        yield broken("settings.spool", f"{SPOOL} names no directory that can be found", f"Set {SPOOL} to one that you can write.")
        return
    shown = clean(str(path), 120)
    above = path if found is not None else next((each for each in path.parents if each.exists()), path)
    if found is not None and not stat.S_ISDIR(found.st_mode):
        yield broken("settings.spool", f"{SPOOL}={shown} is no directory", f"Set {SPOOL} to a directory.")
    elif (kind := file_system(above)) in _KERNELS:
        yield broken("settings.spool", f"{SPOOL}={shown} is where {clean(kind, 20)} keeps no files of anybody's", _OWN)
    elif found is None:
        yield _to_be_made(above, shown)
    elif not os.access(path, os.W_OK | os.X_OK):
        yield broken("settings.spool", f"{SPOOL}={shown} cannot be written by this user", f"Set {SPOOL} to one that you can write.")
    elif (flaw := _of_others(path, found, shown)) is not None:
        yield flaw
    else:
        yield _waiting(path, shown)


def _bounds(inputs: Inputs) -> Iterator[Finding]:
    for variable, example in ((SPOOL_BYTES, 268_435_456), (SPOOL_AGE_S, 86_400)):
        if not (said := inputs.value(variable)):
            continue
        try:
            number = float(said)
        except ValueError:
            number = math.nan
        if not 1 <= number <= 2**53:
            yield odd(
                "settings.spool",
                f"{variable}={clean(said, 40)!r} is no number from 1 up: {example} is used",
                f"Set {variable} to a plain number such as {example}, or unset it.",
            )


def _to_be_made(above: Path, shown: str) -> Finding:
    if above.is_dir() and os.access(above, os.W_OK | os.X_OK):
        return well("settings.spool", f"{SPOOL}={shown} is made when it is needed")
    return broken("settings.spool", f"{SPOOL}={shown} cannot be made by this user", f"Make it, or set {SPOOL} to another one.")


def _of_others(path: Path, found: os.stat_result, shown: str) -> Finding | None:
    """Say who else may use the directory, or what the export has made in it. Never a command for more than what the export made."""
    if found.st_uid != os.geteuid():
        said = f"{SPOOL}={shown} belongs to user {found.st_uid}, and this is {os.geteuid()}"
        return broken("settings.spool", said, f"Give each user a {SPOOL} of its own.")
    if found.st_mode & 0o022:
        return broken("settings.spool", f"{SPOOL}={shown} may be written by others (mode {stat.S_IMODE(found.st_mode):04o})", _OWN)
    for each in _made(path):
        inside = each.lstat()
        if inside.st_uid != os.geteuid() or not stat.S_ISDIR(inside.st_mode):
            return broken("settings.spool", f"{SPOOL}={shown}: {each.name} is no directory of this user", _OWN)
        if inside.st_mode & 0o077:
            plain = shown == str(path)  # else it was shortened, or holds what no terminal should see
            way_out = f"Run: chmod go= {shlex.quote(str(each))}" if plain else f"Take the rights of others from {each.name} in it."
            return broken("settings.spool", f"{SPOOL}={shown}: others may use {each.name}", way_out)
    return None


def _made(path: Path) -> list[Path]:
    return [each for each in islice(path.iterdir(), _MOST_LISTED) if _BATCHES.fullmatch(each.name)]


def _waiting(path: Path, shown: str) -> Finding:
    batches = list(islice((each for child in _made(path) for each in child.glob("*.otlp")), _MOST_LISTED))
    if not batches:
        return well("settings.spool", f"{SPOOL}={shown}, and nothing waits in it")
    sizes = [each.lstat() for each in batches if each.exists()]
    age_s = max((time.time() - each.st_mtime for each in sizes), default=0.0)
    said = f"{SPOOL}={shown}: {len(batches):,} batches wait, {sum(each.st_size for each in sizes) / 1e6:,.1f} MB, the oldest {age_s:,.0f} s"
    if age_s < _OLD_S:
        return well("settings.spool", said)
    return odd(
        "settings.spool",
        said,
        "Start a program with the same endpoint and headers, which sends them; delete those of an endpoint or key that is no more.",
    )
