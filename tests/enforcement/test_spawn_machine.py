"""Play random games against SpawnTracker, with crashes and repeated ids; tests/enforcement/spawn_model.py says what is right."""

import asyncio
import os
import sys
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, multiple, rule

from ravi_otel.policy._runs import Priority

sys.path.insert(0, str(Path(__file__).parent))

from spawn_play import Play

LONG = int(os.environ.get("RAVI_LONG") or 0)
IDS = st.sampled_from("abc")
PRIORITIES = st.sampled_from(Priority)
TIMEOUTS = st.sampled_from([None, 0, 5])
CRASHES = st.sampled_from([KeyError, asyncio.CancelledError, GeneratorExit, KeyboardInterrupt, SystemExit])


def some(found):
    return multiple() if found is None else found


class SpawnGame(RuleBasedStateMachine):
    leases = Bundle("leases")
    asks = Bundle("asks")

    @initialize(max_agents=st.integers(1, 4), allow_preempt=st.booleans())
    def start(self, max_agents, allow_preempt):
        self.play = Play(max_agents, allow_preempt=allow_preempt)

    @rule(target=leases, agent_id=IDS, priority=PRIORITIES)
    def acquire(self, agent_id, priority):
        return some(self.play.acquire(agent_id, priority))

    @rule(target=leases, agent_id=IDS, priority=PRIORITIES)
    def enter(self, agent_id, priority):
        return some(self.play.enter(agent_id, priority))

    @rule(target=leases, agent_id=IDS, own=st.none() | PRIORITIES)
    def admit(self, agent_id, own):
        return some(self.play.admit(agent_id, own))

    @rule(target=leases, slot=leases, step=st.sampled_from(["acquire", "enter"]), agent_id=IDS, priority=PRIORITIES)
    def one_comes_inside_another(self, slot, step, agent_id, priority):
        return some(self.play.inside(slot, step, agent_id, priority))

    @rule(slot=leases)
    def leave(self, slot):
        self.play.leave(slot)

    @rule(slot=leases)
    def release_lease(self, slot):
        self.play.release(slot)

    @rule(slot=leases, error=CRASHES)
    def a_holder_crashes(self, slot, error):
        self.play.crash(slot, error)

    @rule(agent_id=IDS | st.sampled_from(["ghost", None, []]))
    def release_id(self, agent_id):
        self.play.release_id(agent_id)

    @rule(agent_id=IDS, priority=PRIORITIES)
    def reprioritize(self, agent_id, priority):
        self.play.reprioritize(agent_id, priority)

    @rule(agent_id=IDS)
    def pause(self, agent_id):
        self.play.pause(agent_id)

    @rule(agent_id=IDS)
    def resume(self, agent_id):
        self.play.resume(agent_id)

    @rule(max_agents=st.integers(1, 4))
    def resize(self, max_agents):
        self.play.resize(max_agents)

    @rule(target=asks, agent_id=IDS, priority=PRIORITIES, timeout_s=TIMEOUTS)
    def wait(self, agent_id, priority, timeout_s):
        ask, done = self.play.wait(agent_id, priority, timeout_s)
        return ask if done == "waits" else multiple()

    @rule(target=asks, agent_id=IDS, own=st.none() | PRIORITIES)
    def admit_or_wait(self, agent_id, own):
        ask, done = self.play.admit_or_wait(agent_id, own)
        return ask if done == "waits" else multiple()

    @rule(target=asks, slot=leases, timeout_s=TIMEOUTS)
    def wait_paused(self, slot, timeout_s):
        ask, done = self.play.wait_paused(slot, timeout_s)
        return ask if done == "waits" else multiple()

    @rule(target=leases, ask=asks)
    def wake(self, ask):
        return multiple() if ask.over or ask.lost else some(self.play.wake(ask))

    @rule(ask=asks, error=CRASHES)
    def a_caller_crashes_in_line(self, ask, error):
        if not ask.over and not ask.lost:
            self.play.cancel(ask, error)

    @rule(ask=asks)
    def a_caller_is_collected(self, ask):
        if not ask.over and not ask.lost:
            self.play.drop(ask)

    @rule(ask=asks)
    def a_callers_loop_is_closed(self, ask):
        if not ask.over and not ask.rung:
            self.play.lose(ask)

    @rule(seconds=st.integers(1, 70))
    def time_passes(self, seconds):
        self.play.time_passes(seconds)

    @invariant()
    def tracker_and_rules_agree(self):
        if hasattr(self, "play"):
            self.play.agree()

    def teardown(self):
        if hasattr(self, "play"):
            self.play.finish()


SpawnGame.TestCase.settings = settings(
    max_examples=2000 if LONG else 100, stateful_step_count=100 if LONG else 40, deadline=None, derandomize=not LONG
)
TestSpawnGame = SpawnGame.TestCase
