"""The check of OpenTelemetry's variables and endpoints, to which it sends one span, one metric and one log record as a program does."""

from __future__ import annotations

import contextlib
import difflib
import math
import secrets
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Final, Literal
from urllib.parse import SplitResult, unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

from opentelemetry.context import Context
from opentelemetry.trace import set_span_in_context

from ravi_otel._extras import load
from ravi_otel._forksafe import without_signals
from ravi_otel._http import reason
from ravi_otel._local.wording import clean
from ravi_otel._stack.doctor import Finding, Inputs, broken, left_out, odd, well
from ravi_otel._stack.doctor.stack import Sent, examine_stack
from ravi_otel._version import __version__
from ravi_otel.errors import MissingExtraError

Signal = Literal["traces", "metrics", "logs"]
SIGNALS: Final[tuple[Signal, ...]] = ("traces", "metrics", "logs")
BASE: Final = "OTEL_EXPORTER_OTLP_ENDPOINT"
SERVICE: Final = "ravi-otel-doctor"
METRIC: Final = "doctor.round_trip"
WINDOW_MS: Final = 90_000
"""The longest window of the alerts."""

_HTTP: Final = "http/protobuf"
_GRPC: Final = "grpc"
_ENVIRONMENT: Final = "deployment.environment.name"
_SCOPE: Final = "ravi_otel.doctor"
_ONE: Final = {"traces": "span", "metrics": "metric", "logs": "log record"}
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}
_OTHERS_PORT: Final = {_HTTP: (4317, _GRPC, 4318), _GRPC: (4318, _HTTP, 4317)}
_PATHS: Final = {signal: f"/v1/{signal}" for signal in SIGNALS}
_COMPRESSIONS: Final = ("", "none", "gzip", "deflate")
_MOST_TIMEOUT_S: Final = 600.0
_NEAR: Final = 0.7
_MOST_SHOWN: Final = 120
_LONGEST_PART: Final = 16
"""How long a part of a path may be to be shown: a longer one may be a key."""


# -- where each signal goes ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Route:
    """Where the environment sends one signal: the variable that names the endpoint, the endpoint ("" for none) and the protocol."""

    signal: Signal
    variable: str
    url: str
    protocol: str
    is_insecure: bool
    is_on: bool

    @classmethod
    def of(cls, inputs: Inputs, signal: Signal) -> Route:
        """Read the variables of one signal, which go before those of all."""

        def value(name: str) -> str:
            return inputs.value(f"OTEL_EXPORTER_OTLP_{signal.upper()}_{name}") or inputs.value(f"OTEL_EXPORTER_OTLP_{name}")

        own = f"OTEL_EXPORTER_OTLP_{signal.upper()}_ENDPOINT"
        exporters = inputs.value(f"OTEL_{signal.upper()}_EXPORTER").lower()
        wanted = not exporters or "otlp" in [each.strip() for each in exporters.split(",")]
        return cls(
            signal=signal,
            variable=own if inputs.value(own) else BASE,
            url=value("ENDPOINT"),
            protocol=(value("PROTOCOL") or _HTTP).lower(),
            is_insecure=value("INSECURE").lower() == "true",
            is_on=wanted and inputs.value("OTEL_SDK_DISABLED").lower() != "true" and bool(value("ENDPOINT")),
        )

    @property
    def shown(self) -> str:
        """The endpoint without anything that may be secret."""
        return show(self.url)

    @property
    def place(self) -> tuple[str, int, bool] | None:
        """Return host, port and whether it is spoken to over TLS; None for an endpoint that cannot be asked."""
        parts = _parts(self.url)
        if parts is None or parts.scheme not in ("", *_DEFAULT_PORTS):
            return None
        secure = parts.scheme == "https" or (self.protocol == _GRPC and parts.scheme != "http" and not self.is_insecure)
        return str(parts.hostname), parts.port or (443 if secure else 80), secure


def show(url: str) -> str:
    """Return an endpoint for people: without a user, a password, what is behind `?`, or a part of a path that may be a key."""
    parts = _parts(url)
    if parts is None:
        return "…"
    host = f"[{parts.hostname}]" if ":" in str(parts.hostname) else parts.hostname
    path = "/".join(part if len(part) <= _LONGEST_PART else "…" for part in parts.path.split("/")) if parts.scheme else ""
    shown = f"{f'{parts.scheme}://' if parts.scheme else ''}{host}{f':{parts.port}' if parts.port else ''}{path}"
    return shown if len(shown) <= _MOST_SHOWN else f"{shown[: _MOST_SHOWN - 1]}…"


def _parts(url: str) -> SplitResult | None:
    """Return the parts of a URL, whose scheme may be missing; None for one that names no host."""
    try:
        parts = urlsplit(url if "://" in url else f"//{url}")
        named = bool(parts.hostname) and (parts.port is None or parts.port >= 0)
    except ValueError:  # a port that is none, or brackets that do not close
        return None
    return parts if named else None


# -- the variables ------------------------------------------------------------------------------------------------


def examine_settings(inputs: Inputs) -> Iterator[Finding]:
    """Yield findings about the variables of OpenTelemetry."""
    routes = [Route.of(inputs, signal) for signal in SIGNALS]
    yield from _switches(inputs)
    yield from _endpoints(routes)
    yield from _headers(inputs)
    yield from _requests(inputs)
    yield _interval(inputs)
    yield from _resource(inputs, routes)


def _switches(inputs: Inputs) -> Iterator[Finding]:
    disabled = inputs.value("OTEL_SDK_DISABLED").lower()
    if disabled == "true":
        yield odd("settings.export", "OTEL_SDK_DISABLED=true: no telemetry is made at all", "Unset OTEL_SDK_DISABLED to have any.")
    elif disabled not in ("", "false"):
        said = f"OTEL_SDK_DISABLED={clean(disabled, 40)!r} is not read as true: telemetry is made"
        yield odd("settings.export", said, "Set OTEL_SDK_DISABLED=true to have none, or unset it.")
    for signal in SIGNALS:
        variable = f"OTEL_{signal.upper()}_EXPORTER"
        named = inputs.value(variable).lower()
        if named and "otlp" not in [each.strip() for each in named.split(",")]:
            tell = broken if difflib.get_close_matches(named, ["otlp"], cutoff=_NEAR) else odd  # `none` is a decision, `otpl` is none
            said = f"{variable}={clean(named, 40)}: {signal} go nowhere, for otlp is all that is exported by"
            yield tell("settings.export", said, f"Set {variable}=otlp, or unset it.")


def _endpoints(routes: Sequence[Route]) -> Iterator[Finding]:
    if not any(route.url for route in routes):
        yield odd(
            "settings.endpoint",
            "no OTEL_EXPORTER_OTLP_ENDPOINT: telemetry leaves the program only by providers of its own",
            "Set OTEL_EXPORTER_OTLP_ENDPOINT, for the stack on this machine to http://127.0.0.1:4318.",
        )
        return
    for route in routes:
        if not route.url:
            said = f"no endpoint for {route.signal}: they are not exported"
            yield odd("settings.endpoint", said, f"Set {BASE}, which is for all signals.")
    different: dict[tuple[str, str], Route] = {}
    for route in routes:
        if route.url:
            different.setdefault((route.variable, route.protocol), route)
    for route in different.values():
        yield from _endpoint(route)


def _endpoint(route: Route) -> Iterator[Finding]:
    signal, variable, protocol = route.signal, route.variable, route.protocol
    shown = f"{variable}={route.shown}"
    parts = _parts(route.url)
    scheme_first = f"Write http:// or https:// before it in {variable}."
    if protocol not in (_HTTP, _GRPC):
        said = f"protocol {clean(protocol, 40)!r} is not supported: {signal} are not exported"
        yield broken("settings.protocol", said, "Set OTEL_EXPORTER_OTLP_PROTOCOL to http/protobuf or grpc.")
    elif parts is None:
        yield broken("settings.endpoint", f"{variable} is no URL", f"Set {variable} to one such as http://localhost:4318.")
    elif not parts.scheme and protocol == _HTTP:
        yield broken("settings.endpoint", f"{shown} has no scheme", scheme_first)
    elif not parts.scheme:
        yield odd("settings.endpoint", f"{shown} has no scheme: gRPC takes that for TLS", scheme_first)
    elif parts.scheme not in _DEFAULT_PORTS:
        said = f"{shown} has scheme {clean(parts.scheme, 20)}"
        yield broken("settings.endpoint", said, f"Write http:// or https:// in {variable}.")
    else:
        yield from list(_flaws(route, shown, parts)) or [well("settings.endpoint", f"{shown}, by {protocol}")]


def _flaws(route: Route, shown: str, parts: SplitResult) -> Iterator[Finding]:
    signal, variable, protocol, path = route.signal, route.variable, route.protocol, parts.path.rstrip("/")
    others, other, own = _OTHERS_PORT[protocol]
    if parts.port == others:
        said = f"{shown}: port {others} is that of {other}, and the protocol is {protocol}"
        yield odd("settings.endpoint", said, f"Set {variable.replace('ENDPOINT', 'PROTOCOL')}={other}, or the port to {own}.")
    if protocol == _GRPC:
        if path:
            yield odd("settings.endpoint", f"{shown} has a path, which gRPC does not use", f"Take the path out of {variable}.")
    elif variable == BASE and path.endswith(tuple(_PATHS.values())):
        said = f"{shown} has the path of one signal, and /v1/{signal} is added to it"
        yield broken("settings.endpoint", said, f"Take {path[path.rindex('/v1/') :]} out of {variable}.")
    elif variable != BASE and not path.endswith(_PATHS[signal]):
        said = f"{shown} is used as it is, and does not end in {_PATHS[signal]}"
        yield odd("settings.endpoint", said, f"Write the whole URL with {_PATHS[signal]} into {variable}, or the base into {BASE}.")
    if parts.username is not None or parts.password is not None:
        said = f"{shown} has a user or a password in it"
        yield odd("settings.endpoint", said, "Put credentials into OTEL_EXPORTER_OTLP_HEADERS instead.")


def _of_every_signal(name: str) -> list[str]:
    return [f"OTEL_EXPORTER_OTLP_{part}{name}" for part in ("", *(f"{signal.upper()}_" for signal in SIGNALS))]


def _headers(inputs: Inputs) -> Iterator[Finding]:
    for variable in _of_every_signal("HEADERS"):
        pairs = [(number, pair) for number, pair in enumerate(inputs.value(variable).split(","), 1) if pair.strip()]
        wrong = [number for number, pair in pairs if not _is_header(pair)]
        if wrong:
            said = f"{variable}: number {wrong[0]} of its headers is no NAME=VALUE, and is left out"
            yield broken("settings.headers", said, "Write NAME=VALUE with commas between, and %20 for a blank in a value.")
        elif pairs:
            yield well("settings.headers", f"{variable} has {len(pairs)} header{'s' if len(pairs) > 1 else ''}; values are not shown")


def _is_header(pair: str) -> bool:
    name, sign, value = pair.strip().partition("=")
    token = name.strip()
    named = bool(token) and token.isascii() and token.replace("-", "").replace("_", "").replace(".", "").isalnum()
    return bool(sign) and named and unquote(value).isprintable()


def _requests(inputs: Inputs) -> Iterator[Finding]:
    """Yield findings about timeouts and compression of requests."""
    for timeout, compression in zip(_of_every_signal("TIMEOUT"), _of_every_signal("COMPRESSION"), strict=True):
        said, method = inputs.value(timeout), inputs.value(compression).lower()
        seconds = _number(said or "10")
        if seconds is None or seconds <= 0:
            way_out = f"Set {timeout} to one such as 10."
            yield broken("settings.export", f"{timeout}={clean(said, 40)!r} is no number of seconds", way_out)
        elif seconds > _MOST_TIMEOUT_S:
            found = f"{timeout}={clean(said, 40)} is {seconds:,.0f} s: it is read as seconds, not as milliseconds"
            yield odd("settings.export", found, f"Set {timeout} to seconds such as 10.")
        if method not in _COMPRESSIONS:
            way_out = f"Set {compression} to gzip or none."
            yield broken("settings.export", f"{compression}={clean(method, 40)!r} is none that is known", way_out)


def _interval(inputs: Inputs) -> Finding:
    check, said = "settings.interval", inputs.value("OTEL_METRIC_EXPORT_INTERVAL")
    interval = _number(said or "60000")
    if interval is None or interval <= 0:
        found = f"OTEL_METRIC_EXPORT_INTERVAL={clean(said, 40)!r} is no number of milliseconds"
        return odd(check, found, "Set it to one such as 60000, or unset it.")
    if interval > WINDOW_MS:
        found = f"metrics are sent every {interval / 1_000:g} s, and the alerts look at the last {WINDOW_MS // 1_000} s"
        return odd(check, found, f"Set OTEL_METRIC_EXPORT_INTERVAL to at most {WINDOW_MS}, or widen the windows of the alerts.")
    return well(check, f"metrics are sent every {interval / 1_000:g} s")


def _resource(inputs: Inputs, routes: Sequence[Route]) -> Iterator[Finding]:
    attributes: dict[str, str] = {}
    for number, pair in enumerate(inputs.value("OTEL_RESOURCE_ATTRIBUTES").split(","), 1):
        name, sign, value = pair.partition("=")
        if pair.strip() and not (sign and name.strip()):
            said = f"OTEL_RESOURCE_ATTRIBUTES: number {number} of its attributes is no NAME=VALUE, and is left out"
            yield odd("settings.resource", said, "Write NAME=VALUE with commas between, and %2C for a comma in a value.")
        attributes[name.strip()] = unquote(value.strip())
    service = inputs.value("OTEL_SERVICE_NAME") or attributes.get("service.name", "")
    if service:
        yield well("settings.service", f"the service is {clean(service)!r}")
    else:
        yield odd("settings.service", "the service has no name: it will be 'unknown_service'", "Set OTEL_SERVICE_NAME.")
    if attributes.get(_ENVIRONMENT):
        yield well("settings.environment", f"the environment is {clean(attributes[_ENVIRONMENT])!r}")
    else:
        older = " (deployment.environment is the older name)" if "deployment.environment" in attributes else ""
        said = f"no {_ENVIRONMENT} is set{older}: alerts and dashboards cannot tell environments apart"
        yield odd("settings.environment", said, f"Add {_ENVIRONMENT}=NAME to OTEL_RESOURCE_ATTRIBUTES.")
    if any(route.is_on for route in routes) and inputs.value("OTEL_SERVICE_NAME") == SERVICE:
        yield odd("settings.service", f"{SERVICE} is the name of what is sent to look", "Give your service a name of its own.")


def _number(said: str) -> float | None:
    try:
        number = float(said)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


# -- the way there ------------------------------------------------------------------------------------------------

_CONNECTS_WITHIN_S: Final = 3.0
_MOST_ADDRESSES: Final = 8


def examine_endpoint(inputs: Inputs) -> Iterator[Finding]:
    """Yield findings about each endpoint: its connection, a signal sent to it, and that signal in the stores of our stack."""
    routes = [route for signal in SIGNALS if (route := Route.of(inputs, signal)).is_on and route.protocol in (_HTTP, _GRPC)]
    places = {route.signal: place for route in routes if (place := route.place) is not None}
    if not places:
        yield left_out("endpoint", "no signal goes to an endpoint that can be asked, so that nothing was sent")
        return
    reached: dict[tuple[str, int, bool], bool] = {}
    for route in routes:
        place = places.get(route.signal)
        if place is not None and place not in reached:
            found = _connection(route, place, inputs)
            reached[place] = found.state != "broken"
            yield found
    there = [route for route in routes if route.signal in places and reached[places[route.signal]]]
    if not there:
        yield left_out("endpoint.round_trip", "nothing was sent, for the endpoint cannot be reached")
        return
    sent, bodies = _made()
    for finding in _send_all(bodies, there, inputs):
        yield finding
        if finding.state == "well":
            sent.taken.add(finding.check.rpartition(".")[2])
    yield from examine_stack(sent, [places[route.signal][:2] for route in there], inputs)


def _connection(route: Route, place: tuple[str, int, bool], inputs: Inputs) -> Finding:
    """Return the finding about one host and port: its address, and whether it accepts connections."""
    host, port, secure = place
    where = f"{host}:{port}"
    if getproxies().get("https" if secure else "http") and not proxy_bypass(host):
        said = f"{where} is reached through a proxy of the environment, so that only the round trip is looked at"
        return left_out("endpoint.connect", said)
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        why = reason(error) if isinstance(error, OSError) else "it is no name"
        return broken("endpoint.name", f"{host} cannot be found: {why}", f"Check the host in {route.variable}, and the resolver.")
    began, why = time.monotonic(), "it has no address"
    for address in addresses[:_MOST_ADDRESSES]:
        try:
            socket.create_connection((str(address[4][0]), port), timeout=inputs.seconds_left(_CONNECTS_WITHIN_S)).close()
        except OSError as error:
            why = reason(error)
        else:
            return well("endpoint.connect", f"{where} takes connections, after {(time.monotonic() - began) * 1_000:,.0f} ms")
    is_here = host in ("localhost", "127.0.0.1", "::1")
    way_out = f"Check host and port in {route.variable}, and that no firewall is between."
    if is_here:
        way_out = f"Start the collector, such as by `ravi-otel stack up`, or set {route.variable} to where it is."
    return broken("endpoint.connect", f"{where} cannot be reached: {why}", way_out)


# -- what is sent -------------------------------------------------------------------------------------------------


def _made() -> tuple[Sent, dict[Signal, bytes]]:
    """Make a span, a metric and a log record as a program does: with the SDK, whose providers are made for this and set nowhere."""
    instance = secrets.token_hex(16)
    resource = load("opentelemetry.sdk.resources").Resource.create({"service.name": SERVICE, "service.instance.id": instance})
    span = _span(resource)
    encoders = "opentelemetry.exporter.otlp.proto.common"
    messages: dict[Signal, Any] = {
        "traces": load(f"{encoders}.trace_encoder").encode_spans([span]),
        "metrics": load(f"{encoders}.metrics_encoder").encode_metrics(_metric(resource)),
        "logs": load(f"{encoders}._log_encoder").encode_logs(_records(resource, span)),
    }
    sent = Sent(SERVICE, METRIC, instance, f"{span.get_span_context().trace_id:032x}", time.monotonic())
    return sent, {signal: message.SerializeToString() for signal, message in messages.items()}


def _span(resource: Any) -> Any:
    sampler = load("opentelemetry.sdk.trace.sampling").ALWAYS_ON
    provider = load("opentelemetry.sdk.trace").TracerProvider(resource=resource, sampler=sampler, shutdown_on_exit=False)
    span = provider.get_tracer(_SCOPE, __version__).start_span("ravi-otel doctor", context=Context())
    span.end()
    return span


def _metric(resource: Any) -> Any:
    reader = load("opentelemetry.sdk.metrics.export").InMemoryMetricReader()
    provider = load("opentelemetry.sdk.metrics").MeterProvider([reader], resource=resource, shutdown_on_exit=False)
    gauge = provider.get_meter(_SCOPE, __version__).create_gauge(METRIC, "1", "Sent by `ravi-otel doctor` to see it arrive.")
    gauge.set(1)
    data = reader.get_metrics_data()
    provider.shutdown()
    return data


def _records(resource: Any, span: Any) -> list[Any]:
    records: list[Any] = []
    api = load("opentelemetry._logs")
    provider = load("opentelemetry.sdk._logs").LoggerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_log_record_processor(SimpleNamespace(on_emit=records.append))
    record = api.LogRecord(
        timestamp=time.time_ns(),
        context=set_span_in_context(span, Context()),
        severity_number=api.SeverityNumber.INFO,
        severity_text="INFO",
        body="Sent by `ravi-otel doctor` to see it arrive.",
        event_name=METRIC,
    )
    provider.get_logger(_SCOPE, __version__).emit(record)
    return records


# -- sending it ---------------------------------------------------------------------------------------------------

_ANSWERS_WITHIN_S: Final = 5.0
_GRACE_S: Final = 0.6
_EXPORTERS: Final = {
    "traces": ("trace_exporter", "OTLPSpanExporter"),
    "metrics": ("metric_exporter", "OTLPMetricExporter"),
    "logs": ("_log_exporter", "OTLPLogExporter"),
}
_TYPES: Final = ("application/x-protobuf", "application/protobuf", "application/json")
_PORTS: Final = "See that port and protocol belong together: 4318 is for http/protobuf, 4317 for grpc."
_HEADERS: Final = "Give the credentials that it wants in OTEL_EXPORTER_OTLP_HEADERS."
_ADVICE: Final = {
    400: _PORTS,
    401: _HEADERS,
    403: _HEADERS,
    404: "Check port and path in {variable}: what answers there is no OTLP endpoint (usually port 4318), or has another path than "
    "/v1/{signal}, which is added to OTEL_EXPORTER_OTLP_ENDPOINT alone.",
    405: "Check port and path in {variable}: what answers there is no OTLP endpoint (usually port 4318).",
    413: "Have the server take larger requests; this one was small.",
    415: "See that the server takes protobuf, as OTLP receivers do.",
    429: "Have the server take more requests, or send less often; telemetry waits meanwhile.",
    503: "See why the server takes nothing now: its own stores may be full or away; telemetry waits meanwhile.",
}
_CODES: Final = {
    "TLS": "Set OTEL_EXPORTER_OTLP_CERTIFICATE to the PEM file of the authority that signed the server's certificate, and write http:// in "
    "{variable} where it speaks without TLS. Where it asks who we are, set OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE and "
    "OTEL_EXPORTER_OTLP_CLIENT_KEY.",
    "UNAUTHENTICATED": _HEADERS,
    "PERMISSION_DENIED": _HEADERS,
    "UNIMPLEMENTED": "See that the server has an OTLP receiver with a pipeline for {signal}.",
    "RESOURCE_EXHAUSTED": _ADVICE[429],
    "UNAVAILABLE": _ADVICE[503],
}
_UNMADE: Final = "Check the variables OTEL_EXPORTER_OTLP_*; what is known to be wrong with them is among the settings."
_REDIRECT: Final = "Set {variable} to where the server really is: a redirect is not followed, since headers may be secret."


def _send_all(bodies: dict[Signal, bytes], routes: Sequence[Route], inputs: Inputs) -> list[Finding]:
    """Send every signal at once, by the exporters that a program would use, and return what was answered, in the order of the routes."""
    answers: dict[Signal, Finding] = {}
    patience_s = inputs.seconds_left(_ANSWERS_WITHIN_S)

    def send(route: Route) -> None:
        answers[route.signal] = _Sending(route).send(bodies[route.signal], patience_s)

    threads = [threading.Thread(target=send, args=(route,), name="ravi-doctor-send", daemon=True) for route in routes]
    with without_signals():
        for thread in threads:
            thread.start()
    until_s = time.monotonic() + patience_s + _GRACE_S
    for thread in threads:
        thread.join(max(0.0, until_s - time.monotonic()))
    return [answers.get(route.signal) or _Sending(route).unanswered() for route in routes]


class _Sending:
    """One request to one endpoint, and what is known of its answer besides the body."""

    def __init__(self, route: Route) -> None:
        self._route = route
        self._check = f"endpoint.{route.signal}"
        self._one = _ONE[route.signal]
        self._is_sending = False
        self._status: int | None = None
        self._type = ""

    def send(self, body: bytes, patience_s: float) -> Finding:
        """Send it, and judge the answer."""
        try:
            sender = self._sender()
        except MissingExtraError:
            said = f"no {self._one} was sent: the exporter of {self._route.protocol} is not installed"
            return left_out(self._check, said, "See packages.exporter for what to install.")
        except Exception as error:  # noqa: BLE001 - a bad value in the environment raises whatever it raises
            return broken(self._check, f"no exporter could be made: {type(error).__name__}", _UNMADE)
        self._is_sending, began = True, time.monotonic()
        try:
            answer = sender.send(body, patience_s)
        finally:
            with contextlib.suppress(Exception):
                sender.close()
        return self._judge(answer, (time.monotonic() - began) * 1_000)

    def unanswered(self) -> Finding:
        """Return the finding for a server that does not answer."""
        way_out = f"See why the server at {self._route.shown} does not answer, or try a longer --timeout."
        return broken(self._check, f"a {self._one} was not taken: no answer in time", way_out)

    def _sender(self) -> Any:
        """Make what a program's export would send through; over HTTP, its session lets us see the answer."""
        route = self._route
        module, name = _EXPORTERS[route.signal]
        stock = getattr(load(f"opentelemetry.exporter.otlp.proto.{'grpc' if route.protocol == _GRPC else 'http'}.{module}"), name)
        senders = load("ravi_otel._telemetry.export.sender")
        if route.protocol == _GRPC:
            return senders.GrpcSender(route.signal, stock)

        def exporter(*, session: Any) -> Any:
            session.hooks["response"].append(self._note)
            return stock(session=session)

        nothing = load("opentelemetry.sdk.metrics.export").MetricsData([]) if route.signal == "metrics" else ()
        return senders.HttpSender(route.signal, exporter, nothing)

    def _note(self, response: Any, *_: Any, **__: Any) -> None:
        if self._is_sending:  # the exporter is asked once where it would send, and nothing is sent then
            self._status = int(response.status_code)
            self._type = str(response.headers.get("content-type") or "").partition(";")[0].strip().lower()

    def _judge(self, answer: Any, took_ms: float) -> Finding:
        route, check, one, status = self._route, self._check, self._one, self._status
        if status is not None and 200 <= status < 300 and self._type and self._type not in _TYPES:  # noqa: PLR2004 - HTTP's
            said = f"something else than an OTLP receiver answers at {route.shown}: status {status}, {clean(self._type, 60)}"
            return broken(check, said, f"Set {route.variable} to an OTLP endpoint, such as http://localhost:4318.")
        if answer.verdict == "sent" and answer.rejected:
            said = f"{route.shown} took the request, and not the {one} in it"
            return broken(check, said, f"See in its log why the server rejects {route.signal}.")
        if answer.verdict == "sent":
            return well(check, f"a {one} was acknowledged within {took_ms:,.0f} ms ({route.protocol})")
        if status is None:
            way_out = next((advice for code, advice in _CODES.items() if code in answer.why), _PORTS)
        elif 300 <= status < 400:  # noqa: PLR2004 - HTTP's
            way_out = _REDIRECT
        else:
            way_out = _ADVICE.get(status, "See in its log what the server has against it.")
        return broken(
            check, f"a {one} was not taken: {self._reason(answer.why)}", way_out.format(variable=route.variable, signal=route.signal)
        )

    def _reason(self, why: str) -> str:
        """Return why it failed, with the endpoint; that it accepts connections is known already."""
        if "cannot be reached" not in why:
            return why.replace("the collector", self._route.shown)
        other = ", or takes nothing now" if self._route.protocol == _GRPC else ""
        return f"what listens at {self._route.shown} is no OTLP endpoint, or speaks another protocol than {self._route.protocol}{other}"
