"""Hold what the whole process has chosen about watching calls; frozen, and read from the environment in one place."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ravi_otel.errors import ConfigurationError
from ravi_otel.policy.checks import show, switch

USAGE_HOSTS = "RAVI_USAGE_HOSTS"
INCLUDE_USAGE = "RAVI_INCLUDE_USAGE"
PROVIDERS = "RAVI_PROVIDERS"
FOOTERS = "RAVI_FOOTERS"
SHORTEN_TIMEOUTS = "RAVI_SHORTEN_TIMEOUTS"
_HOST = re.compile(r"(\[[0-9a-f:]+\]|[^\s/:*@\[\]]+|[0-9a-f:]+:[0-9a-f:]*)(:\d{1,5})?")


@dataclass(frozen=True, slots=True, eq=False)
class Options:
    """What is captured and what may be changed.

    `content` has requests and answers written down. `include_usage` lets streams be asked for their usage; `usage_hosts` are
    further hosts (`name` or `name:port`) that may be asked. `providers` names providers by host. `each_chunk` times every
    chunk of a stream. `footers` puts a line under the text of streams and agents
    that a limit stopped, which says which one it was. `clients` are the only ones that are watched; none given is all of them.
    `shorten_timeouts` lets the time that is left become a request's time-out. `full` reads what the headers of every answer tell, and
    not only of one that failed or was asked for again.
    """

    content: bool = False
    include_usage: bool = True
    usage_hosts: frozenset[str] = frozenset()
    providers: Mapping[str, str] = field(default_factory=dict[str, str])
    each_chunk: bool = False
    footers: bool = False
    clients: tuple[Any, ...] = ()
    shorten_timeouts: bool = True
    full: bool = False

    def concerns(self, client: Any) -> bool:
        """Whether this client's calls are watched; copies of a chosen client share its connections, and are."""
        if not self.clients:
            return True
        pool = getattr(client, "_client", None)
        return any(client is one or (pool is not None and pool is getattr(one, "_client", None)) for one in self.clients)


def read_options(
    *,
    content: bool,
    each_chunk: bool,
    providers: Mapping[str, str] | None,
    clients: tuple[Any, ...] = (),
    footers: bool | None = None,
    full: bool = False,
    environ: Mapping[str, str] = os.environ,
) -> Options:
    """Read the options; the program's own `providers` go before those of `RAVI_PROVIDERS` (`host=provider,...`).

    Raises ConfigurationError for a line that cannot be read.
    """
    return Options(
        content=content,
        include_usage=switch(environ, INCLUDE_USAGE, default=True, safe=False),
        usage_hosts=frozenset(_host(USAGE_HOSTS, host) for host in environ.get(USAGE_HOSTS, "").split(",") if host.strip()),
        providers={**_providers(environ.get(PROVIDERS, "")), **_checked(providers)},
        each_chunk=each_chunk,
        footers=switch(environ, FOOTERS, default=False, safe=False) if footers is None else footers,
        clients=clients,
        shorten_timeouts=switch(environ, SHORTEN_TIMEOUTS, default=True, safe=True),
        full=full,
    )


def _providers(value: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for line in filter(None, (part.strip() for part in value.split(","))):
        host, separator, provider = (part.strip() for part in line.partition("="))
        if not separator or not host or not provider:
            raise ConfigurationError(
                f"{PROVIDERS} holds {show(line)}: write host=provider, as in llm.example.com=azure.ai.openai, with commas between."
            )
        found[_host(PROVIDERS, host)] = provider
    return found


def _checked(given: Mapping[str, str] | None) -> dict[str, str]:
    if given is None:
        return {}
    if not isinstance(given, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]  # a program without types may give anything
        raise ConfigurationError(f"instrument(providers={show(given)}) must map hosts to providers, as in {{'llm.example.com': 'openai'}}.")
    for host, provider in given.items():
        if not isinstance(host, str) or not isinstance(provider, str) or not host or not provider:  # pyright: ignore[reportUnnecessaryIsInstance]  # the same
            raise ConfigurationError(
                f"instrument(providers) maps {show(host)} to {show(provider)}: both are text and not empty, "
                "as in {'llm.example.com': 'openai'}."
            )
    return {_host("instrument(providers)", host): provider for host, provider in given.items()}


def _host(parameter: str, given: str) -> str:
    """Accept a host as clients write it, with its port or without; anything else would silently never match."""
    host = given.strip().lower()
    if not _HOST.fullmatch(host):
        raise ConfigurationError(
            f"{parameter} holds {show(given)}, which is no host: write its name alone, or with a port, as in llm.example.com:8443. "
            "An address with https:// or a path, and patterns with *, match nothing."
        )
    return host
