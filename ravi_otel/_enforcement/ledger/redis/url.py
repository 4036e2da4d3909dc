"""Read the URL of a Redis store: one server, one behind sentinels, a Cluster or a socket; its password is never shown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal
from urllib.parse import parse_qsl, unquote, urlsplit

from ravi_otel.errors import ConfigurationError
from ravi_otel.policy._checks import show

Kind = Literal["single", "sentinel", "cluster", "unix"]
Host = tuple[str, int]

TIMEOUT_S: Final = 0.05
"""How long an answer may take, unless the URL says otherwise: with what we do ourselves, a call adds less than 60 ms."""

_SCHEMES: Final[Mapping[str, tuple[Kind, bool]]] = {
    "redis": ("single", False),
    "rediss": ("single", True),
    "unix": ("unix", False),
    "redis+unix": ("unix", False),
    "redis+sentinel": ("sentinel", False),
    "rediss+sentinel": ("sentinel", True),
    "redis+cluster": ("cluster", False),
    "rediss+cluster": ("cluster", True),
}
SCHEMES: Final = tuple(f"{scheme}://" for scheme in _SCHEMES)
_PORTS: Final[Mapping[Kind, int]] = {"single": 6379, "sentinel": 26379, "cluster": 6379, "unix": 0}
_TLS: Final = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_cert_reqs")
OPTIONS: Final = ("timeout_s", "db", "sentinel_username", "sentinel_password", *_TLS)
_CHECKS: Final = ("required", "optional", "none")
_LONGEST: Final = 4_096
_MOST_HOSTS: Final = 64
_MOST_DB: Final = 2**31
_LONGEST_TIMEOUT_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Address:
    """Where a store is. `shown` is the URL without secrets; `tls` is None for a connection in the clear."""

    kind: Kind
    hosts: tuple[Host, ...]
    path: str
    db: int
    service: str
    shown: str
    timeout_s: float
    tls: Mapping[str, str] | None = None
    username: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)
    sentinel_username: str | None = field(default=None, repr=False)
    sentinel_password: str | None = field(default=None, repr=False)


def read(url: str) -> Address:
    """Take a URL apart; ConfigurationError, which never quotes it whole, when it cannot be used."""
    scheme, _, rest = url.partition("://")
    if scheme.lower() not in _SCHEMES or not rest:
        raise ConfigurationError(f"a Redis store's URL starts with one of {', '.join(SCHEMES)}; got {show(scheme)}")
    if len(url) > _LONGEST or not url.isprintable():
        raise ConfigurationError(f"a Redis store's URL has at most {_LONGEST:,} printable characters")
    kind, tls = _SCHEMES[scheme.lower()]
    try:
        parts = urlsplit(f"//{rest}")
    except ValueError:
        raise ConfigurationError("a Redis store's URL cannot be read: its host in [] is no IPv6 address") from None
    login, _, places = parts.netloc.rpartition("@")
    username, _, password = (unquote(part) for part in login.partition(":"))
    options = _options(parts.query)
    path = unquote(parts.path)
    hosts = () if kind == "unix" else _hosts(places, _PORTS[kind])
    service, db = _service_and_db(kind, path, options)
    where = path if kind == "unix" else ",".join(f"{f'[{host}]' if ':' in host else host}:{port}" for host, port in hosts)
    if kind == "unix" and not path.startswith("/"):
        raise ConfigurationError("unix:// needs the whole path of the socket, such as unix:///run/redis/redis.sock")
    address = Address(
        kind=kind,
        hosts=hosts,
        path=path,
        db=db,
        service=service,
        shown=f"{scheme.lower()}://{where}{f'/{service}' if service else ''}{f'/{db}' if db and kind != 'unix' else ''}",
        timeout_s=_timeout(options.pop("timeout_s", None)),
        tls=_tls(options) if tls else None,
        username=username or None,
        password=password or None,
        sentinel_username=options.pop("sentinel_username", None),
        sentinel_password=options.pop("sentinel_password", None),
    )
    if options:
        known = ", ".join(name for name in OPTIONS if tls or name not in _TLS) + ("" if tls else ", and more of rediss://")
        raise ConfigurationError(f"{show(min(options))} is no parameter of a Redis store's URL {address.shown}: there are {known}")
    return address


def _options(query: str) -> dict[str, str]:
    try:
        pairs = parse_qsl(query, keep_blank_values=True, max_num_fields=32)
    except ValueError:
        raise ConfigurationError("a Redis store's URL has more than 32 parameters") from None
    options = dict(pairs)
    if len(options) != len(pairs):
        raise ConfigurationError("a parameter of the Redis store's URL is there twice; give each once")
    return options


def _hosts(places: str, port: int) -> tuple[Host, ...]:
    each = places.split(",")
    if len(each) > _MOST_HOSTS:
        raise ConfigurationError(f"a Redis store's URL names {len(each)} hosts; {_MOST_HOSTS} are enough to find the others by")
    return tuple(_host(place, port) for place in each)


def _host(place: str, default: int) -> Host:
    try:
        parts = urlsplit(f"//{place}")
        host, port = parts.hostname or "localhost", parts.port or default
    except ValueError:
        raise ConfigurationError(f"{show(place)} is no host of a Redis store; write it as host or host:port") from None
    return host, port


def _service_and_db(kind: Kind, path: str, options: dict[str, str]) -> tuple[str, int]:
    steps = [] if kind == "unix" else [step for step in path.split("/") if step]
    service = ""
    if kind == "sentinel":
        if not steps:
            raise ConfigurationError("redis+sentinel:// needs the name of the service after the hosts, such as /mymaster")
        service = steps.pop(0)
    named = steps.pop(0) if steps else options.pop("db", "0")
    if steps or not named.isascii() or not named.isdigit() or int(named) >= _MOST_DB:
        raise ConfigurationError(f"the database of a Redis store is a whole number, such as /0; got {show('/'.join([named, *steps]))}")
    if kind == "cluster" and int(named):
        raise ConfigurationError(f"a Redis Cluster has database 0 only; got {show(named)}: leave it out")
    return service, int(named)


def _timeout(written: str | None) -> float:
    if written is None:
        return TIMEOUT_S
    try:
        timeout_s = float(written)
    except ValueError:
        timeout_s = -1.0
    if not 0 < timeout_s <= _LONGEST_TIMEOUT_S:
        raise ConfigurationError(f"timeout_s= of the Redis store's URL is seconds, up to {_LONGEST_TIMEOUT_S:g}; got {show(written)}")
    return timeout_s


def _tls(options: dict[str, str]) -> dict[str, str]:
    tls: dict[str, str] = {name: options.pop(name) for name in _TLS if name in options}
    checks = tls.setdefault("ssl_cert_reqs", "required")
    if checks not in _CHECKS:
        raise ConfigurationError(f"ssl_cert_reqs= of the Redis store's URL is one of {', '.join(_CHECKS)}; got {show(checks)}")
    return tls
