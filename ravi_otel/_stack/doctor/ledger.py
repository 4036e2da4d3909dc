"""The check of the shared ledger: whether it opens, and whether it is fit for budgets. No counter changes."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import sqlite3
import stat
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from pathlib import Path
from statistics import median
from typing import Any, Final

from ravi_otel._enforcement.ledger.choosing import VARIABLE, Choice, read_choice
from ravi_otel._enforcement.ledger.redis import url as redis_url
from ravi_otel._enforcement.ledger.redis.client import Connection, ServerError, prepare
from ravi_otel._enforcement.ledger.redis.client import connect as connect_to_redis
from ravi_otel._enforcement.ledger.redis.url import Address, Host
from ravi_otel._enforcement.ledger.sqlite.file import APPLICATION, FORMAT
from ravi_otel._enforcement.ledger.store_failures import StoreError
from ravi_otel._flow import run_sync
from ravi_otel._local.wording import clean
from ravi_otel._sqlite import connect
from ravi_otel._stack.doctor import Finding, Inputs, broken, left_out, odd, well
from ravi_otel.errors import MissingExtraError, RaviError

_ROUNDS: Final = 20


def examine(inputs: Inputs) -> Iterator[Finding]:
    """Yield findings about the ledger of --ledger, else of RAVI_LEDGER."""
    named, url = ("--ledger", inputs.ledger) if inputs.ledger is not None else (VARIABLE, inputs.value(VARIABLE))
    if not url:
        yield left_out("ledger", f"no {VARIABLE} is set: limits are counted by each process, or by each `ravi-otel run`, for itself")
        return
    try:
        choice = read_choice(named, url)
    except RaviError as error:
        yield broken("ledger.url", str(error), f"Change {named} as the sentence says.")
        return
    if choice.store == "memory":
        yield left_out("ledger", "memory: counts in each process for itself")
    elif choice.store == "sqlite":
        yield from _File(Path(choice.url), choice.shown).findings()
    else:
        yield from _servers(choice, inputs)


def _timed_ms(ask: Callable[[], object]) -> list[float]:
    """Return how long each of twenty answers took."""
    took_ms: list[float] = []
    for _ in range(_ROUNDS):
        began = time.perf_counter()
        ask()
        took_ms.append((time.perf_counter() - began) * 1_000)
    return took_ms


# -- in a file ----------------------------------------------------------------------------------------------------

_BUSY_S: Final = 1.0
_MAGIC: Final = b"SQLite format 3\x00"
_HEAD: Final = 100
_FORMAT_AT, _APPLICATION_AT, _WIDTH = 60, 68, 4
_NETWORK: Final = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "ceph", "glusterfs", "fuse.sshfs", "fuse.glusterfs", "fuse.s3fs", "afs"}
)
_LOW_BYTES: Final = 100_000_000
_OUT_BYTES: Final = 5_000_000
_MOUNTS: Final = Path("/proc/self/mountinfo")
_SLOW_MS: Final = 20.0
_WRITABLE: Final = "Name a file in a directory that this user may write."


def file_system(place: Path) -> str:
    """Return the kind of file system that holds a directory; "" where the system does not say."""
    try:
        lines = _MOUNTS.read_text("utf-8", "replace").splitlines()
        real = str(place.resolve())
    except OSError:
        return ""
    best, kind = "", ""
    for line in lines:
        before, _, after = line.partition(" - ")
        fields, said = before.split(" "), after.split(" ")
        point = fields[4].replace("\\040", " ") if len(fields) > 4 else ""  # noqa: PLR2004 - proc(5): the fifth is where it is mounted
        if (real == point or real.startswith(f"{point.rstrip('/')}/")) and len(point) >= len(best):
            best, kind = point, said[0]
    return kind


class _File:
    """A SQLite ledger; the file is opened read-only, and never created."""

    def __init__(self, path: Path, shown: str) -> None:
        self._path = path
        self._shown = shown

    def findings(self) -> Iterator[Finding]:
        """Yield findings about the file's place, owner and format, and about how long a read takes."""
        yield from self._place()
        try:
            found = self._path.stat()
        except FileNotFoundError:
            yield self._to_be_made()
            return
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is no path"
            yield broken("ledger.opens", f"{self._shown} cannot be seen: {reason}", _WRITABLE)
            return
        for look in (lambda: self._owner(found), lambda: [self._format()], lambda: [self._opens()]):
            findings = list(look())
            yield from findings
            if any(each.state == "broken" for each in findings):
                return

    def _place(self) -> Iterator[Finding]:
        above = next((each for each in (self._path.parent, *self._path.parents) if each.is_dir()), None)
        if above is None:
            return
        kind = file_system(above)
        if kind in _NETWORK:
            said = f"{self._shown} is on a network file system ({clean(kind, 20)}), whose locks cannot be relied on"
            yield broken("ledger.place", said, "Name a file on a disk of this machine; for many machines count in Redis.")
        free = shutil.disk_usage(above).free
        if free < _LOW_BYTES:
            tell = broken if free < _OUT_BYTES else odd
            said = f"{free / 1e6:,.0f} MB are free where {self._shown} is"
            yield tell("ledger.place", said, "Make room there: a ledger that cannot write refuses.")

    def _to_be_made(self) -> Finding:
        if os.access(self._path.parent, os.W_OK | os.X_OK):
            return left_out("ledger.opens", f"{self._shown} is not there yet: the first program makes it")
        return broken("ledger.opens", f"{self._shown}: this user may not write in its directory", _WRITABLE)

    def _owner(self, found: os.stat_result) -> Iterator[Finding]:
        if not stat.S_ISREG(found.st_mode):
            yield broken("ledger.owner", f"{self._shown} is no file", "Name a file.")
            return
        if found.st_uid != os.geteuid():
            tell = odd if os.access(self._path, os.R_OK | os.W_OK) else broken
            said = f"{self._shown} belongs to user {found.st_uid}, and this is {os.geteuid()}"
            yield tell("ledger.owner", said, "Run all programs that count in it as one user.")
            if tell is broken:
                return
        mode = f"(mode {stat.S_IMODE(found.st_mode):04o})"
        if found.st_mode & 0o022:
            yield odd("ledger.owner", f"others may write {self._shown} {mode}", f"Run: chmod go-w {clean(str(self._path), 120)}")
        else:
            yield well("ledger.owner", f"{self._shown} is ours {mode}")

    def _format(self) -> Finding:
        """Return the finding about the file's format, from its header: opening it with SQLite may write to it."""
        check, shown = "ledger.format", self._shown
        try:
            with self._path.open("rb") as file:
                head = file.read(_HEAD)
        except OSError as error:
            return broken(check, f"{shown} cannot be read: {error.strerror}", "Name a file that this user may read and write.")
        if not head:
            return left_out(check, f"{shown} is empty: the first program makes a ledger of it")
        application, number = (int.from_bytes(head[at : at + _WIDTH], "big") for at in (_APPLICATION_AT, _FORMAT_AT))
        if not head.startswith(_MAGIC) or application != APPLICATION:
            return broken(check, f"{shown} is no ledger of ravi-otel", "Name another file; this one was left as it is.")
        if number != FORMAT:
            return broken(check, f"{shown} has format {number}, and this version reads {FORMAT}", "Use the version that wrote it.")
        return well(check, f"{shown} has format {FORMAT}")

    def _opens(self) -> Finding:
        try:
            with contextlib.closing(connect(self._path, timeout_s=_BUSY_S)) as connection:
                connection.execute("PRAGMA query_only=1")
                p50_ms = median(_timed_ms(lambda: connection.execute("SELECT epoch FROM ledger").fetchone()))
        except sqlite3.Error as error:
            said = f"{self._shown} cannot be read: {clean(str(error), 80)}"
            return broken("ledger.opens", said, "Name another file, or put a copy of it back.")
        if p50_ms > _SLOW_MS:
            said = f"a look into {self._shown} takes {p50_ms:,.1f} ms (p50 of {_ROUNDS})"
            return odd("ledger.opens", said, "See what else is busy with the disk.")
        return well("ledger.opens", f"{self._shown} opens, and a look takes {p50_ms:,.2f} ms (p50 of {_ROUNDS})")


# -- in Redis -----------------------------------------------------------------------------------------------------

_ANSWERS_WITHIN_S: Final = 2.0
_LEAST: Final = (6, 2)
_MOST_SERVERS: Final = 16
_LONGEST_LINE: Final = 512
_REACH: Final = "See that the server runs and can be reached, and check user and password in the URL."


def _servers(choice: Choice, inputs: Inputs) -> Iterator[Finding]:
    """Yield findings about a URL's server, each master of a Cluster, or the master that sentinels name."""
    try:
        address = redis_url.read(choice.url)
        prepare(address)
        places = _masters(address, inputs) if address.kind == "cluster" else [None]
    except MissingExtraError as error:
        yield broken("ledger.opens", str(error), "Run: pip install 'ravi-otel[redis]'")
        return
    except StoreError as error:
        yield broken("ledger.opens", f"{choice.shown} cannot be used, {error.why}", _REACH)
        return
    if address.kind == "cluster":
        yield well("ledger.cluster", f"the Cluster has {len(places)} servers that keep slots")
    for place in places[:_MOST_SERVERS]:
        shown = choice.shown if place is None else f"{place[0]}:{place[1]}"
        if (stranger := _stranger(address, place, inputs)) is not None:
            yield broken("ledger.opens", f"{shown} is no Redis: {stranger}", "Check host and port in the URL.")
            continue
        failed = "cannot be used"
        try:
            with contextlib.closing(connect_to_redis(address, [place], inputs.seconds_left(_ANSWERS_WITHIN_S))) as connection:
                failed = "broke off"
                yield from _Server(connection, shown, address, inputs).findings()
        except StoreError as error:
            yield broken("ledger.opens", f"{shown} {failed}, {error.why}", _REACH)


def _masters(address: Address, inputs: Inputs) -> list[Host | None]:
    with contextlib.closing(connect_to_redis(address, address.hosts, inputs.seconds_left(_ANSWERS_WITHIN_S))) as connection:
        kept = _Server(connection, "", address, inputs).ask("CLUSTER", "SLOTS")
    return [*sorted({(master[0].decode(), master[1]) for _, _, master, *_ in kept})]


def _stranger(address: Address, place: Host | None, inputs: Inputs) -> str | None:
    """Say what answers that is no Redis, before the library talks to it, which reads whatever comes; None where nothing says so.

    Behind TLS and sentinels that is not examined, nor where nobody answers at all: connecting says that.
    """
    if address.tls is not None or address.kind == "sentinel":
        return None
    patience_s = inputs.seconds_left(_ANSWERS_WITHIN_S)
    try:
        with _connected(address, place, patience_s) as connected, _cut_after(connected, patience_s):
            connected.sendall(b"PING\r\n")
            said = b""
            while b"\n" not in said and len(said) < _LONGEST_LINE and (piece := connected.recv(_LONGEST_LINE)):
                said += piece
    except OSError:
        return None
    if not said or (said[:1] in (b"+", b"-") and b"\n" in said[:_LONGEST_LINE]):
        return None
    return f"it answers {clean(said[:40].decode('utf-8', 'replace'))!r}"


def _connected(address: Address, place: Host | None, patience_s: float) -> socket.socket:
    if address.kind != "unix":
        return socket.create_connection(place or address.hosts[0], timeout=patience_s)
    connected = socket.socket(socket.AF_UNIX)
    connected.settimeout(patience_s)
    try:
        connected.connect(address.path)
    except OSError:
        connected.close()
        raise
    return connected


@contextlib.contextmanager
def _cut_after(connected: socket.socket, seconds: float) -> Generator[None]:
    """Close a connection that takes longer: a server that answers byte by byte never exceeds the other timeouts."""

    def cut() -> None:
        with contextlib.suppress(OSError):
            connected.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(seconds, cut)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


class _Server:
    """One server, which is only sent commands that change nothing, within the time that is left."""

    def __init__(self, connection: Connection, shown: str, address: Address, inputs: Inputs) -> None:
        self._connection = connection
        self._shown = shown
        self._address = address
        self._inputs = inputs

    def ask(self, *words: str) -> Any:
        """Return the answer to a command; raise StoreError."""
        return run_sync(self._connection.ask(words, time.monotonic() + self._inputs.seconds_left(_ANSWERS_WITHIN_S)))

    def _ask_if_allowed(self, *words: str) -> Any:
        """Return the answer to a command that may not be allowed to this user; None if it is not."""
        try:
            return self.ask(*words)
        except ServerError as error:
            if not error.answered:  # its answer may still come, and would be taken for the next one's
                raise
            return None

    def _facts(self, section: str) -> dict[str, str]:
        """Return a section of INFO; nothing if it is not allowed to this user."""
        lines = _text(self._ask_if_allowed("INFO", section) or "").splitlines()
        return {name: value.strip() for name, sign, value in (line.partition(":") for line in lines) if sign}

    def findings(self) -> Iterator[Finding]:
        """Yield findings about its role, how fast it answers, and whether it may lose data."""
        if self._address.kind == "sentinel":
            yield well("ledger.sentinel", f"sentinels name the master of {clean(self._address.service)}")
        server = self._facts("server")
        if server.get("redis_mode") == "sentinel":
            said = f"{self._shown} is a sentinel, and keeps no counters"
            yield broken("ledger.kind", said, "Write redis+sentinel://HOST:26379/NAME.")
            return
        yield self._opens()
        yield self._scripts()
        if not server:
            said = f"{self._shown} does not let this user ask INFO: version, eviction and persistence were not looked at"
            yield left_out("ledger.server", said)
            return
        yield self._version(server)
        if self._facts("replication").get("role") == "slave":
            yield broken("ledger.role", f"{self._shown} is a replica: it takes no writes", "Name the master, or its sentinels.")
        yield self._eviction(self._facts("memory"))
        yield self._persistence(self._facts("persistence"))
        yield from self._cluster(server.get("redis_mode", ""))

    def _opens(self) -> Finding:
        took_ms = _timed_ms(lambda: self.ask("PING"))
        p50_ms, most_ms = median(took_ms), self._address.timeout_s * 1_000
        said = f"{self._shown} answers within {p50_ms:,.2f} ms (p50 of {_ROUNDS}, the slowest {max(took_ms):,.1f} ms)"
        late = f"{said}, and a call waits {most_ms:,.0f} ms"
        if p50_ms > most_ms:
            return broken("ledger.opens", late, "Count nearer by, or add timeout_s= to the URL.")
        return odd("ledger.opens", late, "Count nearer by: see docs/scaling.md.") if p50_ms > most_ms / 4 else well("ledger.opens", said)

    def _scripts(self) -> Finding:
        try:
            self.ask("EVAL", "return 1", "0")
        except ServerError as error:
            if not error.answered:
                raise
            said = f"{self._shown} runs no script for this user, {error.why}"
            return broken("ledger.scripts", said, "Allow this user EVAL and EVALSHA.")
        return well("ledger.scripts", f"{self._shown} runs scripts")

    def _version(self, server: Mapping[str, str]) -> Finding:
        name, version = ("Valkey", server["valkey_version"]) if "valkey_version" in server else ("Redis", server.get("redis_version", "?"))
        said = f"{self._shown} is {name} {clean(version, 20)}"
        compatible = server.get("redis_version", version)  # Valkey says the Redis whose commands it has
        figures = tuple(int(part) for part in compatible.split(".")[:2] if part.isdigit())
        if figures and figures < _LEAST:
            return broken("ledger.version", said, "Use Redis 6.2 or newer, or Valkey.")
        return well("ledger.version", said)

    def _eviction(self, memory: Mapping[str, str]) -> Finding:
        policy, most = memory.get("maxmemory_policy", ""), memory.get("maxmemory", "0")
        if not policy:
            return left_out("ledger.eviction", f"{self._shown} does not say what it does when its memory is full")
        if policy == "noeviction":
            return well("ledger.eviction", f"{self._shown} evicts nothing")
        said = f"{self._shown} has maxmemory-policy {clean(policy, 30)}: counters may be forgotten when its memory is full"
        tell = odd if most == "0" else broken
        return tell("ledger.eviction", said, "Set maxmemory-policy to noeviction, or give the ledger a server of its own.")

    def _persistence(self, facts: Mapping[str, str]) -> Finding:
        check = "ledger.persistence"
        if facts.get("aof_enabled") == "1":
            if facts.get("aof_last_write_status", "ok") == "ok":
                return well(check, f"{self._shown} writes every change to its disk")
            return broken(check, f"{self._shown} cannot write to its disk", "Make room there: it refuses writes meanwhile.")
        saves = self._ask_if_allowed("CONFIG", "GET", "save")
        said = "does not write every change to its disk"
        if isinstance(saves, list) and len(saves) > 1:  # pyright: ignore[reportUnknownArgumentType]  # what a server answers
            snapshots = "keeps snapshots alone: a restart forgets what was counted since the last"
            said = snapshots if saves[1] else "keeps nothing on its disk: a restart forgets all counters"
        return odd(check, f"{self._shown} {said}", "Set appendonly yes, where a restart must not make budgets whole again.")

    def _cluster(self, mode: str) -> Iterator[Finding]:
        if mode != "cluster":
            return
        if self._address.kind != "cluster":
            yield broken("ledger.kind", f"{self._shown} is of a Cluster", "Write redis+cluster:// in place of redis://.")
        elif "cluster_state:ok" in _text(self.ask("CLUSTER", "INFO")):
            yield well("ledger.kind", f"{self._shown} says that the Cluster is well")
        else:
            said = f"{self._shown} says that the Cluster is not well"
            yield broken("ledger.kind", said, "See CLUSTER INFO: slots may be without a server.")


def _text(said: Any) -> str:
    return said.decode("utf-8", "replace") if isinstance(said, bytes) else str(said)
