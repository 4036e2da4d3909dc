"""A process that carries, the hand of its clock, and who hears what it does not believe."""

import pytest

from ravi_otel._enforcement.engine import Engine
from ravi_otel._runtime.state import STATE
from ravi_otel.carrier import _inbound, _lending
from ravi_otel.hooks._listeners import Listener, Listeners
from ravi_otel.testing import ManualClock

KEY = "k1:0123456789abcdef"


class Counted(Listener):
    """Keep what is counted."""

    def __init__(self):
        self.reasons = []

    def counted(self, event):
        if event.what == "carrier_rejected":
            self.reasons.append(event.reason)


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def heard(clock):
    """Have an engine with a clock that stands still, and hear what it counts."""
    listener, before = Counted(), (STATE.engine, STATE.limits)
    STATE.install(Engine(clock=clock, listeners=Listeners([listener])), ())
    yield listener
    STATE.install(*before)


@pytest.fixture
def carrying(monkeypatch, heard):
    """Carry to one host, by one key; no loan may be left open, and none used before."""
    monkeypatch.setenv("RAVI_CARRY_KEYS", KEY)
    monkeypatch.setenv("RAVI_CARRY_TO", "b.internal")
    _inbound._read.until_ms.clear()
    _inbound._begun.until_ms.clear()
    yield heard
    left = dict(_lending._open)
    _lending._open.clear()
    assert left == {}
