"""Look at the variables of OpenTelemetry: where telemetry goes, how often, and under which names."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterator
from typing import Final
from urllib.parse import unquote, urlsplit

from ravi_otel._stack.doctor.finding import Asked, Finding, broken, odd, well
from ravi_otel._stack.doctor.targets import BASE, GRPC, HTTP, SIGNALS, Signal, endpoint_of, is_exported, protocol_of, show
from ravi_otel.local._wording import clean

_OTHERS_PORT: Final = {HTTP: (4317, GRPC, 4318), GRPC: (4318, HTTP, 4317)}
_PATHS: Final = {signal: f"/v1/{signal}" for signal in SIGNALS}
_WINDOW_MS: Final = 90_000
_COMPRESSIONS: Final = ("", "none", "gzip", "deflate")
_MOST_TIMEOUT_S: Final = 600.0
_NEAR: Final = 0.7
_ENVIRONMENT: Final = "deployment.environment.name"


def examine(asked: Asked) -> Iterator[Finding]:
    """Look at OTEL_* variables."""
    yield from _switches(asked)
    yield from _endpoints(asked)
    yield from _headers(asked)
    yield from _plain(asked)
    yield from _interval(asked)
    yield from _resource(asked)


def _switches(asked: Asked) -> Iterator[Finding]:
    disabled = asked.said("OTEL_SDK_DISABLED").lower()
    if disabled == "true":
        yield odd("settings.export", "OTEL_SDK_DISABLED=true: no telemetry is made at all", "Unset OTEL_SDK_DISABLED to have any.")
    elif disabled not in ("", "false"):
        yield odd(
            "settings.export",
            f"OTEL_SDK_DISABLED={clean(disabled, 40)!r} is not read as true: telemetry is made",
            "Set OTEL_SDK_DISABLED=true to have none, or unset it.",
        )
    for signal in SIGNALS:
        variable = f"OTEL_{signal.upper()}_EXPORTER"
        named = asked.said(variable).lower()
        if named and "otlp" not in [each.strip() for each in named.split(",")]:
            tell = broken if difflib.get_close_matches(named, ["otlp"], cutoff=_NEAR) else odd  # `none` is a decision, `otpl` is none
            yield tell(
                "settings.export",
                f"{variable}={clean(named, 40)}: {signal} go nowhere, for otlp is all that is exported by",
                f"Set {variable}=otlp, or unset it.",
            )


def _endpoints(asked: Asked) -> Iterator[Finding]:
    if not any(endpoint_of(asked, signal)[1] for signal in SIGNALS):
        yield odd(
            "settings.endpoint",
            "no OTEL_EXPORTER_OTLP_ENDPOINT: telemetry leaves the program only by providers of its own",
            "Set OTEL_EXPORTER_OTLP_ENDPOINT, for the stack on this machine to http://127.0.0.1:4318.",
        )
        return
    for signal in SIGNALS:
        if not endpoint_of(asked, signal)[1]:
            yield odd("settings.endpoint", f"no endpoint for {signal}: they are not exported", f"Set {BASE}, which is for all signals.")
    told: set[tuple[str, str]] = set()
    for signal in SIGNALS:
        variable, url = endpoint_of(asked, signal)
        protocol = protocol_of(asked, signal)
        if url and (variable, protocol) not in told:
            told.add((variable, protocol))
            yield from _endpoint(signal, variable, url, protocol)


def _endpoint(signal: Signal, variable: str, url: str, protocol: str) -> Iterator[Finding]:
    if protocol not in (HTTP, GRPC):
        yield broken(
            "settings.protocol",
            f"protocol {clean(protocol, 40)!r} is not supported: {signal} are not exported",
            "Set OTEL_EXPORTER_OTLP_PROTOCOL to http/protobuf or grpc.",
        )
        return
    shown = f"{variable}={show(url)}"
    flaw = _flaw_of_url(shown, variable, url, protocol)
    if flaw is not None:
        yield flaw
        return
    parts = urlsplit(url if "://" in url else f"//{url}")
    found = list(_of_place(shown, variable, parts.port, protocol))
    found += _of_path(shown, signal, variable, parts.path, protocol)
    if parts.username is not None or parts.password is not None:
        found.append(
            odd("settings.endpoint", f"{shown} has a user or a password in it", "Put credentials into OTEL_EXPORTER_OTLP_HEADERS instead.")
        )
    yield from found or [well("settings.endpoint", f"{shown}, by {protocol}")]


def _flaw_of_url(shown: str, variable: str, url: str, protocol: str) -> Finding | None:
    if show(url) == "…":
        return broken("settings.endpoint", f"{variable} is no URL", f"Set {variable} to one such as http://localhost:4318.")
    if "://" not in url:
        if protocol == HTTP:
            return broken("settings.endpoint", f"{shown} has no scheme", f"Write http:// or https:// before it in {variable}.")
        return odd(
            "settings.endpoint", f"{shown} has no scheme: gRPC takes that for TLS", f"Write http:// or https:// before it in {variable}."
        )
    scheme = urlsplit(url).scheme.lower()
    if scheme not in ("http", "https"):
        return broken("settings.endpoint", f"{shown} has scheme {clean(scheme, 20)}", f"Write http:// or https:// in {variable}.")
    return None


def _of_place(shown: str, variable: str, port: int | None, protocol: str) -> Iterator[Finding]:
    others, other, own = _OTHERS_PORT[protocol]
    if port == others:
        protocol_variable = variable.replace("ENDPOINT", "PROTOCOL")
        yield odd(
            "settings.endpoint",
            f"{shown}: port {others} is that of {other}, and the protocol is {protocol}",
            f"Set {protocol_variable}={other}, or the port to {own}.",
        )


def _of_path(shown: str, signal: Signal, variable: str, path: str, protocol: str) -> Iterator[Finding]:
    if protocol == GRPC:
        if path.strip("/"):
            yield odd("settings.endpoint", f"{shown} has a path, which gRPC does not use", f"Take the path out of {variable}.")
        return
    if variable == BASE and path.rstrip("/").endswith(tuple(_PATHS.values())):
        yield broken(
            "settings.endpoint",
            f"{shown} has the path of one signal, and /v1/{signal} is added to it",
            f"Take {path.rstrip('/')[path.rindex('/v1/') :]} out of {variable}.",
        )
    if variable != BASE and not path.rstrip("/").endswith(_PATHS[signal]):
        yield odd(
            "settings.endpoint",
            f"{shown} is used as it is, and does not end in {_PATHS[signal]}",
            f"Write the whole URL with {_PATHS[signal]} into {variable}, or the base into {BASE}.",
        )


def _headers(asked: Asked) -> Iterator[Finding]:
    for variable in ("OTEL_EXPORTER_OTLP_HEADERS", *(f"OTEL_EXPORTER_OTLP_{signal.upper()}_HEADERS" for signal in SIGNALS)):
        said = asked.said(variable)
        wrong = [number for number, pair in enumerate(said.split(","), 1) if pair.strip() and not _is_header(pair)]
        if wrong:
            yield broken(
                "settings.headers",
                f"{variable}: number {wrong[0]} of its headers is no NAME=VALUE, and is left out",
                "Write NAME=VALUE with commas between, and %20 for a blank in a value.",
            )
        elif said:
            count = sum(bool(pair.strip()) for pair in said.split(","))
            yield well("settings.headers", f"{variable} has {count} header{'s' if count > 1 else ''}; values are not shown")


def _is_header(pair: str) -> bool:
    name, sign, value = pair.strip().partition("=")
    token = name.strip()
    named = bool(token) and token.isascii() and token.replace("-", "").replace("_", "").replace(".", "").isalnum()
    return bool(sign) and named and unquote(value).isprintable()


def _plain(asked: Asked) -> Iterator[Finding]:
    """Look at what every exporter reads besides: how long a request may take, and whether it is compressed."""
    for prefix in ("OTEL_EXPORTER_OTLP_", *(f"OTEL_EXPORTER_OTLP_{signal.upper()}_" for signal in SIGNALS)):
        timeout, compression = asked.said(f"{prefix}TIMEOUT"), asked.said(f"{prefix}COMPRESSION").lower()
        seconds = _number(timeout or "10")
        if seconds is None or seconds <= 0:
            yield broken(
                "settings.export",
                f"{prefix}TIMEOUT={clean(timeout, 40)!r} is no number of seconds",
                f"Set {prefix}TIMEOUT to one such as 10.",
            )
        elif seconds > _MOST_TIMEOUT_S:
            yield odd(
                "settings.export",
                f"{prefix}TIMEOUT={clean(timeout, 40)} is {seconds:,.0f} s: it is read as seconds, not as milliseconds",
                f"Set {prefix}TIMEOUT to seconds such as 10.",
            )
        if compression not in _COMPRESSIONS:
            yield broken(
                "settings.export",
                f"{prefix}COMPRESSION={clean(compression, 40)!r} is none that is known",
                f"Set {prefix}COMPRESSION to gzip or none.",
            )


def _interval(asked: Asked) -> Iterator[Finding]:
    said = asked.said("OTEL_METRIC_EXPORT_INTERVAL")
    interval = _number(said or "60000")
    if interval is None or interval <= 0:
        yield odd(
            "settings.interval",
            f"OTEL_METRIC_EXPORT_INTERVAL={clean(said, 40)!r} is no number of milliseconds",
            "Set it to one such as 60000, or unset it.",
        )
    elif interval > _WINDOW_MS:
        yield odd(
            "settings.interval",
            f"metrics are sent every {interval / 1_000:g} s, and the alerts look at the last {_WINDOW_MS // 1_000} s",
            f"Set OTEL_METRIC_EXPORT_INTERVAL to at most {_WINDOW_MS}, or widen the windows of the alerts.",
        )
    else:
        yield well("settings.interval", f"metrics are sent every {interval / 1_000:g} s")


def _resource(asked: Asked) -> Iterator[Finding]:
    attributes: dict[str, str] = {}
    for number, pair in enumerate(asked.said("OTEL_RESOURCE_ATTRIBUTES").split(","), 1):
        if not pair.strip():
            continue
        name, sign, value = pair.partition("=")
        if not sign or not name.strip():
            yield odd(
                "settings.resource",
                f"OTEL_RESOURCE_ATTRIBUTES: number {number} of its attributes is no NAME=VALUE, and is left out",
                "Write NAME=VALUE with commas between, and %2C for a comma in a value.",
            )
        attributes[name.strip()] = unquote(value.strip())
    service = asked.said("OTEL_SERVICE_NAME") or attributes.get("service.name", "")
    if service:
        yield well("settings.service", f"the service is {clean(service)!r}")
    else:
        yield odd("settings.service", "the service has no name: it will be 'unknown_service'", "Set OTEL_SERVICE_NAME.")
    if attributes.get(_ENVIRONMENT):
        yield well("settings.environment", f"the environment is {clean(attributes[_ENVIRONMENT])!r}")
    else:
        older = " (deployment.environment is the older name)" if "deployment.environment" in attributes else ""
        yield odd(
            "settings.environment",
            f"no {_ENVIRONMENT} is set{older}: alerts and dashboards cannot tell environments apart",
            f"Add {_ENVIRONMENT}=NAME to OTEL_RESOURCE_ATTRIBUTES.",
        )
    if any(is_exported(asked, signal) for signal in SIGNALS) and asked.said("OTEL_SERVICE_NAME") == "ravi-otel-doctor":
        yield odd("settings.service", "ravi-otel-doctor is the name of what is sent to look", "Give your service a name of its own.")


def _number(said: str) -> float | None:
    try:
        number = float(said)
    except ValueError:
        return None
    return number if math.isfinite(number) else None
