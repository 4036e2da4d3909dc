"""Tell whether two processes count in one store, without asking it: by where each of them found it.

A store that is only seen from one machine, such as a file or a server at localhost, is another one on each machine. Who reaches one
store under two names is taken to have two: that is safe, as nothing is then left to a counter that others may not see.
"""

from __future__ import annotations

import hashlib
import socket
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit
from weakref import WeakKeyDictionary

_DIGITS: Final = 16
_PORTS: Final = {True: "26379", False: "6379"}
_HERE: Final = ("localhost", "127.", "::1", "[::1]", "0.0.0.0")  # noqa: S104 - compared, and not listened on
_ids: WeakKeyDictionary[Any, str] = WeakKeyDictionary()


def name_store(ledger: object, words: str) -> None:
    """Note what the store behind `ledger` is called, in words that are the same wherever the same store is meant."""
    _ids[ledger] = hashlib.sha256(words.encode("utf-8", "surrogateescape")).hexdigest()[:_DIGITS]


def store_id(ledger: object) -> str | None:
    """Return the short name of the store that other processes count in as well; None where there is none, or none that is known."""
    return _ids.get(ledger)


def file_words(path: str) -> str:
    """Return which file is meant: it is one of this machine."""
    with suppress(OSError, ValueError):
        path = str(Path(path).resolve())
    return f"file {_machine()} {path}"


def server_words(url: str, namespace: str) -> str:
    """Return which server is meant, and which part of it: without who may use it, and its options."""
    parts = urlsplit(url)
    scheme, hosts = parts.scheme, parts.netloc.rpartition("@")[2].lower()
    number = parse_qs(parts.query).get("db", ["0"])[0]
    if "unix" in scheme:
        return f"server {_machine()} {parts.path} {number} {namespace}"
    port = _PORTS["sentinel" in scheme]
    places = sorted(host if host.rpartition(":")[2].isdecimal() else f"{host}:{port}" for host in hosts.split(",") if host)
    here = _machine() if any(place.startswith(_HERE) for place in places) or not places else ""
    return f"server {here} {scheme.partition('+')[2]} {','.join(places)} {parts.path.strip('/') or number} {namespace}"


@cache
def _machine() -> str:
    known = ""
    with suppress(OSError):
        known = Path("/etc/machine-id").read_text(encoding="ascii", errors="replace").strip()
    return f"{known}@{socket.gethostname()}"
