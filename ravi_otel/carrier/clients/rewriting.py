"""Decide what of ours a request takes along, when nothing can be put on it any more, and take what its answer brings back."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, cast

from opentelemetry import context as otel_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from ravi_otel._enforcement.sleeper import in_asyncio_task
from ravi_otel._flow import Done, Flow, run_async
from ravi_otel._telemetry.spans import silences_all
from ravi_otel.carrier.entries import without_ours
from ravi_otel.carrier.lending import RETURN_HEADER, Lent, pass_by, returned
from ravi_otel.carrier.outbound import headers_for, is_listed
from ravi_otel.hooks._listeners import swallow

Field = tuple[bytes, bytes]
"""A header as it goes out: name and value."""

_BAGGAGE: Final = b"baggage"
_TRACEPARENT: Final = b"traceparent"
_OURS: Final = re.compile(rb"ravi|%|\+", re.IGNORECASE)
"""Baggage without any of these has nothing of ours, however it is read."""

_SPREAD: Final = re.compile(rb"(?:uberctx|ot-baggage|baggage)-ravi\.", re.IGNORECASE)
"""Headers of older propagators, which make one of each entry."""

_ABSOLUTE: Final = re.compile(r"https?://", re.IGNORECASE)
_TRACE: Final = TraceContextTextMapPropagator()
_NOTHING: Final = cast("Flow[None]", Done(None))
_RETURN: Final = RETURN_HEADER.lower().encode("ascii")

_TAKING: Final[set[asyncio.Future[None]]] = set()
"""What a loop has to be reminded of: it knows its tasks, and keeps none of them alive."""


class Edit(NamedTuple):
    """Say which headers go, by their places, and which are added; `lent` is the loan that goes with them, if this request took one."""

    drop: frozenset[int]
    add: tuple[Field, ...]
    lent: Lent | None = None

    def unsend(self) -> None:
        """Have the loan back: not a byte of the request has left."""
        if self.lent is not None:
            self.lent.unsend()

    def of(self, fields: Sequence[Field]) -> list[Field]:
        """Return the headers as they are to be."""
        return [*(field for place, field in enumerate(fields) if place not in self.drop), *self.add]


@dataclass(frozen=True, slots=True)
class Going:
    """What a request is and where it goes: to the origin of `url`; `via` is who else reads it in plain, None where nobody does.

    `method` and `target` are the words of its first line.
    """

    url: str
    via: str | None = None
    method: str = ""
    target: str = ""

    @property
    def bare(self) -> bool:
        """Whether all of ours is taken off, whoever is asked: it only opens a tunnel."""
        return self.method == "CONNECT"


def origin_of(scheme: str, host: str, port: int | None) -> str:
    """Write an origin; an address of version 6 gets its brackets."""
    shown = f"[{host}]" if ":" in host and not host.startswith("[") else host
    return f"{scheme}://{shown}" if port is None else f"{scheme}://{shown}:{port}"


def going(peer: str, method: str, target: str) -> Going:
    """Tell by its first line where a request on a connection to `peer` goes: with a whole URL in it, `peer` hands it on."""
    if _ABSOLUTE.match(target):
        return Going(target, peer, method, target)
    return Going(peer, None, method, target)


Watch = Callable[[str, str, str, Sequence[Field]], object]
"""What is told of each request that no wrapped client makes: URL or origin, method, target and headers; it never raises."""


class Rewriting:
    """Rewrite what goes out, and take what comes back; never raises, and lets nothing of ours through where it cannot decide."""

    __slots__ = ("_is_provider_call", "_watch")

    def __init__(self, is_provider_call: Callable[[object], bool], watch: Watch) -> None:
        self._is_provider_call = is_provider_call
        self._watch = watch

    def edit(self, fields: Sequence[Field], where: Callable[[], Going], mark: object = None) -> Edit | None:
        """Return what is to change, None where nothing is; `mark` is what a call to a provider may be known by."""
        seen = _Seen(fields)
        try:
            to = where()
            ours = self._is_provider_call(mark)
            if not ours:
                self._watch(to.url, to.method, to.target, fields)
            return self._edit(seen, to, carries=not (to.bare or ours))
        except Exception as bug:  # noqa: BLE001 - the request goes out, without anything that may be ours
            swallow("carrier.outbound", bug)
            return seen.stripped()

    def _edit(self, seen: _Seen, to: Going, *, carries: bool) -> Edit | None:
        takes = carries and is_listed(to.url, to.via)
        existing, lent = seen.baggage, list[Lent]()
        lends = not silences_all(otel_context.get_current())  # an exporter asks for silence, and what it sends is not what was lent to
        if takes:
            now = headers_for(to.url, existing, to.via, lends=lends, taken=lent.append)
        else:
            now = without_ours(existing)
            if carries and lends:
                pass_by(to.url)
        drop = set(seen.spread)
        add: list[Field] = []
        if now != existing:
            drop |= seen.places
            if now is not None:
                add.append((_BAGGAGE, now.encode("latin-1")))
        if takes and not seen.traced:
            add += _traced()
        return Edit(frozenset(drop), tuple(add), lent[0] if lent else None) if drop or add else None

    def returns(self, fields: Iterable[Field], where: Callable[[], Going]) -> Flow[None]:
        """Take what an answer says a loan was used for; nothing to wait for where it says nothing."""
        for name, value in fields:
            if name.lower() == _RETURN:
                return _returns(where, value)
        return _NOTHING


class _Seen:
    """Read of a request's headers what concerns us."""

    __slots__ = ("_values", "places", "spread", "traced")

    def __init__(self, fields: Iterable[Field]) -> None:
        self._values: list[bytes] = []
        self.places: set[int] = set()
        self.spread: set[int] = set()
        self.traced = False
        for place, (name, value) in enumerate(fields):
            known = name.lower()
            if known == _BAGGAGE:
                self.places.add(place)
                self._values.append(value)
            elif known == _TRACEPARENT:
                self.traced = True
            elif _SPREAD.match(known):
                self.spread.add(place)

    @property
    def baggage(self) -> str | None:
        """Return all baggage in one, None where there is none."""
        return b",".join(self._values).decode("latin-1") if self._values else None

    def stripped(self) -> Edit | None:
        """Take off every header that may have anything of ours in it, whole."""
        doubtful = any(_OURS.search(value) for value in self._values)
        return Edit(frozenset(self.spread | (self.places if doubtful else set())), ())


def _traced() -> list[Field]:
    """Go on with the trace in the service that is asked: a run that is carried is one trace, with no other instrumentation too."""
    carrier: dict[str, str] = {}
    _TRACE.inject(carrier)
    return [(name.encode("ascii"), value.encode("latin-1")) for name, value in carrier.items()]


async def take(flow: Flow[None]) -> None:
    """Take what came back, to the end: who is cancelled meanwhile is so at once, and the rest is done without waiting for it."""
    if not in_asyncio_task():
        await run_async(flow)
        return
    taking = asyncio.ensure_future(run_async(flow))
    _TAKING.add(taking)
    taking.add_done_callback(_TAKING.discard)
    await asyncio.shield(taking)


def _returns(where: Callable[[], Going], value: bytes) -> Flow[None]:
    try:
        yield from returned(where().url, value.decode("latin-1"))
    except Exception as bug:  # noqa: BLE001 - what is not given back counts as spent, and the answer is the program's
        swallow("carrier.return", bug)
