"""Follow a stream that tells nothing about its usage."""

from __future__ import annotations

from typing import Any

from ravi_otel.instrumentation.http.contract import Quiet
from ravi_otel.policy.usage import Reply


class SilentCollector(Quiet):
    """Take every event and learn nothing from it."""

    __slots__ = ()

    @property
    def complete(self) -> bool:
        """See `Collector.complete`."""
        return False

    @property
    def spoke(self) -> bool:
        """See `Collector.spoke`."""
        return True

    def add(self, event: Any) -> None:
        """See `Collector.add`."""

    def reply(self) -> Reply:
        """See `Collector.reply`."""
        return Reply()
