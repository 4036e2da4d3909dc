"""Read from the environment what crosses to whom: nothing does unless somebody has said so."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import logging
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final
from urllib.parse import unquote, urlsplit

from ravi_otel.errors import ConfigurationError
from ravi_otel.policy._checks import show, switch

KEYS: Final = "RAVI_CARRY_KEYS"
TO: Final = "RAVI_CARRY_TO"
_PORTS: Final = {"http": 80, "https": 443, "ws": 80, "wss": 443}
_LONGEST_URL: Final = 65_536
_MOST_LISTED: Final = 1_000
_PATTERN: Final = re.compile(r"(\*\.)?([A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,251}[A-Za-z0-9_])?|\[[0-9A-Fa-f:.]{2,45}\])(?::(\d{1,5}))?")
_SERVER: Final = re.compile(r"mcp:(?!\d{1,5}$)(.{1,256})")
"""An MCP server by its name; digits alone are the port of a host called `mcp`."""

SERVER: Final = "@mcp:"
"""The prefix of an MCP server's name in the audience of a token; no host is called so."""

_ODD: Final = re.compile(r"[^\x21-\x7e]|\\")
"""Characters that two readers of one URL may understand differently."""

_Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def place_of(url: str) -> tuple[str, int | None] | None:
    """Return the host that a request to `url` goes to, in lower case, and the port; None where readers of the URL may differ."""
    if len(url) > _LONGEST_URL:
        return None
    authority = url.partition("://")[2]
    authority = re.split(r"[/?#]", authority, maxsplit=1)[0]
    if not authority or _ODD.search(authority):
        return None
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        return None
    if not host:
        return None
    return host.lower().removesuffix("."), _PORTS.get(parts.scheme.lower()) if port is None else port


@dataclass(frozen=True, slots=True)
class Hosts:
    """Listed hosts, each a name, `*.` and the end of names, or an address, with a port or any; `servers` are MCP servers by name."""

    listed: tuple[tuple[bool, str, int | None], ...] = ()
    servers: frozenset[str] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.listed or self.servers)

    def has(self, host: str, port: int | None) -> bool:
        """Whether the host is listed; `host` in lower case, without brackets."""
        return any((host.endswith("." + name) if below else host == name) and wanted in (None, port) for below, name, wanted in self.listed)

    def has_server(self, name: str | None, url: str | None = None) -> bool:
        """Whether an MCP server is listed, by its name or, where it is asked over HTTP, by its host."""
        return name in self.servers or (url is not None and self.has_url(url))

    def has_url(self, url: str) -> bool:
        """Whether a request to `url` goes to a listed host."""
        place = place_of(url)
        return place is not None and self.has(*place)


def read_hosts(variable: str, text: str) -> Hosts:
    """Return what `api.internal,*.svc.local:8443,mcp:notes` lists; raise ConfigurationError for what names neither host nor server."""
    listed: list[tuple[bool, str, int | None]] = []
    servers: set[str] = set()
    for part in _parts(variable, text):
        server = _SERVER.fullmatch(part)
        if server is not None:
            servers.add(unquote(server[1]).strip())
            continue
        match = _PATTERN.fullmatch(part)
        port = None if match is None or match[3] is None else int(match[3])
        if match is None or port == 0 or (port or 0) > 65_535:  # noqa: PLR2004 - the last port there is
            raise ConfigurationError(
                f"{variable}: {show(part)} names no host. Write names such as api.internal, *.svc.local or 10.0.0.5:8443, "
                "or mcp:notes of an MCP server, with commas between."
            )
        listed.append((match[1] is not None, match[2].strip("[]").lower().removesuffix("."), port))
    return Hosts(tuple(listed), frozenset(servers))


@dataclass(frozen=True, slots=True)
class Peers:
    """Listed peers: networks, and the names that a server gives to peers without an address."""

    networks: tuple[_Network, ...] = ()
    names: frozenset[str] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.networks or self.names)

    def has(self, peer: str | None) -> bool:
        """Whether the peer is listed; None, or what is no address, only where that very name is."""
        if not peer or not self:
            return False
        if peer in self.names:
            return True
        try:
            address = ipaddress.ip_address(peer.partition("%")[0])
        except ValueError:
            return False
        mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
        return any((mapped or address) in network for network in self.networks)


def read_peers(variable: str, text: str) -> Peers:
    """Return what `10.0.0.0/8,127.0.0.1,unix` lists; raise ConfigurationError for anything else."""
    networks: list[_Network] = []
    names: set[str] = set()
    for part in _parts(variable, text):
        try:
            networks.append(ipaddress.ip_network(part, strict=False))
        except ValueError:
            if "/" in part or "." in part or part.lower() == "localhost" or not part.isascii() or not part.isprintable():
                raise ConfigurationError(
                    f"{variable}: {show(part)} is no address or network. Write such as 127.0.0.1 or 10.0.0.0/8, with commas between."
                ) from None
            names.add(part)
    return Peers(tuple(networks), frozenset(names))


def _parts(variable: str, text: str) -> Sequence[str]:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if len(parts) > _MOST_LISTED:
        raise ConfigurationError(f"{variable} lists more than {_MOST_LISTED}: list what several have in common, such as *.svc.local.")
    return parts


LEAST_SECRET: Final = 16
"""The fewest characters that a secret may have."""

_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,32}")
_MOST_KEYS: Final = 32
_WAY_OUT: Final = f"write {KEYS}=ID:SECRET,ID:SECRET, with ids of letters and digits, and secrets of {LEAST_SECRET} characters or more"


@dataclass(frozen=True, slots=True)
class Keys:
    """HMAC-SHA256 keys by their ids, so that one can replace another: the first one signs, each of them verifies."""

    by_id: Mapping[str, bytes] = field(default_factory=dict[str, bytes], repr=False)  # a secret is never shown

    def __bool__(self) -> bool:
        return bool(self.by_id)

    @property
    def signing(self) -> str:
        """Return the id of the key that signs; empty without keys."""
        return next(iter(self.by_id), "")

    def sign(self, purpose: str, payload: bytes) -> tuple[str, bytes]:
        """Return the id of the key that signs now, and the signature of `payload` for `purpose`."""
        key_id = self.signing
        return key_id, _mac(self.by_id[key_id], purpose, key_id, payload)

    def verifies(self, purpose: str, key_id: str, payload: bytes, signature: bytes) -> bool:
        """Whether whoever has the key of that id signed it for this purpose; compare in constant time."""
        secret = self.by_id.get(key_id)
        return secret is not None and hmac.compare_digest(_mac(secret, purpose, key_id, payload), signature)


def _mac(secret: bytes, purpose: str, key_id: str, payload: bytes) -> bytes:
    return hmac.new(secret, f"{purpose}\n{key_id}\n".encode("ascii") + payload, hashlib.sha256).digest()


def read_keys(text: str) -> Keys:
    """Return the keys of `ID:SECRET,ID:SECRET`; raise ConfigurationError, which shows nothing of the text: an id may be a secret."""
    found: dict[str, bytes] = {}
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if len(parts) > _MOST_KEYS:
        raise ConfigurationError(f"{KEYS} has more than {_MOST_KEYS} keys: keep the one that signs and those still in use.")
    for place, part in enumerate(parts, 1):
        key_id, colon, secret = part.partition(":")
        if not colon or _ID.fullmatch(key_id) is None:
            raise ConfigurationError(f"{KEYS}: key {place} has no id of letters and digits before a colon: {_WAY_OUT}.")
        if len(secret) < LEAST_SECRET:
            raise ConfigurationError(f"{KEYS}: the secret of key {place} is shorter than {LEAST_SECRET} characters: {_WAY_OUT}.")
        if key_id in found:
            raise ConfigurationError(f"{KEYS} has the id of key {place} twice: {_WAY_OUT}.")
        found[key_id] = secret.encode("utf-8", "surrogateescape")
    return Keys(found)


TRUST: Final = "RAVI_CARRY_TRUST"
NAMES: Final = "RAVI_CARRY_AS"
BAGGAGE: Final = "RAVI_CARRY_BAGGAGE"

_log = logging.getLogger("ravi_otel")


@dataclass(frozen=True, slots=True)
class Configuration:
    """What the environment says.

    `keys` sign and verify; `to` are the hosts and MCP servers that get our entry; `trust` the peers that are believed without a
    signature; `names` what callers call this service, empty: anything.
    """

    keys: Keys = field(default_factory=Keys)
    to: Hosts = field(default_factory=Hosts)
    trust: Peers = field(default_factory=Peers)
    names: Hosts = field(default_factory=Hosts)

    @property
    def believes(self) -> bool:
        """Whether anything from outside may be believed."""
        return bool(self.keys) or bool(self.trust)


_OFF: Final = Configuration()


def configuration() -> Configuration:
    """Return what the environment says now; where that cannot be used, warn once and let nothing cross."""
    found = os.environ
    return _cached(found.get(KEYS, ""), found.get(TO, ""), found.get(TRUST, ""), found.get(NAMES, ""))


def check_configuration(environ: Mapping[str, str]) -> None:
    """Raise ConfigurationError for a variable that cannot be used."""
    _read(environ.get(KEYS, ""), environ.get(TO, ""), environ.get(TRUST, ""), environ.get(NAMES, ""))


def is_in_otel_baggage() -> bool:
    """Whether every scope puts its entry into OpenTelemetry's own baggage, too."""
    return switch(os.environ, BAGGAGE, default=False, safe=False)


@lru_cache(maxsize=8)
def _cached(keys: str, to: str, trust: str, names: str) -> Configuration:
    try:
        return _read(keys, to, trust, names)
    except ConfigurationError as error:
        _log.warning("ravi-otel: nothing is carried to or from other processes: %s", error)
        return _OFF


def _read(keys: str, to: str, trust: str, names: str) -> Configuration:
    if not (keys or to or trust or names):
        return _OFF
    return Configuration(read_keys(keys), read_hosts(TO, to), read_peers(TRUST, trust), read_hosts(NAMES, names))
