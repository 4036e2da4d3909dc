"""`ravi-otel stack`: with an engine that a script plays, and servers that answer on loopback as the real ones do."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from ravi_otel._cli.entry import commands
from ravi_otel._stack import files, servers

sys.path.insert(0, str(Path(__file__).parent))

from played_engine import ANSWERS, Handler, InTurn, Machine, serve


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, monkeypatch)


@pytest.fixture
def running(machine: Machine) -> Iterator[dict[str, ThreadingHTTPServer]]:
    """Have every server of the stack answer on the machine's ports."""
    answers = {path: (200, body) for path, body in ANSWERS.items()}
    asked = {server.name: server.asks for server in servers.CORE}
    started = {name: serve(machine.ports[port], answers) for name, port in asked.items()}
    started["otlp"] = serve(machine.ports["RAVI_PORT_OTLP_HTTP"], answers)
    yield started
    for server in started.values():
        server.shutdown()
        server.server_close()


def states(result: Result) -> dict[str, str]:
    return {each["server"]: each["state"] for each in json.loads(result.stdout)}


def test_status_asks_each_server_and_exits_with_0_when_all_are_ready(machine, running):
    done = machine.call("status", "--json")
    assert states(done) == dict.fromkeys(("collector", "prometheus", "alertmanager", "jaeger", "loki", "grafana"), "ready")
    assert done.exit_code == 0
    assert machine.asked("") == []


def test_status_needs_no_engine_and_says_how_to_start_what_does_not_run(machine):
    done = machine.call("status")
    assert done.exit_code == 1
    assert done.stdout.count("no answer") == 6
    assert "`ravi-otel stack up` starts it" in done.stderr


def test_a_server_that_is_not_ready_yet_says_so_in_its_own_words(machine, running):
    running["loki"].answers = {"/ready": (503, "Ingester not ready: waiting for 15s\x1b[31m after being ready")}
    done = machine.call("status", "--json")
    loki = next(each for each in json.loads(done.stdout) if each["server"] == "loki")
    assert (loki["state"], loki["said"]) == ("starting", "Ingester not ready: waiting for 15s after being ready")
    assert done.exit_code == 1


@pytest.mark.parametrize("answer", [(200, "<h1>Something else</h1>"), (404, "no"), (302, "there")])
def test_a_stranger_on_a_servers_port_is_not_taken_for_it(machine, running, answer):
    running["grafana"].answers = {"/api/health": answer}
    done = machine.call("status", "--json")
    assert states(done)["grafana"] == "stranger"
    assert states(done)["loki"] == "ready"


def test_status_of_the_single_container_asks_for_what_that_has(machine, running):
    done = machine.call("status", "--one", "--json")
    assert states(done) == dict.fromkeys(("collector", "prometheus", "grafana"), "ready")


def test_redis_is_asked_when_its_profile_is(machine, running, redis_server):
    machine.env_file.write_text(f"{machine.env_file.read_text()}RAVI_PORT_REDIS={redis_server.port}\n")
    assert states(machine.call("status", "--profile", "redis", "--json"))["redis"] == "ready"


def test_up_starts_the_shipped_files_waits_and_prints_what_a_program_is_told(machine, running):
    machine.engine()
    machine.tell("runs", "ravi-otel")
    done = machine.call("up", "--overlay", "production", "--profile", "redis", "--wait", "0")
    assert done.exit_code == 0, done.output
    place = machine.state / "ravi-otel" / "stack"
    file = place / "collector" / "compose.yaml"
    assert machine.asked("up ") == [f"docker compose -p ravi-otel -f {file} --profile redis up -d --remove-orphans"]
    assert list(files.listed(place)) == list(files.listed(files.shipped()))
    seen = machine.environment
    assert (seen["RAVI_OVERLAY_1"], seen["RAVI_OVERLAY_2"]) == ("production", "base")
    assert seen["RAVI_PORT_GRAFANA"] == str(machine.ports["RAVI_PORT_GRAFANA"])
    assert seen["RAVI_FILES_DIGEST"] == files.digest(place)
    told = [line for line in done.stdout.splitlines() if line.startswith("export ")]
    assert told == [
        f"export OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:{machine.ports['RAVI_PORT_OTLP_HTTP']}",
        "export OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf",
        f"export RAVI_LEDGER=redis://127.0.0.1:{machine.ports['RAVI_PORT_REDIS']}",
    ]


def test_up_waits_until_every_server_is_ready(machine, running):
    machine.engine()
    machine.tell("runs", "ravi-otel")
    running["loki"].answers = InTurn([(503, "not yet"), (503, "not yet"), (200, "ready")])
    done = machine.call("up")
    assert done.exit_code == 0, done.output
    assert "Waiting for loki ..." in done.stderr


def test_up_names_who_was_not_ready_in_time_and_where_to_look(machine, running):
    machine.engine()
    machine.tell("runs", "ravi-otel")
    running["loki"].answers = {"/ready": (503, "not yet")}
    running["grafana"].answers = {"/api/health": (503, "soon")}
    done = machine.call("up", "--wait", "0.01")
    assert done.exit_code == 1
    assert "Error: Not ready after 0.01 s: loki (not yet); grafana (soon)." in done.stderr
    assert "See: docker logs ravi-otel-loki-1; docker logs ravi-otel-grafana-1\n" in done.stderr
    assert "export " not in done.stdout


def test_a_port_that_is_taken_is_named_with_who_has_it_and_what_to_set(machine, running):
    machine.engine()
    done = machine.call("up")
    port = machine.ports["RAVI_PORT_OTLP_HTTP"]
    assert done.exit_code == 2
    assert f"Error: Port {port} on 127.0.0.1 is taken by " in done.stderr
    assert f"(process {os.getpid()}). Set RAVI_PORT_OTLP_HTTP to a free one" in done.stderr
    assert machine.asked("up ") == []


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("RAVI_PORT_GRAFANA=80x", "RAVI_PORT_GRAFANA='80x' is no port. Set it to a number from 1 to 65,535."),
        ("RAVI_PORT_GRAFANA=65536", "RAVI_PORT_GRAFANA='65536' is no port. Set it to a number from 1 to 65,535."),
        ("RAVI_PORT_LOKI=3\nRAVI_PORT_GRAFANA=3", "RAVI_PORT_GRAFANA and RAVI_PORT_LOKI are both 3. Set one of them to another port."),
    ],
)
def test_a_port_that_cannot_be_is_a_sentence(machine, line, said):
    machine.engine()
    machine.env_file.write_text(f"{machine.env_file.read_text()}{line}\n")
    done = machine.call("up")
    assert (done.exit_code, done.stderr) == (2, f"Error: {said}\n")


def test_without_an_engine_up_says_what_to_install_and_writes_nothing(machine):
    done = machine.call("up")
    assert done.exit_code == 2
    assert "Error: No compose was found: none of docker compose, docker-compose, podman compose and podman-compose" in done.stderr
    assert not machine.state.exists()


def test_a_folder_that_is_named_is_filled_without_an_engine_too(machine, tmp_path):
    done = machine.call("up", "--files", str(tmp_path / "mine"))
    assert (done.exit_code, "No compose was found" in done.stderr) == (2, True)
    assert files.digest(tmp_path / "mine") == files.digest(files.shipped())


@pytest.mark.parametrize(
    ("line", "way_out"),
    [
        ("RAVI_PORT_GRAFNA=3001", "Write RAVI_PORT_GRAFANA."),
        ("GRAFANA_TAGS=1", "Write GRAFANA_TAG."),
        ("RAVI_PORT_OF_NOBODY=3001", "has all of them."),
    ],
)
@pytest.mark.parametrize("command", ["up", "status"])
def test_a_setting_under_a_wrong_name_is_a_sentence(machine, command, line, way_out):
    machine.env_file.write_text(f"{line}\n")
    done = machine.call(command)
    assert done.exit_code == 2
    assert f"sets {line.partition('=')[0]}, which is no variable of the stack." in done.stderr
    assert done.stderr.endswith(f"{way_out}\n")


def test_down_does_not_ask_where_no_engine_would_do_it(machine):
    done = machine.call("down", "--volumes", answer="y\n")
    assert (done.exit_code, "No compose was found" in done.stderr, "Go on?" in done.stderr) == (2, True, False)


def test_what_a_stranger_answered_is_said_whole(machine, running):
    words = "something " * 12
    running["loki"].answers = {"/ready": (200, words)}
    assert f"loki: something else answers there: status 200, {words.strip()[:60]!r}"[:-1] in machine.call("status").stderr


def test_the_command_names_the_one_that_says_whether_telemetry_arrives():
    assert "`ravi-otel doctor`" in CliRunner().invoke(commands, ["stack", "--help"]).output
    assert (
        CliRunner().invoke(commands, ["stack", "doctor", "--help"]).output.splitlines()[2:]
        == (CliRunner().invoke(commands, ["doctor", "--help"]).output.splitlines()[2:])
    )


def test_a_docker_without_its_compose_is_told_apart(machine):
    machine.engine(version=None)
    done = machine.call("up")
    assert (done.exit_code, done.stderr.partition(".")[0]) == (2, "Error: Docker is installed without a compose")


def test_an_engine_that_does_not_answer_is_a_sentence_with_its_own_words(machine):
    machine.engine()
    machine.tell("down")
    done = machine.call("up")
    assert done.exit_code == 1
    said = "Cannot connect to the Docker daemon at unix:///x"
    assert done.stderr == f"Error: Docker is installed and does not answer ({said}). Start it, and try again.\n"
    assert not machine.state.exists()


@pytest.mark.parametrize(("name", "version", "least"), [("docker", "2.16.0", "2.17"), ("podman-compose", "1.0.6", "1.3")])
def test_a_compose_that_is_too_old_is_named_with_the_least_that_will_do(machine, name, version, least):
    machine.engine(name, version)
    done = machine.call("up")
    assert done.exit_code == 2
    assert f"is {version.rpartition('.')[0]} and {least} is needed. Install a newer one." in done.stderr


def test_a_newer_compose_is_taken_where_the_first_is_too_old(machine):
    machine.engine("docker-compose", "2.40.3")
    machine.engine("podman", "2.40.3")
    assert machine.call("up", "--wait", "0").exit_code == 0
    assert len(machine.asked("up ")) == 1
    assert machine.asked("up ")[0].startswith("docker-compose -p ravi-otel ")


def test_an_engine_that_fails_ends_up_with_status_1(machine):
    machine.engine()
    machine.tell("status", "17")
    done = machine.call("up")
    assert done.exit_code == 1
    assert "Error: docker compose up ended with status 17; what it said is above.\n" in done.stderr


def test_the_single_container_takes_no_profile_and_no_overlay(machine):
    machine.engine()
    done = machine.call("up", "--one", "--overlay", "bridge")
    assert (done.exit_code, "--one is a single container" in done.stderr) == (2, True)
    done = machine.call("up", "--one", "--wait", "0")
    assert done.exit_code == 0, done.output
    assert machine.asked("up ")[0].endswith("one.yaml up -d --remove-orphans")


def test_the_stack_and_the_single_container_do_not_run_at_once(machine):
    machine.engine()
    machine.tell("runs", "ravi-otel-one")
    done = machine.call("up")
    assert done.exit_code == 2
    assert "ravi-otel-one is running, and has the same ports. End it with `ravi-otel stack down` first." in done.stderr


def test_down_ends_what_runs_and_keeps_its_data(machine):
    machine.engine()
    machine.tell("runs", "ravi-otel")
    done = machine.call("down")
    assert (done.exit_code, done.stdout) == (0, "Ended: ravi-otel.\n")
    assert [line.rpartition(" --profile ")[2] for line in machine.asked("down ")] == ["redis down --remove-orphans"]


def test_down_with_volumes_asks_first(machine):
    machine.engine()
    refused = machine.call("down", "--volumes", answer="n\n")
    assert (refused.exit_code, machine.asked("down ")) == (1, [])
    assert machine.call("down", "--volumes", answer="y\n").exit_code == 0
    assert machine.call("down", "--volumes", "--yes").exit_code == 0
    assert [line.endswith("--volumes") for line in machine.asked("down ")] == [True] * 4


def test_down_where_nothing_runs_says_so(machine):
    machine.engine()
    assert machine.call("down").stdout == "Nothing of the stack was running.\n"


def test_a_folder_of_ones_own_is_filled_once_and_then_left_as_it_is(machine, tmp_path):
    machine.engine()
    mine = tmp_path / "mine"
    assert machine.call("up", "--wait", "0", "--files", str(mine)).exit_code == 0
    changed = mine / "collector" / "otelcol" / "base.yaml"
    changed.write_text("mine: true")
    assert machine.call("up", "--wait", "0", "--files", str(mine)).exit_code == 0
    assert changed.read_text() == "mine: true"
    assert machine.environment["RAVI_FILES_DIGEST"] == files.digest(mine) != files.digest(files.shipped())


def test_a_folder_that_holds_something_else_is_left_alone(machine, tmp_path):
    machine.engine()
    (tmp_path / "else").mkdir()
    (tmp_path / "else" / "thesis.txt").write_text("mine")
    done = machine.call("up", "--files", str(tmp_path / "else"))
    assert (done.exit_code, "else/collector/compose.yaml is not there. Name a folder" in done.stderr) == (2, True)
    assert [path.name for path in (tmp_path / "else").iterdir()] == ["thesis.txt"]


def test_down_fills_no_folder(machine, tmp_path):
    machine.engine()
    done = machine.call("down", "--files", str(tmp_path / "typo"))
    assert (done.exit_code, "typo/collector/compose.yaml is not there." in done.stderr) == (2, True)
    assert not (tmp_path / "typo").exists()


def test_the_callers_own_choice_of_compose_files_does_not_change_ours(machine, monkeypatch):
    machine.engine()
    monkeypatch.setenv("COMPOSE_FILE", "/elsewhere.yaml")
    monkeypatch.setenv("COMPOSE_PROFILES", "other")
    assert machine.call("up", "--wait", "0").exit_code == 0
    assert not [name for name in machine.environment if name.startswith("COMPOSE_")]


def test_a_secret_in_the_file_of_settings_is_not_printed(machine):
    machine.engine()
    machine.env_file.write_text(f"{machine.env_file.read_text()}SMTP_PASSWORD=hunter2\n")
    done = machine.call("up", "--wait", "0")
    assert machine.environment["SMTP_PASSWORD"] == "hunter2"
    assert "hunter2" not in done.output + done.stderr


def test_a_server_that_answers_byte_by_byte_is_given_up(machine, monkeypatch):
    monkeypatch.setattr(servers, "_PATIENCE_S", 0.1)
    stop = threading.Event()

    class Slow(Handler):
        def answer(self) -> None:
            self.send_response(200)
            self.end_headers()
            while not stop.wait(0.02):
                self.wfile.write(b"x")
                self.wfile.flush()

    server = ThreadingHTTPServer(("127.0.0.1", machine.ports["RAVI_PORT_GRAFANA"]), Slow)
    server.handle_error = lambda *_: None  # type: ignore[method-assign]  # the other side has gone, which is the point
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        assert states(machine.call("status", "--json"))["grafana"] != "ready"
    finally:
        stop.set()
        server.shutdown()
        server.server_close()
