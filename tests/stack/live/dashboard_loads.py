"""Start the parts of the load that makes every metric move, each as a service of its own."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dashboard_files import selectors
from stack_servers import Stack, program_environment

PROGRAM = Path(__file__).parent / "dashboard_load.py"
SERVICES = {"all": "fleet", "latest": "fleet-latest", "lossy": "fleet-lossy", "storeless": "fleet-storeless"}

AT_A_FAULT = re.compile("otelcol_exporter_(send|enqueue)_failed_.*|otelcol_processor_memory_limiter_refused_.*")
"""Counters of the collector that are not there before their first count: a stack that works has none of them."""

BY_WAY = re.compile(r"sum by \(integration\) \(.*alertmanager_.*\) > 0")
"""Of the ways that messages take, those on which some did not arrive."""


@contextlib.contextmanager
def load(stack: Stack, url: str, part: str) -> Iterator[None]:
    """Run a part of the load until it has done all that it does, and go on with it until the end."""
    settings = {"RAVI_TIME_PER_OUTPUT_CHUNK": "1"}
    if part == "latest":
        settings["OTEL_SEMCONV_STABILITY_OPT_IN"] = "gen_ai_latest_experimental"
    if part == "lossy":  # spans have nowhere to go, and little room to wait
        settings |= {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:9/v1/traces"}
        settings |= {"OTEL_BSP_MAX_QUEUE_SIZE": "4", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "2"}
    program = subprocess.Popen(
        [sys.executable, str(PROGRAM), url, part],
        env=program_environment(stack, **stack.environment(SERVICES[part]), **settings),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert program.stdout is not None
        assert program.stdout.readline() == "moving\n"
        yield
        program.communicate("stop\n", timeout=60)
        assert program.returncode == 0
    finally:
        program.kill()
        program.communicate()


def excused(query: str, stack: Stack) -> bool:
    """Tell whether a query asks for faults alone, or for alerts where none is declared."""
    if BY_WAY.fullmatch(query):
        return True
    names = {_named(selector) for selector in selectors(query)}
    if names == {"ALERTS"}:
        return not [rule for rule in stack.rules() if rule["type"] == "alerting"]
    return all(AT_A_FAULT.fullmatch(re.sub(r"\(_total\)\?", "", name)) for name in names)


def _named(selector: Any) -> str:
    return selector.name or next(matcher.value for matcher in selector.matchers.matchers if matcher.name == "__name__")
