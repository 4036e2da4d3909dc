"""Import what is heavy or optional at the moment it is needed, and nowhere else."""

from __future__ import annotations

import importlib
from types import ModuleType

from ravi_otel.errors import MissingExtraError

# Module → the extra that installs it; None: a plain dependency that is only slow to import.
EXTRAS: dict[str, str | None] = {
    "fastapi": "ui",
    "genai_prices": None,
    "grpc": "grpc",
    "limits": "agents",
    "mcp": "mcp",
    "opentelemetry.exporter.otlp.proto.grpc": "grpc",
    "redis": "redis",
    "stamina": "agents",
    "textual": "top",
    "uvicorn": "testing",
    "websockets": "testing",
    "yaml": "yaml",
}


def load(module: str) -> ModuleType:
    """Import `module` now; raise MissingExtraError naming the extra when it is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        extra = next((EXTRAS[name] for name in EXTRAS if module == name or module.startswith(f"{name}.")), None)
        target = f"ravi-otel[{extra}]" if extra else "ravi-otel"
        msg = f"{module!r} cannot be imported ({error}). Install it with: pip install '{target}'"
        raise MissingExtraError(msg, name=module) from error
