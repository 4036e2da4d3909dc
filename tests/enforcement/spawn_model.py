"""Say who holds a slot, as plainly and slowly as the rules themselves: what the real SpawnTracker is held against."""

from ravi_otel.policy._runs import UNLIMITED_AGENTS, Priority

URGENT = (Priority.HIGH, Priority.CRITICAL)


class Slot:
    """What the model knows of one lease."""

    def __init__(self, agent_id, priority, number, order, *, root=False):
        self.agent_id, self.priority, self.number, self.order, self.root = agent_id, priority, number, order, root
        self.state = "active"
        self.inside = None  # "own" or "adopted" while an agent runs on it
        self.touched = number  # when it last became free for an agent, or was adopted by one
        self.promoted = None  # when it was promoted
        self.on_hold = False  # an operator paused it
        self.since = self.arrived = None  # when it began to wait, and its place among equals
        self.asking = []
        self.parent = None  # the slot of the agent that asked for it
        self.real = None


class Ask:
    """What the model knows of one caller in line."""

    def __init__(self, agent_id, priority, paused=None, enters=False):
        self.agent_id, self.priority, self.paused, self.enters = agent_id, priority, paused, enters
        self.since = self.arrived = self.slot = None
        self.served = self.over = self.rung = False
        self.lost = False  # its event loop is closed
        self.stopped = False  # what it works for was closed


class Model:
    """Play by the rules of enforcement §9; `told` is what listeners hear: outcome, id, priority, active, paused."""

    def __init__(self, max_agents, allow_preempt=True, observe=False):
        self.max_agents, self.allow_preempt, self.observe = max_agents, allow_preempt, observe
        self.slots, self.asks, self.told = [], [], []
        self.asker = None  # the slot of the agent that takes this step
        self.now, self.ticks = 7, 0  # seconds, not begun at 0: what forgets to look at the clock is wrong
        self.rooted = False
        self.granted = self.denied = self.preempted = self.released = 0
        self.peak = 1

    def tick(self):
        self.ticks += 1
        return self.ticks

    # What there is

    def alive(self):
        return [slot for slot in self.slots if slot.state != "ended"]

    def live(self, state="active"):
        return [slot for slot in self.slots if slot.state == state and not slot.root]

    def of(self, agent_id):
        return [slot for slot in self.alive() if slot.agent_id == agent_id]

    def headcount(self):
        return 1 + len(self.live())

    def around(self, slot):
        return [] if slot is None else [slot, *self.around(slot.parent)]

    def room(self):
        return self.headcount() < self.max_agents

    def victims(self):
        return sorted(self.live(), key=lambda slot: (slot.priority, -slot.number))

    def line(self):
        promoted = sorted((slot for slot in self.live("paused") if slot.promoted), key=lambda slot: slot.promoted)
        aging = [slot for slot in self.live("paused") if slot.asking and not slot.promoted and not slot.on_hold]
        aging += [ask for ask in self.asks if ask.paused is None and not ask.served and not ask.over]
        return promoted + sorted(aging, key=lambda who: (-(who.priority * 30 + self.now - who.since), who.arrived))

    # What happens to one

    def tell(self, outcome, agent_id, priority):
        self.told.append((outcome, agent_id, priority.name.lower(), self.headcount(), len(self.live("paused"))))

    def grant(self, agent_id, priority, *, root=False):
        self.granted += 1
        slot = Slot(agent_id, priority, self.tick(), self.granted, root=root)
        slot.parent = self.asker
        self.slots.append(slot)
        self.peak = max(self.peak, self.headcount())
        self.tell("granted", agent_id, priority)
        return slot

    def deny(self, agent_id, priority):
        self.denied += 1
        self.tell("denied", agent_id, priority)

    def take_slot_of(self, slot):
        slot.state = "paused"
        self.preempted += 1
        self.tell("preempted", slot.agent_id, slot.priority)

    def give_slot_to(self, slot):
        slot.state, slot.promoted = "active", None
        for ask in slot.asking:
            ask.served = ask.rung = True
        slot.asking = []
        self.peak = max(self.peak, self.headcount())
        self.tell("resumed", slot.agent_id, slot.priority)

    def hand_out(self):
        while self.room() and (line := self.line()):
            if isinstance(line[0], Slot):
                self.give_slot_to(line[0])
            else:
                line[0].slot = self.grant(line[0].agent_id, line[0].priority)
                line[0].served = line[0].rung = True
                self.seat(line[0])

    def pausable(self):
        around = self.around(self.asker)
        return [slot for slot in self.victims() if slot not in around]

    def shortage(self, priority):
        """Say why one of this priority gets no slot while all are taken."""
        if priority not in URGENT or not self.pausable():
            return "full"
        return "preemption_off" if self.pausable()[0].priority < priority else "none_below"

    def attempt(self, agent_id, priority):
        if not self.room():
            below = [slot for slot in self.pausable() if slot.priority < priority]
            if priority in URGENT and self.allow_preempt and below:
                self.take_slot_of(below[0])
            elif self.observe:
                self.deny(agent_id, priority)
            else:
                return None
        return self.grant(agent_id, priority)

    def end(self, slot):
        slot.state = "ended"
        for ask in slot.asking:
            ask.rung = True
        slot.asking = []
        self.released += 1
        self.tell("released", slot.agent_id, slot.priority)
        self.hand_out()

    # What callers do

    def acquire(self, agent_id, priority):
        slot = self.attempt(agent_id, priority)
        if slot is None:
            self.deny(agent_id, priority)
        return slot

    def free(self, agent_id):
        return sorted((slot for slot in self.of(agent_id) if slot.inside is None), key=lambda slot: slot.touched)

    def adopted(self, agent_id):
        return sorted((slot for slot in self.of(agent_id) if slot.inside == "adopted"), key=lambda slot: slot.touched)

    def seat(self, ask):
        """Let the agent of a caller in at once, if it is one that spawns."""
        if ask.enters:
            ask.slot.inside = "own"

    def enter_free(self, agent_id, priority):
        """Let an agent in that needs no further slot."""
        free = self.free(agent_id)
        if free:
            slot = free[-1]
            slot.inside, slot.touched = "adopted", self.tick()
            return slot
        if self.rooted:
            return None
        self.rooted = True
        slot = self.grant(agent_id, priority, root=True)
        slot.inside = "own"
        return slot

    def enter(self, agent_id, priority):
        slot = self.enter_free(agent_id, priority)
        if slot is None:
            slot = self.acquire(agent_id, priority)
            if slot is not None:
                slot.inside = "own"
        return slot

    def admit(self, agent_id, priority, own):
        """Let in an agent that was spawned, with a priority of its `own` or none."""
        slot = self.enter(agent_id, priority)
        if slot is not None and own is not None:
            self.rank(slot, own)
        return slot

    def admit_or_wait(self, ask, timeout_s, own):
        """Let one in that may wait."""
        slot = self.enter_free(ask.agent_id, ask.priority)
        if slot is None:
            return self.wait(ask, timeout_s)
        if own is not None:
            self.rank(slot, own)
        ask.slot, ask.served = slot, True
        return "served"

    def leave(self, slot):
        if slot.state != "ended" and slot.inside:
            own, slot.inside, slot.touched = slot.inside == "own", None, self.tick()
            if own:
                self.end(slot)

    def release(self, slot):
        if slot.state == "ended":
            return
        if slot.inside:
            slot.inside = "own"  # an agent that runs is counted, and its lease ends with it
        else:
            self.end(slot)

    def release_id(self, agent_id):
        newest = (self.free(agent_id) or self.adopted(agent_id))[-1:]
        for slot in newest:
            self.release(slot)

    def promote(self, slot):
        slot.on_hold = False
        if self.room():
            self.give_slot_to(slot)
        else:
            slot.promoted = slot.promoted or self.tick()

    def meant(self, which):
        """List the slots of an id, or the one that is named itself while it lives."""
        if isinstance(which, str):
            return self.of(which)
        return [slot for slot in self.alive() if slot is which]

    def reprioritize(self, agent_id, priority):
        for slot in sorted(self.meant(agent_id), key=lambda slot: -slot.number):
            slot.priority = priority
            if slot.state == "paused" and priority >= Priority.NORMAL:
                self.promote(slot)
            elif slot.state == "paused":
                slot.promoted, slot.arrived = None, self.tick()
            elif not slot.root and priority < Priority.NORMAL and not self.room():
                self.take_slot_of(slot)
                self.hand_out()

    def rank(self, slot, priority):
        slot.priority = priority

    def pause(self, agent_id):
        active = [slot for slot in self.meant(agent_id) if slot.state == "active" and not slot.root]
        for slot in active[-1:]:
            self.take_slot_of(slot)
            slot.on_hold = True
            self.hand_out()
        return bool(active)

    def resume(self, agent_id):
        paused = [slot for slot in self.meant(agent_id) if slot.state == "paused"]
        for slot in [slot for slot in paused if not slot.promoted][-1:]:
            self.promote(slot)
        return bool(paused)

    def limit(self):
        return None if self.max_agents >= UNLIMITED_AGENTS.max_agents else self.max_agents

    def resize(self, max_agents):
        self.max_agents = max_agents
        self.hand_out()

    def wait(self, ask, timeout_s):
        """Tell whether the caller is served, denied, or waits."""
        ask.since, ask.arrived = self.now, self.tick()
        ask.slot = self.attempt(ask.agent_id, ask.priority)
        if ask.slot is not None:
            self.seat(ask)
            return "served"
        if timeout_s == 0 or self.max_agents == 1:
            self.deny(ask.agent_id, ask.priority)
            return "denied"
        self.asks.append(ask)
        return "waits"

    def wait_paused(self, ask, timeout_s):
        slot = ask.paused
        if slot.state == "paused" and not slot.on_hold and self.room():
            self.give_slot_to(slot)
        if slot.state == "active":
            return "served"
        if slot.state == "ended" or timeout_s == 0:
            self.deny(ask.agent_id, ask.priority)
            return "denied"
        if not slot.asking:
            slot.since, slot.arrived = self.now, self.tick()
        slot.asking.append(ask)
        self.asks.append(ask)
        return "waits"

    def gone(self, ask):
        ask.over = True
        if ask.paused is not None and ask in ask.paused.asking:
            ask.paused.asking.remove(ask)

    def wake(self, ask):
        """End a sleep, by a grant, by the alarm or because what it works for was closed; tell which."""
        self.gone(ask)
        if ask.served:
            return "served"
        if ask.stopped:
            return "closed"
        self.deny(ask.agent_id, ask.priority)
        return "denied"

    def stop(self, ask):
        ask.stopped = ask.rung = True

    def settle(self):
        """Take back what was given to callers who will never know."""
        while lost := [ask for ask in self.asks if ask.lost and ask.rung and not ask.over]:
            self.cancel(lost[0])

    def cancel(self, ask):
        self.gone(ask)
        if ask.slot is not None:
            if ask.enters:
                self.leave(ask.slot)
            self.release(ask.slot)
