"""Notice what asks a model past every client that we wrap, where a limit is in force that would have to cover it.

Nothing is changed by it and nothing refused: it is counted and told. Noticed are requests to the hosts of `model_hosts`, over every
HTTP client that the carrier's wrappers stand in, and the clients of other packages, which tell the hosts they were made for.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from types import ModuleType
from typing import Any, Final, NamedTuple

from ravi_otel._enforcement.errors_text import place
from ravi_otel._forksafe import renew_in_child
from ravi_otel._instrumentation.client_seam import is_sent_elsewhere
from ravi_otel._instrumentation.model_hosts import asks_model, provider_at
from ravi_otel._instrumentation.uncovered_hosts import ALLOW, Uncovered, is_allowed
from ravi_otel._runtime.patching import Package, Wraps
from ravi_otel._runtime.state import STATE
from ravi_otel._runtime.unwrapped_calls import is_around
from ravi_otel.hooks._listeners import Guarded

_PORTS: Final = {"https": 443, "wss": 443, "http": 80, "ws": 80}
_MOST: Final = 256
"""Hosts that are counted apart, and hosts that clients may name."""

_REST: Final = "other hosts"
_log = logging.getLogger("ravi_otel")


class UncoveredCalls:
    """Count them for the process, and tell each library and host: to a launcher as it grows, else once in a warning."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._found: dict[tuple[str, str], Uncovered] = {}
        self._libraries: dict[str, str] = {}
        self.tell: Callable[[Uncovered], object] | None = None
        """A launcher's, which hears of powers of two, and of all at the end."""
        self.tell_imported: Callable[[str], object] | None = None
        """A launcher's, which hears at the end of each library that the program has imported."""

    def requested(self, url: str, method: str, target: str, headers: Sequence[tuple[bytes, bytes]]) -> None:
        """Look at a request that no wrapped client makes; never raises."""
        with Guarded("uncovered"):  # the request goes out as it is
            authority = _authority(url)
            library = self._libraries.get(authority, "")
            host = authority if library else _known(authority)
            asks = host and (asks_model(method, target) or (method == "GET" and any(name.lower() == b"upgrade" for name, _ in headers)))
            if asks and not is_sent_elsewhere(lambda sent: _authority(sent) == authority):
                self._note(library, host, requests=1)

    def client_made(self, library: str, url: str, *, by_program: bool = True) -> None:
        """Take what a client of another package says of its host; one that the package makes for itself counts with its first request."""
        authority = _authority(url)
        with self._lock:
            if authority in self._libraries or len(self._libraries) < _MOST:
                self._libraries[authority] = library
        if by_program:
            self._note(library, authority, clients=1)

    def tell_all(self) -> None:
        """Tell the launcher, if there is one, of what it has not heard yet."""
        for name in {each.name: None for each in LIBRARIES if not each.silent and each.name in sys.modules}:
            if self.tell_imported is not None:
                self.tell_imported(name)
        for each in list(self._found.values()):
            if self.tell is not None:
                self.tell(each)

    def start_anew(self) -> None:
        """Begin at zero: in a forked child, whose parent has told of its own, or where nobody is instrumented any more."""
        self._lock = threading.RLock()
        self._found = {}

    def _note(self, library: str, host: str, *, requests: int = 0, clients: int = 0) -> None:
        if STATE.options.clients or is_around():  # others are none of its business, or it is counted as a call of ours
            return
        scope = STATE.locate()[0]
        if all(
            account.observe and self.tell is None for account in scope.plan.in_force()
        ):  # a report has figures of what is only observed, too
            return
        with self._lock:
            if (library, host) not in self._found and len(self._found) >= _MOST:
                library, host = "", _REST
            before = self._found.get((library, host), Uncovered(library, host))
            now = Uncovered(library, host, before.requests + requests, before.clients + clients)
            self._found[library, host] = now
        number = now.requests + now.clients
        if self.tell is None:
            if number == 1:
                allowed = is_allowed(os.environ)
                _log.log(
                    logging.INFO if allowed else logging.WARNING,
                    "ravi-otel: the limits of %s do not cover %s: only calls through openai, anthropic and groq are counted and refused. "
                    "It is said once of each host%s.",
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


@lru_cache(maxsize=_MOST)
def _known(authority: str) -> str:
    """Return the host of a provider, "" for any other."""
    name, separator, port = authority.rpartition(":")
    plain, number = (name, int(port)) if separator and port.isdigit() else (authority, None)
    return authority if provider_at(plain, number) else ""


# -- clients of other packages ------------------------------------------------------------------------------------


class Made(NamedTuple):
    """One call of what a package makes clients with."""

    instance: Any
    result: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Library:
    """How a package makes its clients: `owner` finds the class in `module`, whose `method` makes one, or asks for something.

    `host` gives the URL that it was made for; None for one that asks no model.
    `own` gives the URL of a client that the package has made for itself. `name` is what the program imports; `silent` where most that
    import it ask no model.
    """

    name: str
    module: str
    owner: Callable[[Any], type]
    method: str
    host: Callable[[Made], Any]
    own: Callable[[Any], Any] = lambda _module: None
    silent: bool = False


def _bedrock(made: Made) -> Any:
    service = str(made.args[0] if made.args else made.kwargs.get("service_name"))
    return made.result.meta.endpoint_url if service.startswith("bedrock") and service.endswith("runtime") else None


def _asked(made: Made) -> Any:
    more: Any = made.args[3] if len(made.args) > 3 else made.kwargs.get("additional_args")  # noqa: PLR2004 - the fourth parameter
    return more.get("api_base") or None if isinstance(more, dict) else None  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]  # of whatever it holds


LIBRARIES: Final = (
    Library(
        "google.genai",
        "google.genai",
        lambda _module: sys.modules["google.genai._api_client"].BaseApiClient,
        "__init__",
        lambda made: made.instance._http_options.base_url,  # noqa: SLF001 - the only place that has it
    ),
    *(
        Library(
            "mistralai",
            module,
            lambda module: module.Mistral,
            "__init__",
            lambda made: made.instance.sdk_configuration.get_server_details()[0],
        )
        for module in ("mistralai.sdk", "mistralai.client.sdk")
    ),
    Library(
        "cohere",
        "cohere.core.client_wrapper",
        lambda module: module.BaseClientWrapper,
        "__init__",
        lambda made: made.instance.get_base_url(),
    ),
    Library(
        "ollama",
        "ollama",
        lambda module: module.Client.__mro__[1],
        "__init__",
        lambda made: made.instance._client.base_url,  # noqa: SLF001 - the only place that has it
        own=lambda module: module._client._client.base_url,  # noqa: SLF001 - what its functions go through
    ),
    Library("boto3", "botocore.client", lambda module: module.ClientCreator, "create_client", _bedrock, silent=True),
    Library("litellm", "litellm.litellm_core_utils.litellm_logging", lambda module: module.Logging, "pre_call", _asked),
)
"""Those that we do not wrap. LiteLLM has no clients: it says of each call where that goes."""


class _Watched:
    """Hold the wrapped method of one package."""

    def __init__(self, library: Library, module: ModuleType) -> None:
        self._library = library
        self._module = module
        self._wraps = Wraps()
        self._active = False

    def install(self) -> None:
        """Wrap what makes its clients."""
        library = self._library
        self._wraps.wrap(library.owner(self._module), library.method, self._made)
        self._active = True
        own = None
        try:
            own = library.own(self._module)
        except AttributeError:  # this version makes none
            return
        if own:
            UNCOVERED.client_made(library.name, str(own), by_program=False)

    def remove(self) -> None:
        """Fall silent, and put the identical method back."""
        self._active = False
        self._wraps.restore()

    def _made(self, wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = wrapped(*args, **kwargs)
        if self._active:
            with Guarded("uncovered"):  # the client is the program's as it is
                url = self._library.host(Made(instance, result, args, kwargs))
                if url is not None:
                    UNCOVERED.client_made(self._library.name, str(url), by_program=self._library.method != "pre_call")
        return result


UNWRAPPED: Final = tuple(
    Package(
        each.module,
        partial(_Watched, each),
        f"ravi-otel: clients of this version of {each.name} are not noticed (%s is missing); its requests to known hosts are.",
    )
    for each in LIBRARIES
)
