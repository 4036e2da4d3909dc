"""Hosts that keep what they are sent, one of which is listed, and a process that carries."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from http_stacks import STACKS, Ask
from wire_recorder import Recorder, recording

from ravi_otel.carrier import _lending

KEYS = "k1:a secret that is long enough"


@pytest.fixture(autouse=True)
def _no_loan_stays_open() -> Iterator[None]:
    """Forget what a test lent and had no answer to: it would be charged a minute later, to nobody."""
    yield
    _lending._open.clear()


@pytest.fixture(params=sorted(STACKS))
def ask(request: Any) -> Ask:
    return STACKS[request.param]


@pytest.fixture
def elsewhere() -> Iterator[Recorder]:
    """Be a host that is on no list."""
    with recording() as recorder:
        yield recorder


@pytest.fixture
def listed(monkeypatch: pytest.MonkeyPatch) -> Iterator[Recorder]:
    """Be a host that gets ours."""
    with recording() as recorder:
        monkeypatch.setenv("RAVI_CARRY_KEYS", KEYS)
        monkeypatch.setenv("RAVI_CARRY_TO", recorder.host)
        yield recorder
