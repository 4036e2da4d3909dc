"""Settings: what is odd, what is broken, and what to write instead."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

import pytest
from asking_doctor import ask, not_well, states, the

from ravi_otel._stack.doctor import settings, telemetry
from ravi_otel._telemetry.export.spool import spooling

ROOT = Path(__file__).parents[3]
FINE = {
    "OTEL_EXPORTER_OTLP_ENDPOINT": "http://localhost:4318",
    "OTEL_SERVICE_NAME": "agents",
    "OTEL_RESOURCE_ATTRIBUTES": "deployment.environment.name=test",
}


@pytest.fixture
def fine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in FINE.items():
        monkeypatch.setenv(name, value)


def test_what_is_set_as_it_should_be_is_well(fine):
    found = ask(telemetry.examine_settings)
    assert not_well(found) == []
    assert {"settings.endpoint", "settings.service", "settings.environment", "settings.interval"} <= set(states(found))


@pytest.mark.parametrize(
    ("variables", "check", "state", "advice"),
    [
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": ""}, "settings.endpoint", "odd", "http://127.0.0.1:4318"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "localhost:4318"}, "settings.endpoint", "broken", "Write http:// or https://"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "ftp://localhost"}, "settings.endpoint", "broken", "Write http:// or https://"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://localhost:4318/v1/traces"}, "settings.endpoint", "broken", "Take /v1/traces out"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://[::1"}, "settings.endpoint", "broken", "such as http://localhost:4318"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://localhost:99999"}, "settings.endpoint", "broken", "such as http://localhost:4318"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://localhost:4317"}, "settings.endpoint", "odd", "OTEL_EXPORTER_OTLP_PROTOCOL=grpc"),
        (
            {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"},
            "settings.endpoint",
            "odd",
            "OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf, or the port to 4317",
        ),
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"}, "settings.protocol", "broken", "http/protobuf or grpc"),
        ({"OTEL_EXPORTER_OTLP_LOGS_ENDPOINT": "http://localhost:4318"}, "settings.endpoint", "odd", "with /v1/logs"),
        ({"OTEL_EXPORTER_OTLP_HEADERS": "authorization Bearer s3cret"}, "settings.headers", "broken", "NAME=VALUE"),
        ({"OTEL_EXPORTER_OTLP_TIMEOUT": "soon"}, "settings.export", "broken", "such as 10"),
        ({"OTEL_EXPORTER_OTLP_METRICS_COMPRESSION": "brotli"}, "settings.export", "broken", "gzip or none"),
        ({"OTEL_SDK_DISABLED": "true"}, "settings.export", "odd", "Unset OTEL_SDK_DISABLED"),
        ({"OTEL_SDK_DISABLED": "1"}, "settings.export", "odd", "OTEL_SDK_DISABLED=true"),
        ({"OTEL_EXPORTER_OTLP_TIMEOUT": "10000"}, "settings.export", "odd", "seconds such as 10"),
        ({"OTEL_TRACES_EXPORTER": "otpl"}, "settings.export", "broken", "OTEL_TRACES_EXPORTER=otlp"),
        ({"OTEL_METRICS_EXPORTER": "none"}, "settings.export", "odd", "OTEL_METRICS_EXPORTER=otlp"),
        ({"OTEL_METRIC_EXPORT_INTERVAL": "120000"}, "settings.interval", "odd", "at most 90000"),
        ({"OTEL_METRIC_EXPORT_INTERVAL": "soon"}, "settings.interval", "odd", "such as 60000"),
        ({"OTEL_SERVICE_NAME": ""}, "settings.service", "odd", "Set OTEL_SERVICE_NAME"),
        ({"OTEL_RESOURCE_ATTRIBUTES": "deployment.environment.name=a,oops"}, "settings.resource", "odd", "NAME=VALUE"),
        ({"OTEL_RESOURCE_ATTRIBUTES": "deployment.environment=a"}, "settings.environment", "odd", "deployment.environment.name=NAME"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else None,
)
def test_each_mistake_is_said_with_the_way_out(fine, monkeypatch, variables, check, state, advice):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    found = [each for each in not_well(ask(telemetry.examine_settings)) if each.check == check]
    assert [each.state for each in found] == [state], found
    assert advice in found[0].advice
    assert "s3cret" not in str(found)


def test_credentials_in_an_endpoint_are_odd_and_not_shown(fine, monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://bob:s3cret@localhost:4318/?key=hidden")
    found = ask(telemetry.examine_settings)
    assert "OTEL_EXPORTER_OTLP_HEADERS" in the(found, "settings.endpoint").advice
    assert not {"s3cret", "hidden", "bob"} & set(re.findall(r"\w+", str(found)))


def test_a_service_name_of_control_characters_reaches_no_terminal(fine, monkeypatch):
    monkeypatch.setenv("OTEL_SERVICE_NAME", "a\x1b[2Jgents\u202e")
    assert the(ask(telemetry.examine_settings), "settings.service").said == "the service is 'agents'"


def test_the_window_of_the_alerts_is_the_one_that_the_interval_is_held_against():
    rules = (ROOT / "collector" / "prometheus" / "rules" / "recording.yaml").read_text()
    assert telemetry.WINDOW_MS == 90_000
    assert "last_over_time(ravi_limit_used[90s])" in rules


def test_a_part_of_a_path_that_may_be_a_key_is_not_shown():
    assert telemetry.show("https://otlp.example/abcdefghijklmnopqrstuvwxyz0123/v1/traces") == "https://otlp.example/…/v1/traces"


# -- ours ---------------------------------------------------------------------------------------------------------


def test_every_variable_that_the_package_reads_is_known():
    read = {name for file in (ROOT / "ravi_otel").rglob("*.py") for name in re.findall(r'"(RAVI_[A-Z_]+[A-Z])"', file.read_text())}
    stack = set(re.findall(r"^(RAVI_\w+)=", (ROOT / "collector" / ".env").read_text(), re.MULTILINE))
    assert read - settings.OURS - stack == {"RAVI_FILES_DIGEST"}  # which compose alone is told


@pytest.mark.parametrize(
    ("wrong", "right", "state"),
    [
        ("RAVI_LEGDER", "RAVI_LEDGER", "broken"),
        ("RAVI_LEDGR", "RAVI_LEDGER", "broken"),
        ("RAVI_SPOOL", "RAVI_EXPORT_SPOOL", "odd"),
        ("RAVI_WARNAT", "RAVI_WARN_AT", "odd"),
        ("RAVI_PORT_GRAFNA", "RAVI_PORT_GRAFANA", "odd"),
    ],
)
def test_a_name_of_ours_written_wrong_is_said_with_the_one_that_was_meant(monkeypatch, wrong, right, state):
    monkeypatch.setenv(wrong, "redis://:s3cret@h/0")
    found = the(ask(settings.examine), "settings.names")
    assert (found.state, found.advice) == (state, f"Write {right}.")
    assert "s3cret" not in str(found)


def test_a_limit_of_no_kind_is_said_to_the_end_of_the_sentence(monkeypatch):
    monkeypatch.setenv("RAVI_LIMIT_TOKNS", "3")
    found = the(ask(settings.examine), "settings.policy")
    assert (found.state, found.said.endswith("\N{HORIZONTAL ELLIPSIS}")) == ("broken", False)
    assert "RAVI_LIMIT_TOKENS" in found.said


def test_a_policy_file_that_does_not_read_is_broken(tmp_path):
    policy = tmp_path / "policy.toml"
    policy.write_text('limits = ["tokns=3"]')
    found = the(ask(settings.examine, policy=policy), "settings.policy")
    assert found.state == "broken"
    assert "did you mean 'tokens'" in found.said


def test_limits_that_are_in_force_are_counted(monkeypatch):
    monkeypatch.setenv("RAVI_LIMIT_REQUESTS", "3")
    assert the(ask(settings.examine), "settings.policy").said == "1 limit from environment and policy file"


def test_limits_that_only_observe_are_odd(monkeypatch):
    monkeypatch.setenv("RAVI_LIMIT_REQUESTS", "3")
    monkeypatch.setenv("RAVI_ENFORCEMENT", "observe")
    assert [each.state for each in ask(settings.examine) if each.check == "settings.policy"] == ["well", "odd"]


def test_hosts_to_carry_to_without_a_key_are_odd(monkeypatch):
    monkeypatch.setenv("RAVI_CARRY_TO", "inner.example")
    assert "RAVI_CARRY_KEYS" in the(ask(settings.examine), "settings.carrying").advice


def test_a_key_that_cannot_be_used_is_broken_and_not_shown(monkeypatch):
    monkeypatch.setenv("RAVI_CARRY_KEYS", "s3cret")
    found = the(ask(settings.examine), "settings.carrying")
    assert found.state == "broken"
    assert "s3cret" not in str(found)


def test_a_lease_that_is_no_time_is_broken(monkeypatch):
    monkeypatch.setenv("RAVI_LEASE_S", "soon")
    assert the(ask(settings.examine), "settings.lease").state == "broken"


# -- the spool ----------------------------------------------------------------------------------------------------


@pytest.fixture
def spool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    place = tmp_path / "spool"
    monkeypatch.setenv("RAVI_EXPORT_SPOOL", str(place))
    return place


def test_a_spool_that_is_yet_to_be_made_is_well_and_is_not_made(spool):
    assert the(ask(settings.examine), "settings.spool").state == "well"
    assert not spool.exists()


def test_batches_that_have_waited_long_are_odd(spool):
    place = spool / "traces-3f9c0a1b2c3d4e5f"
    place.mkdir(mode=0o700, parents=True)
    batch = place / "01795380000000000000-4711-000001.otlp"
    batch.write_bytes(b"x" * 1_000)
    assert the(ask(settings.examine), "settings.spool").state == "well"
    os.utime(batch, (time.time() - 7_200,) * 2)
    found = the(ask(settings.examine), "settings.spool")
    assert found.state == "odd"
    assert "1 batches wait" in found.said
    assert batch.exists()


def test_what_the_export_made_and_others_may_use_is_named_alone(spool):
    place = spool / "traces-3f9c0a1b2c3d4e5f"
    place.mkdir(parents=True)
    spool.chmod(0o700)
    place.chmod(0o755)
    found = the(ask(settings.examine), "settings.spool")
    assert (found.state, found.advice) == ("broken", f"Run: chmod go= {place}")


def test_a_directory_that_others_may_write_is_no_spool_and_is_left_as_it_is(spool):
    (spool / "attack-others").mkdir(parents=True)
    spool.chmod(0o1777)
    found = the(ask(settings.examine), "settings.spool")
    assert (found.state, "chmod" in found.advice, "a directory of its own" in found.advice) == ("broken", False, True)


def test_what_others_keep_beside_our_batches_is_not_looked_at(spool):
    (spool / "traces-of-somebody").mkdir(parents=True)
    (spool / "traces-of-somebody").chmod(0o777)
    spool.chmod(0o755)
    assert the(ask(settings.examine), "settings.spool").state == "well"


def test_a_link_in_place_of_a_directory_of_ours_gets_no_command(spool, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    spool.mkdir(mode=0o700)
    (spool / "logs-3f9c0a1b2c3d4e5f").symlink_to(tmp_path / "elsewhere")
    found = the(ask(settings.examine), "settings.spool")
    assert (found.state, "chmod" in found.advice) == ("broken", False)


def test_a_spool_where_the_kernel_keeps_no_files_is_broken(monkeypatch):
    monkeypatch.setenv("RAVI_EXPORT_SPOOL", "/proc/nope")
    assert the(ask(settings.examine), "settings.spool").state == "broken"


@pytest.mark.parametrize("variable", ["RAVI_EXPORT_SPOOL_BYTES", "RAVI_EXPORT_SPOOL_AGE_S"])
@pytest.mark.parametrize("value", ["1MB", "0", "-1", "inf"])
def test_a_bound_of_the_spool_that_the_export_does_not_take_is_said_with_what_it_takes_instead(spool, monkeypatch, variable, value):
    usual = spooling()
    monkeypatch.setenv(variable, value)
    assert spooling() == usual
    found = [each for each in not_well(ask(settings.examine)) if each.check == "settings.spool"]
    assert [each.state for each in found] == ["odd"]
    assert usual is not None
    assert found[0].said.endswith(f"{usual.most_bytes if variable.endswith('BYTES') else usual.age_s} is used")


def test_a_spool_that_is_a_file_is_broken(spool):
    spool.write_text("")
    assert the(ask(settings.examine), "settings.spool").state == "broken"
