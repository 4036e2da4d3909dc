"""`ravi-otel stack status` knows the real servers by what they answer."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner
from stack_servers import Stack, running_stack

from ravi_otel._cli.entry import commands

PORTS = {
    "RAVI_PORT_OTLP_HTTP": ("collector", 4318),
    "RAVI_PORT_COLLECTOR_HEALTH": ("collector", 13133),
    "RAVI_PORT_PROMETHEUS": ("prometheus", 9090),
    "RAVI_PORT_ALERTMANAGER": ("alertmanager", 9093),
    "RAVI_PORT_JAEGER": ("jaeger", 16686),
    "RAVI_PORT_JAEGER_HEALTH": ("jaeger", 13133),
    "RAVI_PORT_LOKI": ("loki", 3100),
    "RAVI_PORT_GRAFANA": ("grafana", 3000),
}


def states(stack: Stack, monkeypatch: pytest.MonkeyPatch, *options: str) -> dict[str, str]:
    for name, (server, port) in PORTS.items():
        monkeypatch.setenv(name, str(stack.configs.port(server, port)))
    done = CliRunner().invoke(commands, ["stack", "status", "--json", *options])
    return {each["server"]: each["state"] for each in json.loads(done.stdout)}


def test_each_server_that_runs_is_ready_and_the_one_that_does_not_is_silent(stack: Stack, monkeypatch: pytest.MonkeyPatch):
    running = dict.fromkeys(("collector", "prometheus", "alertmanager", "jaeger", "loki"), "ready")
    assert states(stack, monkeypatch) == running | {"grafana": "silent"}


def test_the_collector_is_known_by_its_answer_to_nothing_where_it_has_no_port_for_health(stack: Stack, monkeypatch: pytest.MonkeyPatch):
    assert states(stack, monkeypatch, "--one") == {"collector": "ready", "prometheus": "ready", "grafana": "silent"}


def test_a_server_that_hangs_is_silent(monkeypatch: pytest.MonkeyPatch):
    with running_stack(overlays=(), only=("collector", "prometheus")) as own, own.server("prometheus").paused():
        told = states(own, monkeypatch)
    assert (told["collector"], told["prometheus"]) == ("ready", "silent")
