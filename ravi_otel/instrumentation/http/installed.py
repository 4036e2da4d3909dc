"""Put the wrappers of one client package in place, and take them off again."""

from __future__ import annotations

from typing import Any

from ravi_otel.instrumentation.http.seam import Seam
from ravi_otel.instrumentation.http.vendor import Vendor
from ravi_otel.runtime.wrapping import Wraps


class Installed:
    """Hold the wrapped methods of one module of a client package, for as long as the process has it.

    One switch for ever: somebody who wrapped over us keeps our wrappers beneath, and they must work again when we are back.
    """

    def __init__(self, vendor: Vendor, base_client: Any) -> None:
        self._seam = Seam(vendor)
        self._base_client = base_client
        self._wraps = Wraps()

    def install(self) -> None:
        """Wrap the methods of the client's base module."""
        seam, base = self._seam, self._base_client
        for owner, name, wrapper in (
            (base.SyncAPIClient, "request", seam.request),
            (base.AsyncAPIClient, "request", seam.request_async),
            (base.BaseClient, "_build_request", seam.build),
            (base.BaseClient, "_calculate_retry_timeout", seam.pause),
            (base.SyncAPIClient, "_process_response", seam.answer),
            (base.AsyncAPIClient, "_process_response", seam.answer),
        ):
            self._wraps.wrap(owner, name, wrapper)
        seam.active = True

    def remove(self) -> None:
        """Fall silent, and put the identical methods back."""
        self._seam.active = False
        self._wraps.restore()
