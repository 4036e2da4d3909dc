"""Say what crosses to whom, by the environment: nothing does unless somebody has said so."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from ravi_otel.carrier.hosts import Hosts, Peers, read_hosts, read_peers
from ravi_otel.carrier.keys import VARIABLE as KEYS
from ravi_otel.carrier.keys import Keys, read_keys
from ravi_otel.errors import ConfigurationError
from ravi_otel.policy._checks import switch

TO: Final = "RAVI_CARRY_TO"
TRUST: Final = "RAVI_CARRY_TRUST"
NAMES: Final = "RAVI_CARRY_AS"
BAGGAGE: Final = "RAVI_CARRY_BAGGAGE"

_log = logging.getLogger("ravi_otel")


@dataclass(frozen=True, slots=True)
class Configured:
    """What was configured.

    `keys` sign and verify; `to` are the hosts, and MCP servers, that get ours; `trust` the peers that are believed without a
    signature; `names` what this service is called by those who call it, none: by anything.
    """

    keys: Keys = field(default_factory=Keys)
    to: Hosts = field(default_factory=Hosts)
    trust: Peers = field(default_factory=Peers)
    names: Hosts = field(default_factory=Hosts)

    @property
    def believes(self) -> bool:
        """Whether anything from outside may be believed."""
        return bool(self.keys) or bool(self.trust)


OFF: Final = Configured()


def configured() -> Configured:
    """Return what the environment says by now; where that cannot be used, which the log says once, nothing crosses."""
    found = os.environ
    return _configured(found.get(KEYS, ""), found.get(TO, ""), found.get(TRUST, ""), found.get(NAMES, ""))


def check_configured(environ: Mapping[str, str]) -> None:
    """Raise ConfigurationError for a variable that cannot be used."""
    _read(environ.get(KEYS, ""), environ.get(TO, ""), environ.get(TRUST, ""), environ.get(NAMES, ""))


def in_context() -> bool:
    """Whether every scope is to have its entry in OpenTelemetry's own baggage too."""
    return switch(os.environ, BAGGAGE, default=False, safe=False)


@lru_cache(maxsize=8)
def _configured(keys: str, to: str, trust: str, names: str) -> Configured:
    try:
        return _read(keys, to, trust, names)
    except ConfigurationError as error:
        _log.warning("ravi-otel: nothing is carried to or from other processes: %s", error)
        return OFF


def _read(keys: str, to: str, trust: str, names: str) -> Configured:
    if not (keys or to or trust or names):
        return OFF
    return Configured(read_keys(keys), read_hosts(TO, to), read_peers(TRUST, trust), read_hosts(NAMES, names))
