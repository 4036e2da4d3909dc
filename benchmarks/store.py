"""Measure what the local store costs: time of its thread and of the caller's for each call, and the room it takes.

    python benchmarks/store.py [--calls 1000000] [--content]

CPU time of threads is measured, not wall time, so other work on the machine changes little. A call is one that was really made once,
by a scripted model; its record is told again and again, as the engine tells it, in runs of a hundred calls.
"""

from __future__ import annotations

import argparse
import gc
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import openai

import ravi_otel
from ravi_otel._local.recorder import Recorder
from ravi_otel._local.store import Store
from ravi_otel._local.writer import Writer
from ravi_otel.hooks._events import CallRecord
from ravi_otel.hooks._listeners import Listener
from ravi_otel.testing import ScriptedLLM, Text

CALLS_A_RUN = 100
_ROOM = 5_000
_PROMPT = "Where is my order? It was to be here on Tuesday, and nobody answers the telephone. " * 10


class _Kept(Listener):
    """Keep what the engine told of one call and of the scopes around it."""

    def __init__(self) -> None:
        self.calls: list[CallRecord] = []
        self.scopes: list[Any] = []

    def scope_opened(self, scope: Any) -> None:
        self.scopes.append(scope)

    def call_ended(self, record: CallRecord) -> None:
        self.calls.append(record)


def _told(*, content: bool) -> _Kept:
    """Make one call in an agent of a run that has limits, and return what was told of it."""
    if content:
        os.environ["OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"] = "SPAN_ONLY"
    kept = _Kept()
    with (
        ScriptedLLM(Text("It will be there tomorrow. " * 10, usage=(300, 100))) as server,
        openai.OpenAI(base_url=server.base_url, api_key="any") as client,
        tempfile.TemporaryDirectory() as place,
    ):
        os.environ["RAVI_STORE"] = place
        with ravi_otel.instrument() as instrumentation:
            instrumentation.listen(kept)
            limits = ["cost=100usd", "tokens=100M"]
            with ravi_otel.run("desk", limits=limits, user_id="ann", tenant_id="acme", tags={"team": "x"}), ravi_otel.agent("clerk"):
                client.chat.completions.create(model="gpt-4.1-mini", messages=[{"role": "user", "content": _PROMPT}])
        del os.environ["RAVI_STORE"]
    return kept


class _TimedWriter(Writer):
    """Add up the CPU time of the thread that writes."""

    spent_ns = 0

    def flush(self, timeout_s: float) -> bool:
        began = time.thread_time_ns()
        try:
            return super().flush(timeout_s)
        finally:
            self.spent_ns += time.thread_time_ns() - began


def measure(calls: int, *, content: bool, say: Callable[[str], object] = print) -> dict[str, float]:
    """Tell the store of so many calls; return µs of our thread and of the caller's for each, and bytes of disk."""
    kept = _told(content=content)
    call, facts = kept.calls[0], kept.calls[0].facts
    numbers, runs = count(), count()
    with tempfile.TemporaryDirectory() as place:
        store = Store.open(Path(place) / "store")
        writer = _TimedWriter(store, name="benchmark")
        writer.leave()  # no thread: its work is done, and measured, by `flush`
        writer._leaving, writer.awake = False, True  # noqa: SLF001 - what is measured is how it works, and not when
        recorder = Recorder(writer)
        caller_ns = 0
        done = 0
        gc.collect()
        while done < calls:
            run = f"run-{next(runs)}"
            inside = replace(facts, run_id=run, scope_id=f"{run}-agent")
            told = [
                replace(call, facts=inside, op_id=f"b-{next(numbers)}", marks={}, retries=[]) for _ in range(min(CALLS_A_RUN, calls - done))
            ]
            began = time.thread_time_ns()
            for record in told:
                recorder.call_started(record)
                recorder.call_ended(record)
            caller_ns += time.thread_time_ns() - began
            done += len(told)
            if done % _ROOM == 0:
                writer.flush(60.0)
        writer.flush(60.0)
        size = sum(each.stat().st_size for each in store.root.iterdir() if each.is_file())
        figures = {"thread_us": writer.spent_ns / calls / 1e3, "caller_us": caller_ns / calls / 1e3, "bytes": size / calls}
        with_or = "with" if content else "without"
        say(
            f"{calls:,} calls {with_or} content: {figures['thread_us']:.1f} µs of our thread and {figures['caller_us']:.2f} µs of the "
            f"caller's each, {figures['bytes']:,.0f} bytes on disk each"
        )
        rows = store.connect().execute("SELECT count(*), sum(input_tokens) FROM calls").fetchone()
        summed = store.connect().execute("SELECT sum(calls), sum(input_tokens) FROM hourly").fetchone()
        if rows[0] != calls or tuple(rows) != tuple(summed):
            raise SystemExit(f"not all of it is there: {tuple(rows)} of {calls}, summed up {tuple(summed)}")
    return figures


def main() -> None:
    """Print the figures."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--calls", type=int, default=1_000_000)
    options.add_argument("--content", action="store_true", help="with what is said, the same prompt in each call of a run")
    chosen = options.parse_args()
    measure(chosen.calls, content=chosen.content)


if __name__ == "__main__":
    main()
