"""Do to the real SpawnTracker what is done to the model of it, and hold the two against each other after each step."""

import contextlib

from spawn_model import Ask, Model, Slot

from ravi_otel import _current
from ravi_otel._enforcement.engine import Engine
from ravi_otel._enforcement.scope import Scope
from ravi_otel._enforcement.spawn_tracker import Lease, SpawnTracker
from ravi_otel._flow import run_sync
from ravi_otel.errors import BudgetExhaustedError, SpawnDeniedError
from ravi_otel.policy._limits import ScopeKind
from ravi_otel.policy._runs import AgentId, Priority, ScopeFacts, SpawnBudget

ENGINE = Engine()


class Differs(AssertionError):  # noqa: N818 - it reads as what it says
    """The tracker did something else than the rules say."""


def same(found, expected, what):
    if found != expected:
        raise Differs(f"{what}: {found} where the rules say {expected}")


class Play:
    """Every method is one step of a caller, done to both."""

    def __init__(self, max_agents, *, allow_preempt=True, observe=False, in_scopes=False, tracker=SpawnTracker):
        self.model = Model(max_agents, allow_preempt, observe)
        self.heard = []
        self.slots = tracker(
            SpawnBudget(max_agents, allow_preempt), on_event=self._hear, clock=lambda: self.model.now, observe=observe, run_id="r"
        )
        self._most = max_agents
        self._in_scopes = in_scopes  # callers work for a scope, which may be closed

    def _hear(self, event):
        self.heard.append((event.outcome, event.agent_id, event.priority, event.active, event.paused))
        same((event.run_id, event.max_agents), ("r", self.model.limit()), "who tells")
        if event.active > self._most and not self.model.observe:
            raise Differs(f"headcount {event.active} over {self._most}")

    # Steps

    def _met(self, slot, lease):
        same(None if lease is None else lease.order, None if slot is None else slot.order, "the lease")
        if slot is not None:
            slot.real = lease
        return slot

    def acquire(self, agent_id, priority):
        slot = self.model.acquire(agent_id, priority)
        return self._met(slot, self._outcome(lambda: self.slots.acquire(agent_id, priority), priority))

    def _outcome(self, act, priority):
        try:
            return act()
        except SpawnDeniedError as denied:
            same(denied.reason, self.model.shortage(priority), "why there is no slot")
            return None

    def inside(self, slot, step, *given):
        """Have the agent on a slot take a step."""
        self.model.asker = slot
        try:
            with _current.Attachment(_current.with_leaf(self._place(slot))):
                return getattr(self, step)(*given)
        finally:
            self.model.asker = None

    def _place(self, slot):
        if slot is None:
            return Scope(ENGINE, ScopeFacts(scope_id="run", kind=ScopeKind.RUN), None)
        scope = Scope(ENGINE, ScopeFacts(scope_id=str(slot.order), kind=ScopeKind.AGENT), self._place(slot.parent))
        scope.lease = slot.real
        return scope

    def enter(self, agent_id, priority):
        slot = self.model.enter(agent_id, priority)
        return self._met(slot, self._outcome(lambda: self.slots.enter(agent_id, priority), priority))

    def admit(self, agent_id, own=None):
        """Let in an agent that is spawned, and waits for nothing."""
        priority = Priority.NORMAL if own is None else own
        slot = self.model.admit(agent_id, priority, own)

        def admitted():
            try:
                return run_sync(self.slots.admit(AgentId(agent_id), own))
            except SpawnDeniedError as denied:
                same("after waiting" in str(denied), False, "a wait of who did not wait is told")
                raise

        return self._met(slot, self._outcome(admitted, priority))

    def admit_or_wait(self, agent_id, own=None):
        """Let in an agent that is spawned, and waits."""
        ask = Ask(agent_id, Priority.NORMAL if own is None else own, enters=True)
        done = self.model.admit_or_wait(ask, None, own)
        lease = self._begin(ask, self.slots.admit(AgentId(agent_id), own, wait_s=None, stops=self._stops(ask)), done)
        if done == "served":
            self._met(ask.slot, lease)
        return ask, done

    def leave(self, slot):
        self.model.leave(slot)
        slot.real.leave()

    def release(self, slot):
        self.model.release(slot)
        slot.real.release()

    def crash(self, slot, error):
        """Have the block that holds a lease end by an exception."""
        self.model.release(slot)
        before = len(self.heard)
        try:
            with slot.real:
                raise error
        except error:
            pass
        self._quiet(error, before)

    def _quiet(self, error, before):
        if error is GeneratorExit:  # the collector may be at work: nobody's code may run now
            same(len(self.heard), before, "events told by a finaliser")

    def release_id(self, agent_id):
        self.model.release_id(agent_id)
        self.slots.release(agent_id)

    def reprioritize(self, agent_id, priority):
        self.model.reprioritize(agent_id, priority)
        self.slots.reprioritize(agent_id, priority)

    def rank(self, slot, priority):
        self.model.rank(slot, priority)
        self.slots.rank(slot.real, priority)

    def pause_one(self, slot):
        same(self.slots.pause(slot.real), self.model.pause(slot), "pause of one")

    def resume_one(self, slot):
        same(self.slots.resume(slot.real), self.model.resume(slot), "resume of one")

    def reprioritize_one(self, slot, priority):
        self.model.reprioritize(slot, priority)
        self.slots.reprioritize(slot.real, priority)

    def pause(self, agent_id):
        same(self.slots.pause(agent_id), self.model.pause(agent_id), "pause")

    def resume(self, agent_id):
        same(self.slots.resume(agent_id), self.model.resume(agent_id), "resume")

    def resize(self, max_agents):
        self._most = max(max_agents, self.model.headcount())  # nobody is ended, and nobody comes while there are more
        self.model.resize(max_agents)
        self.slots.resize(max_agents)

    def time_passes(self, seconds):
        self.model.now += seconds

    def wait(self, agent_id, priority, timeout_s=None):
        ask = Ask(agent_id, priority)
        done = self.model.wait(ask, timeout_s)
        lease = self._begin(ask, self.slots.slot(agent_id, priority, timeout_s, stops=self._stops(ask)), done)
        if done == "served":
            self._met(ask.slot, lease)
        return ask, done

    def wait_paused(self, slot, timeout_s=None):
        ask = Ask(slot.agent_id, slot.priority, slot)
        done = self.model.wait_paused(ask, timeout_s)
        self._begin(ask, self.slots.resumption(slot.real, timeout_s, stops=self._stops(ask)), done)
        return ask, done

    def _stops(self, ask):
        """Give a scope that the caller works for, where callers work for one."""
        ask.scope = Scope(ENGINE, ScopeFacts(scope_id="work", kind=ScopeKind.BLOCK), None) if self._in_scopes else None
        return ask.scope

    def stop(self, ask):
        """Close what a caller works for while it sleeps."""
        self.model.stop(ask)
        ask.scope.close()

    def _begin(self, ask, flow, done):
        ask.flow, result, found = flow, None, "waits"
        try:
            next(flow)
            ask.waiter = flow.gi_frame.f_locals["waiter"]
        except StopIteration as end:
            found, result = "served", end.value
        except SpawnDeniedError:
            found = "denied"
        same(found, done, "a caller is")
        return result

    def wake(self, ask):
        done = self.model.wake(ask)
        try:
            ask.flow.send(None)
        except StopIteration as end:
            same("served", done, "a caller woken is")
            return None if ask.slot is None else self._met(ask.slot, end.value)
        except BudgetExhaustedError as refused:
            same("denied" if isinstance(refused, SpawnDeniedError) else refused.reason, done, "a caller woken is")
            return None
        raise Differs("a caller that was woken waits again")

    def cancel(self, ask, error):
        """Have the caller interrupted where it sleeps; GeneratorExit is how the collector drops it."""
        self.model.cancel(ask)
        before = len(self.heard)
        with contextlib.suppress(error):
            ask.flow.throw(error())
        self._quiet(error, before)
        same(ask.waiter.woken, True, "the sleep of a cancelled caller is over")

    def drop(self, ask):
        """Have nobody hold the caller any more, so that the collector ends it."""
        self.model.cancel(ask)
        before = len(self.heard)
        ask.flow = None
        self._quiet(GeneratorExit, before)

    def lose(self, ask):
        """Have the event loop of a sleeper be closed."""
        ask.lost, rings = True, []

        def ring():
            rings.append(1)
            same(len(rings) < 9, True, "a lost caller is rung for a few times at most")
            raise RuntimeError("Event loop is closed")

        ask.waiter._ring = ring

    # Comparison

    def agree(self):
        self.model.settle()
        model, state, stats = self.model, self.slots._slots, self.slots.stats()
        if stats.active > self._most and not model.observe:
            raise Differs(f"headcount {stats.active} over {self._most}")
        same((stats.limit, stats.active, stats.paused), (model.limit(), model.headcount(), len(model.live("paused"))), "counts")
        totals = (model.granted, model.denied, model.preempted, model.released, model.peak)
        same((stats.granted_total, stats.denied_total, stats.preempted_total, stats.released_total, stats.peak), totals, "totals")
        same(self.heard, model.told, "events")
        same(_ranked(state._active), [slot.order for slot in model.victims()], "victims")
        same(_ranked(state._line), [_who(each) for each in model.line()], "the line")
        same(stats.waiting, len(model.line()), "waiting")
        for ask in model.asks:
            same(ask.over or ask.waiter.woken, ask.over or ask.rung, "a caller rung for")
            if ask.scope is not None:
                same(len(ask.scope._stops), int(not ask.over), "who hears that a scope is closed")
        for slot in model.slots:
            if slot.real is not None:
                self._agree_on(slot, slot.real)
        same(sorted(state._by_agent), sorted({slot.agent_id for slot in model.alive()}), "ids")
        for agent_id, held in state._by_agent.items():
            same(list(held.free), [slot.order for slot in model.free(agent_id)], "free leases")
            same(list(held.adopted), [slot.order for slot in model.adopted(agent_id)], "adopted leases")
            paused = any(slot.state == "paused" for slot in model.of(agent_id))
            same(self.slots.is_paused(agent_id), paused, "is_paused")

    @staticmethod
    def _agree_on(slot, lease):
        same((lease.agent_id, lease.is_root, lease.priority), (slot.agent_id, slot.root, slot.priority), "a lease")
        state = "ended" if lease.ended else "paused" if lease.paused else "active"
        same((state, lease.entered), (slot.state, slot.inside is not None), "the state of a lease")
        same(lease.paused, slot.state == "paused", "paused")
        same((lease.on_hold, lease.promoted), (slot.on_hold, slot.promoted is not None and slot.state != "ended"), "who is first")
        same(len(lease.waiters), len(slot.asking), "callers for a lease")
        same(lease.since if slot.asking else None, slot.since if slot.asking else None, "since when a lease waits")

    def finish(self):
        """End all there is; nothing may be left, and every lease has ended once."""
        for ask in self.model.asks:
            if not ask.over:
                self.cancel(ask, GeneratorExit)
        for slot in list(self.model.slots):
            if slot.real is not None:
                self.leave(slot)
                self.release(slot)
        self.agree()
        same((self.slots.is_paused("ghost"), self.slots.is_paused([])), (False, False), "ids that are nobody's")
        stats = self.slots.stats()
        same((stats.active, stats.paused, stats.waiting, self.slots._slots._by_agent), (1, 0, 0, {}), "what is left")
        told = [outcome for outcome, *_ in self.heard]
        same([told.count(word) for word in ("granted", "released")], [stats.granted_total] * 2, "leases that ended")


def _ranked(ranking):
    live = sorted(entry for entry in ranking._heap if ranking.items.get(entry[2]) == entry[1])
    return [item.order if isinstance(item, Lease) else (item.agent_id, item.priority, item.since) for _, _, item in live]


def _who(each):
    return each.order if isinstance(each, Slot) else (each.agent_id, each.priority, each.since)
