"""The state of the process: the engine in use, the root scope, and the runs that are open."""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, cast

from ravi_otel import _current
from ravi_otel._enforcement.ending import Ending
from ravi_otel._enforcement.engine import Engine
from ravi_otel._enforcement.opening import Opening
from ravi_otel._enforcement.scope import Scope
from ravi_otel._forksafe import renew_in_child
from ravi_otel._runtime.stopping import stop_what_is_over
from ravi_otel.hooks._listeners import Listener
from ravi_otel.policy._limits import Limit

_log = logging.getLogger("ravi_otel")


@dataclass(frozen=True, slots=True, eq=False)
class Options:
    """What is captured and what may be changed.

    `content` has requests and answers written down. `include_usage` lets streams be asked for their usage; `usage_hosts` are
    further hosts (`name` or `name:port`) that may be asked. `providers` names providers by host, and `formats` the formats of hosts whose
    requests are read in the HTTP library that sends them. `each_chunk` times every
    chunk of a stream. `footers` puts a line under the text of streams and agents
    that a limit stopped, which says which one it was. `clients` are the only ones that are watched; none given is all of them.
    `shorten_timeouts` lets the time that is left become a request's time-out. `full` reads what the headers of every answer tell, and
    not only of one that failed or was asked for again. `frameworks` are those whose agents and tools are followed, None for all.
    """

    content: bool = False
    include_usage: bool = True
    usage_hosts: frozenset[str] = frozenset()
    providers: Mapping[str, str] = field(default_factory=dict[str, str])
    each_chunk: bool = False
    footers: bool = False
    clients: tuple[Any, ...] = ()
    shorten_timeouts: bool = True
    full: bool = False
    formats: Mapping[str, str] = field(default_factory=dict[str, str])
    frameworks: frozenset[str] | None = None

    def follows(self, framework: str) -> bool:
        """Whether the agents and tools of a framework are told by their names."""
        return self.frameworks is None or framework in self.frameworks

    def concerns(self, client: Any) -> bool:
        """Whether this client's calls are watched; copies of a chosen client share its connections, and are."""
        if not self.clients:
            return True
        pool = getattr(client, "_client", None)
        return any(client is one or (pool is not None and pool is getattr(one, "_client", None)) for one in self.clients)


class _Place:
    """What the code of the process runs in, replaced as one: no thread ever sees half of one and half of another."""

    __slots__ = ("around", "engine", "limits", "origins", "root", "service", "surrounding", "untold")

    def __init__(
        self,
        engine: Engine,
        limits: tuple[Limit, ...],
        around: Opening | None,
        origins: Mapping[int, str] | None = None,
        service: str | None = None,
    ) -> None:
        self.engine = engine
        self.limits = limits
        self.around = around
        self.origins = origins
        self.service = service
        engine.when_stopped, engine.deadlines.active = stop_what_is_over, True
        self.root = Scope.of_process(engine, limits, origins, service=service)
        self.surrounding: Final = None if around is None else around.open(self.root)
        self.untold = around is not None


class State:
    """What is one per process.

    `surrounding` is the run that a launched program is as a whole, None in any other. Nobody is told of it before the
    first work in it, so that the program has chosen its telemetry by then; `when_told` is called right after.
    """

    def __init__(self) -> None:
        self._place = _Place(Engine(), (), None)
        self.lock = threading.RLock()  # may be taken twice by one thread: a signal's handler may open a run
        self.top_runs: dict[str, weakref.ref[Scope]] = {}  # by scope id; one that the program drops must be free to go
        self.instrumented = False
        self.options = Options()
        self.when_told: Callable[[], object] = lambda: None
        self._telling = threading.RLock()
        self._warned: set[str] = set()
        self._always: tuple[Listener, ...] = ()

    @property
    def engine(self) -> Engine:
        """Return what all scopes of the process share."""
        return self._place.engine

    @property
    def limits(self) -> tuple[Limit, ...]:
        """List the limits of the process."""
        return self._place.limits

    @property
    def root(self) -> Scope:
        """Return the scope that work without a run belongs to."""
        return self._place.root

    @property
    def surrounding(self) -> Scope | None:
        """Return the run around the whole process, if there is one."""
        return self._place.surrounding

    def install(
        self,
        engine: Engine,
        limits: tuple[Limit, ...],
        around: Opening | None = None,
        origins: Mapping[int, str] | None = None,
        service: str | None = None,
    ) -> None:
        """Use `engine` from now on, in the run `around` if there is one; scopes that are open keep what they were opened with.

        `origins` say for each of the limits, by its place, what a refusal tells its reader to change. `service` is whose processes
        count in the limits of the process, all of them together; None keeps them to this one.
        """
        place = _Place(engine, limits, around, origins, service)  # may raise: then nothing has changed
        for each in self._always:
            engine.listeners.add_once(each)
        self._place = place
        _current.surround(place.surrounding, place.root)

    def listen(self, listener: Listener) -> None:
        """Tell `listener` of what happens from now on, whichever engine is in use; once."""
        with self.lock:
            if listener not in self._always:
                self._always = (*self._always, listener)
        self.engine.listeners.add_once(listener)

    def locate(self) -> tuple[Scope, bool]:
        """Return the scope the running code is in, and whether it was really in one.

        Code outside any scope joins the only open top-level run, unless that is some session's or tenant's; else the
        run around the process, or its root.
        """
        scope = cast("Scope | None", _current.entered())
        if scope is not None:
            return scope, True
        place = self._place
        if place.untold:
            self._tell(place)
        if len(self.top_runs) == 1:
            runs = self.open_runs()
            if len(runs) == 1 and runs[0].facts.session_id is None and runs[0].facts.tenant_id is None:
                return runs[0], False
        if place.surrounding is not None:
            return place.surrounding, True
        return place.root, False

    def open_runs(self) -> list[Scope]:
        """List the runs that were opened outside any other and are open."""
        with self.lock:
            kept = tuple(self.top_runs.values())  # one step: a handler, or a finaliser, may change them in the next
        return [run for held in kept if (run := held()) is not None]

    def around(self) -> Scope:
        """Return the scope to open the next one under."""
        place = self._place
        if place.untold:
            self._tell(place)
        scope = cast("Scope | None", _current.leaf())
        return place.root if scope is None else scope

    def entered(self, scope: Scope) -> None:
        """Note a run that was opened outside any other."""
        if scope.parent is None or scope.parent is self.surrounding or scope.parent.facts.run_id is None:
            with self.lock:
                self.top_runs[scope.facts.scope_id] = weakref.ref(scope)

    def left(self, scope: Scope) -> None:
        """Note that a run was closed."""
        with self.lock:
            self.forget(scope)

    def forget(self, scope: Scope) -> None:
        """Let nobody join a run any more; takes no lock, so that a finaliser may, and is one step of a dict."""
        self.top_runs.pop(scope.facts.scope_id, None)

    def _tell(self, place: _Place) -> None:
        with self._telling:  # held while a span is started, once: no other call may overtake the run it belongs to
            if not place.untold or place.surrounding is None:
                return
            place.untold = False
            place.engine.listeners.scope_opened(place.surrounding).leave()
        self.when_told()

    def conclude(self, error: BaseException | None = None) -> None:
        """Close the run around the process, because the process ends; with `error` when that is what ended it."""
        with self._telling:
            place = self._place
            scope, told = place.surrounding, not place.untold
            if scope is None or scope.status != "open":
                return
            place.untold = False
            scope.leave(error)
            if error is not None:  # which nobody swallows: it has ended the process
                scope.end_as(Ending.of(error))
        if told:
            scope.engine.listeners.scope_closed(scope, scope.totals())
        scope.error = None

    def warn_uninstrumented(self, given: str = "limits were set", missed: str = "neither counted nor refused") -> None:
        """Say once of each thing that was given that no client is wrapped: of model calls only those of our agents take part in it."""
        if not self.instrumented and given not in self._warned:
            self._warned.add(given)
            _log.warning(
                "ravi-otel: %s, but ravi_otel.instrument() was not called: model calls are %s, except those of ravi_otel.agents.",
                given,
                missed,
            )

    def renew_after_fork(self) -> None:
        """Start anew in a forked child: same limits, zero counters unless they are shared, nothing of the parent's in flight."""
        self.lock = threading.RLock()
        self._telling = threading.RLock()
        self.top_runs = {}
        self.engine.lock = threading.RLock()
        self.engine.joined.clear()
        self.engine.living.clear()
        self.engine.ledger.reset_after_fork()
        before = self._place
        self.install(before.engine, before.limits, before.around, before.origins, before.service)
        _remember(before, self._place)


def _remember(before: _Place, now: _Place) -> None:
    """Have a forked child know of the shared counters that its parent has seen: a store that forgets them is found out by both."""
    for old, new in ((before.root, now.root), (before.surrounding, now.surrounding)):
        if old is None or new is None:
            continue
        epochs = {account.key: account.epoch for account in old.accounts if account.epoch is not None}
        for account in new.accounts if epochs else ():
            account.epoch = epochs.get(account.key)


STATE = State()
renew_in_child(STATE.renew_after_fork)
