"""Collectors on loopback that misbehave at command, and one group of checks asked by itself."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "telemetry" / "export"))
sys.path.insert(0, str(Path(__file__).parent))

from misbehaving import Collector


@pytest.fixture(autouse=True)
def _no_variable_for_the_tests_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RAVI_LONG", "RAVI_RECORDINGS", "RAVI_WRITE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    """A collector to which the environment leads."""
    made = Collector()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", made.url)
    monkeypatch.setenv("OTEL_EXPERIMENTAL_RESOURCE_DETECTORS", "otel")
    yield made
    made.close()
