"""Under `ravi-otel run` a program that knows nothing of us is held to its limits over MCP, too."""

import os
import subprocess
import sys
from pathlib import Path

PROGRAM = Path(__file__).parent / "programs" / "mcp_desk.py"


def test_three_of_eight_tools_run_and_the_status_is_4(tmp_path):
    command = [sys.executable, "-m", "ravi_otel", "run", "--limit", "tool_calls=3", "--", sys.executable, str(PROGRAM)]
    environ = {**os.environ, "RAVI_STORE": str(tmp_path / "runs.db")}
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=environ, cwd=tmp_path)
    assert ended.stdout.splitlines() == [f"3 notes on q{number}" for number in range(3)], ended.stderr
    assert ended.returncode == 4, ended.stderr
    assert "tool_calls" in ended.stderr
