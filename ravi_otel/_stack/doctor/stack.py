"""The check of the stack on this machine: its servers, their configuration, and whether what was sent is in their stores."""

from __future__ import annotations

import ipaddress
import json
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

from ravi_otel._http import UnansweredError, send
from ravi_otel._local.wording import clean
from ravi_otel._stack import files, servers
from ravi_otel._stack.doctor import Finding, Inputs, broken, left_out, odd, well
from ravi_otel._stack.servers import HOST, port
from ravi_otel.errors import RaviError

_ANSWERS_WITHIN_S: Final = 3.0
_MOST_READ: Final = 4_000_000
_OK: Final = 200
_RULE: Final = re.compile(r"^\s*- (?:record|alert): (\S+)", re.MULTILINE)
_SOURCE: Final = re.compile(r"^\s+uid: ([\w-]+)", re.MULTILINE)
_RECEIVER: Final = re.compile(r"\b([a-z0-9]+)_configs\b")
_INTEGRATION: Final = re.compile(r'integration="([^"]{1,40})"')
_COUNT: Final = re.compile(r" ([0-9.]{1,18}(?:e\+[0-9]{1,2})?)$")
_RESTART: Final = "Run `ravi-otel stack up`; `ravi-otel stack status` and `docker logs ravi-otel-{name}-1` say what it does."
_ELSEWHERE: Final = "Where the stack was started with --env-file or --files, name the same ones here."
_MOST_NAMED: Final = 3
_LEAST_OTHERS: Final = 2
"""How many servers beside the collector must answer for it to be the stack, of which others may be down."""


@dataclass(slots=True)
class Sent:
    """What was sent, when on the monotonic clock, and which signals were acknowledged."""

    service: str
    metric: str
    instance: str
    trace_id: str
    at_s: float
    taken: set[str] = field(default_factory=set[str])


def examine_stack(sent: Sent, places: Sequence[tuple[str, int]], inputs: Inputs) -> Iterator[Finding]:
    """Yield findings about the stack behind these hosts and ports, and about what was sent in its stores; or why it is no stack."""
    try:
        found = _find(places, inputs)
    except RaviError as error:
        found = broken("stack", str(error), "Mend the variable it names.")
    if isinstance(found, Finding):
        yield found
        return
    yield from found.servers()
    for name, look in (("prometheus", found.prometheus), ("alertmanager", found.alertmanager), ("grafana", found.grafana)):
        if found.is_ready(name):
            try:
                yield from look()
            except UnansweredError as error:
                yield odd(f"stack.{name}", f"{name} does not say how it is set up: {error}", _RESTART.format(name=name))
    yield from _Arrival(found, sent, inputs).findings()


def _find(places: Sequence[tuple[str, int]], inputs: Inputs) -> _Stack | Finding:
    place = inputs.files or files.shipped()
    settings = files.settings(place, inputs.env_file, inputs.environ)
    ours = {port(settings, name) for name in ("RAVI_PORT_OTLP_HTTP", "RAVI_PORT_OTLP_GRPC")}
    if not any(_is_here(host) and number in ours for host, number in places):
        return left_out("stack", "the endpoint is not that of the stack on this machine, so that arrival was not looked for", _ELSEWHERE)
    answers = servers.ask_all(servers.CORE, settings)
    is_one = not answers[0].ready and servers.ask_all(servers.ONE[:1], settings)[0].ready
    others = sum(answer.ready for answer in answers[1:])
    if others < _LEAST_OTHERS or not (is_one or answers[0].ready):  # a collector and a Prometheus of one's own are no stack
        said = "the stack is not what answers on this machine, so that arrival was not looked for"
        return left_out("stack", said, "See `ravi-otel stack status`.")
    return _Stack(place, settings, {answer.server.name: answer for answer in answers}, is_one, inputs)


def _is_here(host: str) -> bool:
    try:
        return host.lower() == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@dataclass(frozen=True, slots=True)
class _Stack:
    """The stack on this machine: its settings, what its servers answered, and whether it is the single container."""

    place: Path
    settings: Mapping[str, str]
    answers: Mapping[str, servers.Answer]
    is_one: bool
    inputs: Inputs

    def is_ready(self, name: str) -> bool:
        """Whether a server answers."""
        return name in self.answers and self.answers[name].ready

    def get(self, name: str, path: str) -> bytes:
        """Return what the server behind a port such as PROMETHEUS answers with status 200; raise UnansweredError."""
        url = f"http://{HOST}:{port(self.settings, f'RAVI_PORT_{name}')}{path}"
        answer = send(url, timeout_s=self.inputs.seconds_left(_ANSWERS_WITHIN_S), most_bytes=_MOST_READ, direct=True)
        if answer.status != _OK or not answer.whole:
            raise UnansweredError("its answer does not end" if answer.status == _OK else f"it answered {answer.status}")
        return answer.body

    def get_json(self, name: str, path: str, *keys: str) -> Any:
        """Return the value at these keys of a JSON answer, None if there is none; raise UnansweredError."""
        try:
            return _within(json.loads(self.get(name, path)), *keys)
        except (ValueError, RecursionError):
            raise UnansweredError("its answer is no JSON") from None

    def has(self, name: str, path: str) -> bool:
        """Whether the server does not answer 404."""
        try:
            self.get_json(name, path)
        except UnansweredError as error:
            if "404" in str(error):
                return False
            raise
        return True

    def differs(self, check: str, said: str, advice: str) -> Finding:
        """Return the finding for a server that is not set up as shipped; the single container's port may be that of one's own server."""
        return (odd if self.is_one else broken)(check, said, advice)

    # -- its servers ----------------------------------------------------------------------------------------------

    def servers(self) -> Iterator[Finding]:
        """Yield findings about which servers answer."""
        there = [*(["collector"] if self.is_one else []), *(name for name, answer in self.answers.items() if answer.ready)]
        yield well("stack.servers", f"{', '.join(there)} answer{'s' if len(there) == 1 else ''}")
        hidden = [name for name in self.answers if name not in there]
        if self.is_one:
            inside = [name for name in hidden if name not in ("prometheus", "grafana")]
            yield left_out("stack.servers", f"the single container shows {', '.join(inside)} to nobody but its Grafana")
            hidden = [name for name in hidden if name not in inside]
        for name in hidden:
            said = f"{name} does not answer at {self.answers[name].address}: {self.answers[name].said}"
            tell = odd if name == "grafana" else broken  # nothing is lost without it
            yield tell(f"stack.{name}", said, _RESTART.format(name=name))

    def prometheus(self) -> Iterator[Finding]:
        """Yield findings about the options of Prometheus, and whether our rules are loaded."""
        flags = self.get_json("PROMETHEUS", "/api/v1/status/flags", "data")
        compose = "Start it with the options of the shipped compose.yaml."
        if _within(flags, "web.enable-otlp-receiver") == "true":
            yield well("stack.prometheus", "it takes OTLP")
        else:
            yield self.differs("stack.prometheus", "it takes no OTLP: --web.enable-otlp-receiver is not on", compose)
        if "exemplar-storage" in str(_within(flags, "enable-feature")).split(","):
            yield well("stack.prometheus", "it keeps exemplars")
        else:
            yield odd("stack.prometheus", "it keeps no exemplars, so that no metric leads to a trace", compose)
        yield self._rules(self.get_json("PROMETHEUS", "/api/v1/rules", "data", "groups"))

    def _rules(self, groups: Any) -> Finding:
        shipped = {name for file in self._shipped("collector/prometheus/rules/*.yaml") for name in _RULE.findall(file.read_text())}
        rules = [rule for group in _list(groups) for rule in _list(_within(group, "rules"))]
        if missing := sorted(shipped - {str(_within(rule, "name")) for rule in rules}):
            said = f"{len(missing)} of our {len(shipped)} rules are not loaded, such as {', '.join(missing[:_MOST_NAMED])}"
            return self.differs("stack.rules", said, "Run `ravi-otel stack up`, or name our rules in rule_files of prometheus.yaml.")
        if failing := sorted({str(_within(rule, "name")) for rule in rules if _within(rule, "health") == "err"}):
            said = f"rules fail: {', '.join(clean(name) for name in failing[:_MOST_NAMED])}"
            return broken("stack.rules", said, "See /rules of Prometheus for the error.")
        return well("stack.rules", f"all {len(shipped)} rules are loaded")

    def alertmanager(self) -> Iterator[Finding]:
        """Yield findings about whom Alertmanager notifies, and whether that succeeded."""
        config = str(self.get_json("ALERTMANAGER", "/api/v2/status", "config", "original"))
        receivers = ", ".join(sorted(set(_RECEIVER.findall(config))))
        if not receivers:
            yield odd("stack.alertmanager", "it has no receiver, so that nobody is told of alerts", "Name one in alertmanager.yaml.")
            return
        metrics = self.get("ALERTMANAGER", "/metrics").decode("utf-8", "replace")
        made, refused = (_counts(metrics, f"alertmanager_notification_requests{name}_total") for name in ("", "_failed"))
        lost = _counts(metrics, "alertmanager_notifications_failed_total")
        bad = sorted({each for each, number in refused.items() if number >= made.get(each, 0)} | set(lost))
        for each in bad:
            is_dead = refused.get(each, 0) >= made.get(each, 0)
            many = f"none of {made.get(each, 0):,} requests" if is_dead else f"{refused.get(each, 0):,} of {made[each]:,} requests not"
            yield (broken if is_dead else odd)(
                "stack.alertmanager",
                f"{clean(each, 40)}: {many} taken since its start; what they told reached nobody",
                "See that it can reach what alertmanager.yaml names as its receiver; `docker logs ravi-otel-alertmanager-1` says why not.",
            )
        if not bad:
            total = sum(made.values())
            seen = f"{total:,} requests since its start" if total else "none was to be told yet, so whether they arrive is not known"
            yield well("stack.alertmanager", f"it tells alerts by {clean(receivers, 120)}; {seen}")

    def grafana(self) -> Iterator[Finding]:
        """Yield findings about our dashboards and data sources in Grafana."""
        boards = {str(json.loads(file.read_text(encoding="utf-8"))["uid"]): file.stem for file in self._shipped("dashboards/*.json")}
        if missing := [name for uid, name in boards.items() if not self.has("GRAFANA", f"/api/dashboards/uid/{uid}")]:
            said = f"Grafana has not our {', '.join(missing)}"
            yield self.differs("stack.dashboards", said, "Run `ravi-otel stack up`, or mount our dashboards folder.")
        else:
            yield well("stack.dashboards", f"Grafana has our {', '.join(boards.values())}")
        provisioned = self._shipped("collector/grafana/provisioning/datasources/*.yaml")
        sources = sorted({uid for file in provisioned for uid in _SOURCE.findall(file.read_text())})
        if lost := [uid for uid in sources if not self.has("GRAFANA", f"/api/datasources/uid/{uid}")]:
            said = f"Grafana has no data source {', '.join(lost)}"
            yield broken("stack.datasources", said, "Mount our provisioning folder, and start it again.")
        else:
            yield well("stack.datasources", f"Grafana has {', '.join(sources)}")

    def _shipped(self, pattern: str) -> list[Path]:
        return sorted(self.place.glob(pattern))


def _within(document: Any, *keys: str) -> Any:
    """Return the value at a path of keys in an untrusted document; None if there is none."""
    for key in keys:
        document = document.get(key) if isinstance(document, dict) else None  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]  # JSON of anybody's
    return document  # pyright: ignore[reportUnknownVariableType]  # JSON of anybody's


def _list(document: Any) -> list[Any]:
    return document if isinstance(document, list) else []  # pyright: ignore[reportUnknownVariableType]  # JSON of anybody's


def _counts(metrics: str, name: str) -> dict[str, int]:
    """Add up a counter of Alertmanager's by its integration, such as webhook; those at 0 are left out."""
    found: dict[str, int] = {}
    for line in metrics.splitlines():
        if line.startswith(f"{name}{{") and (each := _INTEGRATION.search(line)) and (number := _COUNT.search(line)):
            found[each[1]] = found.get(each[1], 0) + int(float(number[1]))
    return {each: number for each, number in found.items() if number}


# -- what arrived -------------------------------------------------------------------------------------------------

_EVERY_S: Final = 0.1
_MARGIN_S: Final = 0.3
_FAIR_S: Final = 5.0
"""How long a store may take before it is held against it: a second or two are usual, more just after its start."""

_WINDOW_NS: Final = 600 * 10**9
_STORES: Final = {
    "traces": ("jaeger", "the span", "Jaeger"),
    "metrics": ("prometheus", "the metric", "Prometheus"),
    "logs": ("loki", "the log record", "Loki"),
}
_LOST: Final = "See `docker logs ravi-otel-collector-1` for what the collector could not pass on, and try a longer --timeout."
_TAILS: Final = "the collector samples by tail, and may decide later whether it keeps it; the shipped production overlay keeps it at once"
_TAILS_S: Final = 3.0
"""How long after it was sent a span is looked for behind a collector that may not keep it: the shipped overlay passes it on at once."""


class _Arrival:
    """The search for what was sent: the span in Jaeger, the metric in Prometheus, the log record in Loki."""

    def __init__(self, stack: _Stack, sent: Sent, inputs: Inputs) -> None:
        self._stack = stack
        self._sent = sent
        self._inputs = inputs
        self._samples_tails = self._is_tail_sampled()
        now_ns = time.time_ns()
        metric = f'{{__name__=~"{sent.metric.replace(".", "_")}(_ratio)?",service_instance_id="{sent.instance}"}}'
        record = f'{{service_name="{sent.service}"}} | trace_id="{sent.trace_id}"'
        record_in = {"query": record, "start": now_ns - _WINDOW_NS, "end": now_ns + _WINDOW_NS, "limit": 1}
        get = stack.get_json
        self._questions: Mapping[str, Callable[[], Any]] = {
            "traces": partial(get, "JAEGER", f"/api/traces/{sent.trace_id}", "data"),
            "metrics": partial(get, "PROMETHEUS", f"/api/v1/query?{urlencode({'query': metric})}", "data", "result"),
            "logs": partial(get, "LOKI", f"/loki/api/v1/query_range?{urlencode(record_in)}", "data", "result"),
        }

    def findings(self) -> Iterator[Finding]:
        """Yield findings about each acknowledged signal: how long it took to arrive, or that it did not arrive in time."""
        taken = [signal for signal in self._questions if signal in self._sent.taken]
        missing = [signal for signal in taken if self._stack.is_ready(_STORES[signal][0])]
        absent = set(taken) - set(missing)
        while missing:
            for signal in [signal for signal in missing if self._is_there(signal)]:
                missing.remove(signal)
                _, what, where = _STORES[signal]
                yield well(f"arrival.{signal}", f"{what} was in {where} {self._waited_s():,.1f} s after it was sent")
            kept_or_not = missing == ["traces"] and self._samples_tails and self._waited_s() > _TAILS_S
            if not missing or kept_or_not or self._inputs.seconds_left() <= _MARGIN_S:
                break
            time.sleep(_EVERY_S)
        for signal in self._questions:
            if signal in missing:
                yield self._missing(signal)
            elif signal in absent:
                _, what, where = _STORES[signal]
                yield left_out(f"arrival.{signal}", f"{what} was not looked for, as {where} does not answer")

    def _missing(self, signal: str) -> Finding:
        _, what, where = _STORES[signal]
        check, waited_s = f"arrival.{signal}", self._waited_s()
        if signal == "traces" and self._samples_tails:
            return left_out(check, f"{what} ({self._sent.trace_id}) is not in {where} yet: {_TAILS}")
        said = f"{what} was acknowledged, and is not in {where} {waited_s:,.1f} s later"
        if waited_s < _FAIR_S:
            return left_out(check, f"{said}: too short a time to tell", "Try a longer --timeout.")
        return broken(check, said, _LOST)

    def _waited_s(self) -> float:
        return time.monotonic() - self._sent.at_s

    def _is_there(self, signal: str) -> bool:
        try:
            return bool(_list(self._questions[signal]()))
        except UnansweredError:  # Jaeger says 404 until it has the trace
            return False

    def _is_tail_sampled(self) -> bool:
        """Whether the collector waits before it keeps a trace or not, as the production overlay makes it do."""
        try:
            return b"tail_sampling" in self._stack.get("COLLECTOR_METRICS", "/metrics")
        except (UnansweredError, RaviError):
            return False
