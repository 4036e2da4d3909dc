"""What docs/stack.md says is what the files and commands say."""

from __future__ import annotations

import re
from pathlib import Path

import click
import yaml

from ravi_otel._cli.stack import stack
from ravi_otel._stack import files, servers
from ravi_otel._stack.servers import HOST, port

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "stack.md").read_text(encoding="utf-8")
SETTINGS = files.settings(ROOT, environ={})


def config(name: str) -> dict:
    return yaml.safe_load((ROOT / "collector" / name).read_text())


def test_every_setting_is_on_the_page_and_no_other():
    named = {name for name in re.findall(r"`([A-Z][A-Z0-9_]+)(?:=[^`]*)?`", PAGE) if not name.startswith("OTEL_")}
    assert named == set(SETTINGS)


def test_every_command_and_option_on_the_page_is_there():
    options = {option for command in stack.commands.values() for each in command.params for option in each.opts}
    for subcommand, rest in re.findall(r"ravi-otel stack (\w+)([^\n`|]*)", PAGE):
        assert subcommand in stack.commands
        assert {word for word in rest.split() if word.startswith("--")} <= options
    assert {option for option in re.findall(r"`(--[\w-]+)`", PAGE) if option != "--config"} <= options


def test_what_up_prints_is_on_the_page():
    for server in servers.CORE:
        assert f"{server.name:<13} {f'http://{HOST}:{port(SETTINGS, server.shows)}':<24} {server.what}\n" in PAGE
    for line in ("OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:4318", "OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf"):
        assert f"\nexport {line}\n" in PAGE


def test_the_versions_that_are_needed_are_those_that_are_asked_for():
    least = {kind.name: ".".join(map(str, kind.least)) for kind in servers.COMMANDS}
    assert f"compose {least['docker compose']} or newer" in PAGE
    assert f"podman-compose {least['podman-compose']} or newer" in PAGE


def test_the_figures_are_those_of_the_configurations():
    base, production = config("otelcol/base.yaml"), config("otelcol/production.yaml")["processors"]["tail_sampling"]
    policies = {policy["name"]: policy for policy in production["policies"]}
    queue = base["exporters"]["otlp_grpc/jaeger"]["sending_queue"]["queue_size"]
    assert f"at most {queue // 2**20} MiB a store" in PAGE
    assert f"past {base['connectors']['span_metrics']['aggregation_cardinality_limit']:,} series" in PAGE
    assert f"span longer than {policies['slow']['latency']['threshold_ms'] // 1_000} s" in PAGE
    assert f"| {policies['rest']['probabilistic']['sampling_percentage']} % of the rest" in PAGE
    assert f"At most {production['num_traces']:,} traces wait at once" in PAGE
    waits = (production["decision_wait"], production["decision_wait_after_root_received"])
    assert waits == ("1h", "1m")
    assert "for a minute after its root has come, or for an hour" in PAGE
    kept = config("prometheus/prometheus.yaml")["storage"]["tsdb"]["retention"]
    assert (kept["time"], kept["size"]) == ("15d", "4GB")
    assert config("jaeger/jaeger.yaml")["extensions"]["jaeger_storage"]["backends"]["disk"]["badger"]["ttl"]["spans"] == "72h"
    assert config("loki/loki.yaml")["limits_config"]["retention_period"] == "168h"
    assert "Prometheus keeps 15 days or 4 GB, Jaeger 3 days, Loki 7 days." in PAGE


def test_the_help_says_what_the_exit_statuses_are():
    told = stack.get_help(click.Context(stack))
    assert [line.split()[0] for line in told.partition("Exit status:")[2].splitlines()[1:4]] == ["0", "1", "2"]
