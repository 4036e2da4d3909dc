"""Say what a launcher puts around a whole program."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ravi_otel._enforcement.ledger.choosing import Choice
from ravi_otel._enforcement.ledger.contract import Ledger
from ravi_otel._enforcement.opening import Opening
from ravi_otel._pricing.book import PriceMap
from ravi_otel._telemetry import Sink
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
