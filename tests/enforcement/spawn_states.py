"""Walk through every state that a small run's slots can be in, breadth first; each step calls the real SpawnTracker.

A state is what the rules can tell apart: leases and callers by their place, times by how long ago they were. Each way out of
each state is gone once, from a tracker that was led there by the shortest way, and held against the model of the rules.
`python tests/enforcement/spawn_states.py` prints how many states and steps there are.
"""

import asyncio
import os
import sys
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from spawn_play import Differs, Play

from ravi_otel._enforcement.spawn_tracker import SpawnTracker
from ravi_otel.policy._runs import UNLIMITED_AGENTS, Priority

LOW, NORMAL, HIGH = Priority.LOW, Priority.NORMAL, Priority.HIGH


@dataclass(frozen=True)
class Instance:
    """Bound a run: who may come, how many at once, and what may happen to them."""

    name: str
    ids: tuple[str, ...]
    priorities: tuple[Priority, ...]
    max_agents: int
    leases: int
    asks: int = 0
    allow_preempt: bool = True
    observe: bool = False
    sizes: tuple[int, ...] = ()
    agents: bool = False
    loops: bool = False
    scopes: bool = False
    operators: bool = False
    ranks: bool = False
    tree: bool = False
    tick_s: int = 0
    oldest_s: int = 0
    errors: tuple[type[BaseException], ...] = field(default=())


INSTANCES = (
    Instance("agents", ("a", "b"), (NORMAL,), 2, 2, agents=True, errors=(KeyError, GeneratorExit)),
    Instance("line", ("a", "b"), (NORMAL,), 2, 2, 2, errors=(GeneratorExit,)),
    Instance("no limit", ("a", "b"), (NORMAL,), UNLIMITED_AGENTS.max_agents, 2),
    Instance("spawned by rank", ("a",), (LOW,), 2, 1, 1, agents=True),
    Instance("spawned", ("a",), (NORMAL,), 2, 2, 1, agents=True, errors=(GeneratorExit,)),
    Instance("closed scopes", ("a",), (LOW,), 2, 2, 1, scopes=True, errors=(GeneratorExit,)),
    Instance("tree", ("a",), (LOW, HIGH), 3, 3, tree=True),
    Instance("root", ("a",), (NORMAL,), 2, 2, agents=True, operators=True),
    Instance("priorities", ("a",), (LOW, NORMAL, HIGH), 2, 2, operators=True),
    Instance("callers", ("a",), (LOW,), 2, 1, 2, operators=True, tick_s=30, oldest_s=30),
    Instance("no preemption", ("a",), (LOW, HIGH), 2, 2, 1, allow_preempt=False),
    Instance("observed", ("a",), (NORMAL, HIGH), 1, 2, 0, allow_preempt=False, observe=True, agents=True),
    Instance("aging", ("a",), (LOW, HIGH), 2, 2, 1, allow_preempt=False, tick_s=90, oldest_s=90),
    Instance("two places", ("a",), (LOW, HIGH), 3, 3, operators=True, ranks=True),
    Instance("closed loops", ("a",), (NORMAL,), 2, 2, 1, loops=True),
    Instance("paused in line", ("a",), (LOW, HIGH), 2, 2, 1, errors=(asyncio.CancelledError,)),
    Instance("callers in line", ("a",), (LOW,), 2, 2, 2),
    Instance("two paused", ("a",), (NORMAL,), 2, 3, 1, operators=True),
    Instance("resized", ("a",), (HIGH,), 2, 2, 1, sizes=(1, 2, 3), errors=(KeyboardInterrupt,)),
    Instance("callers in a tree", ("a",), (LOW, HIGH), 2, 2, 1, tree=True),
    Instance("paused agents", ("a",), (LOW, HIGH), 2, 2, agents=True),
)
"""Small runs, the quick ones first: between them there is every rule."""


def key_of(play, instance):
    """Give the state: all that the rules can tell apart, by place and not by number."""
    model = play.model
    alive = model.alive()
    place = {slot.order: at for at, slot in enumerate(alive)}
    asks = [ask for ask in model.asks if not ask.over]
    around = tuple(tuple(place[each.order] for each in model.around(slot.parent) if each.order in place) for slot in alive)
    line = tuple(place[each.order] if hasattr(each, "order") else -1 - asks.index(each) for each in model.line())

    def age(who, waits):
        return min(model.now - who.since, instance.oldest_s) if waits else None

    return (
        model.rooted,
        model.max_agents,
        any(slot.state == "ended" and slot.real for slot in model.slots),
        tuple((s.agent_id, s.priority, s.state, s.root, s.inside, bool(s.promoted), s.on_hold, age(s, s.asking)) for s in alive),
        tuple(
            (
                ask.agent_id,
                ask.priority,
                ask.served,
                ask.rung,
                ask.lost,
                ask.enters,
                ask.stopped,
                None if ask.slot is None else place.get(ask.slot.order),
                None if ask.paused is None else place.get(ask.paused.order),
                age(ask, ask.paused is None and not ask.served),
            )
            for ask in asks
        ),
        line,
        around,
        tuple((agent_id, tuple(place[slot.order] for slot in model.free(agent_id))) for agent_id in instance.ids),
        tuple((agent_id, tuple(place[slot.order] for slot in model.adopted(agent_id))) for agent_id in instance.ids),
    )


def ways_of(play, instance):
    """List the steps that lead on from here: each is a method's name and what it is given, slots and asks by their place."""
    model = play.model
    known = [at for at, slot in enumerate(model.alive()) if slot.real is not None]
    if any(slot.state == "ended" and slot.real for slot in model.slots):
        known.append(-1)
    asks = [at for at, ask in enumerate(ask for ask in model.asks if not ask.over)]
    may_come = len(model.alive()) < instance.leases
    may_ask = len(asks) < instance.asks
    yield from _steps_by_id(play, instance, may_come=may_come, may_ask=may_ask)
    for at in known:
        yield from (("release", at), *(("crash", at, error) for error in instance.errors))
        yield from _steps_by_operators(instance, at)
        if instance.agents:
            yield "leave", at
        if instance.asks:
            yield "wait_paused", at, 0
        if may_ask:
            yield "wait_paused", at, None
    if instance.tree and may_come:
        comes = [way for way in _steps_by_id(play, instance, may_come=True, may_ask=may_ask) if way[0] in {"acquire", "enter", "wait"}]
        yield from (("inside", at, *way) for at in known for way in comes if way[0] != "enter" or way[-1] is None)
    yield from _steps_by_sleepers(play, instance)
    yield from (("resize", size) for size in instance.sizes)
    waiting = [who.since for who in (*model.asks, *model.live("paused")) if who.since is not None]
    if instance.tick_s and all(model.now + instance.tick_s - since <= instance.oldest_s for since in waiting):
        yield "time_passes", instance.tick_s


def _steps_by_sleepers(play, instance):
    for at, ask in enumerate(ask for ask in play.model.asks if not ask.over and not ask.lost):
        yield from (("wake", at), *(("cancel", at, error) for error in instance.errors))
        if instance.loops and not ask.rung:
            yield "lose", at
        if instance.scopes and not ask.stopped:
            yield "stop", at


def _steps_by_operators(instance, at):
    if not instance.ranks:
        return
    yield from (("pause_one", at), ("resume_one", at))
    for priority in instance.priorities:
        yield from (("rank", at, priority), ("reprioritize_one", at, priority))


def _steps_by_id(play, instance, *, may_come, may_ask):
    yield from (("release_id", agent_id) for agent_id in (*instance.ids, "ghost", []))
    for agent_id in instance.ids:
        if instance.operators:
            yield from (("pause", agent_id), ("resume", agent_id))
        for priority in instance.priorities:
            yield "reprioritize", agent_id, priority
            if may_come:
                yield "acquire", agent_id, priority
                if instance.asks:
                    yield "wait", agent_id, priority, 0
            if may_come and may_ask:
                yield "wait", agent_id, priority, None
            if instance.agents and (may_come or play.model.free(agent_id)):
                yield "enter", agent_id, priority
                yield from _spawns(agent_id, priority, may_ask=may_ask)


def _spawns(agent_id, priority, *, may_ask):
    """Spawn an agent without a priority of its own, and with one."""
    for own in ((), (NORMAL,), (priority,))[: 2 + (priority is not NORMAL)]:
        yield "admit", agent_id, *own
        if may_ask:
            yield "admit_or_wait", agent_id, *own


def go(play, way):
    """Take one step."""
    name, *given = way
    alive = play.model.alive()
    ended = [slot for slot in play.model.slots if slot.state == "ended" and slot.real]
    if name in {"release", "leave", "crash", "rank", "pause_one", "resume_one", "reprioritize_one", "wait_paused", "inside"}:
        given[0] = ended[-1] if given[0] == -1 else alive[given[0]]
    if name in {"wake", "cancel", "lose", "stop"}:
        given[0] = [ask for ask in play.model.asks if not ask.over and not ask.lost][given[0]]
    getattr(play, name)(*given)


def explore(instance, tracker=SpawnTracker):
    """Give how many states and steps there are; raise Differs, with the way there, at the first step that breaks a rule."""

    def led(path):
        how = {"allow_preempt": instance.allow_preempt, "observe": instance.observe, "in_scopes": instance.scopes}
        play = Play(instance.max_agents, **how, tracker=tracker)
        for way in path:
            go(play, way)
        return play

    start = led(())
    seen, frontier, steps = {key_of(start, instance)}, deque([()]), 0
    while frontier:
        path = frontier.popleft()
        play = led(path)
        here, ways = key_of(play, instance), list(ways_of(play, instance))
        for way in ways:
            play = led(path) if play is None else play
            try:
                go(play, way)
                play.agree()
            except Exception as error:
                raise Differs(f"{instance.name}: {' > '.join(map(str, (*path, way)))}: {error!r}") from error
            steps += 1
            there = key_of(play, instance)
            if there == here:
                continue
            play = None
            if there not in seen:
                seen.add(there)
                frontier.append((*path, way))
        # What is left in a state is ended there, too.
        play = led(path) if play is None else play
        play.finish()
    return len(seen), steps


def main():
    """Print how many states and steps each instance has."""
    os.environ["RAVI_RAISE_BUGS"] = "1"
    for instance in INSTANCES:
        began = time.process_time()
        states, steps = explore(instance)
        print(f"{instance.name:16} {states:6,} states {steps:8,} steps {time.process_time() - began:6.2f} s", flush=True)


if __name__ == "__main__":
    main()
