"""Play random games against SpawnTracker, with a model that is as plain and slow as the rules themselves."""

import asyncio
import os

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, multiple, rule

from ravi_otel.enforcement.spawn import SpawnTracker
from ravi_otel.errors import SpawnDeniedError
from ravi_otel.policy.budgets import Priority, SpawnBudget

LONG = int(os.environ.get("RAVI_LONG") or 0)
IDS = st.sampled_from("abc")
PRIORITIES = st.sampled_from(Priority)


class Slot:
    """What the model knows of one lease."""

    def __init__(self, agent_id, priority, number, *, root=False):
        self.agent_id, self.priority, self.number, self.root = agent_id, priority, number, root
        self.state = "active"
        self.inside = None  # "own" or "adopted" while an agent runs on it
        self.touched = number  # when it last became free for an agent
        self.promoted = None  # when it was promoted
        self.since = self.arrived = None  # when it began to wait, and its place among equals
        self.asking = []
        self.real = None


class Ask:
    """What the model knows of one caller in line."""

    def __init__(self, agent_id, priority, flow, paused=None):
        self.agent_id, self.priority, self.flow, self.paused = agent_id, priority, flow, paused
        self.since = self.arrived = self.slot = None
        self.served = self.over = False


class Model:
    def __init__(self, max_agents, allow_preempt):
        self.max_agents, self.allow_preempt = max_agents, allow_preempt
        self.slots, self.asks = [], []
        self.now = self.ticks = 0
        self.rooted = False
        self.granted = self.denied = self.preempted = self.released = 0
        self.peak = 1

    def tick(self):
        self.ticks += 1
        return self.ticks

    def live(self, state="active"):
        return [slot for slot in self.slots if slot.state == state and not slot.root]

    def of(self, agent_id):
        return [slot for slot in self.slots if slot.agent_id == agent_id and slot.state != "ended"]

    def headcount(self):
        return 1 + len(self.live())

    def line(self):
        promoted = sorted((slot for slot in self.live("paused") if slot.promoted), key=lambda slot: slot.promoted)
        aging = [slot for slot in self.live("paused") if slot.asking and not slot.promoted]
        aging += [ask for ask in self.asks if ask.paused is None and not ask.served and not ask.over]
        return promoted + sorted(aging, key=lambda who: (-(who.priority * 30 + self.now - who.since), who.arrived))

    def grant(self, agent_id, priority, *, root=False):
        slot = Slot(agent_id, priority, self.tick(), root=root)
        self.slots.append(slot)
        self.granted += 1
        self.peak = max(self.peak, self.headcount())
        return slot

    def pause(self, slot):
        slot.state = "paused"
        self.preempted += 1

    def resume(self, slot):
        slot.state, slot.promoted = "active", None
        for ask in slot.asking:
            ask.served = True
        slot.asking = []

    def hand_out(self):
        while self.headcount() < self.max_agents and (line := self.line()):
            if isinstance(line[0], Slot):
                self.resume(line[0])
            else:
                line[0].slot, line[0].served = self.grant(line[0].agent_id, line[0].priority), True

    def attempt(self, agent_id, priority):
        if self.headcount() >= self.max_agents:
            below = [slot for slot in self.live() if slot.priority < priority]
            if priority not in (Priority.HIGH, Priority.CRITICAL) or not self.allow_preempt or not below:
                return None
            self.pause(min(below, key=lambda slot: (slot.priority, -slot.number)))
        return self.grant(agent_id, priority)

    def end(self, slot):
        if slot is not None and slot.state != "ended":
            slot.state, slot.asking = "ended", []
            self.released += 1
            self.hand_out()


def outcome(act):
    try:
        return act()
    except SpawnDeniedError:
        return None


class SpawnGame(RuleBasedStateMachine):
    leases = Bundle("leases")
    asks = Bundle("asks")

    @initialize(max_agents=st.integers(1, 4), allow_preempt=st.booleans())
    def start(self, max_agents, allow_preempt):
        self.model = Model(max_agents, allow_preempt)
        self.heard = []
        budget = SpawnBudget(max_agents, allow_preempt)
        self.slots = SpawnTracker(budget, on_event=self.heard.append, clock=lambda: self.model.now)

    def same(self, slot, lease):
        assert (slot is None) == (lease is None)
        if slot is None:
            self.model.denied += 1
            return multiple()
        slot.real = lease
        return slot

    @rule(target=leases, agent_id=IDS, priority=PRIORITIES)
    def acquire(self, agent_id, priority):
        slot = self.model.attempt(agent_id, priority)
        return self.same(slot, outcome(lambda: self.slots.acquire(agent_id, priority)))

    @rule(target=leases, agent_id=IDS, priority=PRIORITIES, adopt=st.none() | leases)
    def enter(self, agent_id, priority, adopt):
        free = [slot for slot in self.model.of(agent_id) if slot.inside is None]
        if free:
            slot = adopt if adopt in free else max(free, key=lambda slot: slot.touched)
            slot.inside = "adopted"
        else:
            slot = self.model.attempt(agent_id, priority) if self.model.rooted else self.model.grant(agent_id, priority, root=True)
            self.model.rooted = True
            if slot is not None:
                slot.inside = "own"
        lease = outcome(lambda: self.slots.enter(agent_id, priority, adopt=adopt.real if adopt else None))
        if slot is not None and slot.real is not None:
            assert lease is slot.real
            return multiple()
        return self.same(slot, lease)

    @rule(slot=leases)
    def leave(self, slot):
        if slot.state != "ended" and slot.inside:
            own, slot.inside, slot.touched = slot.inside == "own", None, self.model.tick()
            if own:
                self.model.end(slot)
        slot.real.leave()

    @rule(slot=leases)
    def release_lease(self, slot):
        self.model.end(slot)
        slot.real.release()

    @rule(agent_id=IDS)
    def release_id(self, agent_id):
        live = self.model.of(agent_id)
        free = [slot for slot in live if slot.inside is None]
        adopted = [slot for slot in live if slot.inside == "adopted"]
        if free:
            self.model.end(max(free, key=lambda slot: slot.touched))
        self.slots.release(agent_id)
        if not free and adopted:  # which of them ends with its agent is by entry, which the model reads off
            held = self.slots._roster._held[agent_id]
            changed = [slot for slot in adopted if slot.real is not None and slot.real.order in held.own]
            assert len(changed) <= 1
            for slot in changed:
                slot.inside = "own"

    @rule(agent_id=IDS, priority=PRIORITIES)
    def reprioritize(self, agent_id, priority):
        for slot in sorted(self.model.of(agent_id), key=lambda slot: -slot.number):
            slot.priority = priority
            if slot.state == "paused":
                if priority < Priority.NORMAL:
                    slot.promoted, slot.arrived = None, self.model.tick()
                elif self.model.headcount() < self.model.max_agents:
                    self.model.resume(slot)
                else:
                    slot.promoted = slot.promoted or self.model.tick()
            elif not slot.root and priority < Priority.NORMAL and self.model.headcount() >= self.model.max_agents:
                self.model.pause(slot)
                self.model.hand_out()
        self.slots.reprioritize(agent_id, priority)

    def begin(self, ask, done):
        try:
            next(ask.flow)
        except StopIteration as end:
            assert done == "served"
            return end.value
        except SpawnDeniedError:
            assert done == "denied"
            self.model.denied += 1
            return None
        assert done == "waits"
        self.model.asks.append(ask)
        return None

    @rule(target=asks, agent_id=IDS, priority=PRIORITIES, timeout_s=st.sampled_from([None, 0, 5]))
    def wait(self, agent_id, priority, timeout_s):
        ask = Ask(agent_id, priority, self.slots.slot(agent_id, priority, timeout_s))
        ask.slot = self.model.attempt(agent_id, priority)
        ask.since, ask.arrived = self.model.now, self.model.tick()
        refused = timeout_s == 0 or self.model.max_agents == 1
        lease = self.begin(ask, "served" if ask.slot else "denied" if refused else "waits")
        if ask.slot is None:
            return multiple() if refused else ask
        ask.slot.real = lease
        return multiple()

    @rule(target=asks, slot=leases, timeout_s=st.sampled_from([None, 0, 5]))
    def wait_paused(self, slot, timeout_s):
        ask = Ask(slot.agent_id, slot.priority, self.slots.resumption(slot.real, timeout_s), slot)
        if slot.state == "paused" and self.model.headcount() < self.model.max_agents:
            self.model.resume(slot)
        done = "served" if slot.state == "active" else "denied" if slot.state == "ended" or timeout_s == 0 else "waits"
        if done == "waits":
            if not slot.asking:
                slot.since, slot.arrived = self.model.now, self.model.tick()
            slot.asking.append(ask)
        self.begin(ask, done)
        return ask if done == "waits" else multiple()

    @rule(target=leases, ask=asks)
    def wake(self, ask):
        if ask.over:
            return multiple()
        ask.over = True
        if ask.paused is not None and ask in ask.paused.asking:
            ask.paused.asking.remove(ask)
        if not ask.served:
            self.model.denied += 1
        try:
            ask.flow.send(None)
        except StopIteration as end:
            assert ask.served
            if ask.paused is None:
                ask.slot.real = end.value
                return ask.slot
        except SpawnDeniedError:
            assert not ask.served
        return multiple()

    @rule(ask=asks, error=st.sampled_from([asyncio.CancelledError, GeneratorExit, KeyboardInterrupt]))
    def cancel(self, ask, error):
        if ask.over:
            return
        ask.over = True
        if ask.paused is None:
            self.model.end(ask.slot)
        elif ask in ask.paused.asking:
            ask.paused.asking.remove(ask)
        with pytest.raises(error):
            ask.flow.throw(error())

    @rule(seconds=st.integers(1, 70))
    def time_passes(self, seconds):
        self.model.now += seconds

    @invariant()
    def tracker_and_model_agree(self):
        stats, model = self.slots.stats(), self.model
        assert stats.active <= stats.limit
        assert (stats.active, stats.paused, stats.waiting) == (model.headcount(), len(model.live("paused")), len(model.line()))
        assert (stats.granted_total, stats.denied_total) == (model.granted, model.denied)
        assert (stats.preempted_total, stats.released_total, stats.peak) == (model.preempted, model.released, model.peak)
        for slot in model.slots:
            if slot.real is not None:
                assert slot.real.state.name.lower() == slot.state
                assert slot.real.priority is slot.priority
                assert slot.state == "ended" or slot.real.entered == (slot.inside is not None)
        for agent_id in "abc":
            assert self.slots.is_paused(agent_id) == any(slot.state == "paused" for slot in model.of(agent_id))

    @invariant()
    def every_event_keeps_the_cap(self):
        assert all(event.active <= event.max_agents for event in self.heard)

    def teardown(self):
        if not hasattr(self, "slots"):
            return
        for ask in self.model.asks:
            if not ask.over:
                ask.flow.close()
        for slot in self.model.slots:
            if slot.real is not None:
                slot.real.release()
        stats = self.slots.stats()
        assert (stats.active, stats.paused, stats.waiting) == (1, 0, 0)
        assert stats.granted_total == stats.released_total
        assert self.slots._roster._held == {}
        told = [event.outcome for event in self.heard]
        assert [told.count(word) for word in ("granted", "released")] == [stats.granted_total] * 2


SpawnGame.TestCase.settings = settings(
    max_examples=2000 if LONG else 100, stateful_step_count=100 if LONG else 40, deadline=None, derandomize=not LONG
)
TestSpawnGame = SpawnGame.TestCase
