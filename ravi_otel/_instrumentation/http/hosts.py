"""Know whose API a client talks to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ravi_otel._instrumentation.formats.fields import class_of
from ravi_otel._instrumentation.formats.format import Host
from ravi_otel._instrumentation.http.model_hosts import provider_at
from ravi_otel._instrumentation.http.vendor import Vendor

_PORTS = {"https": 443, "wss": 443, "http": 80, "ws": 80}
_MOST_KEPT = 64


_kept: dict[tuple[int, type, int], tuple[object, object, Host]] = {}
"""Hosts by the identity of a client's URL object and of the user's map, which are kept too, so that no other can take their place."""


def host_of(client: Any, vendor: Vendor, named: Mapping[str, str]) -> Host:
    """Tell the provider by the user's map, else by the client's class, else by its host; else it is taken for the vendor's own.

    `named` gives providers by host name, or by `host:port`.
    """
    kind = class_of(client)
    field = getattr(client, "_base_url", None)  # what the property gives, at a thirtieth of its cost
    kept = _kept.get((id(field), kind, id(named)))
    if kept is not None:
        return kept[2]
    url = client.base_url
    host = look_up(url, kind, vendor, named)
    if url is field:
        if len(_kept) >= _MOST_KEPT:
            _kept.clear()
        _kept[id(url), kind, id(named)] = (url, named, host)
    return host


def look_up(url: Any, kind: type, vendor: Vendor, named: Mapping[str, str]) -> Host:
    """Tell whose API lies at `url`, for a client of class `kind`."""
    address = url.host or None
    port = url.port or _PORTS.get(url.scheme)
    name = (address or "").lower()
    known = named.get(f"{name}:{port}") or named.get(name)
    if known is None:
        known = next((vendor.classes[cls.__name__] for cls in kind.__mro__ if cls.__name__ in vendor.classes), None)
    if known is None:
        known = provider_at(name, port)
    return Host(known or vendor.provider, known is None, address, port, url.path)
