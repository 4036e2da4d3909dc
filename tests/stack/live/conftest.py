"""One stack for the session of live tests, and its servers' logs beside whatever fails."""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from stack_servers import Stack, running_stack

_RUNNING: list[Stack] = []
_REPLACED: list[str] = []


@pytest.fixture(scope="session")
def stack() -> Iterator[Stack]:
    """Be the session's stack: production overlay, every server. Leave it as it was."""
    with running_stack() as running:
        _RUNNING.append(running)
        _REPLACED.extend(str(change) for change in running.configs.replaced)
        yield running
        _RUNNING.clear()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, Any]:
    """Show what the servers wrote, where a test failed."""
    report = yield
    if report.failed:
        for running in _RUNNING:
            report.sections.append(("the stack's servers", running.logs_of_servers()))
    return report


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say how what ran differs from what is shipped."""
    if _REPLACED:
        terminalreporter.section("what the configurations had here instead")
        terminalreporter.write_line("\n".join(_REPLACED))
