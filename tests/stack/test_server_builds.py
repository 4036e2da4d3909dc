"""What builds the stack's servers: it builds what the configurations use, takes what is there, and says what is missing."""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
COLLECTOR = ROOT / "collector"
KINDS = ("receivers", "processors", "connectors", "exporters", "extensions")
MODULES = {"otlp_grpc exporter": "otlpexporter", "file_storage extension": "filestorage"}
"""Components whose module is not called like them."""

VERSIONS = dict(re.findall(r"^(\w+)_TAG=v?([\d.]+)$", (COLLECTOR / ".env").read_text(), re.MULTILINE))
PROGRAMS = {
    "otelcol-contrib": "COLLECTOR", "prometheus": "PROMETHEUS", "promtool": "PROMETHEUS", "alertmanager": "ALERTMANAGER",
    "amtool": "ALERTMANAGER", "jaeger": "JAEGER", "loki": "LOKI",
}  # fmt: skip


def used() -> Iterator[str]:
    """Give the module of each component that a configuration names."""
    for file in (COLLECTOR / "otelcol").glob("*.yaml"):
        for kind, components in yaml.safe_load(file.read_text()).items():
            for name in components if kind in KINDS else ():
                component = f"{name.split('/')[0]} {kind.removesuffix('s')}"
                yield MODULES.get(component, component.replace("_", "").replace(" ", ""))


def test_the_collector_is_built_of_what_its_configurations_use():
    manifest = yaml.safe_load((COLLECTOR / "builder.yaml").read_text())
    built = {one["gomod"].split()[0].rpartition("/")[2] for kind in KINDS for one in manifest[kind]}
    assert built == set(used())


def test_the_collector_is_built_in_the_version_that_the_compose_file_runs():
    manifest = yaml.safe_load((COLLECTOR / "builder.yaml").read_text())
    assert manifest["dist"]["version"] == VERSIONS["COLLECTOR"]
    assert {one["gomod"].split()[1] for kind in KINDS for one in manifest[kind]} == {f"v{VERSIONS['COLLECTOR']}"}


def ran(tmp_path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the script on a machine that has the programs below tmp_path/bin, none of ours, and no module proxy."""
    path = f"{tmp_path / 'bin'}:{Path(sys.executable).parent}:/usr/bin:/bin"
    environment = {"PATH": path, "HOME": str(tmp_path), "RAVI_SERVERS": str(tmp_path / "servers"), "GOPROXY": "https://127.0.0.1:9"}
    script = str(ROOT / "scripts" / "stack_servers.sh")
    return subprocess.run(["sh", script, *words], env=environment, capture_output=True, text=True, check=False, timeout=60)


def put(directory: Path, name: str, says: str) -> None:
    directory.mkdir(exist_ok=True)
    program = directory / name
    program.write_text(f"#!/bin/sh\necho '{says}'\n")
    program.chmod(0o755)


def test_programs_on_the_path_are_taken_when_their_version_is_ours(tmp_path: Path):
    for name, server in PROGRAMS.items():
        put(tmp_path / "bin", name, f"{name}, version v{VERSIONS[server]} (branch: HEAD)")
    answer = ran(tmp_path, "paths")
    assert answer.returncode == 0, answer.stderr
    assert dict(line.split(" ") for line in answer.stdout.splitlines()) == {name: str(tmp_path / "bin" / name) for name in PROGRAMS}


@pytest.mark.parametrize("other", ["9.{}", "{}1", "{}.1"])
def test_a_program_of_another_version_is_not_taken_and_the_way_out_is_said(tmp_path: Path, other: str):
    for name, server in PROGRAMS.items():
        put(tmp_path / "bin", name, f"version {VERSIONS[server] if name != 'loki' else other.format(VERSIONS['LOKI'])}")
    answer = ran(tmp_path, "paths")
    assert answer.returncode == 1
    assert answer.stderr == "stack servers: not all of them are there; build them with: make servers\n"


def test_a_machine_with_an_old_go_and_no_proxy_is_told_what_to_install(tmp_path: Path):
    put(tmp_path / "bin", "go", "go1.19.8")
    answer = ran(tmp_path, "build", "alertmanager")
    assert answer.returncode == 1
    assert "stack servers: They are built with Go >= 1.26.8, and there is none. Install it from https://go.dev/dl" in answer.stderr
    assert {entry.name for entry in (tmp_path / "servers").iterdir()} <= {".lock"}


def test_a_server_that_it_does_not_know_is_refused(tmp_path: Path):
    answer = ran(tmp_path, "build", "zipkin")
    assert answer.returncode == 1
    assert answer.stderr == "stack servers: collector/.env has no line ZIPKIN_TAG=<version>; it says which zipkin to build.\n"


def go_fetcher() -> ModuleType:
    spec = importlib.util.spec_from_file_location("fetch_go", ROOT / "scripts" / "fetch_go.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_go_that_is_fetched_is_the_one_that_the_script_asks_for():
    asked = re.search(r"^GO_VERSION=(.*)$", (ROOT / "scripts" / "stack_servers.sh").read_text(), re.MULTILINE)
    assert asked is not None
    assert {sum_of.split()[0] for sum_of in go_fetcher().SUMS} == {asked[1]}


def test_a_fetched_go_is_summed_as_the_checksum_database_sums_it(tmp_path: Path):
    archive = tmp_path / "module.zip"
    with zipfile.ZipFile(archive, "w") as writing:
        writing.writestr("m@v1/b", "second")
        writing.writestr("m@v1/a", "first")
    lines = "".join(f"{hashlib.sha256(text).hexdigest()}  m@v1/{name}\n" for name, text in (("a", b"first"), ("b", b"second")))
    with zipfile.ZipFile(archive) as reading:
        assert go_fetcher().sum_of(reading) == base64.b64encode(hashlib.sha256(lines.encode()).digest()).decode()


def test_a_go_with_another_sum_is_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    fetcher = go_fetcher()
    archive = tmp_path / "module.zip"
    with zipfile.ZipFile(archive, "w") as writing:
        writing.writestr("golang.org/toolchain@v0/bin/go", "not Go")
    opened: list[str] = []

    def give(address: str, timeout: float) -> Any:
        opened.append(address)
        return archive.open("rb")

    monkeypatch.setattr(fetcher.urllib.request, "urlopen", give)
    monkeypatch.setenv("GOPROXY", "off,https://goproxy.example/mirror/,direct")
    said = fetcher.main("1.26.8", str(tmp_path / "go"))
    assert "it is not used" in said
    assert opened[0].startswith("https://goproxy.example/mirror/golang.org/toolchain/@v/v0.0.1-go1.26.8.")
    assert not (tmp_path / "go").exists()
    assert list(tmp_path.iterdir()) == [archive]
