"""Look at the stack's own servers on this machine: whether they answer, and whether they are set up as we ship them."""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ravi_otel._http import UnansweredError
from ravi_otel._stack import files, servers
from ravi_otel._stack.doctor.asking import get, get_json, listed, within
from ravi_otel._stack.doctor.finding import Asked, Finding, broken, left_out, odd, well
from ravi_otel._stack.doctor.targets import Target
from ravi_otel._stack.ports import port
from ravi_otel.errors import RaviError
from ravi_otel.local._wording import clean

_RULE: Final = re.compile(r"^\s*- (?:record|alert): (\S+)", re.MULTILINE)
_SOURCE: Final = re.compile(r"^\s+uid: ([\w-]+)", re.MULTILINE)
_WAY: Final = re.compile(r"\b([a-z0-9]+)_configs\b")
_INTEGRATION: Final = re.compile(r'integration="([^"]{1,40})"')
_COUNT: Final = re.compile(r" ([0-9.]{1,18}(?:e\+[0-9]{1,2})?)$")
_RESTART: Final = "Run `ravi-otel stack up`; `ravi-otel stack status` and `docker logs ravi-otel-{name}-1` say what it does."
_ELSEWHERE: Final = "Where the stack was started with --env-file or --files, name the same ones here."
_MOST_NAMED: Final = 3
_LEAST_OTHERS: Final = 2
"""How many servers beside the collector must answer for it to be the stack, of which others may be down."""


@dataclass(frozen=True, slots=True)
class Stack:
    """Be the stack on this machine: its settings, what its servers answered, and whether it is the single container."""

    place: Path
    settings: Mapping[str, str]
    answers: Mapping[str, servers.Answer]
    one: bool
    samples_tails: bool

    def port(self, name: str) -> int:
        """Give the port of a variable such as PROMETHEUS."""
        return port(self.settings, f"RAVI_PORT_{name}")

    @property
    def ails(self) -> Callable[[str, str, str], Finding]:
        """Give how a server is said not to be as shipped: the single container's ports may be those of servers of one's own."""
        return odd if self.one else broken

    def is_ready(self, name: str) -> bool:
        """Tell whether a server answers."""
        return name in self.answers and self.answers[name].ready


def find_stack(targets: Sequence[Target], asked: Asked) -> Stack | Finding:
    """Find the stack behind the endpoint; a finding that says why not."""
    try:
        place = asked.files or files.shipped()
        settings = files.settings(place, asked.env_file, asked.environ)
        ours = {port(settings, name) for name in ("RAVI_PORT_OTLP_HTTP", "RAVI_PORT_OTLP_GRPC")}
        if not any(_is_here(target.host) and target.port in ours for target in targets):
            return left_out(
                "stack", "the endpoint is not that of the stack on this machine, so that arrival was not looked for", _ELSEWHERE
            )
        answers = servers.ask_all(servers.CORE, settings)
        one = not answers[0].ready and servers.ask_all(servers.ONE[:1], settings)[0].ready
    except RaviError as error:
        return broken("stack", str(error), "Mend the variable it names.")
    others = sum(answer.ready for answer in answers[1:])
    if others < _LEAST_OTHERS or not (one or answers[0].ready):  # a collector and a Prometheus of one's own are no stack
        return left_out(
            "stack", "the stack is not what answers on this machine, so that arrival was not looked for", "See `ravi-otel stack status`."
        )
    found = Stack(place, settings, {answer.server.name: answer for answer in answers}, one, samples_tails=False)
    return Stack(place, settings, found.answers, one, _samples_tails(found, asked))


def look_at_stack(stack: Stack, asked: Asked) -> Iterator[Finding]:
    """Look at every server, and at what each was told."""
    yield from _servers(stack)
    looks: Sequence[tuple[str, Callable[[Stack, Asked], Iterator[Finding]]]] = (
        ("prometheus", _prometheus),
        ("alertmanager", _alertmanager),
        ("grafana", _grafana),
    )
    for name, look in looks:
        if not stack.is_ready(name):
            continue
        try:
            yield from look(stack, asked)
        except UnansweredError as error:
            yield odd(f"stack.{name}", f"{name} does not say how it is set up: {error}", _RESTART.format(name=name))


def _is_here(host: str) -> bool:
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _samples_tails(stack: Stack, asked: Asked) -> bool:
    """Tell whether the collector waits before it keeps a trace or not, as the production overlay has it do."""
    try:
        return b"tail_sampling" in get(stack.port("COLLECTOR_METRICS"), "/metrics", asked)
    except (UnansweredError, RaviError):
        return False


def _servers(stack: Stack) -> Iterator[Finding]:
    there = [name for name, answer in stack.answers.items() if answer.ready]
    if stack.one:
        there = ["collector", *there]
    yield well("stack.servers", f"{', '.join(there)} answer{'s' if len(there) == 1 else ''}")
    hidden = [name for name, answer in stack.answers.items() if not answer.ready and name not in there]
    if stack.one:
        kept_inside = [name for name in hidden if name not in ("prometheus", "grafana")]
        yield left_out("stack.servers", f"the single container shows {', '.join(kept_inside)} to nobody but its Grafana")
        hidden = [name for name in hidden if name not in kept_inside]
    for name in hidden:
        said = f"{name} does not answer at {stack.answers[name].address}: {stack.answers[name].said}"
        tell = odd if name == "grafana" else broken  # nothing is lost without it
        yield tell(f"stack.{name}", said, _RESTART.format(name=name))


def _prometheus(stack: Stack, asked: Asked) -> Iterator[Finding]:
    where = stack.port("PROMETHEUS")
    flags = within(get_json(where, "/api/v1/status/flags", asked), "data")
    compose = "Start it with the options of the shipped compose.yaml."
    if within(flags, "web.enable-otlp-receiver") == "true":
        yield well("stack.prometheus", "it takes OTLP")
    else:
        yield stack.ails("stack.prometheus", "it takes no OTLP: --web.enable-otlp-receiver is not on", compose)
    if "exemplar-storage" in str(within(flags, "enable-feature")).split(","):
        yield well("stack.prometheus", "it keeps exemplars")
    else:
        yield odd("stack.prometheus", "it keeps no exemplars, so that no metric leads to a trace", compose)
    yield from _rules(stack, get_json(where, "/api/v1/rules", asked))


def _rules(stack: Stack, document: Any) -> Iterator[Finding]:
    shipped = {
        name for file in (stack.place / "collector" / "prometheus" / "rules").glob("*.yaml") for name in _RULE.findall(file.read_text())
    }
    rules = [rule for group in listed(document, "data", "groups") for rule in listed(group, "rules")]
    loaded = {str(within(rule, "name")) for rule in rules}
    failing = sorted({str(within(rule, "name")) for rule in rules if within(rule, "health") == "err"})
    if missing := sorted(shipped - loaded):
        yield stack.ails(
            "stack.rules",
            f"{len(missing)} of our {len(shipped)} rules are not loaded, such as {', '.join(missing[:_MOST_NAMED])}",
            "Run `ravi-otel stack up`, or name our rules in rule_files of prometheus.yaml.",
        )
    elif failing:
        yield broken(
            "stack.rules",
            f"rules fail: {', '.join(clean(name) for name in failing[:_MOST_NAMED])}",
            "See /rules of Prometheus for the error.",
        )
    else:
        yield well("stack.rules", f"all {len(shipped)} rules are loaded")


def _alertmanager(stack: Stack, asked: Asked) -> Iterator[Finding]:
    told = within(get_json(stack.port("ALERTMANAGER"), "/api/v2/status", asked), "config", "original")
    ways = ", ".join(sorted(set(_WAY.findall(str(told)))))
    if not ways:
        yield odd("stack.alertmanager", "it has no receiver, so that nobody is told of alerts", "Name one in alertmanager.yaml.")
        return
    counted = get(stack.port("ALERTMANAGER"), "/metrics", asked).decode("utf-8", "replace")
    asks, refused = (_by_way(counted, f"alertmanager_notification_requests{name}_total") for name in ("", "_failed"))
    lost = _by_way(counted, "alertmanager_notifications_failed_total")
    bad = sorted({way for way, number in refused.items() if number >= asks.get(way, 0)} | set(lost))
    for way in bad:
        dead = refused.get(way, 0) >= asks.get(way, 0)
        many = f"none of {asks.get(way, 0):,} requests" if dead else f"{refused.get(way, 0):,} of {asks[way]:,} requests not"
        yield (broken if dead else odd)(
            "stack.alertmanager",
            f"{clean(way, 40)}: {many} taken since its start; what they told reached nobody",
            "See that it can reach what alertmanager.yaml names as its receiver; `docker logs ravi-otel-alertmanager-1` says why not.",
        )
    if not bad:
        total = sum(asks.values())
        seen = f"{total:,} requests since its start" if total else "none was to be told yet, so whether they arrive is not known"
        yield well("stack.alertmanager", f"it tells alerts by {clean(ways, 120)}; {seen}")


def _by_way(text: str, name: str) -> dict[str, int]:
    """Add up a counter of Alertmanager's by the way it tells, such as webhook; those at 0 are left out."""
    found: dict[str, int] = {}
    for line in text.splitlines():
        if line.startswith(f"{name}{{") and (way := _INTEGRATION.search(line)) and (number := _COUNT.search(line)):
            found[way[1]] = found.get(way[1], 0) + int(float(number[1]))
    return {way: number for way, number in found.items() if number}


def _grafana(stack: Stack, asked: Asked) -> Iterator[Finding]:
    where = stack.port("GRAFANA")
    wanted = {_uid(file): file.stem for file in sorted((stack.place / "dashboards").glob("*.json"))}
    missing = [name for uid, name in wanted.items() if not _has(where, f"/api/dashboards/uid/{uid}", asked)]
    if missing:
        yield stack.ails(
            "stack.dashboards", f"Grafana has not our {', '.join(missing)}", "Run `ravi-otel stack up`, or mount our dashboards folder."
        )
    else:
        yield well("stack.dashboards", f"Grafana has our {', '.join(wanted.values())}")
    provisioned = (stack.place / "collector" / "grafana" / "provisioning" / "datasources").glob("*.yaml")
    uids = sorted({uid for file in provisioned for uid in _SOURCE.findall(file.read_text())})
    lost = [uid for uid in uids if not _has(where, f"/api/datasources/uid/{uid}", asked)]
    if lost:
        yield broken(
            "stack.datasources", f"Grafana has no data source {', '.join(lost)}", "Mount our provisioning folder, and start it again."
        )
    else:
        yield well("stack.datasources", f"Grafana has {', '.join(uids)}")


def _uid(file: Path) -> str:
    return str(json.loads(file.read_text(encoding="utf-8"))["uid"])


def _has(where: int, path: str, asked: Asked) -> bool:
    try:
        get_json(where, path, asked)
    except UnansweredError as error:
        if "404" in str(error):
            return False
        raise
    return True
