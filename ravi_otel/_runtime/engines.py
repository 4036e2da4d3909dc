"""Make the engine that counts for a process: of its settings, and of what a launcher has put around it."""

from __future__ import annotations

import os
from collections.abc import Mapping

from ravi_otel._enforcement.engine import Engine
from ravi_otel._enforcement.ledger.choosing import LEASE, MEMORY, VARIABLE, Choice, lease_of
from ravi_otel._enforcement.ledger.contract import Ledger
from ravi_otel._pricing import PriceBook
from ravi_otel._runtime.config.effective import service_in
from ravi_otel._runtime.settings import Settings
from ravi_otel._runtime.state import STATE
from ravi_otel._runtime.surroundings import Surroundings
from ravi_otel.errors import ConfigurationError
from ravi_otel.hooks.guard import swallow
from ravi_otel.hooks.listener import Listeners
from ravi_otel.policy.limits import Admission, Limit


def make_engine(settings: Settings, around: Surroundings | None, listeners: Listeners) -> Engine:
    """Make the engine, and open the ledger that is asked for; ConfigurationError for one that cannot be."""
    observe = settings.enforcement == "observe"
    if around is None:
        return Engine(
            ledger=_open(settings.ledger or MEMORY),
            listeners=listeners,
            prices=PriceBook(settings.prices),
            observe=observe,
            admission=settings.admission,
            warn_at=settings.warn_at,
            unusable=settings.unusable,
        )
    _refuse_another(settings.ledger, around)
    return Engine(
        ledger=around.ledger,
        listeners=listeners,
        prices=PriceBook({**(around.prices or {}), **(settings.prices or {})}),
        observe=observe or around.observe,
        firm=frozenset() if around.observe else frozenset((*around.run.limits, *(limit for limit, _ in around.of_service))),
        pause_after=around.pause_after,
        when_opened=around.when_opened,
        admission=settings.admission if settings.admission is not Admission.ESTIMATE else around.admission,
        warn_at=around.warn_at or settings.warn_at,
    )


def _open(choice: Choice) -> Ledger:
    return choice.open(lease_s=lease_of(os.environ.get(LEASE, "")), failed=lambda: STATE.engine.count("store_errors"))


def _refuse_another(asked: Choice | None, around: Surroundings) -> None:
    """Refuse a store of the program's own under a launcher: what is counted in two stores is not one step any more."""
    if asked is None or not asked.many or asked == around.chosen:
        return
    raise ConfigurationError(
        f"instrument(ledger={asked.shown}) is another ledger than that of the `ravi-otel run` around this program, and a call is counted "
        f"in one. Give it to the launcher: ravi-otel run --ledger URL, or {VARIABLE}."
    )


def limits_of(settings: Settings, around: Surroundings | None) -> tuple[tuple[Limit, ...], dict[int, str]]:
    """Give the limits of the process, the launcher's first, and what is told of each, by its place."""
    more = () if around is None else around.of_service
    origins = {at: origin for at, (_, origin) in enumerate(more)}
    origins.update((len(more) + at, origin) for at, origin in settings.origins.items())
    return (*(limit for limit, _ in more), *settings.limits), origins


def service_of(settings: Settings, around: Surroundings | None, environ: Mapping[str, str] = os.environ) -> str | None:
    """Name the service whose processes have the limits of the process together, None where nobody else counts in its ledger.

    It is the one that OpenTelemetry's variables name; processes of which nobody says that are one service, too.
    """
    choice = settings.ledger if around is None else around.chosen
    if choice is None or not choice.many:
        return None
    return service_in(environ)


def close_ledger(settings: Settings, around: Surroundings | None, engine: Engine, *, at_exit: bool) -> None:
    """Let go of the ledger, if it was opened for this process and not handed in; never raises.

    A launcher's stays from one instrumentation to the next, until the process ends. A call that is still under way settles in it all
    the same: whoever comes later opens it again.
    """
    choice = settings.ledger if around is None else around.chosen if at_exit else None
    close = None if choice is None or choice.ready is not None else getattr(engine.ledger, "close", None)
    if close is None:
        return
    try:
        close()
    except Exception as error:  # noqa: BLE001 - what cannot be let go of must not stop what comes next
        swallow("close", error)
