"""Print the table of what became of every endpoint, below the tests' own summary."""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # as the modules beside the tests have it

from provider_libraries import CASES
from provider_table import TABLE


def pytest_terminal_summary(terminalreporter):
    lines = TABLE.lines(CASES)
    if len(lines) > 1:
        terminalreporter.write_line("")
    for line in lines[len(lines) == 1 :]:
        terminalreporter.write_line(line)
    if os.environ.get("NEWEST"):
        TABLE.write_newest(CASES, sum(len(terminalreporter.getreports(kind)) for kind in ("failed", "error")))
    elif os.environ.get("RAVI_WRITE"):
        TABLE.write(CASES)
