"""However calls, changes, answers, replays, expiries and crashes interleave: nothing runs unapproved, and nothing twice.

Calls are tasks that stop wherever they hand over to the program: in the review, at the person, in the tool. What happens next is drawn.
Each execution is held to an account of its own, which knows what a person really said yes to. `RAVI_LONG=100000` takes so many.
"""

import asyncio
import contextvars
import copy
import os
import random
from collections import Counter

import pytest
from refund_gate import Desk, Policy, revised

import ravi_otel
from ravi_otel._enforcement.engine import Engine
from ravi_otel._runtime.scopes import current_scope
from ravi_otel._runtime.state import STATE
from ravi_otel._runtime.tool_call import ToolCall
from ravi_otel.errors import RaviError
from ravi_otel.supervisor import ApprovalAnswer, ApprovalQueue, Gate, QueueError, RunState, _sync_async
from ravi_otel.supervisor._json import canonical
from ravi_otel.supervisor.approval._queue import QueueFile
from ravi_otel.testing import ManualClock

LONG = int(os.environ.get("RAVI_LONG") or 0)
STEPS = 30
CAP = 2500.0
AMOUNTS = (100.0, 700.0, 1500.0)
CHANGED = (9e9, 1600.0)
EXPIRES_S = 100
TICKS = 40


class Account:
    """Know what a person really said yes to, and hold each execution to it."""

    def __init__(self, clock, policy):
        self.clock = clock
        self.policy = policy
        self.grants = []
        self.paid = Counter()
        self.wrong = []
        self.seen = Counter()

    def grant(self, run_id, arguments, version, expires_at):
        self.grants.append([run_id, canonical(arguments), version, expires_at])

    def execute(self, run_id, arguments, version):
        amount = arguments["amount"]
        self.paid[run_id] += amount
        self.seen["executed"] += 1
        if self.paid[run_id] > CAP:
            self.wrong.append(f"{run_id} paid {self.paid[run_id]}, more than its cap")
        if amount <= self.policy.auto:
            return
        text = canonical(arguments)
        for grant in self.grants:
            if grant[:3] == [run_id, text, version] and self.clock.time() < grant[3]:
                self.grants.remove(grant)
                self.seen["approved"] += 1
                return
        self.wrong.append(f"{run_id} executed {text}, which nobody approved, or not once more, or not any more")


class World:
    """Be two runs behind one gate, the supervisor that stops to think, and the person they ask."""

    def __init__(self, draw, clock, path):
        self.draw = draw
        self.clock = clock
        self.policy = Policy(auto=1000, per_run=CAP)
        self.account = Account(clock, self.policy)
        self.file = None if path is None else QueueFile(path, clock.time)
        self.queue = None if path is None else ApprovalQueue(path, clock=clock.time)
        self.states = {}
        self.runs = []
        self.tasks = {}
        self.parked = {}
        self.dead = set()
        self.questions = {}
        self.held = []
        self.asked = {}
        self.admitted = []
        self.seen = self.account.seen
        self.gate = self.made()

    def made(self):
        """Make the gate, as a process that begins anew does: it remembers nothing, and the states of the runs are what they were."""
        return Gate(
            self,
            tools={"refund": self.refund},
            policy=self.policy,
            approver=self,
            state=lambda: self.states.setdefault(current_scope().facts.run_id, RunState()),
            expires_s=EXPIRES_S,
            loops=False,
        )

    def version(self):
        return self.gate._terms.version()

    async def park(self, chance=1.0):
        if self.draw.random() >= chance:
            return
        task = asyncio.current_task()
        self.parked[task] = asyncio.get_running_loop().create_future()
        try:
            await self.parked[task]
        finally:
            self.parked.pop(task, None)

    # -- what the gate calls --------------------------------------------------------------------------------------------

    def may_lack(self, tool):
        return ("reason",)

    async def review(self, action, state, policy):
        judged = copy.deepcopy(action)
        self.held.append(action["args"])
        await self.park(0.3)
        decision = Desk().review(judged, state, policy)
        if decision.kind == "approve" and self.draw.random() < 0.15:
            decision = revised("more", **{**judged["args"], "amount": 1500.0})
            self.held.append(decision.revised_action["args"])
        await self.park(0.5)
        return decision

    async def ask(self, request):
        self.seen["asked"] += 1
        arguments = copy.deepcopy(request.arguments)
        self.held.append(request.arguments)
        self.asked[request.fingerprint] = (current_scope().facts.run_id, arguments, request.policy_version)
        task = asyncio.current_task()
        answered = self.questions[task] = (request, asyncio.get_running_loop().create_future())
        try:
            answer = await (answered[1] if self.queue is None else self.queue.ask(request))
        finally:
            self.questions.pop(task, None)
        await self.park(0.5)
        if answer.arguments is not None:
            self.held.append(answer.arguments)  # to be changed once the gate has it
        return answer

    def executed(self, request, status):
        if self.queue is not None:
            self.queue.executed(request, status)

    async def refund(self, user_id: int, amount: float, reason: str) -> dict:
        task = asyncio.current_task()
        if self.tasks.get(task):
            self.account.wrong.append("one call was executed twice")
        self.tasks[task] = True
        self.account.execute(current_scope().facts.run_id, {"user_id": user_id, "amount": amount, "reason": reason}, self.version())
        await self.park(0.5)
        return {"status": "ok"}

    # -- what may happen ----------------------------------------------------------------------------------------------------

    def call(self):
        arguments = {"user_id": 1, "amount": self.draw.choice(AMOUNTS)}
        if self.draw.random() < 0.6:
            arguments["reason"] = "late"
        self.held.append(arguments)
        gate = self.gate
        context = self.draw.choice(self.runs)
        self.tasks[asyncio.get_running_loop().create_task(self.walked(gate, arguments), context=context.copy())] = False

    async def walked(self, gate, arguments):
        try:
            await ToolCall("refund", self.refund, arguments, Replayed(gate, self.admitted)).run_async()
            self.seen["done"] += 1
        except RaviError as error:
            self.seen[str(getattr(error, "stop_reason", type(error).__name__)).split(":")[-1]] += 1

    def one(self, among):
        """Draw one of them, or none where there is none."""
        known = list(among)
        return [self.draw.choice(known)] if known else []

    def go_on(self):
        for future in self.one(each for each in self.parked.values() if not each.done()):
            future.set_result(None)

    def go_on_with_all(self):
        for future in self.parked.values():
            if not future.done():
                future.set_result(None)

    def mutate(self):
        if self.held:
            self.draw.choice(self.held)["amount"] = self.draw.choice(CHANGED)
            self.seen["mutated"] += 1

    def answer(self):
        kind = self.draw.random()
        edit = {"user_id": 1, "amount": self.draw.choice([50.0, 1200.0, 9999.0]), "reason": "edited"} if kind < 0.3 else None
        answer = ApprovalAnswer(approved=kind < 0.8, who="ann", arguments=edit)
        if self.queue is not None:
            self.answer_in_the_file(answer)
            return
        for request, future in self.one(self.questions.values()):
            for _ in range(2):  # a person who says it twice
                if not future.done():
                    self.granted(request.fingerprint, answer, request.expires_at)
                    future.set_result(answer)

    def answer_in_the_file(self, answer):
        pending = self.file.all(pending=True, most=50)
        for stored in self.one(each for each in pending if each.request.fingerprint in self.asked):
            for _ in range(2):  # a person who says it twice
                try:
                    self.file.answer(stored, answer, login="ann")
                except QueueError:
                    continue
                self.granted(stored.request.fingerprint, answer, stored.request.expires_at)

    def granted(self, fingerprint, answer, expires_at):
        if answer.approved:
            run_id, arguments, version = self.asked[fingerprint]
            self.account.grant(run_id, copy.deepcopy(arguments if answer.arguments is None else answer.arguments), version, expires_at)

    def replay(self):
        if self.admitted:
            gate, request, arguments = self.draw.choice(self.admitted)
            self.seen["replayed"] += 1
            for asked in (gate, self.gate):
                if asked.admit(request, arguments).allowed:
                    self.account.wrong.append("a call that had run was admitted once more")

    def expire(self):
        self.clock.advance(self.draw.choice([1, 60, EXPIRES_S]))
        self.seen["expired"] += 1

    def change_policy(self):
        self.policy.auto = self.draw.choice([400, 1000])

    def cancel(self):
        for task in self.one([*self.parked, *self.questions]):
            task.cancel()
            self.seen["cancelled"] += 1

    def crash(self):
        """End the process: nobody goes on with what was on its way, and nothing is told how it ended; another one begins."""
        for task in self.questions if self.queue is not None else ():
            task.cancel()  # it would go on to look into the file
        self.dead.update(self.parked, self.questions)
        self.parked.clear()
        self.questions.clear()
        self.gate = self.made()
        self.seen["crashed"] += 1

    async def settle(self):
        """Let all go on until each waits for what happens next."""
        for _ in range(TICKS):
            blocked = self.questions if self.queue is None else ()
            if all(task.done() or task in self.parked or task in self.dead or task in blocked for task in self.tasks):
                return
            await asyncio.sleep(0)

    async def live(self):
        handles = [ravi_otel.run("desk") for _ in range(2)]
        for handle in handles:
            context = contextvars.copy_context()
            context.run(handle.__enter__)
            self.runs.append(context)
        acts = [self.call] * 5 + [self.go_on] * 8 + [self.answer] * 5
        acts += [self.go_on_with_all, self.mutate, self.mutate, self.replay, self.expire, self.change_policy, self.cancel]
        for _ in range(STEPS):
            self.draw.choice([*acts, self.crash] if self.draw.random() < 0.3 else acts)()
            await self.settle()
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        for context, handle in zip(self.runs, handles, strict=True):
            context.run(handle.__exit__, None, None, None)
        return self.account.wrong


class Replayed:
    """Be the gate, and keep what it admitted to ask for it once more."""

    def __init__(self, gate, admitted):
        self.before, self.after, self.audit = gate.before, gate.after, gate.audit
        self._gate = gate
        self._admitted = admitted

    def admit(self, request, arguments):
        verdict = self._gate.admit(request, arguments)
        if verdict.allowed:
            self._admitted.append((self._gate, request, copy.deepcopy(dict(arguments))))
        return verdict


async def explore(seeds, clock, path):
    seen = Counter()
    for seed in seeds:
        world = World(random.Random(seed), clock, path)
        wrong = await world.live()
        assert not wrong, f"seed {seed}: {wrong}"
        seen += world.seen
    return seen


@pytest.fixture
def clock():
    before = STATE.engine, STATE.limits
    clock = ManualClock()
    STATE.install(Engine(clock=clock), ())
    yield clock
    STATE.install(*before)


@pytest.mark.timeout(7200 if LONG else 120)
def test_nothing_runs_unapproved_and_nothing_twice(clock):
    seen = asyncio.run(explore(range(max(LONG, 150)), clock, None))
    for what in ("executed", "approved", "asked", "mutated", "replayed", "expired", "cancelled", "crashed", "human_rejected"):
        assert seen[what] > 5, f"{what}: {seen}"


@pytest.mark.timeout(7200 if LONG else 120)
def test_nothing_runs_unapproved_and_nothing_twice_with_a_queue_in_a_file(clock, tmp_path, monkeypatch):
    monkeypatch.setattr(_sync_async, "FIRST_PAUSE_S", 0.0)
    monkeypatch.setattr(_sync_async, "LONGEST_PAUSE_S", 0.0)
    seen = asyncio.run(explore(range(max(LONG // 10, 12)), clock, tmp_path / "approvals.db"))
    for what in ("executed", "approved", "asked", "mutated", "crashed"):
        assert seen[what] > 0, f"{what}: {seen}"
