"""Packages: what is installed, within which range, and what to install instead."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from asking_doctor import ask, not_well, states, the

from ravi_otel._runtime.patching import is_within
from ravi_otel._stack.doctor import packages

NEEDED = ("openai<4,>=1.66", "opentelemetry-api<2,>=1.40", "opentelemetry-sdk<2,>=1.40", "opentelemetry-exporter-otlp-proto-http<2,>=1.40")
FINE = {"openai": "2.1.0", "opentelemetry-api": "1.45.1", "opentelemetry-sdk": "1.45.1", "opentelemetry-exporter-otlp-proto-http": "1.45.1"}
GRPC = "opentelemetry-exporter-otlp-proto-grpc<2,>=1.40; extra == 'grpc'"


@pytest.fixture
def has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Give `has(versions)`: from then on these distributions are installed, and ravi-otel, and no others."""
    monkeypatch.setattr(sys, "path", [str(tmp_path)])

    def install(versions: Mapping[str, str], needed: tuple[str, ...] = NEEDED) -> None:
        for name, version in {**versions, "ravi-otel": "0.1.0"}.items():
            place = tmp_path / f"{name.replace('-', '_')}-{version}.dist-info"
            place.mkdir()
            lines = [f"Requires-Dist: {each}" for each in needed] if name == "ravi-otel" else []
            (place / "METADATA").write_text("\n".join(["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}", *lines, "", ""]))

    return install


def test_what_is_installed_here_is_well():
    found = ask(packages.examine)
    assert [each for each in found if each.state == "broken"] == []
    assert {"packages.python", "packages.openai", "packages.sdk", "packages.needed", "packages.extras"} <= set(states(found))


def test_versions_within_their_range_are_well(has):
    has(FINE)
    assert not_well(ask(packages.examine)) == []


@pytest.mark.parametrize(
    ("but", "check", "state", "advice"),
    [
        ({"openai": "4.0.0"}, "packages.openai", "broken", "pip install 'openai<4,>=1.66'"),
        ({"openai": "1.60.2"}, "packages.openai", "broken", "pip install 'openai<4,>=1.66'"),
        ({"opentelemetry-sdk": "1.44.0"}, "packages.opentelemetry", "broken", "pip install 'opentelemetry-api==1.44.0'"),
        (
            {"opentelemetry-exporter-otlp-proto-http": "1.44.0"},
            "packages.exporter",
            "odd",
            "pip install 'opentelemetry-exporter-otlp-proto-http~=1.45.1'",
        ),
        ({"langfuse": "3.0.0"}, "packages.others", "odd", "Switch its instrumentation"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else None,
)
def test_what_does_not_fit_is_said_with_the_command_that_mends_it(has, but, check, state, advice):
    has({**FINE, **but})
    found = the(not_well(ask(packages.examine)), check)
    assert found.state == state
    assert advice in found.advice


def test_without_openai_all_else_is_looked_at(has):
    has({name: version for name, version in FINE.items() if name != "openai"})
    found = ask(packages.examine)
    assert the(found, "packages.openai").state == "odd"
    assert the(found, "packages.sdk").state == "well"


def test_the_extra_of_a_protocol_that_is_chosen_is_named_where_it_is_missing(has, monkeypatch):
    has(FINE, (*NEEDED, GRPC))
    assert the(ask(packages.examine), "packages.extras").state == "left_out"
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    assert "grpc (opentelemetry-exporter-otlp-proto-grpc)" in the(ask(packages.examine), "packages.extras").said
    found = the(ask(packages.examine), "packages.exporter")
    assert (found.state, found.advice) == ("broken", "Run: pip install 'ravi-otel[grpc]'")


def test_another_instrumentation_of_the_client_is_named_with_what_becomes_of_its_spans(has):
    has({**FINE, "opentelemetry-instrumentation-openai-v2": "2.4b0"})
    found = the(ask(packages.examine), "packages.others")
    assert found.state == "well"
    assert "we make none" in found.said


@pytest.mark.parametrize(
    ("version", "versions", "within"),
    [
        ("1.40", ">=1.40,<2", True),
        ("1.40.0rc1", ">=1.40,<2", True),
        ("2.0", ">=1.40,<2", False),
        ("1.9", ">=1.40", False),
        ("10.0", "<9,>=5", False),
        ("1.45.7", "~=1.45.1", True),
        ("1.46.0", "~=1.45.1", False),
        ("0.65b0", "", True),
        ("unknown", ">=1", True),
        ("1.0", "!=1.0", False),
    ],
)
def test_a_version_is_within_its_range_or_not(version, versions, within):
    assert is_within(version, versions) is within
