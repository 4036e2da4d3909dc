"""A collector of its own for each test, and providers of ours that export to it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from misbehaving import Collector, Exporting


@pytest.fixture
def collector() -> Iterator[Collector]:
    made = Collector()
    yield made
    made.close()


@pytest.fixture
def exporting(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Exporting]]:
    """Give `exporting(signal="traces", **env)`, which exports to `collector` unless the environment names another endpoint."""
    made: list[Exporting] = []

    def make(signal: str = "traces", **env: str) -> Exporting:
        for name, value in ({"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "OTEL_EXPERIMENTAL_RESOURCE_DETECTORS": "otel"} | env).items():
            monkeypatch.setenv(name, value)
        made.append(Exporting(signal))
        return made[-1]

    yield make
    for each in made:
        each.end(within_s=0.5)


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    return tmp_path / "spool"
