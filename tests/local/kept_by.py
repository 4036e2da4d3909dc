"""Programs that keep what they do in a store, run as processes of their own, and what a test reads of that."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PRELUDE = """
import os, sys, time, threading
import openai, ravi_otel
from ravi_otel.testing import Answer, Failure, ScriptedLLM, Text
server = ScriptedLLM(Text("It will be there tomorrow.", usage=(30, 10))).__enter__()
client = openai.OpenAI(base_url=server.base_url, api_key="any", max_retries=0)
def ask(text="Where is my order?"):
    return client.chat.completions.create(model="gpt-4o-mini", messages=[{"role": "user", "content": text}])
"""


def environment(store: Path, **more: str) -> dict[str, str]:
    return os.environ | {"RAVI_STORE": str(store), "PYTHONPATH": str(ROOT), "RAVI_RAISE_BUGS": "1"} | more


def started(store: Path, program: str, *, first: str = "", **more: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", first + PRELUDE + textwrap.dedent(program)],
        env=environment(store, **more),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(store: Path, program: str, *, first: str = "", **more: str) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, which must be a good one."""
    process = started(store, program, first=first, **more)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def rows(store: Path, table: str, where: str = "1", order: str = "1") -> list[Mapping[str, Any]]:
    """Read a table of a store, without what is unknown or 0."""
    connection = sqlite3.connect(store / "runs.db")
    try:
        connection.row_factory = sqlite3.Row
        found = connection.execute(f"SELECT * FROM {table} WHERE {where} ORDER BY {order}").fetchall()
        return [{name: value for name, value in dict(row).items() if value is not None} for row in found]
    finally:
        connection.close()
