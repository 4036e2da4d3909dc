"""A store with past runs in it, and the command line on it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import stored_runs
from click.testing import CliRunner, Result

from ravi_otel._cli.entry import commands

UNKNOWN: Any = None


class Shelf(stored_runs.Shelf):
    """Put runs into a store, and call commands on it."""

    def __call__(self, *arguments: str, width: int = 120, **environment: str) -> Result:
        given = {"COLUMNS": str(width), "NO_COLOR": "1"} | environment
        return CliRunner().invoke(commands, [*arguments, "--store", str(self.store.root)], env=given)


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    return Shelf(tmp_path / ".ravi")
