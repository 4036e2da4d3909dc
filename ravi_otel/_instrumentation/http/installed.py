"""Put the wrappers of one client package in place, and take them off again."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from ravi_otel._instrumentation.http.seam import Seam
from ravi_otel._instrumentation.http.stream import helper_made
from ravi_otel._instrumentation.http.vendor import Vendor
from ravi_otel._runtime.wrapping import Wraps
from ravi_otel.hooks.guard import swallow


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


class InstalledHelpers:
    """Hold the wrapped constructors of the classes of one module whose objects read a stream for the program."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module
        self._wraps = Wraps()
        self._active = False

    def install(self) -> None:
        """Wrap every class that the module itself defines and that iterates by a generator of its own."""
        for kind in list(vars(self._module).values()):
            if isinstance(kind, type) and kind.__module__ == self._module.__name__ and {"__init__", "__stream__"} <= vars(kind).keys():
                self._wraps.wrap(kind, "__init__", self._made)
        self._active = True

    def remove(self) -> None:
        """Fall silent, and put the identical methods back."""
        self._active = False
        self._wraps.restore()

    def _made(self, wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        wrapped(*args, **kwargs)
        if self._active:
            try:
                helper_made(instance)
            except Exception as error:  # noqa: BLE001 - the helper is the program's whatever we make of it
                swallow("helper", error)
