"""Know hosts, MCP servers and peers that are listed, and take apart URLs that anybody may have written."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote, urlsplit

from ravi_otel.errors import ConfigurationError
from ravi_otel.policy._checks import show

_PORTS: Final = {"http": 80, "https": 443, "ws": 80, "wss": 443}
_LONGEST_URL: Final = 65_536
_MOST_LISTED: Final = 1_000
_PATTERN: Final = re.compile(r"(\*\.)?([A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,251}[A-Za-z0-9_])?|\[[0-9A-Fa-f:.]{2,45}\])(?::(\d{1,5}))?")
_SERVER: Final = re.compile(r"mcp:(?!\d{1,5}$)(.{1,256})")
"""An MCP server by its name; figures alone are the port of a host that is called so."""

SERVER: Final = "@mcp:"
"""What goes before the name of an MCP server where it is said who an entry is for; no host is called so."""

_ODD: Final = re.compile(r"[^\x21-\x7e]|\\")
"""Characters that two readers of one URL take for different things."""

_Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def place_of(url: str) -> tuple[str, int | None] | None:
    """Return the host that a request to `url` goes to, in lower case, and the port; None where readers may differ about it."""
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
    """A list of hosts: each a name, `*.` and the end of names, or an address, with a port or any; `servers` are those of MCP, by name."""

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
    """Read `api.internal,*.svc.local:8443,mcp:notes`; ConfigurationError for what names neither a host nor a server."""
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
    """A list of peers by their addresses: networks, and names that a server gives for one that has no address."""

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
    """Read `10.0.0.0/8,127.0.0.1,unix`; ConfigurationError for what is no such thing."""
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
