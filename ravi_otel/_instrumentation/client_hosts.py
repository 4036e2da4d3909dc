"""Note the hosts that clients of other packages are made for, whose requests are counted in the HTTP library below them.

A client may have any base URL, and only the client shows that a model answers there.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from ravi_otel._instrumentation.http_seam import MODEL_HOSTS
from ravi_otel._runtime.patching import Package, Wraps
from ravi_otel.hooks._listeners import Guarded


class Made(NamedTuple):
    """One call of the method by which a package makes a client."""

    instance: Any
    result: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Library:
    """How a package makes its clients: `owner` finds the class in `module` whose `method` makes a client, or sends a request.

    `host` returns the URL that a client was made for; None for one that calls no model. `own` returns the URL of a client that the package
    has made for itself. `name` is the package that a program imports, `dialect` the one its hosts speak unless a request shows another.
    """

    name: str
    dialect: str
    module: str
    owner: Callable[[Any], type]
    method: str
    host: Callable[[Made], Any]
    own: Callable[[Any], Any] = lambda _module: None


def _bedrock_host(made: Made) -> Any:
    service = str(made.args[0] if made.args else made.kwargs.get("service_name"))
    return made.result.meta.endpoint_url if service.startswith("bedrock") and service.endswith("runtime") else None


def _litellm_host(made: Made) -> Any:
    more: Any = made.args[3] if len(made.args) > 3 else made.kwargs.get("additional_args")  # noqa: PLR2004 - the fourth parameter
    return more.get("api_base") or None if isinstance(more, dict) else None  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]  # of whatever it holds


LIBRARIES: Final = (
    Library(
        "google.genai",
        "google",
        "google.genai",
        lambda _module: sys.modules["google.genai._api_client"].BaseApiClient,
        "__init__",
        lambda made: made.instance._http_options.base_url,  # noqa: SLF001 - the only place that has it
    ),
    *(
        Library(
            "mistralai",
            "openai",
            module,
            lambda module: module.Mistral,
            "__init__",
            lambda made: made.instance.sdk_configuration.get_server_details()[0],
        )
        for module in ("mistralai.sdk", "mistralai.client.sdk")
    ),
    Library(
        "cohere",
        "cohere",
        "cohere.core.client_wrapper",
        lambda module: module.BaseClientWrapper,
        "__init__",
        lambda made: made.instance.get_base_url(),
    ),
    Library(
        "ollama",
        "ollama",
        "ollama",
        lambda module: module.Client.__mro__[1],
        "__init__",
        lambda made: made.instance._client.base_url,  # noqa: SLF001 - the only place that has it
        own=lambda module: module._client._client.base_url,  # noqa: SLF001 - what its functions go through
    ),
    Library("boto3", "bedrock", "botocore.client", lambda module: module.ClientCreator, "create_client", _bedrock_host),
    Library("litellm", "auto", "litellm.litellm_core_utils.litellm_logging", lambda module: module.Logging, "pre_call", _litellm_host),
)
"""Packages whose clients are not wrapped. LiteLLM has no clients: the URL is read from each of its calls."""


class _WrappedPackage:
    """The wrapped method of one package."""

    def __init__(self, library: Library, module: ModuleType) -> None:
        self._library = library
        self._module = module
        self._wraps = Wraps()
        self._active = False

    def install(self) -> None:
        """Wrap the method that makes its clients."""
        library = self._library
        self._wraps.wrap(library.owner(self._module), library.method, self._note_host)
        self._active = True
        own = None
        try:
            own = library.own(self._module)
        except AttributeError:  # this version makes no client of its own
            return
        if own:
            _add_host(library, own)

    def remove(self) -> None:
        """Stop watching, and restore the original method."""
        self._active = False
        self._wraps.restore()

    def _note_host(self, wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = wrapped(*args, **kwargs)
        if self._active:
            with Guarded("hosts"):  # our own bug never costs the program its client
                url = self._library.host(Made(instance, result, args, kwargs))
                if url is not None:
                    _add_host(self._library, url)
        return result


def _add_host(library: Library, url: Any) -> None:
    """Note the host of a client's URL as one of a model."""
    found = urlsplit(str(url))
    if found.hostname:
        port = found.port or {"https": 443, "http": 80}.get(found.scheme)
        MODEL_HOSTS.made_for(f"{found.hostname}:{port}", library.dialect)


CLIENT_HOSTS: Final = tuple(
    Package(
        each.module,
        partial(_WrappedPackage, each),
        f"ravi-otel: clients of this version of {each.name} do not tell which hosts they were made for (%s is missing); requests to known "
        "hosts, and to those that formats= names, are counted all the same.",
    )
    for each in LIBRARIES
)
