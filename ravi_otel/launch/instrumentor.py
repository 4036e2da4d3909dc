"""Be found by `opentelemetry-instrument`: the entry points it loads before and among its instrumentations."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

from ravi_otel._setup import instrument, uninstrument
from ravi_otel.launch.attach import begin
from ravi_otel.launch.plan import VARIABLE
from ravi_otel.runtime.config import effective

POLICY: Final = "RAVI_POLICY"
"""The environment variable that names a policy file."""


class RaviInstrumentor:
    """Instrument the `openai` package, as the auto-instrumentation asks for it.

    It has the three methods of OpenTelemetry's `BaseInstrumentor`, without depending on the package that defines it.
    Limits come from `RAVI_LIMIT_...` variables and the policy file that `RAVI_POLICY` names; under `ravi-otel run` they
    are the launcher's.
    """

    def instrumentation_dependencies(self) -> tuple[str, ...]:
        """Say what is instrumented."""
        return ("openai >= 1.66, < 4",)

    def instrument(self, **_settings: Any) -> None:
        """Observe every call from here on."""
        if os.environ.get(VARIABLE):
            begin()
            return
        named = os.environ.get(POLICY, "").strip()
        policy = effective(file=Path(named) if named else None)
        instrument(
            limits=policy.values,
            prices=policy.prices,
            enforcement="observe" if policy.observe else "enforce",
            admission=policy.admission,
        )

    def uninstrument(self, **_settings: Any) -> None:
        """Put everything back."""
        uninstrument()


def before_others() -> None:
    """Put the process into the launched run, if there is one: an auto-instrumentation's `sitecustomize` hides ours."""
    begin()
