"""Compose the layers: what `instrument()` puts together and `uninstrument()` takes apart."""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, Self, cast

import wrapt
from opentelemetry._logs import LoggerProvider
from opentelemetry.metrics import MeterProvider
from opentelemetry.trace import TracerProvider

from ravi_otel._enforcement.ending import Ending
from ravi_otel._enforcement.engine import Engine
from ravi_otel._enforcement.ledger.contract import Ledger
from ravi_otel._enforcement.scope import Scope
from ravi_otel._extras import load
from ravi_otel._instrumentation.client_hosts import CLIENT_HOSTS
from ravi_otel._instrumentation.client_packages import CLIENTS, HELPERS, HTTP_LIBRARIES, HTTP_SEAMS, MCP, SOCKETS, ClientPackage
from ravi_otel._instrumentation.client_seam import RAW_REQUESTS, is_sending
from ravi_otel._instrumentation.http_seam import is_sending_http
from ravi_otel._instrumentation.streams import abandon_open
from ravi_otel._instrumentation.uncovered import UNCOVERED
from ravi_otel._pricing.book import PATCHES_THREADS, PriceMap, preload, wait_until_preloaded
from ravi_otel._runtime.background_calls import AWAITED
from ravi_otel._runtime.carrying import Carrying
from ravi_otel._runtime.inferred_tools import INFERRING
from ravi_otel._runtime.patching import LEAVING, WORKERS, Installed
from ravi_otel._runtime.scopes import finish_open, read_limits
from ravi_otel._runtime.settings import (
    NOTHING,
    Settings,
    Surroundings,
    choices_of,
    clients_of,
    close_ledger,
    frameworks_of,
    ledger_of,
    limits_of,
    make_engine,
    service_of,
)
from ravi_otel._runtime.state import STATE, Options
from ravi_otel._runtime.stopping import TERMINATION, drain, end_under_way
from ravi_otel._telemetry import Pipeline, Sink, Telemetry
from ravi_otel._telemetry.content import Redact
from ravi_otel._telemetry.names import times_chunks
from ravi_otel.carrier._clients import MCP_SERVERS, Clients
from ravi_otel.carrier._configuration import check_configuration
from ravi_otel.carrier._outbound import begin_otel_baggage, end_otel_baggage
from ravi_otel.errors import CancellationError, ConfigurationError
from ravi_otel.hooks._listeners import REPORTS, Listener, Listeners, swallow
from ravi_otel.hooks._manager import Bridge, Hooks, finish_callbacks, read_hooks
from ravi_otel.integrations import ADAPTERS
from ravi_otel.policy import _checks as checks
from ravi_otel.policy._contracts import ToolGate
from ravi_otel.policy._limits import Admission, Limit, ScopeKind
from ravi_otel.policy._runs import StopReason

if TYPE_CHECKING:
    from ravi_otel._instrumentation.mcp_gates import GatedServer
    from ravi_otel._instrumentation.tools import InstrumentedTools
    from ravi_otel._runtime.tool_call import Refused

Enforcement = Literal["enforce", "observe"]
_ENTERED: Final = frozenset({ScopeKind.RUN, ScopeKind.HANDOFF, ScopeKind.AGENT, ScopeKind.BLOCK})
_TOOLS = "ravi_otel._instrumentation.tools"
"""What makes tools of a program's functions; imported where a program has any."""
_MCP_GATES: Final = "ravi_otel._instrumentation.mcp_gates"
_MCP_SERVERS: Final = "mcp:"
"""How a server is named whose tools are called over MCP."""
Detail = Literal["default", "full"]
_WRAPPED: tuple[Installed, ...] = (
    *CLIENTS,
    *HELPERS,
    *HTTP_LIBRARIES,
    *SOCKETS,
    Clients(lambda extensions: is_sending() or is_sending_http() or RAW_REQUESTS.knows(extensions), UNCOVERED.requested),
    *MCP_SERVERS,
    *MCP,  # around what carries: what a call of a tool takes along is known once it may run
    *HTTP_SEAMS,
    *CLIENT_HOSTS,
    *ADAPTERS,
    *WORKERS,
)
"""One of each for ever: whoever wrapped over us still holds our wrappers, and they must be the same when we are back."""


class Instrumentation:
    """What is instrumented now; as a context manager it ends with the block."""

    def __init__(self, settings: Settings, surroundings: Surroundings | None = None) -> None:
        self.settings = settings
        self._surroundings = surroundings
        self._content = settings.content()
        self._kept = _keeping(surroundings, content=self._content.captured)
        providers = (settings.tracer_provider, settings.meter_provider, settings.logger_provider)
        self._pipeline = Pipeline(*providers, store=_sink(self._kept))
        if self._kept and (self._content.captured or (surroundings is not None and surroundings.content)):
            self._content = replace(self._content, in_store=True)
        self._telemetry = Telemetry(self._pipeline, self._content, full=settings.full)
        self._watches = _watching(None if surroundings is None else surroundings.store)
        self._listeners = Listeners([*self._telemetry.listeners, *self._kept, *self._watches])
        self._bridge = Bridge(settings.hooks)
        if settings.hooks:
            self._listeners.bridge(self._bridge)
        self._carrying = Carrying()
        self._on = False
        self._heard = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if _now is self:
            uninstrument()

    def start(self, before: Instrumentation | None = None) -> None:
        """Build the engine, install the wrappers; those of `before` stay where they are, and from now on are ours.

        Nothing goes unseen or unlimited on the way from one to the other.
        """
        engine = self._engine = make_engine(self.settings, self._surroundings, self._listeners)
        if before is not None:
            before.fall_silent()
            self._carrying = before._carrying  # noqa: SLF001 - another one of this class
        STATE.options = self.settings.options(content=self._content.captured, each_chunk=times_chunks())
        around = None if self._surroundings is None else self._surroundings.run
        limits, origins = limits_of(self.settings, self._surroundings)
        STATE.install(engine, limits, around, origins, service_of(self.settings, self._surroundings))
        STATE.when_told = self._end_before_others
        STATE.instrumented = True
        preload(engine.prices)
        REPORTS.listeners = self._listeners
        for package in _WRAPPED:
            package.install()
        self._carrying.install()
        begin_otel_baggage()
        LEAVING.act = self._leave
        TERMINATION.install(self._terminate)
        self._pipeline.before_exit = _settle_all
        _settle_at_exit()
        self._on = True

    def _end_before_others(self) -> None:
        """Arrange that the run around the process ends before the providers that the program has made by now."""
        _settle_at_exit()
        if self._surroundings is not None:
            self._surroundings.when_told()

    def _terminate(self, number: int) -> None:
        """End and tell what is open, because a signal ends the process: calls that are under way first, then scopes, innermost first."""
        abandon_open()
        drain()
        end_under_way()
        open_scopes = [each for each in self._telemetry.open_scopes() if isinstance(each, Scope)]
        entered = [each for each in open_scopes if each.facts.kind in _ENTERED and not each.facts.surrounding]
        finish_open(entered, Ending("cancelled", StopReason.CANCELLED))
        STATE.conclude(CancellationError("the process was told to end", reason=signal.Signals(number).name))
        self._leave("signal", -number)

    def _leave(self, outcome: str = "ok", status: int | None = None) -> None:
        _settle_all()
        self._pipeline.shutdown()
        for kept in self._kept:
            kept.leave(outcome, status)

    def stop(self) -> None:
        """Put back every wrapped method, and fall silent."""
        if not self._on:
            return
        for package in _WRAPPED:
            package.remove()
        UNCOVERED.start_anew()
        self._carrying.remove()
        end_otel_baggage()
        self.fall_silent()
        for listening in (*self._watches, *self._kept):
            listening.retire()
        STATE.instrumented, LEAVING.act = False, None
        TERMINATION.remove()
        STATE.options, STATE.when_told = Options(), _nothing
        INFERRING.forget()
        STATE.install(Engine(), ())

    def fall_silent(self) -> None:
        """End the run around the process, and tell nobody anything from here on; never raises."""
        self._on = False
        try:
            drain()
            STATE.conclude()
        except Exception as error:  # noqa: BLE001 - what cannot be told must not stop what comes next
            swallow("conclude", error)
        finally:
            if REPORTS.listeners is self._listeners:
                REPORTS.listeners = None
            self._bridge.retire()
            self._telemetry.retire()

    def let_go(self) -> None:
        """Send what is waiting and close what was built; never raises."""
        try:
            self.let_go_of_ledger()
            self._pipeline.shutdown()
        except Exception as error:  # noqa: BLE001 - the program asked for something else, which is done
            swallow("shutdown", error)

    def let_go_of_ledger(self, *, at_exit: bool = False) -> None:
        """Close the store of counters that was opened for this; never raises."""
        close_ledger(self.settings, self._surroundings, self._engine, at_exit=at_exit)

    @property
    def is_plain(self) -> bool:
        """Whether it is only what the surroundings ask for."""
        return self._on and not self._heard and self._surroundings is _surroundings and self.settings == NOTHING

    def wrap_again(self) -> ClientPackage | None:
        """Wrap what clients the program has imported by now, if they are others; return the first that cannot be wrapped."""
        for package in _WRAPPED:
            package.install()
        return next((client for client in CLIENTS if client.is_strange), None)

    def listen(self, listener: Listener) -> None:
        """Tell `listener` too, after telemetry, from the next event on, until `uninstrument()`."""
        self._heard = True
        self._listeners.add(listener)

    def flush(self, timeout_s: float = 2.0) -> bool:
        """Send what is waiting; False when it was not all sent in time."""
        drain()
        return self._pipeline.flush(timeout_s)


wrapt.register_post_import_hook(wait_until_preloaded, PATCHES_THREADS)

_lock = threading.Lock()
_now: Instrumentation | None = None
_surroundings: Surroundings | None = None


def instrument(  # noqa: PLR0913 - one keyword a choice
    *,
    tracer_provider: TracerProvider | None = None,
    meter_provider: MeterProvider | None = None,
    logger_provider: LoggerProvider | None = None,
    limits: Iterable[Limit | str] = (),
    prices: PriceMap | None = None,
    enforcement: Enforcement | None = None,
    admission: str | None = None,
    policy: str | os.PathLike[str] | None = None,
    profile: str | None = None,
    client: Any = None,
    providers: Mapping[str, str] | None = None,
    formats: Mapping[str, str] | None = None,
    redact: Redact | None = None,
    footers: bool | None = None,
    detail: Detail | None = None,
    hooks: Hooks = None,
    tools: object = (),
    ledger: str | Ledger | None = None,
    frameworks: Collection[str] | None = None,
) -> Instrumentation:
    """Observe each model call from here on, of `openai`, `anthropic`, `groq` or over an HTTP library, and hold it to the limits around it.

    Without providers the application's own are used, else ours when an `OTEL_*` endpoint is named, else nothing leaves the process.
    `limits` hold for the whole process. `prices` adds or overrides prices in USD per million tokens: `{"my-model": {"input": 2.5, "output":
    10}}`. `policy` names a policy file, `profile` one of its profiles. What code leaves open variables say (`RAVI_LIMIT_...`,
    `RAVI_ENFORCEMENT`, `RAVI_ADMISSION`), and then the file; `RAVI_POLICY`, `RAVI_PROFILE` and `RAVI_STORE` name one each.
    `enforcement="observe"` tells what would be refused and refuses nothing. `admission` is "estimate", "strict" or "after". `client`
    watches one client alone, and its copies, or those of a list. `providers` names the provider behind a host: `{"llm.example.com":
    "azure.ai.openai"}`. `formats` (`RAVI_FORMATS`) names the wire format of a host of your own: `{"llm.internal:8443": "openai"}`. `redact`
    gets each captured text, and gives what may leave. `footers` (`RAVI_FOOTERS=on`) puts a line under what a limit stopped. `detail="full"`
    (`RAVI_DETAIL=full`) tells all of a call. `hooks`, a HookManager or several, hear of all; `tools` is what `instrument_tools()` takes.
    `ledger` is where limits are counted: "sqlite:PATH" or "redis://HOST", else `RAVI_LEDGER`, else here; `frameworks` are followed.

    Called again with the same arguments, or with none, it returns the same handle; with others it replaces it, unless that
    would forget what limits of the process have counted. Raises ConfigurationError for arguments that cannot be used.
    """
    targets = () if isinstance(tools, tuple) and not tools else load(_TOOLS).targets_of(tools)
    choices = choices_of(enforcement, admission, policy, profile)
    asked = Settings(
        tracer_provider,
        meter_provider,
        logger_provider,
        read_limits("instrument(limits)", limits),
        prices,
        choices.enforcement or "enforce",
        choices.admission or Admission.ESTIMATE,
        clients_of(client),
        providers,
        redact,
        footers,
        detail,
        hooks=read_hooks("instrument(hooks)", hooks),
        ledger=ledger_of(ledger),
        formats=formats,
        frameworks=frameworks_of(frameworks),
    )
    settings = choices.fill(asked, launched=_surroundings is not None)
    return _use(settings, targets, anything=asked != NOTHING or policy is not None or profile is not None)


def _use(settings: Settings, targets: tuple[Any, ...], *, anything: bool) -> Instrumentation:
    """Go by these settings from now on; where not `anything` was asked for, by those in use, if there are any."""
    settings.check()
    check_configuration(os.environ)
    # Before the lock: targets may be the program's own mappings, and run its code.
    tools = load(_TOOLS).instrument_all(targets) if targets else ()
    try:
        with _lock:
            if _now is not None:
                if not anything or settings == _now.settings:
                    return _now
                _check_forgets_nothing(_now)
            made, before = _begin(settings)
    except BaseException:
        for one in reversed(tools):
            one.remove()
        raise
    if before is not None:
        before.let_go()
    return made


def _check_forgets_nothing(now: Instrumentation) -> None:
    if now.settings.limits:
        raise ConfigurationError(
            "instrument(limits=...) was called before with other arguments, and replacing them would forget what its limits have "
            "counted. Call ravi_otel.uninstrument() first, or give the limits to run(limits=...)."
        )


def refuse_all(why: str) -> None:
    """Refuse every model call and tool of the process with ConfigurationError: its limits cannot be read, and nobody hears of that.

    For whoever instruments a program from outside, where an error would be swallowed and the program go on without limits.
    """
    with _lock:
        _, before = _begin(replace(NOTHING, unusable=why))
    if before is not None:
        before.let_go()


def _begin(settings: Settings) -> tuple[Instrumentation, Instrumentation | None]:
    """Begin anew, under the lock; return the one before too, if any, which is replaced and still to be let go of."""
    global _now  # noqa: PLW0603 - one instrumentation per process
    before, made = _now, Instrumentation(settings, _surroundings)
    made.start(before)
    _now = made
    return made, before


def uninstrument() -> None:
    """Put everything back as it was before `instrument()`; nothing to do when it was not called.

    Under `ravi-otel run` the launcher's own run and limits stay: they are not the program's to lift.
    """
    global _now  # noqa: PLW0603 - one instrumentation per process
    if _TOOLS in sys.modules:
        load(_TOOLS).remove_tools()
    if _MCP_GATES in sys.modules:
        load(_MCP_GATES).remove_gates()
    with _lock:
        before = _now
        if _surroundings is not None:
            if before is not None and before.is_plain:
                return
            _begin(NOTHING)
        else:
            _now = None
            if before is not None:
                before.stop()
    if before is not None:
        before.let_go()


def surround(surroundings: Surroundings | None) -> None:
    """Put the whole process into a launcher's run, with whatever the program has set up so far; None takes it away again."""
    global _surroundings  # noqa: PLW0603 - one launcher per process
    before: Instrumentation | None = None
    with _lock:
        _surroundings = surroundings
        if surroundings is not None:
            _, before = _begin(NOTHING if _now is None else _now.settings)
    if before is not None:
        before.let_go()
    if surroundings is None:
        uninstrument()


def outside() -> list[str]:
    """List the clients that the program has imported in versions that are not supported, and that are wrapped all the same."""
    return [said for client in CLIENTS if (said := client.outside) is not None]


def wrap_again() -> tuple[str, str] | None:
    """Wrap the clients that the program has imported by now; return one that cannot be, and the versions of it that can."""
    now = _now
    strange = None if now is None else now.wrap_again()
    return None if strange is None else (strange.name, strange.versions)


def flush(timeout_s: float = 2.0) -> bool:
    """Send what is waiting to be exported, for `timeout_s` seconds at most; False when it was not all sent."""
    now = _now
    return True if now is None else now.flush(timeout_s)


def _sink(kept: tuple[Any, ...]) -> Callable[[], Sink] | None:
    """Return what makes the providers' end of the store, which needs the SDK: imported at the first use."""
    if not kept:
        return None
    return lambda: cast("Sink", load("ravi_otel._local.otlp").Sink.of(kept[0].writer))


def _keeping(around: Surroundings | None, *, content: bool) -> tuple[Any, ...]:
    """Return the listener that keeps in the local store what happens in this process; nothing without a store."""
    store = None if around is None else around.store
    if store is None and not os.environ.get("RAVI_STORE", "").strip():
        return ()
    launch = None if around is None else around.run.run_id
    found: tuple[Any, ...] = load("ravi_otel._local.recorder").recorders(store, launch, content=content)
    return found


def _watching(store: Path | None) -> tuple[Any, ...]:
    """Return the listener by which this process is watched live, from its store; nothing without one."""
    return load("ravi_otel._local.live.server").listeners(store) if store or os.environ.get("RAVI_STORE", "").strip() else ()


def _nothing() -> None:
    """Do nothing when the first work is told: nobody is."""


def _settle_at_exit() -> None:
    atexit.unregister(_settle_all)
    atexit.register(_settle_all)  # last in, first out: before the providers that are there already


def _settle_all() -> None:
    """End what is still open when the process ends."""
    abandon_open()
    drain()
    AWAITED.give_up()
    STATE.conclude(getattr(sys, "last_value", None))  # the exception that nobody caught, if that is why the process ends
    finish_callbacks()
    if _now is not None:
        _now.let_go_of_ledger(at_exit=True)
    if _surroundings is not None:
        _surroundings.when_left()


def instrument_tools(
    target: object,
    *,
    supervisor: Any = None,
    approver: Any = None,
    approvers: Collection[str] | Mapping[str, Collection[str]] | None = None,
    requester_may_approve: bool | None = None,
    refused: Refused = "raise",
    skip: Collection[str] = (),
    only: Collection[str] | None = None,
) -> InstrumentedTools | GatedServer:
    """Make each public function of a module, class, mapping or list a counted, limited and observed tool call, in its place.

    Of a module the functions that are written in it, by their names; of a class the methods it defines itself, static and class
    methods too; of a mapping its values, under their keys; of a list its functions. Sync or async; signature, result and exceptions
    stay the function's own. The handle's `remove()`, the end of its `with` block, or `uninstrument()` puts the identical objects
    back. Called again it skips what is a tool already. Where it finds no function at all it says so in the log. The functions named
    in `skip` are left as they are, and with `only` all but those.

    With a `supervisor`, which has `review(action, state, policy)` or is a gate, each call is judged first, and `approver` is asked
    where the supervisor escalates; also of what is a tool already. `approvers` are the names of those whose approval counts, for all
    tools or by tool, and with `requester_may_approve=False` that of the run's user does not: left out, both are what the supervisor's
    rules say, else anybody may. What is refused raises ToolDeniedError, with `refused="result"` it returns `error.as_tool_error()` in
    place of a result, as JSON text where the function is annotated to return `str`. What ends the run raises StopRun either way. What
    no gate can stand before, and whose calls none can judge, is said in the log.

    `"mcp:notes"`, with a supervisor, is each tool of the MCP server that calls itself so, and `"mcp:*"` those of all: their calls are
    counted, limited and observed anyway. There `refused="result"` gives a result that says of itself that it is an error.

    Raises ConfigurationError for what cannot be changed in place: a tuple, a read-only mapping, one function.
    """
    checks.choice("instrument_tools(refused)", refused, ("raise", "result"))
    people = {"approver": approver, "approvers": approvers, "requester_may_approve": requester_may_approve}
    if supervisor is None and (refused != "raise" or any(each is not None for each in people.values())):
        given = next((name for name, each in people.items() if each is not None), "refused")
        raise ConfigurationError(f"instrument_tools({given}=...) says what becomes of what a supervisor decides. Give supervisor= too.")
    room = load(_TOOLS)
    if isinstance(target, str) and target.startswith(_MCP_SERVERS):
        if supervisor is None:
            raise ConfigurationError(
                f"instrument_tools({checks.show(target)}): calls over MCP are counted, limited and observed anyway; give supervisor= to "
                "have them judged."
            )
        gated: GatedServer = load(_MCP_GATES).gate_server(
            target, partial(_gate_for, supervisor, people), refused, room.read_choice(skip, only)
        )
        return gated
    gating = None if supervisor is None else room.Gating(partial(_gate_for, supervisor, people, are_all=True), refused)
    made: InstrumentedTools = room.instrument_tools(target, gating, room.read_choice(skip, only))
    return made


def _gate_for(supervisor: Any, people: Mapping[str, Any], functions: Any, *, are_all: bool = False) -> ToolGate:
    """Make the gate before these functions; `people` say who may approve, also of tools that are not known yet unless these `are_all`."""
    if isinstance(supervisor, type):
        raise ConfigurationError(
            f"instrument_tools(supervisor={supervisor.__name__}) is a class; give an instance, {supervisor.__name__}(...)."
        )
    if not isinstance(supervisor, ToolGate) and not callable(getattr(supervisor, "review", None)):
        raise ConfigurationError(
            f"instrument_tools(supervisor={checks.show(supervisor)}) is neither a supervisor, which has review(action, state, policy), "
            "nor a gate."
        )
    return cast("ToolGate", load("ravi_otel.supervisor").gate_for(supervisor, functions, **people, part=True, are_all=are_all))
