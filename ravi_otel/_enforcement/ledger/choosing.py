"""Choose where limits are counted: read what names a ledger, and open it.

A ledger is named by a URL, in code (`instrument(ledger=)`), on the command line or by `RAVI_LEDGER`:

    memory:                         this process alone
    sqlite:PATH                     the processes of this machine
    redis://HOST:6379/0             every process that reaches this server; also rediss:// and unix://PATH
    redis+sentinel://H1,H2/NAME     the server that sentinels name; redis+cluster://H1,H2 is a cluster
"""

from __future__ import annotations

import hashlib
import re
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Final, Literal, cast
from urllib.parse import parse_qs, parse_qsl, urlencode, urlsplit

from ravi_otel._enforcement.ledger.account import Account
from ravi_otel._enforcement.ledger.contract import Ledger
from ravi_otel._enforcement.ledger.memory import MemoryLedger
from ravi_otel._enforcement.ledger.redis import url as redis_url
from ravi_otel._enforcement.ledger.store_failures import DAY_S, KEEP_S
from ravi_otel._enforcement.ledger.store_ledger import StoreLedger
from ravi_otel._extras import load
from ravi_otel.errors import ConfigurationError
from ravi_otel.policy import _checks as checks

VARIABLE: Final = "RAVI_LEDGER"
"""The environment variable that names the ledger."""

LEASE: Final = "RAVI_LEASE_S"
"""The environment variable that says for how many seconds a process that fell silent keeps what it holds."""

Store = Literal["memory", "sqlite", "redis", "object"]

_STORES: Final[Mapping[str, Store]] = {
    "memory": "memory",
    "sqlite": "sqlite",
    "redis": "redis",
    "rediss": "redis",
    "unix": "redis",
    "redis+sentinel": "redis",
    "rediss+sentinel": "redis",
    "redis+cluster": "redis",
    "rediss+cluster": "redis",
}
_EXAMPLES: Final = "'memory:', 'sqlite:/var/lib/app/ledger.db' or 'redis://localhost:6379/0'"
_MOST_CHARACTERS: Final = 2_048
_MOST_OPTIONS: Final = 32
_MOST_SHOWN: Final = 120
_LEASES_S: Final = (0.5, 3600.0)
_KEPT_DAYS: Final = (1.0, 36_500.0)
_OURS: Final[Mapping[Store, tuple[str, ...]]] = {
    "memory": (),
    "sqlite": ("keep_days", "lease_s"),
    "redis": ("keep_days", "lease_s", "namespace"),
}
_PLACE: Final = re.compile(r"(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::\d{1,5})?")
_PATH: Final = re.compile(r"(?:/[A-Za-z0-9._/%~+-]*)?")
_VERBS: Final = ("reserve", "extend", "settle", "release", "retune", "clocked", "spans", "reset_after_fork")


@dataclass(frozen=True, slots=True)
class Choice:
    """Name a ledger; made by `read_choice`, opened by `open`.

    `url` is what goes to the store, without the options that are ours: it may have a password in it, and is never shown. `shown` is
    what errors and pages say. `namespace` keeps apart those who share one server.
    `lease_s` is how long a silent process keeps what it holds, None: as everywhere. `keep_days` is how long a counter of a
    tenant or a process is kept after its last use, None: 400 days. `ready` is an object that the program made.
    """

    store: Store
    shown: str
    url: str = field(default="", repr=False)
    namespace: str = "default"
    lease_s: float | None = None
    keep_days: float | None = None
    ready: Ledger | None = None

    @property
    def many(self) -> bool:
        """Whether other processes may count in it, too."""
        return self.store != "memory" and not isinstance(self.ready, MemoryLedger)

    @property
    def spelled(self) -> str:
        """Write it for another process: with the password, if it has one."""
        target = f"sqlite:{self.url}" if self.store == "sqlite" else self.url
        ours = [] if self.lease_s is None else [("lease_s", f"{self.lease_s:g}")]
        ours += [] if self.keep_days is None else [("keep_days", f"{self.keep_days:g}")]
        ours += [] if self.store == "sqlite" or self.namespace == "default" else [("namespace", self.namespace)]
        return f"{target}{'&' if '?' in target else '?'}{urlencode(ours)}" if ours else target

    def open(
        self,
        *,
        shares: Callable[[Account], bool] = Account.is_shareable,
        lease_s: float = 30.0,
        failed: Callable[[], object] = lambda: None,
    ) -> Ledger:
        """Open it, without a word to the store: that comes with the first step, so that nothing is waited for here.

        Raises MissingExtraError where its client is not installed, ConfigurationError for a URL that the client does not take.
        """
        if self.ready is not None:
            return self.ready
        if self.store == "memory":
            return MemoryLedger()
        opened = self._shared(shares, self.lease_s or lease_s, failed)
        words = file_words(self.url) if self.store == "sqlite" else server_words(self.url, self.namespace)
        opened.store_id = hashlib.sha256(words.encode("utf-8", "surrogateescape")).hexdigest()[:_ID_DIGITS]
        return opened

    def _shared(self, shares: Callable[[Account], bool], lease_s: float, failed: Callable[[], object]) -> StoreLedger:
        # Each of them costs its time to import, and most programs need neither.
        keep_s = KEEP_S if self.keep_days is None else self.keep_days * DAY_S
        if self.store == "sqlite":
            made: Callable[..., StoreLedger] = load("ravi_otel._enforcement.ledger.sqlite.ledger").SqliteLedger
            return made(self.url, shares=shares, lease_s=lease_s, keep_s=keep_s, failed=failed)
        client = load("ravi_otel._enforcement.ledger.redis.client").RedisClient(self.url)
        store = load("ravi_otel._enforcement.ledger.redis.store").RedisStore
        return StoreLedger(store(client, namespace=self.namespace, lease_s=lease_s, keep_s=keep_s), shares=shares, failed=failed)


MEMORY: Final = Choice("memory", "memory:")
"""What counts where nothing else was chosen."""


def open_ledger(spec: str | Ledger) -> Ledger:
    """Open the ledger that `spec` names; ConfigurationError for what names none. A ready one is given back as it is."""
    return read_choice("ledger", spec).open()


def read_choice(parameter: str, given: object) -> Choice:
    """Read what names a ledger: a URL, or an object that is one. Raises ConfigurationError, which never has a password in it."""
    if isinstance(given, str):
        return _read_url(parameter, given)
    if not isinstance(given, type) and all(callable(getattr(given, verb, None)) for verb in _VERBS):
        return Choice("object", f"a {type(given).__name__}", ready=cast("Ledger", given))
    raise ConfigurationError(f"{parameter}={checks.show(given)} names no ledger: give one of {_EXAMPLES}.")


def lease_of(written: str, parameter: str = LEASE) -> float:
    """Read for how many seconds a silent process keeps what it holds, 30 unless it is said; ConfigurationError for what is no such time."""
    return _within(_LEASES_S, parameter, written or "30", "seconds", "30")


def _within(bounds: tuple[float, float], parameter: str, written: str, unit: str, example: str) -> float:
    """Read a number within bounds; ConfigurationError for what is none."""
    least, most = bounds
    try:
        number = float(written)
    except ValueError:
        number = 0.0
    if not least <= number <= most:
        raise ConfigurationError(f"{parameter}={checks.show(written)} must be {unit} from {least:g} to {most:,g}, such as {example}.")
    return number


# -- a URL --------------------------------------------------------------------------------------------------------


def _read_url(parameter: str, given: str) -> Choice:
    url = given.strip()
    scheme, colon, rest = url.partition(":")
    store = _STORES.get(scheme.lower()) if colon else None
    if store is None:
        raise ConfigurationError(f"{parameter} names no ledger that is known{_meant(url, scheme, colon)}: give one of {_EXAMPLES}.")
    shown = show_url(url)
    if len(url) > _MOST_CHARACTERS or not url.isprintable():
        raise ConfigurationError(f"{parameter}={shown} is longer than {_MOST_CHARACTERS} characters or has control characters in it.")
    path, options = _split(parameter, shown, store, rest)
    if store == "memory":
        if path:
            raise ConfigurationError(f"{parameter}: 'memory:' has nothing behind it; write 'sqlite:PATH' to count in a file.")
        return MEMORY
    ours = {name: text for name, text in options if name in _OURS[store]}
    if store == "sqlite":
        target = str(_file(parameter, path))
    else:
        theirs = urlencode([(name, text) for name, text in options if name not in ours])
        target = f"{scheme.lower()}:{path}{'?' if theirs else ''}{theirs}"
        _check_redis(parameter, shown, target)
    return Choice(
        store,
        shown,
        url=target,
        namespace=checks.name(f"{parameter}: namespace", ours.get("namespace", "default")),
        keep_days=_within(_KEPT_DAYS, f"{parameter}: keep_days", ours["keep_days"], "days", "400") if "keep_days" in ours else None,
        lease_s=lease_of(ours["lease_s"], f"{parameter}: lease_s") if "lease_s" in ours else None,
    )


def _check_redis(parameter: str, shown: str, url: str) -> None:
    """Find out now, and not at the first call, what is wrong with the URL."""
    if "…" in shown:  # what is the password and what the place cannot be told apart, so none of it may stand in an error
        raise ConfigurationError(
            f"{parameter}={shown} is no URL that can be read: write redis://USER:PASSWORD@HOST:6379/0, with %40 for an @ in the password, "
            "and so on."
        )
    try:
        redis_url.read(url)
    except ConfigurationError as error:
        raise ConfigurationError(f"{parameter}: {error}") from None


def _meant(url: str, scheme: str, colon: str) -> str:
    """Show a word that was typed as the scheme, and nothing of what else there is: a password may be in it."""
    if colon and scheme.isascii() and scheme.replace("+", "").isalnum():
        close = checks.nearest(scheme, _STORES)
        return f" by {checks.show(scheme)}" + (f" (did you mean {close!r}?)" if close else "")
    return "" if "@" in url or not url else f" by {checks.show(url)}"


def _split(parameter: str, shown: str, store: Store, rest: str) -> tuple[str, list[tuple[str, str]]]:
    """Part what is behind the scheme into the place and its options; what is ours must be known, and said once."""
    path, mark, query = rest.partition("?")
    if not mark and any(f"&{name}=" in path for name in _OURS[store]):
        raise ConfigurationError(
            f"{parameter}={shown} has an option behind '&' and no '?': write '?' before the first option, and & after it."
        )
    try:
        options = parse_qsl(query, keep_blank_values=True, strict_parsing=True, max_num_fields=_MOST_OPTIONS) if query else []
    except ValueError:
        raise ConfigurationError(
            f"{parameter}={shown}: what is behind '?' cannot be read: write name=value, with & between several."
        ) from None
    names = [name for name, _ in options]
    known = _known(store)
    for name in names:
        if name not in known:
            close = checks.nearest(name, known)
            hint = f", did you mean {close!r}" if close else ", because it goes with Redis only" if name in _known("redis") else ""
            there = f"there are {', '.join(known)}" if known else "it takes none"
            raise ConfigurationError(f"{parameter}={shown} has an option {checks.show(name)}, which is unknown here{hint}: {there}.")
        if name in _OURS[store] and names.count(name) > 1:
            raise ConfigurationError(f"{parameter}={shown} says {name} twice: leave one of them out.")
    return path, options


def _known(store: Store) -> tuple[str, ...]:
    return (*_OURS[store], *(redis_url.OPTIONS if store == "redis" else ()))


def _file(parameter: str, path: str) -> Path:
    if path.startswith("//"):
        host, slash, path = path[2:].partition("/")
        path = slash + path
        if host or not slash:
            raise ConfigurationError(f"{parameter}: 'sqlite://' takes no host. Write 'sqlite:{checks.show(host)[1:-1]}' for a file here.")
        path = "/" + path.lstrip("/")  # others write sqlite:////var/lib/x.db: it is one file, however many slashes it begins with
    example = "sqlite:/var/lib/app/ledger.db"
    if not path:
        raise ConfigurationError(f"{parameter}: 'sqlite:' names no file; give one such as {example!r}.")
    try:
        path = str(Path(path).expanduser())
    except RuntimeError:
        raise ConfigurationError(
            f"{parameter}: there is no home folder to put for '~'; give the whole path, such as {example!r}."
        ) from None
    return checks.file_path(f"{parameter}: sqlite", path, example)


def show_url(url: str) -> str:
    """Write a ledger's URL for people: its scheme and place, never what may be a password, nor its options.

    Where it cannot be told for certain what is the place, the scheme is all that is shown.
    """
    scheme, _, rest = url.partition(":")
    store = _STORES.get(scheme.lower())
    if store is None:
        return "…"
    if store != "redis":
        return _short(f"{scheme.lower()}:{rest.partition('?')[0]}")
    return _short(f"{scheme.lower()}://{_place_of(rest.removeprefix('//'))}")


def _short(text: str) -> str:
    kept = text if text.isprintable() else ascii(text)[1:-1]
    return kept if len(kept) <= _MOST_SHOWN else f"{kept[: _MOST_SHOWN - 1]}…"


def _place_of(rest: str) -> str:
    secret, at, place = rest.rpartition("@")
    where, mark, _ = place.partition("?")
    if any(sign in secret for sign in "@?#/") or "#" in place or (mark and not where):
        return "…"
    hosts, slash, path = where.partition("/")
    known = all(_PLACE.fullmatch(host) for host in hosts.split(",")) if hosts else slash == "/"
    if not known or not _PATH.fullmatch(slash + path):
        return "…"
    return f"{'***@' if at else ''}{hosts}{slash}{path}"


# -- which store it is --------------------------------------------------------------------------------------------
#
# Two processes count in one store where both found it at the same place; that is told without asking it. A store that is only seen from
# one machine, such as a file or a server at localhost, is another one on each machine. Who reaches one store under two names is taken to
# have two: that is safe, as nothing is then left to a counter that others may not see.

_ID_DIGITS: Final = 16
_PORTS: Final = {True: "26379", False: "6379"}
_HERE: Final = ("localhost", "127.", "::1", "[::1]", "0.0.0.0")  # noqa: S104 - compared, and not listened on


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
