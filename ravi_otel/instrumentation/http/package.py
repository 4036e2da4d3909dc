"""Put client packages under observation and limits, and take them off again."""

from __future__ import annotations

import importlib
import logging
import sys
from types import ModuleType

import wrapt

from ravi_otel.instrumentation.http.installed import Installed
from ravi_otel.instrumentation.http.vendor import Vendor

_log = logging.getLogger("ravi_otel")


class ClientPackage:
    """Wrap one client package when, and only when, the program imports it; again when it imports it anew."""

    def __init__(self, vendor: Vendor) -> None:
        self.vendor = vendor
        self._known: list[tuple[ModuleType, Installed]] = []
        self._wrapped: list[ModuleType] = []
        self._wanted = False
        self._waiting = False

    @property
    def is_strange(self) -> bool:
        """Tell that the program has imported this client, and that it could not be wrapped."""
        # A single file of the program's own that is called like it is no client.
        return hasattr(sys.modules.get(self.vendor.package), "__path__") and not self._holds(sys.modules.get(self.vendor.module))

    def install(self) -> None:
        """Wrap now, or as soon as the program imports it; each module of the client once."""
        self._wanted = True
        if self.vendor.module in sys.modules:
            self._wrap(importlib.import_module(self.vendor.module))  # waits for another thread that is importing it right now
        elif not self._waiting:
            self._waiting = True
            wrapt.register_post_import_hook(self._imported, self.vendor.module)

    def remove(self) -> None:
        """Put back the identical methods."""
        self._wanted = False
        wrapped, self._wrapped = self._wrapped, []
        for module, installed in self._known:
            if any(module is one for one in wrapped):
                installed.remove()

    def _imported(self, module: ModuleType) -> None:
        self._waiting = False
        if self._wanted:
            self._wrap(module)

    def _holds(self, module: ModuleType | None) -> bool:
        return any(wrapped is module for wrapped in self._wrapped)

    def _wrap(self, module: ModuleType) -> None:
        if self._holds(module):
            return
        installed = next((one for known, one in self._known if known is module), None)
        if installed is None:
            installed = Installed(self.vendor, module)
            self._known.append((module, installed))
        try:
            installed.install()
        except (AttributeError, KeyError) as error:
            installed.remove()
            _log.error(
                "ravi-otel: this version of %s cannot be instrumented (%r is missing), so its calls are neither counted nor refused. "
                "Supported are %s.",
                self.vendor.package,
                str(error),
                self.vendor.versions,
            )
            return
        self._wrapped.append(module)
