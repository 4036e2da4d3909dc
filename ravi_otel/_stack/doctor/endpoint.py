"""Look at the way to the OTLP endpoint: its name and its port; then send one of each signal, and look for it at the other end."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from typing import Any, Final
from urllib.request import getproxies, proxy_bypass

from ravi_otel._http import reason
from ravi_otel._stack.doctor.arrival import look_for
from ravi_otel._stack.doctor.finding import Asked, Finding, broken, left_out, well
from ravi_otel._stack.doctor.local_stack import find_stack, look_at_stack
from ravi_otel._stack.doctor.probe import Trip, made
from ravi_otel._stack.doctor.round_trip import sent
from ravi_otel._stack.doctor.targets import GRPC, HTTP, SIGNALS, Target, is_exported, target_of

_PATIENCE_S: Final = 3.0


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
    for finding in sent(trip, targets, asked):
        yield finding
        if finding.state == "well":
            trip.taken.add(finding.check.rpartition(".")[2])
    yield from _at_the_other_end(trip, targets, asked)


def _at_the_other_end(trip: Trip, targets: list[Target], asked: Asked) -> Iterator[Finding]:
    stack = find_stack(targets, asked)
    if isinstance(stack, Finding):
        yield stack
        return
    yield from look_at_stack(stack, asked)
    yield from look_for(trip, stack, asked)


def _way_to(target: Target, asked: Asked) -> Iterator[Finding]:
    """Look at one host and port: its address, and whether it takes connections."""
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
    connected.close()
    yield well("endpoint.connect", f"{where} takes connections, after {took_ms:,.0f} ms")


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
