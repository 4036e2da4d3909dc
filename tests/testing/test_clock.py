from __future__ import annotations

import math

import pytest

from ravi_otel.errors import ConfigurationError
from ravi_otel.testing import ManualClock


def test_time_stands_still_until_it_is_advanced():
    clock = ManualClock(monotonic_s=5, epoch_s=100)
    assert (clock.monotonic_ns(), clock.time()) == (5_000_000_000, 100)
    clock.advance(1.5)
    assert (clock.monotonic_ns(), clock.time()) == (6_500_000_000, 101.5)


@pytest.mark.parametrize("seconds", [-1, -0.001, math.nan])
def test_time_does_not_go_back(seconds):
    with pytest.raises(ConfigurationError, match="cannot go back in time"):
        ManualClock().advance(seconds)
