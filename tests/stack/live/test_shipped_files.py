"""The shipped files as the programs that read them see them: the collector's own check, and the loader of every compose."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
import yaml
from stack_configs import COLLECTOR
from stack_servers import ROOT, programs

from ravi_otel._stack import files

LAYERS = [(), ("production",), ("bridge",), ("production", "bridge")]


def collector(*arguments: str, overlays: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    layers = [f"--config={COLLECTOR / 'otelcol' / name}.yaml" for name in ("base", *overlays)]
    return subprocess.run(
        [programs("collector")["otelcol-contrib"], *arguments, *layers], capture_output=True, text=True, check=False, timeout=60
    )


@pytest.mark.parametrize("overlays", LAYERS, ids="+".join)
def test_the_collector_takes_its_configuration_with_every_overlay(overlays):
    done = collector("validate", overlays=overlays)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("overlays", LAYERS, ids="+".join)
def test_the_collector_merges_the_pipelines_that_the_overlays_mean(overlays):
    done = collector("print-config", overlays=overlays)
    assert done.returncode == 0, done.stderr
    pipelines = yaml.safe_load(done.stdout)["service"]["pipelines"]
    bridged = ["memory_limiter", *(["transform/bridge"] if "bridge" in overlays else [])]
    assert {name: pipeline.get("processors", []) for name, pipeline in pipelines.items()} == {
        "traces/in": bridged,
        "traces/out": ["tail_sampling"] if "production" in overlays else [],
        "metrics": bridged,
        "logs": [*bridged, "transform/event_name"],
    }


def test_the_single_containers_overlay_is_one_the_collector_takes():
    layers = [f"--config={COLLECTOR / path}" for path in ("otelcol/base.yaml", "one/collector.yaml")]
    done = subprocess.run([programs("collector")["otelcol-contrib"], "validate", *layers], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.fixture(scope="module")
def loader() -> str:
    """Build what loads compose files, and give its path."""
    script = ["sh", str(ROOT / "scripts" / "stack_servers.sh")]
    subprocess.run([*script, "build", "compose"], check=True, timeout=250)
    return subprocess.run([*script, "paths", "compose"], check=True, capture_output=True, text=True).stdout.split()[1]


@pytest.mark.parametrize("name", ["compose.yaml", "one.yaml"])
def test_compose_loads_what_is_shipped(name: str, loader: str, tmp_path: Path):
    variables = files.settings(ROOT, environ={}) | {"RAVI_FILES_DIGEST": "0"}
    text = re.sub(r"\$\{(\w+):[?-]\}", lambda found: variables[found[1]], (COLLECTOR / name).read_text())
    (tmp_path / name).write_text(text)
    done = subprocess.run(
        [loader, name], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60, env={"PATH": os.environ["PATH"]}
    )
    assert done.returncode == 0, done.stderr
    assert set(yaml.safe_load(done.stdout)["services"]) == set(yaml.safe_load(text)["services"])
    (tmp_path / name).write_text(text.replace("mem_limit:", "memlimit:"))
    assert subprocess.run([loader, name], cwd=tmp_path, capture_output=True, check=False, timeout=60).returncode


@pytest.mark.parametrize(("name", "inside"), [("prometheus", "/etc/prometheus/rules"), ("one", "/etc/ravi-otel/rules")])
def test_prometheus_takes_its_configuration_and_finds_the_rules(name: str, inside: str, tmp_path: Path):
    shipped = (COLLECTOR / name / "prometheus.yaml").read_text()
    assert shipped.count(inside) == 1
    (tmp_path / "prometheus.yaml").write_text(shipped.replace(inside, str(COLLECTOR / "prometheus" / "rules")))
    check = [programs("prometheus")["promtool"], "check", "config", str(tmp_path / "prometheus.yaml")]
    done = subprocess.run(check, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("rules found") == len(list((COLLECTOR / "prometheus" / "rules").glob("*.yaml")))


def test_loki_takes_its_configuration():
    check = [programs("loki")["loki"], "-verify-config", f"-config.file={COLLECTOR / 'loki' / 'loki.yaml'}"]
    done = subprocess.run(check, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
