from __future__ import annotations

import threading

import pytest

from ravi_otel._telemetry.providers import Closer, close, flush_all


class Hung:
    """A provider whose exporter never returns until it is let go."""

    def __init__(self) -> None:
        self.let_go = threading.Event()

    def force_flush(self, timeout_millis: int) -> bool:
        return self.let_go.wait()

    def shutdown(self) -> None:
        self.let_go.wait()


class Failing:
    def force_flush(self, timeout_millis: int) -> bool:
        raise ValueError

    def shutdown(self) -> None:
        raise ValueError


class Fine:
    def __init__(self) -> None:
        self.closed = 0

    def force_flush(self, timeout_millis: int) -> bool:
        return True

    def shutdown(self) -> None:
        self.closed += 1


@pytest.fixture
def hung():
    provider = Hung()
    yield provider
    provider.let_go.set()


def test_a_hung_provider_holds_flush_no_longer_than_its_time(hung):
    assert flush_all([hung, Fine()], 0.05) is False
    assert not hung.let_go.is_set()


def test_a_failing_flush_is_a_false_and_no_error():
    assert flush_all([Failing()], 5) is False
    assert flush_all([Fine(), Fine()], 5) is True
    assert flush_all([], 5) is True


def test_one_hung_provider_does_not_keep_the_others_from_closing(hung):
    fine = Fine()
    assert close([Closer(hung), Closer(Failing()), Closer(fine)], 0.05) is False
    assert close([Closer(fine)], 5) is True
    assert fine.closed == 2


def test_a_closer_whose_thread_a_fork_took_works_after_renewal():
    fine = Fine()
    closer = Closer(fine)
    closer.renew()
    assert close([closer], 5) is True
    assert fine.closed == 1
