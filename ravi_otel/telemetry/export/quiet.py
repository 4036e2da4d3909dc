"""Keep what we ask of other libraries out of the program's own telemetry, and out of its log."""

from __future__ import annotations

import logging
import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

from opentelemetry import context as otel_context

_log = logging.getLogger("ravi_otel")

_LOGGERS: Final = ("opentelemetry.", "urllib3.")

_here = threading.local()

SILENT: Final = otel_context.Context(
    dict.fromkeys(
        (
            "suppress_instrumentation",
            str(getattr(otel_context, "_SUPPRESS_INSTRUMENTATION_KEY", "suppress_instrumentation")),
            str(getattr(otel_context, "_SUPPRESS_HTTP_INSTRUMENTATION_KEY", "suppress_http_instrumentation")),
        ),
        True,
    )
)
"""The context that asks every instrumentation to be silent."""


@contextmanager
def untold() -> Generator[None]:
    """Ask every instrumentation to be silent about what is done within, whatever thread of the program it is done in."""
    token = otel_context.attach(SILENT)
    try:
        yield
    finally:
        otel_context.detach(token)


@contextmanager
def unlogged() -> Generator[list[str]]:
    """Let nothing into the log that the loggers of `listened` say in this thread; gives the names of those that warned.

    They put whole URLs and headers into what they say, with what is secret in them.
    """
    before = getattr(_here, "warned", None)
    warned: list[str] = []
    _here.warned = warned
    try:
        yield warned
    finally:
        _here.warned = before


def listened() -> None:
    """Have `unlogged` hear the loggers of the SDK and of urllib3 that there are by now."""
    for name, logger in list(logging.root.manager.loggerDict.items()):
        if name.startswith(_LOGGERS) and isinstance(logger, logging.Logger):
            logger.addFilter(_is_none_of_ours)


def say_of(signal: str, warned: list[str]) -> None:
    """Say in our own words, without a value, that somebody has warned of the environment."""
    if warned:
        _log.warning(
            "ravi-otel: something in OTEL_EXPORTER_OTLP_* for %s is not valid and is left out, such as a header without '='; "
            "`ravi-otel doctor` says what",
            signal,
        )


def _is_none_of_ours(record: logging.LogRecord) -> bool:
    warned: list[str] | None = getattr(_here, "warned", None)
    if warned is None:
        return True
    if record.levelno >= logging.WARNING:
        warned.append(record.name)
    return False
