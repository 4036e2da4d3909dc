"""A signal's handler finds the slots as they are, and whatever it raises leaves them to others."""

import contextlib
import signal
import threading

import pytest

from ravi_otel import ConfigurationError, Priority, SpawnBudget, SpawnDeniedError, SpawnTracker
from ravi_otel._flow import run_sync
from ravi_otel.policy import AgentId


class StruckError(Exception):
    pass


class Struck:
    """Be the tracker's lock, and have a signal come right after it was taken without waiting."""

    def __init__(self, lock):
        self.lock, self.strikes = lock, 1

    def acquire(self, blocking=True, timeout=-1):
        taken = self.lock.acquire(blocking, timeout)
        if not blocking and self.strikes:
            self.strikes = 0
            signal.raise_signal(signal.SIGUSR1)
        return taken

    def release(self):
        self.lock.release()

    def __enter__(self):
        return self.lock.__enter__()

    def __exit__(self, *error):
        return self.lock.__exit__(*error)


@pytest.fixture
def on_signal():
    before = signal.getsignal(signal.SIGUSR1)
    yield lambda handler: signal.signal(signal.SIGUSR1, lambda *_: handler())
    signal.signal(signal.SIGUSR1, before)


def raise_struck():
    raise StruckError


def in_another_thread(work):
    got = []
    thread = threading.Thread(target=lambda: got.append(work()), daemon=True)
    thread.start()
    thread.join(10)
    return got


def test_what_a_handler_raises_while_a_slot_is_given_back_leaves_the_tracker_to_others(on_signal):
    tracker = SpawnTracker(SpawnBudget(3))
    lease = tracker.acquire("a")
    on_signal(raise_struck)
    tracker._lock = Struck(tracker._lock)
    with contextlib.suppress(StruckError):
        lease.release()
    assert [stats.active for stats in in_another_thread(tracker.stats)] == [1]


class Middle:
    """Be a tracker's clock, and have a signal come where it is read: in the middle of a change."""

    def __init__(self):
        self.armed = False

    def __call__(self):
        if self.armed:
            self.armed = False
            signal.raise_signal(signal.SIGUSR1)
        return 0.0

    def of(self, tracker):
        """Change the tracker, and leave it as it is: somebody asks for a slot, and there is none."""
        self.armed = True
        with contextlib.suppress(SpawnDeniedError):
            tracker.wait_for_slot_blocking("late", timeout_s=0)


@pytest.fixture
def middle():
    return Middle()


@pytest.fixture
def full(middle):
    return SpawnTracker(SpawnBudget(2), clock=middle)


@pytest.mark.parametrize(("look", "seen"), [("stats", 2), ("is_paused", False)])
def test_a_handler_may_look_in_the_middle_of_a_change(on_signal, middle, full, look, seen):
    full.acquire("a")
    found = []
    on_signal(lambda: found.append(full.is_paused("a") if look == "is_paused" else full.stats().active))
    middle.of(full)
    assert found == [seen]


@pytest.mark.parametrize("change", [lambda t: t.acquire("b"), lambda t: t.pause("a"), lambda t: t.resize(5)])
def test_a_handler_that_would_change_a_change_is_told_so_and_does_not_hang(on_signal, middle, full, change):
    full.acquire("a")
    on_signal(lambda: change(full))
    with pytest.raises(ConfigurationError, match="in the middle of a change"):
        middle.of(full)
    assert [stats.active for stats in in_another_thread(full.stats)] == [2]


def test_a_slot_that_a_handler_gives_back_in_the_middle_of_a_change_is_given_back_after_it(on_signal, middle, full):
    lease = full.acquire("a")
    on_signal(lease.release)
    middle.of(full)
    assert full.stats().active == 1


class Ahead:
    """Be other limits of an agent to come, of which one is passed, and do something where they are looked at."""

    def __init__(self, do, *, refuses):
        self.do, self.refuses, self.asked = do, refuses, 0

    def is_past(self):
        self.do()
        return True

    def refuse(self):
        self.asked += 1
        if self.refuses:
            raise SpawnDeniedError("one too deep")


@pytest.mark.parametrize("wait_s", [0, None])
def test_other_limits_are_looked_at_in_the_step_in_which_the_slot_is_taken(wait_s):
    tracker = SpawnTracker(SpawnBudget(3))

    def change():
        with pytest.raises(ConfigurationError, match="in the middle of a change"):
            tracker.resize(9)

    ahead = Ahead(change, refuses=False)
    lease = run_sync(tracker.admit(AgentId("a"), wait_s=wait_s, ahead=ahead))
    assert (lease.entered, ahead.asked, tracker.stats().limit) == (True, 1, 3)


@pytest.mark.parametrize("wait_s", [0, None])
def test_nobody_is_paused_for_an_agent_that_another_limit_refuses(wait_s):
    tracker = SpawnTracker(SpawnBudget(2))
    tracker.enter("root")
    lesser = tracker.acquire("lesser", Priority.LOW)
    with pytest.raises(SpawnDeniedError, match="one too deep"):
        run_sync(tracker.admit(AgentId("urgent"), Priority.CRITICAL, wait_s=wait_s, ahead=Ahead(lambda: None, refuses=True)))
    assert (lesser.paused, tracker.stats().granted_total) == (False, 2)
    run_sync(tracker.admit(AgentId("urgent"), Priority.CRITICAL, wait_s=wait_s, ahead=Ahead(lambda: None, refuses=False)))
    assert lesser.paused


@pytest.mark.parametrize("wait_s", [0, None])
def test_a_slot_that_somebody_acquired_goes_back_to_them_when_the_agent_is_interrupted_on_its_way_in(wait_s):
    def interrupt(event):
        if event.outcome == "released":
            raise KeyboardInterrupt

    tracker = SpawnTracker(SpawnBudget(3), on_event=interrupt)
    lease, other = tracker.acquire("a"), tracker.acquire("b")
    with tracker._lock:
        in_another_thread(other.release)  # it is told with the next step, which it interrupts
    with pytest.raises(KeyboardInterrupt):
        run_sync(tracker.admit(AgentId("a"), wait_s=wait_s))
    assert (lease.ended, lease.entered, tracker.stats().active) == (False, False, 2)
