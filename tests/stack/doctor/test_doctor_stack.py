"""The stack behind the endpoint: servers on loopback that answer as the real ones do, and those that do not."""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import pytest
from asking_doctor import ask, not_well, states, the
from misbehaving import Answer, Collector, status

from ravi_otel._stack import files
from ravi_otel._stack.doctor import stack as checks
from ravi_otel._stack.doctor.telemetry import examine_endpoint

SHIPPED = files.shipped()
RULES = [
    name
    for file in (SHIPPED / "collector" / "prometheus" / "rules").glob("*.yaml")
    for name in re.findall(r"- (?:record|alert): (\S+)", file.read_text())
]
LOADED = {"data": {"groups": [{"rules": [{"name": name, "health": "ok"} for name in RULES]}]}}
FLAGS = {"data": {"web.enable-otlp-receiver": "true", "enable-feature": "exemplar-storage"}}
FOUND = {"data": {"result": [1]}}
PORTS = {
    "OTLP_GRPC": "collector",
    "COLLECTOR_HEALTH": "health",
    "COLLECTOR_METRICS": "health",
    "PROMETHEUS": "prometheus",
    "ALERTMANAGER": "alertmanager",
    "JAEGER": "jaeger",
    "JAEGER_HEALTH": "jaeger",
    "LOKI": "loki",
    "GRAFANA": "grafana",
}


class Servers:
    """Be the servers of the stack: what each answers to a path is in `answers`; what is not there is 404."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[str] = []
        self.answers: dict[str, dict[str, object]] = {
            "health": {"/": "Server available", "/metrics": "otelcol_process_uptime 1"},
            "prometheus": {
                "/-/ready": "Prometheus Server is Ready",
                "/api/v1/status/flags": FLAGS,
                "/api/v1/rules": LOADED,
                "/api/v1/query": FOUND,
            },
            "alertmanager": {
                "/-/ready": "OK",
                "/api/v2/status": {"config": {"original": "receivers: [{webhook_configs: []}]"}},
                "/metrics": "",
            },
            "jaeger": {"/status": "StatusOK", "/api/traces": {"data": [1]}},
            "loki": {"/ready": "ready", "/loki/api/v1/query_range": FOUND},
            "grafana": {"/api/health": '{"database": "ok"}', "/api/dashboards/uid": {}, "/api/datasources/uid": {}},
        }
        self._running = {name: self._serve(name) for name in self.answers}
        self.ports = {name: server.server_port for name, server in self._running.items()}
        for name, server in PORTS.items():
            monkeypatch.setenv(f"RAVI_PORT_{name}", str(self.ports.get(server, 9)))

    def _serve(self, name: str) -> ThreadingHTTPServer:
        servers = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                servers.asked.append(self.path)
                path = urlsplit(self.path).path
                known = servers.answers[name]
                body = known.get(path, known.get(path.rpartition("/")[0]))
                self.send_response(404 if body is None else 200)
                self.end_headers()
                self.wfile.write((body if isinstance(body, str) else json.dumps(body)).encode())

            def log_message(self, *_: object) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        return server

    def down(self, name: str) -> None:
        server = self._running.pop(name)
        server.shutdown()
        server.server_close()

    def close(self) -> None:
        for name in tuple(self._running):
            self.down(name)


@pytest.fixture
def stack(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> Iterator[Servers]:
    made = Servers(monkeypatch)
    monkeypatch.setenv("RAVI_PORT_OTLP_HTTP", str(urlsplit(collector.url).port))
    yield made
    made.close()


def test_a_stack_that_is_as_shipped_is_well_from_end_to_end(stack):
    found = ask(examine_endpoint)
    assert not_well(found) == []
    expected = {f"arrival.{signal}" for signal in ("traces", "metrics", "logs")}
    expected |= {f"stack.{name}" for name in ("servers", "prometheus", "rules", "alertmanager", "dashboards", "datasources")}
    assert expected <= {check for check, seen in states(found).items() if seen == {"well"}}


def test_the_metric_and_the_log_record_are_looked_for_by_their_own_ids(stack):
    ask(examine_endpoint)
    queries = [parse_qs(urlsplit(path).query)["query"][0] for path in stack.asked if "query=" in path]
    assert any(re.search(r'service_instance_id="[0-9a-f]{32}"', query) for query in queries)
    assert any(re.search(r'\{service_name="ravi-otel-doctor"\} \| trace_id="[0-9a-f]{32}"', query) for query in queries)


@pytest.mark.parametrize(
    ("name", "state"), [("loki", "broken"), ("jaeger", "broken"), ("prometheus", "broken"), ("alertmanager", "broken"), ("grafana", "odd")]
)
def test_a_server_that_is_down_is_named_with_the_command_that_starts_it(stack, name, state):
    stack.down(name)
    found = ask(examine_endpoint)
    assert the(found, f"stack.{name}").state == state
    assert "ravi-otel stack up" in the(found, f"stack.{name}").advice
    assert f"ravi-otel-{name}-1" in the(found, f"stack.{name}").advice


def test_what_was_acknowledged_and_never_arrives_is_broken(stack, monkeypatch):
    monkeypatch.setattr(checks, "_FAIR_S", 0.5)
    stack.answers["loki"]["/loki/api/v1/query_range"] = {"data": {"result": []}}
    found = ask(examine_endpoint, within_s=1.5)
    assert the(found, "arrival.logs").state == "broken"
    assert "ravi-otel-collector-1" in the(found, "arrival.logs").advice
    assert the(found, "arrival.traces").state == "well"


def test_what_had_too_little_time_to_arrive_is_left_out(stack):
    stack.answers["jaeger"]["/api/traces"] = {"data": []}
    found = the(ask(examine_endpoint, within_s=1.0), "arrival.traces")
    assert (found.state, found.advice) == ("left_out", "Try a longer --timeout.")


def test_a_collector_that_samples_by_tail_may_keep_the_span_later(stack):
    stack.answers["health"]["/metrics"] = "otelcol_processor_tail_sampling_global_count_traces_sampled 1"
    stack.answers["jaeger"]["/api/traces"] = {"data": []}
    found = ask(examine_endpoint)
    assert the(found, "arrival.traces").state == "left_out"
    assert the(found, "arrival.logs").state == "well"


@pytest.mark.parametrize(
    ("server", "path", "answer", "check", "state"),
    [
        ("prometheus", "/api/v1/status/flags", {"data": {"enable-feature": "exemplar-storage"}}, "stack.prometheus", "broken"),
        ("prometheus", "/api/v1/status/flags", {"data": {"web.enable-otlp-receiver": "true"}}, "stack.prometheus", "odd"),
        ("prometheus", "/api/v1/rules", {"data": {"groups": []}}, "stack.rules", "broken"),
        ("prometheus", "/api/v1/rules", "[" * 100_000, "stack.prometheus", "odd"),
        ("alertmanager", "/api/v2/status", {"config": {"original": "receivers: []"}}, "stack.alertmanager", "odd"),
        ("alertmanager", "/api/v2/status", [1, 2], "stack.alertmanager", "odd"),
        ("grafana", "/api/dashboards/uid", None, "stack.dashboards", "broken"),
        ("grafana", "/api/datasources/uid", None, "stack.datasources", "broken"),
    ],
    ids=["no-otlp", "no-exemplars", "no-rules", "rules-too-deep", "no-receiver", "another-shape", "no-dashboards", "no-sources"],
)
def test_a_server_that_is_set_up_otherwise_is_said(stack, server, path, answer, check, state):
    stack.answers[server][path] = answer
    assert state in states(ask(examine_endpoint))[check]


def test_an_alertmanager_that_tells_by_mail_alone_is_well(stack):
    stack.answers["alertmanager"]["/api/v2/status"] = {"config": {"original": "receivers: [{email_configs: [{to: a@b}]}]"}}
    found = the(ask(examine_endpoint), "stack.alertmanager")
    assert (found.state, found.said.partition(";")[0]) == ("well", "it tells alerts by email")


@pytest.mark.parametrize(
    ("refused", "lost", "state"),
    [(0, 0, "well"), (3, 0, "well"), (3, 1, "odd"), (12, 0, "broken"), (12, 2, "broken")],
    ids=["all-taken", "taken-again", "some-lost", "tried-in-vain", "all-lost"],
)
def test_messages_that_reach_nobody_are_said_by_their_share(stack, refused, lost, state):
    stack.answers["alertmanager"]["/metrics"] = (
        'alertmanager_notification_requests_total{integration="webhook"} 12\n'
        f'alertmanager_notification_requests_failed_total{{integration="webhook"}} {refused}\n'
        'alertmanager_notification_requests_total{integration="email"} 0\n'
        'alertmanager_notifications_failed_total{integration="webhook",reason="clientError"} 0\n'
        f'alertmanager_notifications_failed_total{{integration="webhook",reason="other"}} {lost}\n'
    )
    found = the(ask(examine_endpoint), "stack.alertmanager")
    assert found.state == state
    assert ("reached nobody" in found.said) == (state != "well")


def test_a_rule_that_fails_is_named(stack):
    rules = [{"name": name, "health": "err" if name == RULES[0] else "ok"} for name in RULES]
    stack.answers["prometheus"]["/api/v1/rules"] = {"data": {"groups": [{"rules": rules}]}}
    assert RULES[0] in the(ask(examine_endpoint), "stack.rules").said


def test_a_collector_and_a_prometheus_of_ones_own_are_not_taken_for_the_stack(stack):
    for name in ("alertmanager", "jaeger", "loki", "grafana"):
        stack.down(name)
    found = ask(examine_endpoint)
    assert the(found, "stack").state == "left_out"
    assert not_well(found) == []


def test_the_single_container_is_known_by_its_collector_and_shows_no_more_than_its_ports(stack, collector):
    for name in ("health", "alertmanager", "jaeger", "loki"):
        stack.down(name)
    collector.otherwise = Answer(False, status(200, headers={"content-type": "application/json"}, body=b'{"partialSuccess":{}}').give)
    found = ask(examine_endpoint)
    assert not_well(found) == []
    assert states(found)["stack.servers"] == {"well", "left_out"}
    assert (the(found, "arrival.metrics").state, the(found, "arrival.traces").state) == ("well", "left_out")


def test_a_stack_on_ports_of_its_own_is_found_by_the_file_that_it_was_started_with(stack, monkeypatch, tmp_path):
    ports = tmp_path / "stack.env"
    names = (*(f"RAVI_PORT_{name}" for name in PORTS), "RAVI_PORT_OTLP_HTTP")
    ports.write_text("".join(f"{name}={os.environ[name]}\n" for name in names))
    for name in names:
        monkeypatch.delenv(name)
    assert "--env-file" in the(ask(examine_endpoint), "stack").advice
    found = ask(examine_endpoint, env_file=ports)
    assert not_well(found) == []
    assert the(found, "arrival.traces").state == "well"


def test_an_endpoint_elsewhere_has_no_stack_looked_at(stack, monkeypatch):
    monkeypatch.setenv("RAVI_PORT_OTLP_HTTP", "9")
    found = ask(examine_endpoint)
    assert the(found, "stack").state == "left_out"
    assert not any(check.startswith("arrival") for check in states(found))
    assert stack.asked == []
