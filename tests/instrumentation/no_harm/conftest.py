"""Let the tests import their neighbours, and share one stage for all comparisons of a test."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from side_by_side import COUNTED, SideBySide


@pytest.fixture(scope="session")
def loop() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture
def side_by_side(loop: asyncio.Runner, capture: Any, request: pytest.FixtureRequest) -> Iterator[SideBySide]:
    COUNTED.clear()
    level = logging.root.level
    yield SideBySide(loop, capture)
    logging.root.setLevel(level)
    request.node.user_properties.append(("compared", sum(COUNTED)))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    reports = [each for found in terminalreporter.stats.values() for each in found if getattr(each, "when", "") == "teardown"]
    count = sum(value for each in reports for name, value in each.user_properties if name == "compared")
    if count:
        terminalreporter.write_line(f"{count} programs compared without us and with us, without a network")
