from __future__ import annotations

import socket
import threading
import time

import pytest
from click.testing import CliRunner
from opentelemetry.sdk.trace import TracerProvider
from stored_runs import Shelf

from ravi_otel._cli.entry import Commands
from ravi_otel._cli.replay import _progress, replay
from ravi_otel._local import otlp as _otlp
from ravi_otel.testing import OtlpReceiver


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.setenv("RAVI_STORE", str(tmp_path / "store"))
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT", raising=False)
    return Shelf(tmp_path / "store")


@pytest.fixture
def receiver():
    with OtlpReceiver() as made:
        yield made


def recorded(store, name="r", spans=3, ago=0.0):
    launch = store.add(name, ago=ago)
    tracer = TracerProvider(shutdown_on_exit=False).get_tracer("t")
    made = [tracer.start_span(f"{name}-{number}") for number in range(spans)]
    for span in made:
        span.end()
    keep(store, launch, _otlp.batch("traces", made)[0], spans)
    return launch.launch


def keep(store, launch, text, records):
    store.put("otlp", at=1, signal="traces", process=f"p-{launch.launch}", records=records, data=text)


def invoke(*arguments):
    return CliRunner().invoke(Commands("g", {"replay": replay}), ["replay", *arguments])


def test_the_latest_run_is_sent_and_said(store, receiver):
    run = recorded(store)
    done = invoke("--endpoint", receiver.url)
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout == f"Sent 3 spans of run {run} to {receiver.url}.\n"
    assert len(receiver.spans) == 3


def test_a_run_is_found_by_the_end_of_its_id(store, receiver):
    first, _ = recorded(store, "first", 1, ago=60), recorded(store, "second")
    assert invoke(first[-6:], "--endpoint", receiver.url, "--protocol", "http/json").exit_code == 0
    assert [span.name for span in receiver.spans] == ["first-0"]


def test_the_endpoint_may_come_from_the_environment(store, receiver, monkeypatch):
    recorded(store)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-team=search")
    assert invoke("--header", "x-more=1").exit_code == 0
    assert (receiver.headers[0]["x-team"], receiver.headers[0]["x-more"]) == ("search", "1")


def test_records_that_could_not_be_read_are_said(store, receiver):
    recorded(store, ago=60)
    keep(store, store.add("latest"), "[[", 3)
    done = invoke("--endpoint", receiver.url)
    assert (done.exit_code, done.stderr) == (0, "3 records could not be read and were left out.\n")


def test_a_run_that_holds_nothing_is_said(store, receiver):
    run = store.add("empty").launch
    done = invoke("--endpoint", receiver.url)
    assert (done.exit_code, done.stdout) == (0, f"Run {run} holds nothing to send.\n")


def test_of_a_run_in_a_process_that_run_alone_is_sent(store, receiver):
    recorded(store)
    store.run("r-1")
    span = TracerProvider(shutdown_on_exit=False).get_tracer("t").start_span("inner")
    span.end()
    store.put("otlp", at=1, signal="traces", process="p1", run="r-1", records=1, data=_otlp.batch("traces", [span])[0])
    assert invoke("r-1", "--endpoint", receiver.url).exit_code == 0
    assert [each.name for each in receiver.spans] == ["inner"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["--endpoint", "localhost:4318"],
        ["--endpoint", "http://h", "--protocol", "smoke"],
        ["--endpoint", "http://h", "--header", "nothing"],
        ["--endpoint", "http://h", "--signal", "profiles"],
        ["nosuchrun", "--endpoint", "http://h"],
        [],
    ],
)
def test_what_cannot_be_used_is_one_sentence_and_exit_code_2(store, arguments):
    recorded(store)
    done = invoke(*arguments)
    assert done.exit_code == 2
    assert done.stderr.splitlines()[-1].startswith("Error: ")
    assert "Traceback" not in done.stderr


def test_without_a_store_it_is_one_sentence_and_exit_code_2(tmp_path, monkeypatch):
    monkeypatch.setenv("RAVI_STORE", str(tmp_path / "none"))
    done = invoke("--endpoint", "http://h")
    assert (done.exit_code, done.stderr.startswith("Error: there is no store at")) == (2, True)


def test_a_backend_that_is_not_there_is_one_sentence_and_exit_code_1(store):
    recorded(store)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        done = invoke("--endpoint", url)
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr == f"Error: the backend at {url} cannot be reached: nothing listens there.\n"


def test_a_backend_that_refuses_is_one_sentence_and_exit_code_1(store, receiver):
    recorded(store)
    receiver.behave(status=401)
    done = invoke("--endpoint", receiver.url)
    assert done.exit_code == 1
    assert done.stderr == f"Error: the backend at {receiver.url} answered 401. Give the credentials it wants with --header.\n"


def test_a_signal_the_backend_does_not_take_can_be_left_out(store, receiver):
    recorded(store)
    assert invoke("--endpoint", receiver.url, "--signal", "metrics", "--signal", "logs").stdout.endswith("holds nothing to send.\n")
    assert receiver.attempts == 0


def _waiting(seen, word, timeout_s=10.0):
    """Let the timer's thread come to its turn."""
    told = ""
    end = time.monotonic() + timeout_s
    while word not in told and time.monotonic() < end:
        threading.Event().wait(0.01)
        told += seen().err
    return told


def test_progress_is_a_bar_on_a_terminal_after_a_second(monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    with _progress(100) as advanced:
        advanced(50)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr("ravi_otel._cli.replay._PATIENCE_S", 0)
    with _progress(100) as advanced:
        advanced(50)
        assert "Sending" in _waiting(capsys.readouterr, "Sending")


def test_progress_is_one_line_elsewhere(monkeypatch, capsys):
    monkeypatch.setattr("ravi_otel._cli.replay._PATIENCE_S", 0)
    with _progress(2_500_000) as advanced:
        advanced(50)
        assert _waiting(capsys.readouterr, "\n") == "Sending 2.5 MB ...\n"
