"""Measure what only a process of its own can show: import time, exit time, and memory after many calls."""

from __future__ import annotations

import json
import os
import socket
import statistics
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
_BEFORE = "import openai, opentelemetry.sdk.trace, opentelemetry.sdk.metrics, opentelemetry.sdk._logs"
_IMPORT = """
    import time
    {before}
    began = time.process_time()
    import {module}
    print(time.process_time() - began)
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
_MEMORY = """
    import gc, json, sys, tracemalloc
    sys.path.insert(0, {here!r})
    from around import our_variants
    from client import chat, sync_client
    call, found = chat(sync_client()), []
    with our_variants()["ravi-otel, SDK, 4 kinds of limits"]():
        for done in range(1, {calls} + 1):
            call()
            if done == {calls} // 5 or done == {calls}:
                gc.collect()
                pages = int(open("/proc/self/statm").read().split()[1]) if sys.platform == "linux" else 0
                found.append({{"calls": done, "rss_kib": pages * 4, "objects": len(gc.get_objects())}})
    print(json.dumps(found))
"""


def _python(program: str, python: str, **environ: str) -> tuple[str, float]:
    """Run a program; give what it printed, and the monotonic second at which it had ended."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    command = [python, "-c", textwrap.dedent(program)]
    ran = subprocess.run(command, check=True, capture_output=True, text=True, env=clean | environ, cwd=HERE.parent)
    return ran.stdout, time.monotonic()


def import_ms(module: str, python: str = sys.executable, runs: int = 15) -> float:
    """Give the CPU time that `import module` takes in a fresh process after `openai` and the SDK; the first run warms the disk."""
    program = _IMPORT.format(before=_BEFORE, module=module)
    return statistics.median([float(_python(program, python)[0]) for _ in range(runs + 1)][1:]) * 1_000


def _exit_ms(*, ours: bool, runs: int, **environ: str) -> float:
    took: list[float] = []
    for _ in range(runs + 1):
        printed, ended = _python(_EXIT.format(here=str(HERE), ours=ours), sys.executable, **environ)
        took.append(ended - float(printed.split()[-1]))
    return statistics.median(took[1:]) * 1_000


def exit_ms(runs: int = 5) -> dict[str, float]:
    """Give the wall time from a program's last line to the end of its process."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(64)  # takes connections and never answers
        port = silent.getsockname()[1]
        with socket.socket() as gone:
            gone.bind(("127.0.0.1", 0))
            refused = gone.getsockname()[1]
        return {
            "without us": _exit_ms(ours=False, runs=runs),
            "no collector configured": _exit_ms(ours=True, runs=runs),
            "a collector that refuses connections": _exit_ms(
                ours=True, runs=runs, OTEL_EXPORTER_OTLP_ENDPOINT=f"http://127.0.0.1:{refused}"
            ),
            "a collector that never answers": _exit_ms(ours=True, runs=runs, OTEL_EXPORTER_OTLP_ENDPOINT=f"http://127.0.0.1:{port}"),
        }


def memory(calls: int) -> list[dict[str, Any]]:
    """Give resident KiB and live objects after a fifth of the calls and after all, made with the SDK and four kinds of limits."""
    found: list[dict[str, Any]] = json.loads(_python(_MEMORY.format(here=str(HERE), calls=calls), sys.executable)[0])
    return found
