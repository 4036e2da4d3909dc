"""Read what was chosen for this process, make the engine that it describes, and say what a launcher puts around a whole program."""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, cast

from opentelemetry._logs import LoggerProvider
from opentelemetry.metrics import MeterProvider
from opentelemetry.trace import TracerProvider

from ravi_otel._enforcement.engine import Engine
from ravi_otel._enforcement.ledger.account import DEFAULT_WARN_AT
from ravi_otel._enforcement.ledger.choosing import LEASE, MEMORY, VARIABLE, Choice, lease_of, read_choice
from ravi_otel._enforcement.ledger.contract import Ledger
from ravi_otel._enforcement.opening import Opening
from ravi_otel._enforcement.scope import Scope
from ravi_otel._extras import load
from ravi_otel._pricing import PriceBook
from ravi_otel._pricing.book import PriceMap
from ravi_otel._runtime.config import effective, service_in
from ravi_otel._runtime.policy_file import check_mode
from ravi_otel._runtime.state import STATE, Options
from ravi_otel._telemetry.content import Content, Redact, read_content, redact_secrets
from ravi_otel._telemetry.names import DETAILS, tells_all
from ravi_otel.errors import ConfigurationError
from ravi_otel.hooks._listeners import Listeners, swallow
from ravi_otel.hooks._manager import HookManager
from ravi_otel.policy import _checks as checks
from ravi_otel.policy._checks import nearest, show, switch
from ravi_otel.policy._limits import OPTIONS, Admission, Limit, stated
from ravi_otel.policy._runs import ScopeFacts

USAGE_HOSTS = "RAVI_USAGE_HOSTS"
INCLUDE_USAGE = "RAVI_INCLUDE_USAGE"
PROVIDERS = "RAVI_PROVIDERS"
FORMATS = "RAVI_FORMATS"
FOOTERS = "RAVI_FOOTERS"
SHORTEN_TIMEOUTS = "RAVI_SHORTEN_TIMEOUTS"
_DIALECTS = "ravi_otel._instrumentation.formats.dialects"
FOLLOWED = "RAVI_FRAMEWORKS"
FRAMEWORKS: Final = ("langchain", "openai-agents", "pydantic-ai", "smolagents", "crewai", "llama-index", "autogen")
"""The frameworks whose agents and tools can be followed."""
_HOST = re.compile(r"(\[[0-9a-f:]+\]|[^\s/:*@\[\]]+|[0-9a-f:]+:[0-9a-f:]*)(?::(\d+))?")
_PORT = re.compile(r"[1-9]\d{0,4}")
_LAST_PORT = 65_535


def read_options(  # noqa: PLR0913 - one keyword a choice
    *,
    content: bool,
    each_chunk: bool,
    providers: Mapping[str, str] | None,
    clients: tuple[Any, ...] = (),
    footers: bool | None = None,
    full: bool = False,
    formats: Mapping[str, str] | None = None,
    frameworks: frozenset[str] | None = None,
    environ: Mapping[str, str] = os.environ,
) -> Options:
    """Read the options; the program's own `providers` go before those of `RAVI_PROVIDERS` (`host=provider,...`), its `formats` likewise.

    Raises ConfigurationError for a line that cannot be read.
    """
    return Options(
        content=content,
        include_usage=switch(environ, INCLUDE_USAGE, default=True, safe=False),
        usage_hosts=frozenset(_host(USAGE_HOSTS, host) for host in environ.get(USAGE_HOSTS, "").split(",") if host.strip()),
        providers={**_listed(environ, _PROVIDER), **_mapped(providers, _PROVIDER)},
        each_chunk=each_chunk,
        footers=switch(environ, FOOTERS, default=False, safe=False) if footers is None else footers,
        clients=clients,
        shorten_timeouts=switch(environ, SHORTEN_TIMEOUTS, default=True, safe=True),
        full=full,
        formats=_known_formats({**_listed(environ, _FORMAT), **_mapped(formats, _FORMAT)}),
        frameworks=_followed(environ) if frameworks is None else frameworks,
    )


def frameworks_of(given: object) -> frozenset[str] | None:
    """Read which frameworks to follow; None where the environment may say it."""
    if given is None:
        return None
    if isinstance(given, str) or not isinstance(given, Collection):
        raise ConfigurationError(f"instrument(frameworks={show(given)}) takes a list of names: {', '.join(FRAMEWORKS)}; [] for none.")
    return frozenset(_framework("instrument(frameworks)", each) for each in cast("Collection[object]", given))


def _followed(environ: Mapping[str, str]) -> frozenset[str] | None:
    named = environ.get(FOLLOWED)
    return None if named is None else frozenset(_framework(FOLLOWED, each.strip()) for each in named.split(",") if each.strip())


def _framework(parameter: str, given: object) -> str:
    name = given.lower().replace("_", "-") if isinstance(given, str) else ""
    if name in FRAMEWORKS:
        return name
    close = nearest(name, FRAMEWORKS)
    hint = f", did you mean {close!r}" if close else ""
    raise ConfigurationError(f"{parameter} names {show(given)}, which cannot be followed{hint}; there are {', '.join(FRAMEWORKS)}.")


@dataclass(frozen=True, slots=True)
class _OfHosts:
    """What is said of hosts, by code and by a variable, with an example of each."""

    parameter: str
    variable: str
    what: str
    listed: str


_PROVIDER = _OfHosts("providers", PROVIDERS, "provider", "llm.example.com=azure.ai.openai")
_FORMAT = _OfHosts("formats", FORMATS, "format", "llm.example.com:8443=openai")


def _listed(environ: Mapping[str, str], said: _OfHosts) -> dict[str, str]:
    found: dict[str, str] = {}
    for line in filter(None, (part.strip() for part in environ.get(said.variable, "").split(","))):
        host, separator, value = (part.strip() for part in line.partition("="))
        if not separator or not host or not value:
            raise ConfigurationError(
                f"{said.variable} holds {show(line)}: write host={said.what}, as in {said.listed}, with commas between."
            )
        found[_host(said.variable, host)] = value
    return found


def _mapped(given: Mapping[str, str] | None, said: _OfHosts) -> dict[str, str]:
    if given is None:
        return {}
    named = f"instrument({said.parameter}"
    if not isinstance(given, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]  # a program without types may give anything
        raise ConfigurationError(f"{named}={show(given)}) must map hosts to {said.parameter}, as in {{'llm.example.com': 'openai'}}.")
    for host, value in given.items():
        if not isinstance(host, str) or not isinstance(value, str) or not host or not value:  # pyright: ignore[reportUnnecessaryIsInstance]  # the same
            raise ConfigurationError(
                f"{named}) maps {show(host)} to {show(value)}: both are text and not empty, as in {{'llm.example.com': 'openai'}}."
            )
    return {_host(f"{named})", host): value for host, value in given.items()}


def _known_formats(given: dict[str, str]) -> dict[str, str]:
    if given:
        known: tuple[str, ...] = load(_DIALECTS).DIALECTS
        for host, dialect in given.items():
            if dialect not in known:
                raise ConfigurationError(
                    f"formats says {show(dialect)} of {host}, which is no format: name one of {', '.join(known)}; "
                    "auto finds it by the path and the body of a request."
                )
    return given


def _host(parameter: str, given: str) -> str:
    """Accept a host as clients write it, with its port or without; anything else would silently never match."""
    host = given.strip().lower()
    found = _HOST.fullmatch(host)
    if found is None:
        raise ConfigurationError(
            f"{parameter} holds {show(given)}, which is no host: write its name alone, or with a port, as in llm.example.com:8443. "
            "An address with https:// or a path, and patterns with *, match nothing."
        )
    port = found[2]
    if port is not None and (_PORT.fullmatch(port) is None or int(port) > _LAST_PORT):
        raise ConfigurationError(
            f"{parameter} holds {show(given)}, whose port {port[:20]} no server has: write one from 1 to {_LAST_PORT}, or the host alone."
        )
    return host


_NONE: Final[tuple[Any, ...]] = (object(),)
"""What an empty list of clients is read as: `()` is all of them."""

_READER: Final = "ravi_otel.supervisor.rules"
_NO_GATE: Final = (
    "its gate section stands before no tool yet: put it there with instrument_tools(target, supervisor=Rules.from_file(path)), "
    "from ravi_otel.supervisor."
)
_log = logging.getLogger("ravi_otel")

_PROVIDERS: Final = (("tracer_provider", "get_tracer"), ("meter_provider", "get_meter"), ("logger_provider", "get_logger"))

_REDACT: Final = "RAVI_REDACT"


@dataclass(frozen=True, slots=True)
class Settings:
    """What is to be observed, how, and within which limits; or, by `unusable`, why those cannot be used and nothing is allowed."""

    tracer_provider: TracerProvider | None = None
    meter_provider: MeterProvider | None = None
    logger_provider: LoggerProvider | None = None
    limits: tuple[Limit, ...] = ()
    prices: PriceMap | None = None
    enforcement: str = "enforce"
    admission: Admission = Admission.ESTIMATE
    clients: tuple[Any, ...] = ()
    providers: Mapping[str, str] | None = None
    redact: Redact | None = None
    footers: bool | None = None
    detail: str | None = None
    warn_at: float = DEFAULT_WARN_AT
    origins: Mapping[int, str] = field(default_factory=dict[int, str])
    unusable: str | None = None
    hooks: tuple[HookManager, ...] = ()
    ledger: Choice | None = None
    formats: Mapping[str, str] | None = None
    frameworks: frozenset[str] | None = None

    def check(self) -> None:
        """Raise ConfigurationError for what cannot be used."""
        for name, method in _PROVIDERS:
            given = getattr(self, name)
            if given is not None and (isinstance(given, type) or not callable(getattr(given, method, None))):
                made = "".join(part.title() for part in name.split("_"))
                raise ConfigurationError(f"instrument({name})={checks.show(given)} is no {made}: give an object with {method}(), or None.")
        if self.clients == _NONE:
            raise ConfigurationError("instrument(client=[]) names no client: leave it out to watch all of them.")
        for client in self.clients:
            if isinstance(client, type) or not hasattr(client, "base_url") or not callable(getattr(client, "request", None)):
                raise ConfigurationError(
                    f"instrument(client={checks.show(client)}) is no client: give one of openai, anthropic or groq, such as OpenAI(), "
                    "or a list of them."
                )
        if self.redact is not None and not callable(self.redact):
            raise ConfigurationError(
                f"instrument(redact={checks.show(self.redact)}) cannot be called: give a function of one text, such as redact_secrets."
            )
        if self.footers is not None:
            checks.flag("instrument(footers)", self.footers)
        if self.detail is not None:
            checks.choice("instrument(detail)", self.detail, DETAILS)
        PriceBook(self.prices)
        Scope.of_process(Engine(), self.limits)
        self.options(content=False, each_chunk=False)

    def content(self, environ: Mapping[str, str] = os.environ) -> Content:
        """Say what of requests and answers is captured, and what it is put through: the program's own hook, or `RAVI_REDACT`'s."""
        redact = self.redact
        if redact is None and switch(environ, _REDACT, default=False, safe=True):
            redact = redact_secrets
        return read_content(redact, environ)

    @property
    def full(self) -> bool:
        """Whether all that is known of a call is told: as the program says, else `RAVI_DETAIL`."""
        return tells_all() if self.detail is None else self.detail == "full"

    def options(self, *, content: bool, each_chunk: bool) -> Options:
        """Return what the wrappers go by."""
        return read_options(
            content=content,
            each_chunk=each_chunk,
            providers=self.providers,
            clients=self.clients,
            footers=self.footers,
            full=self.full,
            formats=self.formats,
            frameworks=self.frameworks,
        )


NOTHING: Final = Settings()
"""What `instrument()` without arguments asks for."""


def clients_of(given: object) -> tuple[Any, ...]:
    """Read one client, or several in a list; None is none."""
    if given is None:
        return ()
    return (tuple(cast("Iterable[Any]", given)) or _NONE) if isinstance(given, (list, tuple, set, frozenset)) else (given,)


def ledger_of(given: object) -> Choice | None:
    """Read what names a ledger, None where the environment may say it; raises ConfigurationError for what names none."""
    return None if given is None else read_choice("instrument(ledger)", given)


@dataclass(frozen=True, slots=True)
class Choices:
    """What `instrument()` may leave to the environment and to a policy file; None leaves it to them."""

    enforcement: str | None = None
    admission: Admission | None = None
    policy: Path | None = None
    profile: str | None = None

    def fill(self, settings: Settings, *, launched: bool) -> Settings:
        """Put in what variables and the policy file say, and nothing that code says already; a launcher has read its variables itself.

        Raises ConfigurationError for a variable or a file that cannot be used.
        """
        places = stated(settings.limits)
        if launched and self.policy is None and self.profile is None:
            return replace(settings, origins=places)
        said = effective(
            code=settings.limits,
            environ={} if launched else os.environ,
            file=self.policy,
            profile=self.profile,
            asked_by="instrument(profile)",
        )
        if "gate" in said.sources and _READER not in sys.modules:
            _log.warning("ravi-otel: %s: %s", said.sources["gate"], _NO_GATE)
        prices = settings.prices
        if said.prices:
            PriceBook(prices)  # what code gives is looked at by itself: its error names code
            prices = {**said.prices, **(prices or {})}
        return replace(
            settings,
            limits=said.values,
            origins={**said.origins, **places},  # the program's own are the first
            prices=prices,
            enforcement=self.enforcement or ("observe" if said.observe else "enforce"),
            admission=self.admission or said.admission,
            warn_at=DEFAULT_WARN_AT if said.warn_at is None else said.warn_at,
            ledger=settings.ledger or said.ledger,
        )


def choices_of(enforcement: object, admission: object, policy: object, profile: object) -> Choices:
    """Read what was given for them; raises ConfigurationError for what is no such choice."""
    shown = checks.show(policy)
    if policy is not None and not (isinstance(policy, str | os.PathLike) and policy != ""):
        raise ConfigurationError(f"instrument(policy={shown}) is no path: name a policy file, such as 'policy.toml'.")
    return Choices(
        None if enforcement is None else check_mode("instrument(enforcement)", enforcement),
        OPTIONS["admission"].read(admission, "instrument(admission)"),
        None if policy is None else Path(os.fsdecode(cast("str", policy))),
        checks.optional_name("instrument(profile)", profile),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What a launcher puts around a whole program: a run with limits of its own, whatever the program sets up inside.

    `of_service` are limits of the process besides, for all processes of its service, each with what a refusal tells its reader to change.
    `ledger` keeps its counters, for all processes of the program, and for others too where it was `chosen`. `store` is where that
    is. `pause_after` says for how many seconds to hold back a refusal; `when_opened` hears of each
    scope that is opened; `when_told` is called at the first work in each process, `when_left` at its end, if it ends in order. With
    `content` what is said is kept in the store.
    """

    run: Opening
    ledger: Ledger
    of_service: tuple[tuple[Limit, str], ...] = ()
    observe: bool = False
    admission: Admission = Admission.ESTIMATE
    warn_at: float | None = None
    prices: PriceMap | None = None
    pause_after: Callable[[BaseException], float] | None = None
    when_opened: Callable[[ScopeFacts], object] | None = None
    when_told: Callable[[], object] = lambda: None
    when_left: Callable[[], object] = lambda: None
    store: Path | None = None
    content: bool = False
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
    """Return the limits of the process, the launcher's first, and what is told of each, by its place."""
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
