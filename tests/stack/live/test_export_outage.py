"""Nothing is lost with a spool while a real collector is killed and comes back, not even over the end of the program."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest
from stack_process import wait_for
from stack_servers import Stack, running_stack

PROGRAM = """
import sys
from ravi_otel._telemetry import Pipeline

tracer = Pipeline().signals().tracer
for line in sys.stdin:
    tracer.start_span(line.strip()).end()
    print(line, end="", flush=True)
"""


class Program:
    """Be a program that ends a span for each line it reads."""

    def __init__(self, stack: Stack, service: str, spool: Path, protocol: str) -> None:
        env = {**os.environ, **stack.environment(service, protocol), "RAVI_EXPORT_SPOOL": str(spool)}
        self._process = subprocess.Popen([sys.executable, "-c", PROGRAM], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ends(self, *spans: str) -> None:
        into, out = _pipe(self._process.stdin), _pipe(self._process.stdout)
        for span in spans:
            into.write(f"{span}\n")
            into.flush()
            assert out.readline().strip() == span

    def finish(self) -> None:
        _pipe(self._process.stdin).close()
        _pipe(self._process.stdout).close()
        assert self._process.wait(60) == 0

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


def _pipe(pipe: IO[str] | None) -> IO[str]:
    assert pipe is not None
    return pipe


@pytest.fixture(scope="module")
def own() -> Iterator[Stack]:
    with running_stack(overlays=(), only=("collector", "jaeger", "prometheus")) as running:
        yield running


def names(stack: Stack, service: str) -> list[str]:
    return sorted(span["operationName"] for trace in stack.jaeger_search(service) for span in trace)


@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
def test_a_collector_that_is_killed_and_comes_back_has_every_span_once(own: Stack, tmp_path: Path, protocol: str):
    service = f"outage-{uuid.uuid4().hex[:8]}"
    sent = [f"span {number:03}" for number in range(300)]
    program = Program(own, service, tmp_path, protocol)
    try:
        program.ends(*sent[:50])
        wait_for(lambda: names(own, service) == sent[:50], "what was sent before")
        own.server("collector").kill()
        program.ends(*sent[50:250])
        wait_for(lambda: any(tmp_path.rglob("*.otlp")), "a batch on the disk")
        own.server("collector").start()
        program.ends(*sent[250:])
        wait_for(lambda: names(own, service) == sent, "every span in Jaeger", 60)
        program.finish()
    finally:
        program.kill()
    assert names(own, service) == sent
    assert not any(tmp_path.rglob("*.otlp"))


def test_what_a_program_left_on_the_disk_is_sent_by_the_next(own: Stack, tmp_path: Path):
    service = f"outage-{uuid.uuid4().hex[:8]}"
    sent = [f"span {number:03}" for number in range(100)]
    own.server("collector").kill()
    first = Program(own, service, tmp_path, "http/protobuf")
    first.ends(*sent[:50])
    first.finish()
    own.server("collector").start()
    second = Program(own, service, tmp_path, "http/protobuf")
    second.ends(*sent[50:])
    wait_for(lambda: names(own, service) == sent, "every span in Jaeger", 60)
    second.finish()
    assert names(own, service) == sent
