"""A served page."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from page_stage import Served, free_port, serving


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with serving(tmp_path) as known:
        yield known


@pytest.fixture
def outside(tmp_path: Path) -> Iterator[Served]:
    """Be a page that a proxy has under a URL of its own."""
    port = free_port()
    with serving(tmp_path, port=port, public_url=f"http://127.0.0.1:{port}") as known:
        yield known
