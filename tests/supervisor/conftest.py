"""A till, an engine on a clock that stands still, and the run that the tests of the gate are in."""

import pytest
from refund_gate import Till

import ravi_otel
from ravi_otel._enforcement.engine import Engine
from ravi_otel._runtime.state import STATE
from ravi_otel.hooks._listeners import Listener, Listeners
from ravi_otel.testing import ManualClock


@pytest.fixture(params=["sync", "async"])
def colour(request):
    return request.param


@pytest.fixture
def till():
    return Till()


@pytest.fixture
def staged():
    """Put the engine on a clock that stands still, and keep what is told of reviews."""
    told = []

    class Hears(Listener):
        def reviewed(self, event):
            told.append(event)

    before = STATE.engine, STATE.limits
    clock = ManualClock()
    STATE.install(Engine(clock=clock, listeners=Listeners([Hears()])), ())
    yield clock, told
    STATE.install(*before)


@pytest.fixture
def clock(staged):
    return staged[0]


@pytest.fixture
def told(staged):
    return staged[1]


@pytest.fixture
def run(request):
    """Be in a run, on the staged engine where the test has one."""
    if "staged" in request.fixturenames:
        request.getfixturevalue("staged")
    with ravi_otel.run("desk") as run:
        yield run
