"""Say what happened: spans, metrics and limit events under the OpenTelemetry GenAI names."""

import importlib as _importlib
import typing as _typing

if _typing.TYPE_CHECKING:
    from ravi_otel._telemetry.own_providers import Sink
    from ravi_otel._telemetry.providers import Pipeline
    from ravi_otel._telemetry.telemetry import Telemetry

__all__ = ["Pipeline", "Sink", "Telemetry"]

_HOMES = {"Pipeline": "providers", "Sink": "own_providers", "Telemetry": "telemetry"}


def __getattr__(name: str) -> _typing.Any:
    """Import what `name` stands for, once: who needs a name alone loads no more than the table of names."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(_importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
