"""`ravi-otel doctor`: its status, its two shapes, and what it never shows."""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
import time

import pytest
from click.testing import CliRunner, Result

from ravi_otel._cli.entry import commands
from ravi_otel._stack.doctor import Inputs, broken, examine, left_out, odd, well, worst


@pytest.fixture(autouse=True)
def _own_store(tmp_path, monkeypatch):
    monkeypatch.setenv("RAVI_STORE", str(tmp_path / "kept"))


def doctor(*arguments: str) -> Result:
    return CliRunner(env={"COLUMNS": None}).invoke(commands, ["doctor", *arguments])


def test_what_is_odd_alone_ends_with_0():
    done = doctor()
    assert done.exit_code == 0, done.output
    assert "odd       settings.endpoint: no OTEL_EXPORTER_OTLP_ENDPOINT" in done.stdout
    assert "          -> Set OTEL_EXPORTER_OTLP_ENDPOINT" in done.stdout


def test_a_program_reads_the_same_as_json(collector):
    done = doctor("--json")
    told = json.loads(done.stdout)
    assert told["state"] == "odd"
    assert {tuple(each) for each in told["findings"]} == {("check", "state", "said", "advice")}
    assert {each["check"]: each["state"] for each in told["findings"]}["endpoint.traces"] == "well"
    assert all(each["advice"] for each in told["findings"] if each["state"] in ("odd", "broken"))


def test_what_is_said_of_an_endpoint_on_the_command_line_names_the_option():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        done = doctor("--endpoint", f"http://127.0.0.1:{taken.getsockname()[1]}")
    assert "settings.endpoint: --endpoint=http://127.0.0.1:" in done.stdout
    assert "or set --endpoint to where it is" in done.stdout
    assert "OTEL_EXPORTER_OTLP_ENDPOINT" not in done.stdout


def test_what_is_broken_ends_with_1(monkeypatch):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        done = doctor("--endpoint", f"http://127.0.0.1:{taken.getsockname()[1]}")
    assert done.exit_code == 1
    assert "broken    endpoint.connect" in done.stdout


def test_an_endpoint_on_the_command_line_goes_before_all_others_and_changes_nothing(collector, monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_LOGS_ENDPOINT", "http://127.0.0.1:9/v1/logs")
    before = dict(os.environ)
    done = doctor("--endpoint", collector.url, "--json")
    assert dict(os.environ) == before
    assert len(collector.received) == 3
    assert done.exit_code == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ("--endpoint", "nix://h"),
        ("--endpoint", "http://"),
        ("--endpoint", "localhost:4318"),
        ("--ledger", "rediss"),
        ("--policy", "/no/such/policy.toml"),
        ("--env-file", "/no/such/file"),
        ("--files", "/proc/self"),
        ("--timeout", "0"),
        ("--nonsense",),
    ],
    ids=" ".join,
)
def test_what_has_to_be_written_otherwise_ends_with_2(arguments):
    assert doctor(*arguments).exit_code == 2


def test_no_secret_is_shown(collector, monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url.replace("//", "//user:s3cret1@") + "/?token=s3cret2")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=s3cret3")
    monkeypatch.setenv("RAVI_LEDGER", "redis://:s3cret4@127.0.0.1:9/0")
    monkeypatch.setenv("RAVI_CARRY_KEYS", "s3cret5")
    for shape in ((), ("--json",)):
        done = doctor(*shape)
        assert "s3cret" not in done.output
        assert "settings.headers" in done.output


def test_a_header_that_cannot_be_read_is_not_shown_by_anybody(collector, monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization Bearer s3cret")
    before = logging.root.manager.disable
    done = doctor()
    assert logging.root.manager.disable == before
    assert "number 1 of its headers is no NAME=VALUE" in done.stdout
    assert "s3cret" not in done.output


def test_all_of_it_takes_no_longer_than_agreed(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as hung:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{hung.getsockname()[1]}")
        done = doctor("--timeout", "0.6", "--json")
    told = {each["check"]: each for each in json.loads(done.stdout)["findings"]}
    assert done.exit_code == 1
    assert told["packages.python"]["state"] == "well"
    assert {told[check]["state"] for check in ("endpoint.traces", "endpoint") if check in told} == {"broken"}


def test_a_check_that_hangs_leaves_what_was_found_and_is_itself_a_finding():
    never = threading.Event()

    def hangs(inputs):
        yield well("slow.first", "seen")
        never.wait()

    now = time.monotonic()
    found = examine(Inputs({}, now + 0.05), now + 0.1, {"slow": hangs, "quick": lambda inputs: [odd("quick", "a", "b")]})
    never.set()
    assert [(each.check, each.state) for each in found] == [("slow.first", "well"), ("slow", "broken"), ("quick", "odd")]


def test_a_check_that_fails_leaves_the_others(monkeypatch):
    monkeypatch.delenv("RAVI_RAISE_BUGS", raising=False)
    now = time.monotonic()
    found = examine(Inputs({}, now + 5), now + 5, {"bad": lambda inputs: 1 / 0, "good": lambda inputs: [well("good", "a")]})
    assert [(each.check, each.state) for each in found] == [("bad", "broken"), ("good", "well")]
    assert "ZeroDivisionError" in found[0].said


def test_the_whole_is_as_well_as_the_worst_that_was_looked_at():
    assert worst([well("a", "")]) == worst([left_out("a", "")]) == worst([]) == "well"
    assert worst([well("a", ""), odd("b", "", "")]) == "odd"
    assert worst([broken("a", "", ""), odd("b", "", "")]) == "broken"


def test_no_control_character_reaches_a_terminal():
    assert odd("a", "b\x1b[2Jc\r\nd", "\u202ee").said == "bc d"
