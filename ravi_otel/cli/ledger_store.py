"""Open a shared ledger as an operator does: it must be there, and nothing of it is held."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Protocol, TypeGuard

from ravi_otel._enforcement.ledger.choosing import VARIABLE, read_choice
from ravi_otel._enforcement.ledger.operators import Operated
from ravi_otel._enforcement.ledger.sqlite.ledger import SqliteLedger
from ravi_otel.cli.stored import say
from ravi_otel.errors import ConfigurationError

_VERBS: Final = ("list_accounts", "set_limit", "accept_loss", "close_scope", "close")


class Opened(Operated, Protocol):
    """Be a store that can be closed again."""

    def close(self) -> None:
        """Let it go."""
        ...


def is_operated(store: object) -> TypeGuard[Opened]:
    """Tell that an operator can look into a store."""
    return all(callable(getattr(store, verb, None)) for verb in _VERBS)


@contextmanager
def opened(url: str | None, *, create: bool = False) -> Generator[tuple[Opened, str]]:
    """Open the store of a URL, give it with its name for people, and close it at the end; a file is made only with `create`.

    ConfigurationError for one in which an operator cannot look.
    """
    if not url:
        raise ConfigurationError(f"No ledger is named. Give --ledger sqlite:PATH or redis://HOST:6379, or set {VARIABLE}.")
    choice = read_choice("--ledger", url)
    if choice.store == "sqlite" and not Path(choice.url).exists():
        if not create:
            raise ConfigurationError(f"--ledger {choice.shown}: there is no such file.")
        say(f"There is no file {choice.url} yet: it is made. If programs count in another one, name that.")
    store: object = SqliteLedger(choice.url, create=create) if choice.store == "sqlite" else choice.open()
    if not is_operated(store):
        raise ConfigurationError(
            f"--ledger {choice.shown.removesuffix(':')}: its counters are in the process that counts, so nobody else can see them. "
            "Give sqlite:PATH or redis://HOST:6379."
        )
    apart = "" if choice.namespace == "default" else f", namespace {choice.namespace!r}"
    try:
        yield store, choice.shown + apart
    finally:
        store.close()
