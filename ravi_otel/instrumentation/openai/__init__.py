"""Put the `openai` package under observation and limits, and take it off again."""

from __future__ import annotations

import importlib
import logging
import sys
from types import ModuleType

import wrapt

from ravi_otel.instrumentation.openai.seam import Installed

_log = logging.getLogger("ravi_otel")
_MODULE = "openai._base_client"


class OpenAIInstrumentation:
    """Wrap the client when, and only when, the program imports it; again when it imports it anew."""

    def __init__(self) -> None:
        self._installed: list[tuple[ModuleType, Installed]] = []
        self._wanted = False
        self._waiting = False

    @property
    def holds(self) -> bool:
        """Tell that the client the program has imported now is wrapped."""
        return self._knows(sys.modules.get(_MODULE))

    def install(self) -> None:
        """Wrap now, or as soon as the program imports `openai`; each module of the client once."""
        self._wanted = True
        if _MODULE in sys.modules:
            self._wrap(importlib.import_module(_MODULE))  # waits for another thread that is importing it right now
        elif not self._waiting:
            self._waiting = True
            wrapt.register_post_import_hook(self._imported, _MODULE)

    def remove(self) -> None:
        """Put back the identical methods."""
        self._wanted = False
        while self._installed:
            self._installed.pop()[1].remove()

    def _imported(self, module: ModuleType) -> None:
        self._waiting = False
        if self._wanted:
            self._wrap(module)

    def _knows(self, module: ModuleType | None) -> bool:
        return any(known is module for known, _ in self._installed)

    def _wrap(self, module: ModuleType) -> None:
        if self._knows(module):
            return
        installed = Installed()
        try:
            installed.install(module)
        except (AttributeError, KeyError) as error:
            installed.remove()
            _log.error(
                "ravi-otel: this version of openai cannot be instrumented (%r is missing), so its calls are neither counted nor refused. "
                "Supported are openai>=1.66,<4.",
                str(error),
            )
            return
        self._installed.append((module, installed))
