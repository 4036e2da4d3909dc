"""Put client packages under observation and limits, and take them off again."""

from __future__ import annotations

import sys
from functools import partial

from ravi_otel.instrumentation.http.installed import Installed
from ravi_otel.instrumentation.http.vendor import Vendor
from ravi_otel.runtime.packages import Package, is_within


class ClientPackage(Package):
    """Wrap one client package when, and only when, the program imports it; again when it imports it anew."""

    def __init__(self, vendor: Vendor) -> None:
        self.vendor = vendor
        unusable = (
            f"ravi-otel: this version of {vendor.package} cannot be instrumented (%s is missing), so its calls are neither counted nor "
            f"refused. Supported are {vendor.versions}."
        )
        super().__init__(vendor.module, partial(Installed, vendor), unusable)

    @property
    def is_strange(self) -> bool:
        """Tell that the program has imported this client, and that it could not be wrapped."""
        # A single file of the program's own that is called like it is no client.
        return hasattr(sys.modules.get(self.vendor.package), "__path__") and not self.holds(sys.modules.get(self.vendor.module))

    @property
    def outside(self) -> str | None:
        """Say which version the program has imported, where it is none of those that are supported; one that is wrapped all the same."""
        version = getattr(sys.modules.get(self.vendor.package), "__version__", None)
        if not isinstance(version, str) or self.is_strange or is_within(version, self.vendor.versions):
            return None
        return f"{self.vendor.package} {version} is outside {self.vendor.versions}"
