"""The entry points that `opentelemetry-instrument` loads before and among its instrumentations."""

from __future__ import annotations

import logging
import os
from typing import Any

from ravi_otel._launch.attach import begin
from ravi_otel._launch.plan import VARIABLE
from ravi_otel._setup import instrument, refuse_all, uninstrument
from ravi_otel.errors import RaviError

_log = logging.getLogger("ravi_otel")


class RaviInstrumentor:
    """An instrumentor of the `openai` package for OpenTelemetry's auto-instrumentation.

    It has the three methods of OpenTelemetry's `BaseInstrumentor`, without depending on the package that defines it.
    Limits come from `RAVI_LIMIT_...` variables and the policy file that `RAVI_POLICY` names; under `ravi-otel run` they
    are the launcher's.
    """

    def instrumentation_dependencies(self) -> tuple[str, ...]:
        """Return the packages that are instrumented."""
        return ("openai >= 1.66, < 4",)

    def instrument(self, **_settings: Any) -> None:
        """Observe every call from now on.

        Does not raise for limits that cannot be read: the loader would only log that, and the program would run without limits.
        Instead it logs one line, and every call is refused with that line as a ConfigurationError.
        """
        if os.environ.get(VARIABLE):
            begin()
            return
        try:
            instrument()
        except RaviError as error:
            why = f"ravi-otel refuses every model call, because its settings cannot be used: {error}"
            _log.error("%s", why)
            refuse_all(why)

    def uninstrument(self, **_settings: Any) -> None:
        """Undo the instrumentation."""
        uninstrument()


def before_others() -> None:
    """Put the process into the launched run, if there is one: an auto-instrumentation's `sitecustomize` hides ours."""
    begin()
