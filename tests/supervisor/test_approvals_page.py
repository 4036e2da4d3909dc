"""What docs/approvals.md shows is what happens."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from functools import partial
from pathlib import Path

from approval_desk import until

from ravi_otel.supervisor.approval._queue import QueueFile

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "approvals.md").read_text(encoding="utf-8")
(PROGRAM, _) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
COMMANDS = [line.removeprefix("$ ") for block in re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines()]


def test_the_program_waits_and_the_commands_that_are_shown_answer_it(tmp_path):
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("RAVI_", "OTEL_"))}
    environment = {**kept, "PYTHONPATH": str(ROOT), "COLUMNS": "120"}
    start = partial(subprocess.Popen, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    queue = QueueFile(tmp_path / ".ravi" / "approvals.db")
    with start([sys.executable, "-c", PROGRAM]) as program:
        try:
            rows = partial(queue.all, pending=True, most=2)
            (asked,) = until(lambda: queue.path.exists() and queue.retry(rows), 60)
            printed = []
            for command in COMMANDS:
                name, *words = shlex.split(command.replace(" ID", f" {asked.id[:8]}"))
                assert name == "ravi-otel"
                if words[0] == "audit":
                    assert program.communicate(timeout=60)[0] == "refunded 800.0\n"
                with start([sys.executable, "-m", "ravi_otel", *words]) as done:
                    printed.append(done.communicate(timeout=60)[0])
                assert done.returncode == 0, command
        finally:
            program.kill()
    assert asked.id[:8] in printed[0]
    assert '"amount_usd": 1200.0' in printed[1]
    assert "by anna" in printed[2]
    assert "refund-7.audit.jsonl: 6 entries as written" in printed[-1]
    assert queue.find(asked.id).outcome == "ok"
