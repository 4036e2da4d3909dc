"""Send one span, one metric and one log record, by the very exporters that a program would use, and say what was answered."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Sequence
from typing import Any, Final

from ravi_otel._extras import load
from ravi_otel._forksafe import without_signals
from ravi_otel._stack.doctor.finding import Asked, Finding, broken, left_out, well
from ravi_otel._stack.doctor.probe import Trip, empty
from ravi_otel._stack.doctor.targets import GRPC, Target
from ravi_otel.errors import MissingExtraError
from ravi_otel.local._wording import clean

_PATIENCE_S: Final = 5.0
_GRACE_S: Final = 0.6
_ONE: Final = {"traces": "span", "metrics": "metric", "logs": "log record"}
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
    "UNAUTHENTICATED": _HEADERS,
    "PERMISSION_DENIED": _HEADERS,
    "UNIMPLEMENTED": "See that the server has an OTLP receiver with a pipeline for {signal}.",
    "RESOURCE_EXHAUSTED": _ADVICE[429],
    "UNAVAILABLE": _ADVICE[503],
}
_TLS: Final = (
    "Set OTEL_EXPORTER_OTLP_CERTIFICATE to the PEM file of the authority that signed the server's certificate, and write http:// in "
    "{variable} where it speaks without TLS. Where it asks who we are, set OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE and "
    "OTEL_EXPORTER_OTLP_CLIENT_KEY."
)
_UNMADE: Final = "Check the variables OTEL_EXPORTER_OTLP_*; what is known to be wrong with them is among the settings."
_REDIRECT: Final = "Set {variable} to where the server really is: a redirect is not followed, since headers may be secret."


class _Heard:
    """Note what the answers over HTTP say beside their body."""

    def __init__(self) -> None:
        self.on = False
        self.status: int | None = None
        self.kind = ""

    def note(self, response: Any, *_: Any, **__: Any) -> None:
        if not self.on:  # the exporter is asked once where it would send, and nothing is sent then
            return
        self.status = int(response.status_code)
        self.kind = str(response.headers.get("content-type") or "").partition(";")[0].strip().lower()


def sent(trip: Trip, targets: Sequence[Target], asked: Asked) -> list[Finding]:
    """Send every signal at once, each to its own target, and give what was answered, in their order."""
    answers: dict[int, Finding] = {}
    trip.sent_s = time.monotonic()
    patience_s = asked.left_s(_PATIENCE_S)

    def send(at: int, target: Target) -> None:
        answers[at] = _send(trip.bodies[target.signal], target, patience_s)

    threads = [threading.Thread(target=send, args=each, name="ravi-doctor-send", daemon=True) for each in enumerate(targets)]
    with without_signals():
        for thread in threads:
            thread.start()
    until_s = time.monotonic() + patience_s + _GRACE_S
    for thread in threads:
        thread.join(max(0.0, until_s - time.monotonic()))
    return [answers.get(at) or _silent(target) for at, target in enumerate(targets)]


def _send(body: bytes, target: Target, patience_s: float) -> Finding:
    heard, check = _Heard(), f"endpoint.{target.signal}"
    try:
        sender = _sender(target, heard)
    except MissingExtraError:
        said = f"no {_ONE[target.signal]} was sent: the exporter of {target.protocol} is not installed"
        return left_out(check, said, "See packages.exporter for what to install.")
    except Exception as error:  # noqa: BLE001 - a bad value in the environment raises whatever it raises
        return broken(check, f"no exporter could be made: {type(error).__name__}", _UNMADE)
    heard.on, began = True, time.monotonic()
    try:
        answer = sender.send(body, patience_s)
    finally:
        with contextlib.suppress(Exception):
            sender.close()
    return _judged(check, target, answer, heard, (time.monotonic() - began) * 1_000)


def _sender(target: Target, heard: _Heard) -> Any:
    """Make what a program's export would send through; over HTTP, its session tells us what it hears."""
    module, name = _EXPORTERS[target.signal]
    stock = getattr(load(f"opentelemetry.exporter.otlp.proto.{'grpc' if target.protocol == GRPC else 'http'}.{module}"), name)
    if target.protocol == GRPC:
        return load("ravi_otel._telemetry.export.sender").GrpcSender(target.signal, stock)

    def exporter(*, session: Any) -> Any:
        session.hooks["response"].append(heard.note)
        return stock(session=session)

    return load("ravi_otel._telemetry.export.sender").HttpSender(target.signal, exporter, empty(target.signal))


def _judged(check: str, target: Target, answer: Any, heard: _Heard, took_ms: float) -> Finding:
    one, words = _ONE[target.signal], {"variable": target.variable, "signal": target.signal}
    if heard.status is not None and 200 <= heard.status < 300 and heard.kind and heard.kind not in _TYPES:  # noqa: PLR2004 - HTTP's
        return broken(
            check,
            f"something else than an OTLP receiver answers at {target.shown}: status {heard.status}, {clean(heard.kind, 60)}",
            f"Set {target.variable} to an OTLP endpoint, such as http://localhost:4318.",
        )
    if answer.verdict == "sent" and answer.rejected:
        return broken(
            check, f"{target.shown} took the request, and not the {one} in it", f"See in its log why the server rejects {target.signal}."
        )
    if answer.verdict == "sent":
        return well(check, f"a {one} was acknowledged within {took_ms:,.0f} ms ({target.protocol})")
    if heard.status is not None:
        redirected = 300 <= heard.status < 400  # noqa: PLR2004 - HTTP's
        way_out = _REDIRECT if redirected else _ADVICE.get(heard.status, "See in its log what the server has against it.")
    else:
        code = next((code for code in _CODES if code in answer.why), None)
        way_out = _TLS if "TLS" in answer.why else _PORTS if code is None else _CODES[code]
    return broken(check, f"a {one} was not taken: {_reason(answer.why, target)}", way_out.format(**words))


def _reason(why: str, target: Target) -> str:
    """Say what the export heard, with the place in it; that it takes connections was seen before."""
    if "cannot be reached" in why:
        other = "" if target.protocol != GRPC else ", or takes nothing now"
        return f"what listens at {target.shown} is no OTLP endpoint, or speaks another protocol than {target.protocol}{other}"
    return why.replace("the collector", target.shown)


def _silent(target: Target) -> Finding:
    return broken(
        f"endpoint.{target.signal}",
        f"a {_ONE[target.signal]} was not taken: no answer in time",
        f"See why the server at {target.shown} does not answer, or try a longer --timeout.",
    )
