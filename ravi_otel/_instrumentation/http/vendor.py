"""Say what sets one client package apart: its name, the endpoints it has, and whom its classes and hosts belong to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ravi_otel._instrumentation.formats.format import WireFormat


@dataclass(frozen=True, slots=True)
class Vendor:
    """Describe a client package.

    `package` is what the program imports. `provider` answers a plain client on a host that nobody knows. `classes` gives
    providers by the name of a client's class or of one it derives from.
    `format_for` returns the format of (method, path, base path, provider), the last one empty where it is a guess. `asks_usage`
    tells whether a stream to this client's host may be asked for its usage. `own_span` settles who tells a call that the client
    can tell by itself: it gives the options to send, the very object where nothing is to change, and whether the client makes
    a span.
    """

    package: str
    provider: str
    format_for: Callable[[str, str, str, str], WireFormat]
    classes: Mapping[str, str] = field(default_factory=dict[str, str])
    asks_usage: Callable[[Any], bool] = lambda client: False  # noqa: ARG005 - the signature's
    own_span: Callable[[Any, Any], tuple[Any, bool]] = lambda client, options: (options, False)  # noqa: ARG005 - the signature's
