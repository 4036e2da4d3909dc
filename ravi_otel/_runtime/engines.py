"""Make the engine that the settings describe, and say what a launcher puts around a whole program."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ravi_otel._enforcement.engine import Engine
from ravi_otel._enforcement.ledger.choosing import LEASE, MEMORY, VARIABLE, Choice, lease_of
from ravi_otel._enforcement.ledger.contract import Ledger
from ravi_otel._enforcement.opening import Opening
from ravi_otel._pricing import PriceBook
from ravi_otel._pricing.book import PriceMap
from ravi_otel._runtime.config.effective import service_in
from ravi_otel._runtime.settings import Settings
from ravi_otel._runtime.state import STATE
from ravi_otel._telemetry import Sink
from ravi_otel.errors import ConfigurationError
from ravi_otel.hooks.guard import swallow
from ravi_otel.hooks.listener import Listeners
from ravi_otel.policy.facts import ScopeFacts
from ravi_otel.policy.limits import Admission, Limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """Be what a launcher puts around a whole program: a run with limits of its own, whatever the program sets up inside.

    `of_service` are limits of the process besides, for all processes of its service, each with what a refusal tells its reader to change.
    `ledger` keeps its counters, for all processes of the program, and for others too where it was `chosen`. `sink` makes the end of
    the local `store` in this process. `pause_after` says for how many seconds to hold back a refusal; `when_opened` hears of each
    scope that is opened; `when_told` is called at the first work in each process, `when_left` at its end, if it ends in order.
    """

    run: Opening
    ledger: Ledger
    of_service: tuple[tuple[Limit, str], ...] = ()
    sink: Callable[[], Sink]
    observe: bool = False
    admission: Admission = Admission.ESTIMATE
    warn_at: float | None = None
    prices: PriceMap | None = None
    pause_after: Callable[[BaseException], float] | None = None
    when_opened: Callable[[ScopeFacts], object] | None = None
    when_told: Callable[[], object] = lambda: None
    when_left: Callable[[], object] = lambda: None
    store: Path | None = None
    chosen: Choice | None = None


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
