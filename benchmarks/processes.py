"""Measure what only a process of its own can show: what an import, a command and the end of a program take."""

from __future__ import annotations

import os
import socket
import statistics
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Mapping
from pathlib import Path

HERE = Path(__file__).parent
_BEFORE = "import openai, opentelemetry.sdk.trace, opentelemetry.sdk.metrics, opentelemetry.sdk._logs"
_IMPORT = """
    import sys, time
    {before}
    there, began = len(sys.modules), time.process_time()
    import {module}
    print(time.process_time() - began, sum(name.partition('.')[0] == 'ravi_otel' for name in sys.modules) or len(sys.modules) - there)
"""
_EXIT = """
    import sys, time
    sys.path.insert(0, {here!r})
    from client import chat, sync_client
    import opentelemetry.sdk.trace
    call = chat(sync_client())
    if {ours}:
        import ravi_otel
        ravi_otel.instrument()
    for _ in range(20):
        call()
    print(time.monotonic(), flush=True)
"""


def environment(**more: str) -> dict[str, str]:
    """Return the environment without what would configure us or the SDK."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "RAVI_"))} | more


def _cpu_s(command: list[str], tree: Mapping[str, str]) -> float:
    """Return the CPU seconds of a process and of those that it has waited for."""
    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.Popen(
            command, env=environment(**tree), cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}")
    return usage.ru_utime + usage.ru_stime


class Starts:
    """Start programs of one environment, once a round, and note what each took."""

    def __init__(self, python: str, module: str, tree: Mapping[str, str]) -> None:
        self._python, self._module, self._tree = python, module, tree
        self.took: dict[str, list[float]] = {}

    def round(self, rows: set[str]) -> None:
        """Start what the rows need."""
        if rows & {"import", "modules"}:
            program = textwrap.dedent(_IMPORT.format(before=_BEFORE, module=self._module))
            ran = subprocess.run(
                [self._python, "-c", program],
                check=True,
                capture_output=True,
                text=True,
                env=environment(**self._tree),
                cwd=tempfile.gettempdir(),
            )
            seconds, modules = ran.stdout.split()
            self._note("import", float(seconds) * 1e3)
            self._note("modules", float(modules))
        if self._module == "ravi_otel" and rows & {"help", "run"}:
            plain = _cpu_s([self._python, "-c", "pass"], self._tree) * 1e3
            if "help" in rows:
                self._note("help", _cpu_s([self._python, "-m", "ravi_otel", "--help"], self._tree) * 1e3 - plain)
            if "run" in rows:
                command = [self._python, "-m", "ravi_otel", "run", "--", self._python, "-c", "pass"]
                self._note("run", _cpu_s(command, self._tree) * 1e3 - plain)

    def _note(self, row: str, figure: float) -> None:
        self.took.setdefault(row, []).append(figure)

    def medians(self) -> dict[str, float]:
        """Return the median of each row."""
        return {row: statistics.median(took) for row, took in self.took.items()}


def exit_ms(tree: Mapping[str, str], runs: int) -> dict[str, float]:
    """Return the wall time from a program's last line to the end of its process: without us, with us, and with a silent collector."""

    def once(*, ours: bool, **more: str) -> float:
        command = [sys.executable, "-c", textwrap.dedent(_EXIT.format(here=str(HERE), ours=ours))]
        ran = subprocess.run(
            command, check=True, capture_output=True, text=True, env=environment(**tree, **more), cwd=tempfile.gettempdir()
        )
        return (time.monotonic() - float(ran.stdout.split()[-1])) * 1e3

    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(64)  # takes connections and never answers
        collector = f"http://127.0.0.1:{silent.getsockname()[1]}"
        took = [(once(ours=False), once(ours=True), once(ours=True, OTEL_EXPORTER_OTLP_ENDPOINT=collector)) for _ in range(runs)]
    without, plain, dead = (statistics.median(column) for column in zip(*took, strict=True))
    return {"without us": without, "with us": plain, "with a collector that never answers": dead}
