"""Put client packages under observation and limits, and take them off again."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Final

from ravi_otel._extras import load
from ravi_otel.instrumentation.http.installed import Installed
from ravi_otel.runtime.packages import Package, is_within


class ClientPackage(Package):
    """Wrap one client package when, and only when, the program imports it; again when it imports it anew.

    Only then are its readers imported: `VENDOR` of the module of ours that is called like it. `versions` says which are supported.
    """

    def __init__(self, name: str, versions: str) -> None:
        self.name, self.versions = name, f"{name}{versions}"
        unusable = (
            f"ravi-otel: this version of {name} cannot be instrumented (%s is missing), so its calls are neither counted nor "
            f"refused. Supported are {self.versions}."
        )
        super().__init__(f"{name}._base_client", self._wrappers, unusable)

    def _wrappers(self, base_client: ModuleType) -> Installed:
        return Installed(load(f"ravi_otel.instrumentation.{self.name}").VENDOR, base_client)

    @property
    def is_strange(self) -> bool:
        """Tell that the program has imported this client, and that it could not be wrapped."""
        # A single file of the program's own that is called like it is no client.
        return hasattr(sys.modules.get(self.name), "__path__") and not self.holds(sys.modules.get(self.module))

    @property
    def outside(self) -> str | None:
        """Say which version the program has imported, where it is none of those that are supported; one that is wrapped all the same."""
        version = getattr(sys.modules.get(self.name), "__version__", None)
        if not isinstance(version, str) or self.is_strange or is_within(version, self.versions):
            return None
        return f"{self.name} {version} is outside {self.versions}"


CLIENTS: Final = (
    ClientPackage("openai", ">=1.66,<4"),
    ClientPackage("anthropic", ">=0.40,<3"),
    ClientPackage("groq", ">=0.20,<2"),
)
"""One of each for ever, as their wrappers are."""
