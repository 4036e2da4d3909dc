"""Look at a ledger in Redis: login, round trip, and whether it forgets what it was told."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator, Mapping
from statistics import median
from typing import Any, Final

from ravi_otel._enforcement.ledger.choosing import Choice
from ravi_otel._enforcement.ledger.redis import url as redis_url
from ravi_otel._enforcement.ledger.redis.client import Connection, ServerError, connect, prepare
from ravi_otel._enforcement.ledger.redis.url import Address, Host
from ravi_otel._enforcement.ledger.store_failures import StoreError
from ravi_otel._flow import run_sync
from ravi_otel._stack.doctor.asking import cut_after
from ravi_otel._stack.doctor.finding import Asked, Finding, broken, left_out, odd, well
from ravi_otel.errors import MissingExtraError
from ravi_otel.local._wording import clean

_ROUNDS: Final = 20
_PATIENCE_S: Final = 2.0
_LEAST: Final = (6, 2)
_MOST_SERVERS: Final = 16
_LONGEST_LINE: Final = 512
_REACH: Final = "See that the server runs and can be reached, and check user and password in the URL."


def look_at_server(choice: Choice, asked: Asked) -> Iterator[Finding]:
    """Look at the server that a URL means, at each master of a Cluster, or at the one that sentinels name."""
    try:
        address = redis_url.read(choice.url)
        prepare(address)
        places = _places(address, asked)
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
        if (stranger := _stranger(address, place, asked)) is not None:
            yield broken("ledger.opens", f"{shown} is no Redis: {stranger}", "Check host and port in the URL.")
            continue
        try:
            connection = connect(address, [place], asked.left_s(_PATIENCE_S))
        except StoreError as error:
            yield broken("ledger.opens", f"{shown} cannot be used, {error.why}", _REACH)
            continue
        if address.kind == "sentinel":
            yield well("ledger.sentinel", f"sentinels name the master of {clean(address.service)}")
        try:
            yield from _look(_Said(connection, asked), shown, address)
        except StoreError as error:
            yield broken("ledger.opens", f"{shown} broke off, {error.why}", _REACH)
        finally:
            connection.close()


def _places(address: Address, asked: Asked) -> list[Host | None]:
    if address.kind != "cluster":
        return [None]
    connection = connect(address, address.hosts, asked.left_s(_PATIENCE_S))
    try:
        kept = _Said(connection, asked)("CLUSTER", "SLOTS")
    finally:
        connection.close()
    return [*sorted({(master[0].decode(), master[1]) for _, _, master, *_ in kept})]


def _stranger(address: Address, place: Host | None, asked: Asked) -> str | None:
    """Say what answers that is no Redis, before the library talks to it, which reads whatever comes; None where nothing says so.

    Behind TLS and sentinels that is not looked at, nor where nobody answers at all: connecting says that.
    """
    if address.tls is not None or address.kind == "sentinel":
        return None
    patience_s = asked.left_s(_PATIENCE_S)
    try:
        with _connected(address, place, patience_s) as connected, cut_after(connected, patience_s):
            connected.sendall(b"PING\r\n")
            said = b""
            while b"\n" not in said and len(said) < _LONGEST_LINE and (piece := connected.recv(_LONGEST_LINE)):
                said += piece
    except OSError:
        return None
    if said[:1] in (b"+", b"-") and b"\n" in said[:_LONGEST_LINE]:
        return None
    return f"it answers {clean(said[:40].decode('utf-8', 'replace'))!r}" if said else None


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


class _Said:
    """Say commands that change nothing, within the time that is left."""

    def __init__(self, connection: Connection, asked: Asked) -> None:
        self._connection = connection
        self._asked = asked

    def __call__(self, *words: str) -> Any:
        return run_sync(self._connection.ask(words, time.monotonic() + self._asked.left_s(_PATIENCE_S)))

    def allowed(self, *words: str) -> Any:
        """Say a command that this user may not be allowed; None where the server says no."""
        try:
            return self(*words)
        except ServerError as error:
            if not error.answered:  # its answer may still come, and would be taken for the next one's
                raise
            return None

    def facts(self, section: str) -> dict[str, str]:
        """Give a section of INFO; nothing where this user may not ask."""
        said = self.allowed("INFO", section)
        if said is None:
            return {}
        text = said.decode("utf-8", "replace") if isinstance(said, bytes) else str(said)
        return {name: value.strip() for name, sign, value in (line.partition(":") for line in text.splitlines()) if sign}


def _look(say: _Said, shown: str, address: Address) -> Iterator[Finding]:
    server = say.facts("server")
    if server.get("redis_mode") == "sentinel":
        yield broken("ledger.kind", f"{shown} is a sentinel, and keeps no counters", "Write redis+sentinel://HOST:26379/NAME.")
        return
    yield _round_trip(say, shown, address)
    yield _script(say, shown)
    if not server:
        yield left_out("ledger.server", f"{shown} does not let this user ask INFO: version, eviction and persistence were not looked at")
        return
    yield _version(server, shown)
    yield from _role(say.facts("replication"), shown)
    yield _eviction(say.facts("memory"), shown)
    yield from _persistence(say, shown)
    yield from _kind(say, server, address, shown)


def _round_trip(say: _Said, shown: str, address: Address) -> Finding:
    took_ms: list[float] = []
    for _ in range(_ROUNDS):
        began = time.perf_counter()
        say("PING")
        took_ms.append((time.perf_counter() - began) * 1_000)
    p50_ms, most_ms = median(took_ms), address.timeout_s * 1_000
    said = f"{shown} answers within {p50_ms:,.2f} ms (p50 of {_ROUNDS}, the slowest {max(took_ms):,.1f} ms)"
    if p50_ms > most_ms:
        return broken("ledger.opens", f"{said}, and a call waits {most_ms:,.0f} ms", "Count nearer by, or add timeout_s= to the URL.")
    if p50_ms > most_ms / 4:
        return odd("ledger.opens", f"{said}, and a call waits {most_ms:,.0f} ms", "Count nearer by: see docs/scaling.md.")
    return well("ledger.opens", said)


def _script(say: _Said, shown: str) -> Finding:
    try:
        say("EVAL", "return 1", "0")
    except ServerError as error:
        if not error.answered:
            raise
        return broken("ledger.scripts", f"{shown} runs no script for this user, {error.why}", "Allow this user EVAL and EVALSHA.")
    return well("ledger.scripts", f"{shown} runs scripts")


def _version(server: Mapping[str, str], shown: str) -> Finding:
    name, version = ("Valkey", server["valkey_version"]) if "valkey_version" in server else ("Redis", server.get("redis_version", "?"))
    said = f"{shown} is {name} {clean(version, 20)}"
    compatible = server.get("redis_version", version)  # Valkey says the Redis whose commands it has
    figures = tuple(int(part) for part in compatible.split(".")[:2] if part.isdigit())
    if figures and figures < _LEAST:
        return broken("ledger.version", said, "Use Redis 6.2 or newer, or Valkey.")
    return well("ledger.version", said)


def _role(replication: Mapping[str, str], shown: str) -> Iterator[Finding]:
    if replication.get("role") == "slave":
        yield broken("ledger.role", f"{shown} is a replica: it takes no writes", "Name the master, or its sentinels.")


def _eviction(memory: Mapping[str, str], shown: str) -> Finding:
    policy, most = memory.get("maxmemory_policy", ""), memory.get("maxmemory", "0")
    if not policy:
        return left_out("ledger.eviction", f"{shown} does not say what it does when its memory is full")
    if policy == "noeviction":
        return well("ledger.eviction", f"{shown} evicts nothing")
    said = f"{shown} has maxmemory-policy {clean(policy, 30)}: counters may be forgotten when its memory is full"
    tell = odd if most == "0" else broken
    return tell("ledger.eviction", said, "Set maxmemory-policy to noeviction, or give the ledger a server of its own.")


def _persistence(say: _Said, shown: str) -> Iterator[Finding]:
    facts = say.facts("persistence")
    if facts.get("aof_enabled") == "1":
        if facts.get("aof_last_write_status", "ok") == "ok":
            yield well("ledger.persistence", f"{shown} writes every change to its disk")
        else:
            yield broken("ledger.persistence", f"{shown} cannot write to its disk", "Make room there: it refuses writes meanwhile.")
        return
    advice = "Set appendonly yes, where a restart must not make budgets whole again."
    saves = say.allowed("CONFIG", "GET", "save")
    snapshots = bool(saves[1]) if isinstance(saves, list) and len(saves) > 1 else None  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]  # what a server answers
    if snapshots is None:
        yield odd("ledger.persistence", f"{shown} does not write every change to its disk", advice)
    elif snapshots:
        yield odd("ledger.persistence", f"{shown} keeps snapshots alone: a restart forgets what was counted since the last", advice)
    else:
        yield odd("ledger.persistence", f"{shown} keeps nothing on its disk: a restart forgets all counters", advice)


def _kind(say: _Said, server: Mapping[str, str], address: Address, shown: str) -> Iterator[Finding]:
    mode = server.get("redis_mode", "")
    if mode == "cluster" and address.kind != "cluster":
        yield broken("ledger.kind", f"{shown} is of a Cluster", "Write redis+cluster:// in place of redis://.")
    elif mode == "cluster":
        said = say("CLUSTER", "INFO")
        text = said.decode("utf-8", "replace") if isinstance(said, bytes) else str(said)
        if "cluster_state:ok" in text:
            yield well("ledger.kind", f"{shown} says that the Cluster is well")
        else:
            yield broken("ledger.kind", f"{shown} says that the Cluster is not well", "See CLUSTER INFO: slots may be without a server.")
