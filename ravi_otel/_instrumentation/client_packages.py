"""The client packages that can be put under observation and limits, and taken off again."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Final

from ravi_otel._extras import load
from ravi_otel._instrumentation.client_seam import ClientSeam
from ravi_otel._instrumentation.streams import StreamHelpers
from ravi_otel._runtime.patching import Package, is_within


class ClientPackage(Package):
    """Wrap one client package when, and only when, the program imports it; again when it imports it anew.

    Only then is its profile imported: `PROFILE` of the module of ours that is called like it. `versions` says which are supported, and
    `helpers` which of its modules for streaming have classes that read a stream for the program.
    """

    def __init__(self, name: str, versions: str, *helpers: str) -> None:
        self.name, self.versions = name, f"{name}{versions}"
        unusable = (
            f"ravi-otel: this version of {name} cannot be instrumented (%s is missing), so its calls are neither counted nor "
            f"refused. Supported are {self.versions}."
        )
        super().__init__(f"{name}._base_client", self._wrappers, unusable)
        unseen = f"ravi-otel: helper objects of {name} that are dropped end late (%s is missing)."
        self._helpers = tuple(Package(f"{name}.lib.streaming.{helper}", StreamHelpers, unseen) for helper in helpers)

    def install(self) -> None:
        """See `Package.install`; its helpers' modules are imported by themselves."""
        super().install()
        for helper in self._helpers:
            helper.install()

    def remove(self) -> None:
        """See `Package.remove`."""
        super().remove()
        for helper in self._helpers:
            helper.remove()

    def _wrappers(self, base_client: ModuleType) -> ClientSeam:
        return ClientSeam(load(f"ravi_otel._instrumentation.{self.name}").PROFILE, base_client)

    @property
    def is_strange(self) -> bool:
        """Whether the program has imported this client, and that it could not be wrapped."""
        # A single file of the program's own that is called like it is no client.
        return hasattr(sys.modules.get(self.name), "__path__") and not self.holds(sys.modules.get(self.module))

    @property
    def outside(self) -> str | None:
        """Return which version the program has imported, where it is none of those that are supported; one that is wrapped all the same."""
        version = getattr(sys.modules.get(self.name), "__version__", None)
        if not isinstance(version, str) or self.is_strange or is_within(version, self.versions):
            return None
        return f"{self.name} {version} is outside {self.versions}"


CLIENTS: Final = (
    ClientPackage("openai", ">=1.66,<4", "chat._completions", "responses._responses"),
    ClientPackage("anthropic", ">=0.40,<3", "_messages", "_beta_messages"),
    ClientPackage("groq", ">=0.20,<2"),
)
"""One of each for ever, as their wrappers are."""
