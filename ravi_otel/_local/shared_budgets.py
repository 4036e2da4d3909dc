"""Look into a shared ledger as an operator does: it must be there, and nothing of it is held."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from ravi_otel._enforcement.ledger.choosing import VARIABLE, read_choice
from ravi_otel._enforcement.ledger.operators import Counter, Named, named
from ravi_otel._enforcement.ledger.sqlite.ledger import SqliteLedger
from ravi_otel._enforcement.ledger.store_ledger import StoreLedger
from ravi_otel._local.live.protocol import LimitState
from ravi_otel._local.wording import UNKNOWN, clean
from ravi_otel.errors import ConfigurationError
from ravi_otel.policy._limits import UNITS, ScopeKind, public_amount
from ravi_otel.supervisor import AuditLog
from ravi_otel.supervisor.approval._queue import current_login

MOST_NAME: Final = 40


@contextmanager
def opened(url: str | None, *, made: Callable[[str], object] | None = None) -> Generator[tuple[StoreLedger, str]]:
    """Open the ledger of a URL, give it with its name for people, and close it at the end.

    A file is made only with `made`, which is told so. ConfigurationError for one in which an operator cannot look.
    """
    if not url:
        raise ConfigurationError(f"No ledger is named. Give --ledger sqlite:PATH or redis://HOST:6379, or set {VARIABLE}.")
    choice = read_choice("--ledger", url)
    if choice.store == "memory":
        raise ConfigurationError(
            f"--ledger {choice.shown.removesuffix(':')}: its counters are in the process that counts, so nobody else can see them. "
            "Give sqlite:PATH or redis://HOST:6379."
        )
    if choice.store == "sqlite" and not Path(choice.url).exists():
        if made is None:
            raise ConfigurationError(f"--ledger {choice.shown}: there is no such file.")
        made(f"There is no file {choice.url} yet: it is made. If programs count in another one, name that.")
    ledger: Any = SqliteLedger(choice.url, create=made is not None) if choice.store == "sqlite" else choice.open()
    apart = "" if choice.namespace == "default" else f", namespace {choice.namespace!r}"
    try:
        yield ledger, choice.shown + apart
    finally:
        ledger.close()


class Shown:
    """Be one counter, with what its key says."""

    __slots__ = ("counter", "named")

    def __init__(self, counter: Counter) -> None:
        self.counter = counter
        self.named: Named | None = named(counter.key)

    @property
    def where(self) -> str:
        """Write the scope for people: `tenant:acme`, `session:chat-7 of acme`."""
        if self.named is None:
            return clean(self.counter.key, MOST_NAME)
        of = "" if self.named.scope is not ScopeKind.SESSION or self.named.tenant is None else f" of {clean(self.named.tenant, MOST_NAME)}"
        return f"{self.named.scope}:{clean(self.named.name, MOST_NAME)}{of}"

    @property
    def label(self) -> str:
        """Write the limit for people, and which of its windows and users this is."""
        if self.named is None:
            return UNKNOWN
        return clean(" ".join((self.named.label, *self.named.part)), 2 * MOST_NAME)

    @property
    def kind(self) -> str:
        """Give the kind, for amounts."""
        return "" if self.named is None else self.named.kind

    @property
    def state(self) -> str:
        """Write in a word how it is."""
        counter = self.counter
        if counter.draining:
            return "closed" if counter.value == 0 else "draining"
        return "exceeded" if counter.exceeded else "near" if counter.near else ""

    @property
    def limit(self) -> LimitState:
        """Return it as a limit of a running program is told of."""
        counter, kind = self.counter, self.kind
        return LimitState(
            kind=clean(self.label, 200),
            used=public_amount(kind, counter.used),
            held=public_amount(kind, counter.held),
            limit=public_amount(kind, counter.value),
            ratio=counter.ratio if counter.value else None,
            unit=UNITS.get(kind, "1"),
            title=clean(f"{self.where}, {self.label}", 200),
            warn_at=0.8,
            only_watched=self.named is not None and self.named.observes,
            refused=counter.denied,
        )

    def note(self, log: AuditLog, was: float, now: float, who: str) -> None:
        """Write down in an audit log that its limit was set, in its public unit, and by whom."""
        scope, _, name = self.where.partition(":")
        log.note_limit(
            self.label, self.kind, was, now, run_id=None, agent_name=None, scope=scope, scope_name=name, who=who, login=current_login()
        )
