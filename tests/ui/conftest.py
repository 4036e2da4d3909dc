"""A served page."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from page_stage import Served, serving


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with serving(tmp_path) as known:
        yield known
