"""`ravi-otel doctor` against the real servers: the whole chain well, and one of them down."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner
from stack_servers import Stack, running_stack

from ravi_otel._cli.entry import commands

PORTS = {
    "RAVI_PORT_OTLP_HTTP": ("collector", 4318),
    "RAVI_PORT_OTLP_GRPC": ("collector", 4317),
    "RAVI_PORT_COLLECTOR_HEALTH": ("collector", 13133),
    "RAVI_PORT_COLLECTOR_METRICS": ("collector", 8888),
    "RAVI_PORT_PROMETHEUS": ("prometheus", 9090),
    "RAVI_PORT_ALERTMANAGER": ("alertmanager", 9093),
    "RAVI_PORT_JAEGER": ("jaeger", 16686),
    "RAVI_PORT_JAEGER_HEALTH": ("jaeger", 13133),
    "RAVI_PORT_LOKI": ("loki", 3100),
    "RAVI_PORT_GRAFANA": ("grafana", 3000),
}
SIGNALS = ("traces", "metrics", "logs")
CHAIN = {f"{group}.{signal}": "well" for group in ("endpoint", "arrival") for signal in SIGNALS}
SET_UP = dict.fromkeys(("stack.servers", "stack.rules", "stack.alertmanager"), "well")


def told(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, *, within_s: int = 60, protocol: str = "http/protobuf"
) -> tuple[int, dict[str, dict]]:
    for name, (server, port) in PORTS.items():
        monkeypatch.setenv(name, str(stack.configs.port(server, port)))
    for name, value in stack.environment("doctor-tests", protocol).items():
        monkeypatch.setenv(name, value)
    done = CliRunner().invoke(commands, ["doctor", "--json", "--timeout", str(within_s)])
    return done.exit_code, {each["check"]: each for each in json.loads(done.stdout)["findings"]}


def states(found: dict[str, dict]) -> dict[str, str]:
    return {check: each["state"] for check, each in found.items()}


@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
def test_behind_the_production_overlay_all_is_well_and_the_span_is_kept(stack: Stack, monkeypatch, tmp_path, protocol):
    monkeypatch.setenv("RAVI_STORE", str(tmp_path / "kept"))
    status, found = told(stack, monkeypatch, protocol=protocol)
    assert (CHAIN | SET_UP).items() <= states(found).items(), found
    assert states(found)["stack.grafana"] == "odd"  # there is none among the servers of these tests
    assert status == 0, found


def test_the_whole_chain_is_well_and_a_store_that_is_down_is_named(monkeypatch, tmp_path):
    monkeypatch.setenv("RAVI_STORE", str(tmp_path / "kept"))
    with running_stack(overlays=()) as own:
        status, found = told(own, monkeypatch)
        assert (CHAIN | SET_UP).items() <= states(found).items(), found
        assert status == 0, found
        own.server("loki").kill()
        status, found = told(own, monkeypatch, within_s=10)
        assert (status, states(found)["stack.loki"], states(found)["arrival.logs"]) == (1, "broken", "left_out"), found
        assert "docker logs ravi-otel-loki-1" in found["stack.loki"]["advice"]
        assert states(found)["arrival.traces"] == "well"
