"""What docs/mcp-server.md shows is what happens."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from mcp_agent import ROOT, asking

from ravi_otel._cli.entry import commands

PAGE = (ROOT / "docs" / "mcp-server.md").read_text(encoding="utf-8")
CONFIGURED = [json.loads(block) for block in re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)]


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """Be a project with a store, where the agent finds `ravi-otel` on its path."""
    root = tmp_path_factory.mktemp("project")
    command = root / "bin" / "ravi-otel"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m ravi_otel "$@"\n', encoding="utf-8")
    command.chmod(0o755)
    assert CliRunner().invoke(commands, ["demo"], env={"RAVI_STORE": str(root / ".ravi")}).exit_code == 0
    return root


@pytest.mark.parametrize("configured", CONFIGURED, ids=["Claude Code", "Cursor", "VS Code"])
def test_each_editor_is_told_a_server_that_answers(project: Path, configured):
    (server,) = next(value for value in configured.values() if isinstance(value, dict)).values()
    path = f"{project / 'bin'}{os.pathsep}{os.environ['PATH']}"
    with asking(*server["args"], command=(str(project / "bin" / server["command"]),), cwd=project, PATH=path) as ask:
        assert {run["name"] for run in ask("list_runs")["runs"]} == {"support-desk"}


def test_the_page_names_every_tool_and_no_other(project: Path):
    with asking("--allow-control", cwd=project) as ask:
        tools = set(ask.tools())
    listed = set(re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE))
    assert listed == tools - {"cancel", "set_limit"}
    assert all(f"`{name}`" in PAGE for name in tools)
