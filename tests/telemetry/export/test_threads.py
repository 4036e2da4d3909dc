"""Which threads of ours run, and in which process."""

from __future__ import annotations

import os
import threading
from collections import Counter
from typing import Any

import pytest
from misbehaving import Answer

from ravi_otel._telemetry import providers


def ours() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("ravi-otel")]


def in_a_forked_child() -> Counter[str]:
    """Give the names of the threads of ours that a child has after a fork, those of other tests' exports too."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.write(writing, " ".join(thread.name for thread in ours()).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with open(reading, "rb") as answer:  # noqa: PTH123 - a descriptor has no path
        told = answer.read().decode()
    os.waitpid(child, 0)
    return Counter(told.split())


@pytest.mark.filterwarnings("ignore:This process")  # Python's word on forks beside threads
def test_what_is_over_starts_no_thread_in_a_forked_child(collector, exporting):
    before, of_others = set(ours()), in_a_forked_child()
    exports = exporting()
    exports.spans("one")
    assert "ravi-otel-export" in in_a_forked_child() - of_others
    exports.end()
    for thread in set(ours()) - before:
        thread.join(20)
    assert in_a_forked_child() == of_others


@pytest.mark.parametrize(
    "env",
    [
        {"OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"},
        {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc", "OTEL_EXPORTER_OTLP_COMPRESSION": "deflate"},
    ],
)
def test_an_exporter_that_cannot_be_made_leaves_no_thread(monkeypatch, env):
    before = set(threading.enumerate())
    for name, value in {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", **env}.items():
        monkeypatch.setenv(name, value)
    signals = ["traces", "metrics", "logs"]
    providers.build(signals, signals, None, lambda _reason, _amount: None)
    left = set(threading.enumerate()) - before
    for thread in left:
        thread.join(2)
    assert [thread.name for thread in left if thread.is_alive()] == []


def test_a_request_that_was_given_up_and_has_ended_leaves_no_connection_open(collector, exporting):
    is_late, closed = threading.Event(), threading.Event()

    def trickle(handler: Any) -> None:
        handler.wfile.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nx: ")
        while not is_late.wait(0.02):
            handler.wfile.write(b"y")
        handler.wfile.write(b"\r\n\r\n")
        if not handler.rfile.readline():
            closed.set()

    collector.answers.append(Answer(False, trickle))
    exports = exporting(OTEL_EXPORTER_OTLP_TIMEOUT="1", OTEL_BSP_MAX_EXPORT_BATCH_SIZE="1")
    exports.spans("one")
    collector.wait(lambda: collector.received == ["one"])
    is_late.set()
    assert closed.wait(10)
