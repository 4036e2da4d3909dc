"""Compose the layers: what `instrument()` puts together and `uninstrument()` takes apart."""

from __future__ import annotations

import atexit
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, Self

from opentelemetry._logs import LoggerProvider
from opentelemetry.metrics import MeterProvider
from opentelemetry.trace import TracerProvider

from ravi_otel.enforcement.engine import Engine
from ravi_otel.enforcement.opening import process_root
from ravi_otel.errors import ConfigurationError
from ravi_otel.hooks.listener import Listener, Listeners
from ravi_otel.instrumentation.openai import OpenAIInstrumentation
from ravi_otel.instrumentation.openai.stream import abandon_open
from ravi_otel.policy import checks
from ravi_otel.policy.limits import Admission, Limit
from ravi_otel.pricing import PriceBook
from ravi_otel.pricing.overrides import PriceMap
from ravi_otel.runtime.carrying import Carrying
from ravi_otel.runtime.live import drain
from ravi_otel.runtime.scopes import read_limits
from ravi_otel.runtime.state import STATE
from ravi_otel.telemetry import Pipeline, Telemetry

Enforcement = Literal["enforce", "observe"]
_MODES = ("enforce", "observe")


@dataclass(frozen=True, slots=True)
class _Settings:
    tracer_provider: TracerProvider | None
    meter_provider: MeterProvider | None
    logger_provider: LoggerProvider | None
    limits: tuple[Limit, ...]
    prices: Any
    enforcement: str
    admission: Admission


class Instrumentation:
    """Be what is instrumented now; as a context manager it ends with the block."""

    def __init__(self, settings: _Settings) -> None:
        self.settings = settings
        self._pipeline = Pipeline(settings.tracer_provider, settings.meter_provider, settings.logger_provider)
        self._telemetry = Telemetry(self._pipeline)
        self._listeners = Listeners([self._telemetry])
        self._openai = OpenAIInstrumentation()
        self._carrying = Carrying()
        self._on = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if _now is self:
            uninstrument()

    def start(self) -> None:
        """Build the engine, install the wrappers."""
        prices = PriceBook(self.settings.prices)
        engine = Engine(
            listeners=self._listeners,
            prices=prices,
            observe=self.settings.enforcement == "observe",
            admission=self.settings.admission,
        )
        STATE.install(engine, self.settings.limits)
        STATE.instrumented = True
        # The price table takes most of a second to import: not on the path of the first call.
        threading.Thread(target=prices.preload, name="ravi-otel-prices", daemon=True).start()
        self._openai.install()
        self._carrying.install()
        self._pipeline.before_exit = _settle_all
        atexit.unregister(_settle_all)
        atexit.register(_settle_all)  # last in, first out: before the providers that are there already
        self._on = True

    def stop(self) -> None:
        """Put back every wrapped method, fall silent, and let go of what was built."""
        if not self._on:
            return
        self._on = False
        self._openai.remove()
        self._carrying.remove()
        drain()
        STATE.instrumented = False
        STATE.install(Engine(), ())
        self._telemetry.retire()
        self._pipeline.shutdown()

    def listen(self, listener: Listener) -> None:
        """Tell `listener` too, after telemetry, from the next event on, until `uninstrument()`."""
        self._listeners.add(listener)

    def flush(self, timeout_s: float = 2.0) -> bool:
        """Send what is waiting; False when it was not all sent in time."""
        drain()
        return self._pipeline.flush(timeout_s)


_lock = threading.Lock()
_now: Instrumentation | None = None


def instrument(
    *,
    tracer_provider: TracerProvider | None = None,
    meter_provider: MeterProvider | None = None,
    logger_provider: LoggerProvider | None = None,
    limits: Iterable[Limit | str] = (),
    prices: PriceMap | None = None,
    enforcement: Enforcement = "enforce",
    admission: str = "estimate",
) -> Instrumentation:
    """Observe every call of the `openai` package from here on, and hold it to the limits around it.

    With providers given, those and the globals are used; with none, the application's own as soon as it has set them,
    else ours when an `OTEL_*` endpoint is named, else nothing leaves the process. `limits` hold for the whole process.
    `prices` adds or overrides prices in USD per million tokens: `{"my-model": {"input": 2.5, "output": 10}}`.
    `enforcement="observe"` tells what would be refused and refuses nothing. `admission` is "estimate" or "after".

    Called again with the same arguments, or with none, it returns the same handle; with others it replaces it, unless that
    would forget what limits of the process have counted.
    Raises ConfigurationError for arguments that cannot be used.
    """
    global _now  # noqa: PLW0603 - one instrumentation per process
    settings = _Settings(
        tracer_provider,
        meter_provider,
        logger_provider,
        read_limits("instrument(limits)", limits),
        prices,
        checks.choice("instrument(enforcement)", enforcement, _MODES),
        _admission(admission),
    )
    _check(settings)
    with _lock:
        if _now is not None:
            if settings in (_now.settings, _NOTHING):
                return _now
            if _now.settings.limits:
                raise ConfigurationError(
                    "instrument(limits=...) was called before with other arguments, and replacing them would forget what its limits have "
                    "counted. Call ravi_otel.uninstrument() first, or give the limits to run(limits=...)."
                )
            _now.stop()
        made = Instrumentation(settings)
        made.start()
        _now = made
        return made


def uninstrument() -> None:
    """Put everything back as it was before `instrument()`; nothing to do when it was not called."""
    global _now
    with _lock:
        now, _now = _now, None
        if now is not None:
            now.stop()


def flush(timeout_s: float = 2.0) -> bool:
    """Send what is waiting to be exported, for `timeout_s` seconds at most; False when it was not all sent."""
    now = _now
    return True if now is None else now.flush(timeout_s)


def _check(settings: _Settings) -> None:
    """Refuse what cannot be used before anything in use is touched."""
    for name, method in (("tracer_provider", "get_tracer"), ("meter_provider", "get_meter"), ("logger_provider", "get_logger")):
        given = getattr(settings, name)
        if given is not None and (isinstance(given, type) or not callable(getattr(given, method, None))):
            made = "".join(part.title() for part in name.split("_"))
            raise ConfigurationError(f"instrument({name})={checks.show(given)} is no {made}: give an object with {method}(), or None.")
    PriceBook(settings.prices)
    process_root(Engine(), settings.limits)


def _admission(value: str) -> Admission:
    mode = checks.member("instrument(admission)", value, Admission)
    if mode is Admission.STRICT:
        raise ConfigurationError('instrument(admission="strict") is not in this version. Use "estimate" (the default) or "after".')
    return mode


def _settle_all() -> None:
    """End what is still open when the process ends."""
    abandon_open()
    drain()


_NOTHING = _Settings(None, None, None, (), None, "enforce", Admission.ESTIMATE)
