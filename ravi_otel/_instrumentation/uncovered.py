"""Notice what asks a model past every client and HTTP library that is wrapped, where a limit is in force that would have to cover it.

Nothing is changed by it and nothing refused: it is counted and told. Noticed are requests to the hosts that are models' (`ModelHosts`),
over the connections that the carrier's wrappers stand in: those of the standard library, WebSockets, and of an HTTP library that is used
below its clients.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Final

from ravi_otel._enforcement.errors_text import place
from ravi_otel._forksafe import renew_in_child
from ravi_otel._instrumentation.client_seam import is_sent_elsewhere
from ravi_otel._instrumentation.http_seam import MODEL_HOSTS
from ravi_otel._instrumentation.model_hosts import asks_model
from ravi_otel._instrumentation.uncovered_hosts import ALLOW, Uncovered, is_allowed
from ravi_otel._runtime.state import STATE
from ravi_otel._runtime.unwrapped_calls import is_around
from ravi_otel.hooks._listeners import Guarded

_PORTS: Final = {"https": 443, "wss": 443, "http": 80, "ws": 80}
_MOST: Final = 256
"""Hosts that are counted apart."""

_REST: Final = "other hosts"
_log = logging.getLogger("ravi_otel")


class UncoveredCalls:
    """Count them for the process, and tell each host: to a launcher as it grows, else once in a warning."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._found: dict[str, Uncovered] = {}
        self.tell: Callable[[Uncovered], object] | None = None
        """A launcher's, which hears of powers of two, and of all at the end."""

    def requested(self, url: str, method: str, target: str, headers: Sequence[tuple[bytes, bytes]]) -> None:
        """Look at a request that no wrapped client makes; never raises."""
        with Guarded("uncovered"):  # the request goes out as it is
            host = _authority(url)
            asks = _is_known(host) and (
                asks_model(method, target) or (method == "GET" and any(name.lower() == b"upgrade" for name, _ in headers))
            )
            if asks and not is_sent_elsewhere(lambda sent: _authority(sent) == host):
                self._note(host)

    def tell_all(self) -> None:
        """Tell the launcher, if there is one, of what it has not heard yet."""
        for each in list(self._found.values()):
            if self.tell is not None:
                self.tell(each)

    def start_anew(self) -> None:
        """Begin at zero: in a forked child, whose parent has told of its own, or where nobody is instrumented any more."""
        self._lock = threading.RLock()
        self._found = {}

    def _note(self, host: str) -> None:
        if STATE.options.clients or is_around():  # others are none of its business, or it is counted as a call of ours
            return
        scope = STATE.locate()[0]
        if all(
            account.observe and self.tell is None for account in scope.plan.in_force()
        ):  # a report has figures of what is only observed, too
            return
        with self._lock:
            if host not in self._found and len(self._found) >= _MOST:
                host = _REST
            before = self._found.get(host, Uncovered(host))
            now = self._found[host] = Uncovered(host, before.requests + 1)
        number = now.requests
        if self.tell is None:
            if number == 1:
                allowed = is_allowed(os.environ)
                _log.log(
                    logging.INFO if allowed else logging.WARNING,
                    "ravi-otel: the limits of %s do not cover %s: only calls through openai, anthropic, groq and boto3, and requests of "
                    "httpx, requests, urllib3 and aiohttp, are counted and refused. It is said once of each host%s.",
                    place(scope.facts),
                    now,
                    "" if allowed else f"; {ALLOW}=on accepts it",
                )
        elif number & (number - 1) == 0:
            self.tell(now)


UNCOVERED: Final = UncoveredCalls()
"""Those of this process."""

renew_in_child(UNCOVERED.start_anew)


def _authority(url: str) -> str:
    """Return host and port of a URL, the port always with it where the scheme has one."""
    scheme, _, rest = url.partition("://")
    return _whole(scheme.lower(), rest.partition("/")[0].partition("?")[0].rpartition("@")[2].lower())


@lru_cache(maxsize=_MOST)
def _whole(scheme: str, authority: str) -> str:
    name, separator, port = authority.rpartition(":")
    if not separator or not port.isdigit():
        name, port = authority, str(_PORTS.get(scheme, ""))
    return name.strip("[]").removesuffix(".") + (f":{port}" if port and int(port) not in (80, 443) else "")


def _parts(authority: str) -> tuple[str, int | None]:
    name, separator, port = authority.rpartition(":")
    return (name, int(port)) if separator and port.isdigit() else (authority, None)


def _is_known(authority: str) -> bool:
    return MODEL_HOSTS.at(*_parts(authority)) is not None
