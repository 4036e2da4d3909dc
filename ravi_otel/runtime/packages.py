"""Wrap a package of other people's when the program imports it, and take it off again."""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Protocol

import wrapt

_log = logging.getLogger("ravi_otel")


class Installed(Protocol):
    """Be the wrappers of one module of a package, for as long as the process has it.

    One object for ever: somebody who wrapped over us keeps our wrappers beneath, and they must work again when we are back.
    """

    def install(self) -> None:
        """Put them in place; AttributeError or KeyError where the module has not what they stand for."""
        ...

    def remove(self) -> None:
        """Fall silent, and put the identical objects back."""
        ...


class Package:
    """Wrap one package when, and only when, the program imports it; again when it imports it anew.

    `module` is what holds its classes, `make` gives the wrappers of one module object, `unusable` says what becomes of a version
    that cannot be wrapped, with `%s` where the log names what it misses.
    """

    def __init__(self, module: str, make: Callable[[ModuleType], Installed], unusable: str) -> None:
        self.module = module
        self._make = make
        self._unusable = unusable
        self._known: list[tuple[ModuleType, Installed]] = []
        self._wrapped: list[ModuleType] = []
        self._wanted = False
        self._waiting = False

    def install(self) -> None:
        """Wrap now, or as soon as the program imports it; each module of that name once."""
        self._wanted = True
        if self.module in sys.modules:
            self._wrap(importlib.import_module(self.module))  # waits for another thread that is importing it right now
        elif not self._waiting:
            self._waiting = True
            wrapt.register_post_import_hook(self._imported, self.module)

    def remove(self) -> None:
        """Put back the identical methods."""
        self._wanted = False
        wrapped, self._wrapped = self._wrapped, []
        for module, installed in self._known:
            if any(module is one for one in wrapped):
                installed.remove()

    def holds(self, module: ModuleType | None) -> bool:
        """Tell that this very module is wrapped now."""
        return any(wrapped is module for wrapped in self._wrapped)

    def _imported(self, module: ModuleType) -> None:
        self._waiting = False
        if self._wanted:
            self._wrap(module)

    def _wrap(self, module: ModuleType) -> None:
        if self.holds(module):
            return
        installed = next((one for known, one in self._known if known is module), None)
        if installed is None:
            installed = self._make(module)
            self._known.append((module, installed))
        try:
            installed.install()
        except (AttributeError, KeyError) as error:
            installed.remove()
            _log.error(self._unusable, repr(str(error)))
            return
        self._wrapped.append(module)
