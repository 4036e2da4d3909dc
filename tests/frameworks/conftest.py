"""Print the table of what became of every program, below the tests' own summary."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # as the modules beside the tests have it

from framework_programs import ALL, EVERYTHING, KINDS

HEADINGS = ("program", "kind", "sent", "allowed", "status", "tokens", "agents", "tools")


def pytest_sessionfinish():
    EVERYTHING.stop()


def row(program, kind, seen):
    if kind == "alone":
        return (program.name, kind, seen.sent, "", seen.done.status, "", "", "")
    tokens = (seen.root["input_tokens"] or 0) + (seen.root["output_tokens"] or 0)
    allowed = program.requests if kind == "launched" else program.may_send(kind)
    tools = ", ".join(f"{count} {name}" for name, count in sorted(seen.tools.items())) if program.knows_tools else "not known"
    return (program.name, kind, seen.sent, allowed, seen.done.status, tokens, " ".join(seen.agents), tools)


def pytest_terminal_summary(terminalreporter):
    ended = EVERYTHING.ended()
    rows = [row(program, kind, ended[program.name, kind]) for program in ALL for kind in KINDS if (program.name, kind) in ended]
    if not rows:
        return
    lines = [tuple(map(str, each)) for each in (HEADINGS, *rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    terminalreporter.write_line("")
    for line in lines:
        terminalreporter.write_line("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
