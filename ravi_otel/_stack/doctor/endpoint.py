"""Look at the way to the OTLP endpoint: its name, its port, TLS; then send one of each signal, and look for it at the other end."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Iterator
from typing import Any, Final
from urllib.request import getproxies, proxy_bypass

from ravi_otel._extras import load
from ravi_otel._http import reason
from ravi_otel._stack.doctor import clock
from ravi_otel._stack.doctor.arrival import look_for
from ravi_otel._stack.doctor.asking import cut_after
from ravi_otel._stack.doctor.finding import Asked, Finding, broken, left_out, odd, well
from ravi_otel._stack.doctor.local_stack import find_stack, look_at_stack
from ravi_otel._stack.doctor.probe import Trip, made
from ravi_otel._stack.doctor.round_trip import sent
from ravi_otel._stack.doctor.targets import GRPC, HTTP, SIGNALS, Target, is_exported, target_of
from ravi_otel.errors import MissingExtraError

_PATIENCE_S: Final = 3.0
_SOON_S: Final = 14 * 86_400


def examine(asked: Asked) -> Iterator[Finding]:
    """Look at the endpoint of each signal, and send one of each."""
    wanted = [target for signal in SIGNALS if is_exported(asked, signal) and (target := target_of(asked, signal)) is not None]
    targets = [target for target in wanted if target.protocol in (HTTP, GRPC)]
    if not targets:
        yield left_out("endpoint", "no signal goes to an endpoint that can be asked, so that nothing was sent")
        return
    well_there: dict[tuple[str, int, bool], bool] = {}
    for target in targets:
        key = (*target.place, target.secure)
        if key not in well_there:
            found = list(_way_to(target, asked))
            well_there[key] = all(each.state != "broken" for each in found)
            yield from found
    reachable = [target for target in targets if well_there[(*target.place, target.secure)]]
    if not reachable:
        yield left_out("endpoint.round_trip", "nothing was sent, for the endpoint cannot be reached")
        return
    yield from _round_trip(reachable, asked)


def _round_trip(targets: list[Target], asked: Asked) -> Iterator[Finding]:
    trip = made()
    for finding, samples in sent(trip, targets, asked):
        yield finding
        trip.samples.extend(samples)
        if finding.state == "well":
            trip.taken.add(finding.check.rpartition(".")[2])
    if all(target.protocol == GRPC for target in targets):
        yield left_out("clock.endpoint", "answers over gRPC do not say what time it is")
    else:
        yield clock.judged("clock.endpoint", "the endpoint", trip.samples)
    yield from _at_the_other_end(trip, targets, asked)


def _at_the_other_end(trip: Trip, targets: list[Target], asked: Asked) -> Iterator[Finding]:
    stack = find_stack(targets, asked)
    if isinstance(stack, Finding):
        yield stack
        return
    yield from look_at_stack(stack, asked)
    yield from look_for(trip, stack, asked)


def _way_to(target: Target, asked: Asked) -> Iterator[Finding]:
    """Look at one host and port: address, connection, TLS."""
    where = f"{target.host}:{target.port}"
    proxies = getproxies()
    if proxies.get("https" if target.secure else "http") and not proxy_bypass(target.host):
        yield left_out(
            "endpoint.connect", f"{where} is reached through a proxy of the environment, so that only the round trip is looked at"
        )
        return
    try:
        addresses = socket.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        why = reason(error) if isinstance(error, OSError) else "it is no name"
        yield broken("endpoint.name", f"{target.host} cannot be found: {why}", f"Check the host in {target.variable}, and the resolver.")
        return
    began = time.monotonic()
    connected, why = _connected([address[4] for address in addresses], asked)
    if connected is None:
        yield broken("endpoint.connect", f"{where} cannot be reached: {why}", _way_out(target))
        return
    took_ms = (time.monotonic() - began) * 1_000
    with connected:
        yield well("endpoint.connect", f"{where} takes connections, after {took_ms:,.0f} ms")
        if target.secure:
            yield _tls(connected, target, asked)


def _way_out(target: Target) -> str:
    if target.host in ("localhost", "127.0.0.1", "::1"):
        return f"Start the collector, such as by `ravi-otel stack up`, or set {target.variable} to where it is."
    return f"Check host and port in {target.variable}, and that no firewall is between."


def _connected(addresses: list[Any], asked: Asked) -> tuple[socket.socket | None, str]:
    why = "it has no address"
    for address in addresses[:8]:
        try:
            return socket.create_connection(address[:2], timeout=asked.left_s(_PATIENCE_S)), ""
        except OSError as error:
            why = reason(error)
    return None, why


def _tls(connected: socket.socket, target: Target, asked: Asked) -> Finding:
    check, patience_s = "endpoint.tls", asked.left_s(_PATIENCE_S)
    variable = "OTEL_EXPORTER_OTLP_CERTIFICATE"
    try:
        context = _context(target, asked)
        connected.settimeout(patience_s)
        with cut_after(connected, patience_s), context.wrap_socket(connected, server_hostname=target.host) as secured:
            certificate, version = secured.getpeercert() or {}, secured.version()
    except ssl.SSLCertVerificationError as error:
        return broken(
            check,
            f"the certificate of {target.host} is not valid for us: {error.verify_message.rstrip('.')}",
            f"Set {variable} to the PEM file of the authority that signed it, or have the server send another certificate.",
        )
    except ssl.SSLError as error:
        return broken(
            check,
            f"{target.host}:{target.port} does not speak TLS with us: {(error.reason or 'it broke off').lower().replace('_', ' ')}",
            f"Write http:// in {target.variable} where the server speaks without TLS, or see that it allows TLS 1.2.",
        )
    except (OSError, ValueError) as error:
        return broken(
            check,
            f"TLS with {target.host} failed: {reason(error)}",
            f"Check the server, and the files that {variable} and its sisters name.",
        )
    left_s = ssl.cert_time_to_seconds(str(certificate["notAfter"])) - time.time() if "notAfter" in certificate else _SOON_S
    if left_s < _SOON_S:
        return odd(check, f"the certificate of {target.host} ends in {left_s / 86_400:,.1f} days", "Have the server send a newer one.")
    return well(check, f"{version}, and the certificate of {target.host} is valid for {left_s / 86_400:,.0f} days")


def _context(target: Target, asked: Asked) -> ssl.SSLContext:
    """Make what the exporter would connect with: the authorities and the certificate that the variables name."""

    def said(name: str) -> str:
        return asked.said(f"OTEL_EXPORTER_OTLP_{target.signal.upper()}_{name}") or asked.said(f"OTEL_EXPORTER_OTLP_{name}")

    authorities = said("CERTIFICATE") or asked.said("REQUESTS_CA_BUNDLE") or asked.said("CURL_CA_BUNDLE")
    if not authorities:
        try:
            authorities = str(load("requests.certs").where())
        except MissingExtraError:
            authorities = ""
    context = ssl.create_default_context(cafile=authorities or None)
    if said("CLIENT_CERTIFICATE"):
        context.load_cert_chain(said("CLIENT_CERTIFICATE"), said("CLIENT_KEY") or None)
    return context
