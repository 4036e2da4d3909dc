"""A run has one state for each supervisor, whatever gates it stands at, and what a review asked about holds when its call begins."""

import asyncio
import gc
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import anyio
import pytest
from refund_gate import APPROVE, ESCALATE, LARGE, SMALL, YES, Person, Says, desk_gate, through

import ravi_otel
from ravi_otel.errors import CancellationError, DeadlineExceededError, ToolDeniedError
from ravi_otel.supervisor import Gate, Rules, RunState
from ravi_otel.supervisor._run_state import ReviewReads, note_read, recording_reads
from ravi_otel.supervisor.rules import CapPerRun, MostCalls, ReadOnly

RULES = Rules([CapPerRun(["refund", "credit"], "usd", 2000)])


def refund(usd: int) -> str:
    return f"refund {usd}"


def credit(usd: int) -> str:
    return f"credit {usd}"


# -- one state ---------------------------------------------------------------------------------------------------------


def test_two_gates_with_one_supervisor_share_the_cap_of_a_run():
    pay, give = (ravi_otel.tool(fn, gate=Gate(RULES, tools=[fn], part=True)) for fn in (refund, credit))
    for _ in range(2):
        with ravi_otel.run("desk"):
            assert pay(2000) == "refund 2000"
            with pytest.raises(ToolDeniedError):
                give(1)


def test_tools_that_are_put_in_again_in_a_run_go_on_where_they_were():
    tools = {"refund": refund}
    with ravi_otel.run("desk"):
        with ravi_otel.instrument_tools(tools, supervisor=RULES):
            assert tools["refund"](2000) == "refund 2000"
        gc.collect()
        with ravi_otel.instrument_tools(tools, supervisor=RULES), pytest.raises(ToolDeniedError):
            tools["refund"](1)


def test_gates_with_other_supervisors_or_makers_of_states_have_states_of_their_own(till):
    says = Says(APPROVE)
    gates = [desk_gate(till), desk_gate(till), desk_gate(till, supervisor=says), desk_gate(till, supervisor=says, state=partial(RunState))]
    with ravi_otel.run("desk"):
        assert len({id(gate.state) for gate in gates}) == 4
        assert desk_gate(till, supervisor=says).state is gates[2].state


class Slotted:
    __slots__ = ()

    def review(self, action, state, policy):
        return APPROVE


def test_a_supervisor_that_cannot_be_watched_shares_its_state_too(till):
    with ravi_otel.run("desk"):
        slotted = Slotted()
        assert desk_gate(till, supervisor=slotted).state is desk_gate(till, supervisor=slotted).state


class Failing:
    def __init__(self):
        self.fails = True

    def begin(self, tool, arguments):
        pass

    def end(self, tool, arguments, status, result):
        if self.fails:
            self.fails = False
            raise OSError("not counted")


@pytest.mark.parametrize("given", ["object", "maker", "another gate"])
def test_a_state_that_failed_is_trusted_in_no_later_run(till, given):
    state = Failing()
    gate = Gate(tools=till.tools, state=(lambda: state) if given == "maker" else state)
    with ravi_otel.run("one"):
        through("sync", gate, "refund", till.refund, SMALL)
    gc.collect()
    if given == "another gate":
        gate = Gate(tools=till.tools, state=state)
        gc.collect()
    with ravi_otel.run("two"), pytest.raises(ToolDeniedError) as caught:
        through("sync", gate, "refund", till.refund, SMALL)
    assert caught.value.stop_reason == "supervisor_block:state_failed"


# -- what a review asked about -------------------------------------------------------------------------------------------


class Together:
    """Let the first reviews end together, so that each judges by what was before the others."""

    def __init__(self, rules, parties):
        self.rules = rules
        self.reviews = 0
        self._parties = parties
        self._all_here = asyncio.Event()

    async def review(self, action, state, policy):
        decision = await self.judge(action, state, policy)
        self.reviews += 1
        if self.reviews == self._parties:
            self._all_here.set()
        await self._all_here.wait()
        return decision

    async def judge(self, *about):
        return self.rules.review(*about)


class InThread(Together):
    """Judge in a thread that knows nothing of the review around it."""

    async def judge(self, *about):
        with ThreadPoolExecutor(1) as pool:
            return await asyncio.get_running_loop().run_in_executor(pool, partial(self.rules.review, *about))


class Counting:
    """Be a state of the program's own, of which nobody knows what a review asked."""

    def __init__(self):
        self.calls = []

    def begin(self, tool, arguments):
        self.calls.append(tool)

    def end(self, tool, arguments, status, result):
        pass


def reads(gate_of):
    """Call three read-only tools at once; how many ran, and how many reviews that took."""

    async def main():
        gate, supervisor, tools = gate_of()
        with ravi_otel.run("desk"):
            ended = await asyncio.gather(*(ravi_otel.tool(fn, gate=gate)(100) for fn in tools.values()), return_exceptions=True)
        return sum(isinstance(each, str) for each in ended), supervisor.reviews

    return asyncio.run(main())


def looks():
    async def look(usd: int) -> str:
        return "seen"

    return dict.fromkeys("abc", look)


@pytest.mark.parametrize("kind", [Together, InThread])
@pytest.mark.parametrize("rule", [MostCalls(["a", "b", "c"], 1), CapPerRun(["a", "b", "c"], "usd", 100)])
def test_a_cap_over_read_only_tools_holds_for_calls_at_once(rule, kind):
    def gate():
        supervisor, tools = kind(Rules([ReadOnly(["a", "b", "c"]), rule]), 3), looks()
        return Gate(supervisor, tools=tools, read_only=tools), supervisor, {name: _named(fn, name) for name, fn in tools.items()}

    assert reads(gate)[0] == 1


def test_a_cap_in_a_state_of_the_programs_own_holds_for_read_only_calls_at_once():
    class Once:
        def review(self, action, state, policy):
            return APPROVE if not state.calls else Says(ESCALATE).review(action, state, policy)

    def gate():
        supervisor, tools = Together(Once(), 3), looks()
        return Gate(supervisor, tools=tools, read_only=tools, state=Counting), supervisor, {n: _named(fn, n) for n, fn in tools.items()}

    assert reads(gate)[0] == 1


def test_read_only_calls_that_no_review_asked_about_cause_no_second_one():
    def gate():
        supervisor, tools = Together(Rules([ReadOnly(["a", "b", "c"]), MostCalls("a", 1)]), 3), looks()
        return Gate(supervisor, tools=tools, read_only=tools), supervisor, {name: _named(fn, name) for name, fn in tools.items()}

    assert reads(gate) == (3, 3)


def _named(fn, name):
    async def call(usd: int) -> str:
        return await fn(usd)

    call.__name__ = name
    return call


def test_what_is_asked_after_a_review_is_over_is_none_of_it():
    look = ReviewReads(object(), whole=False)
    with recording_reads(look):
        note_read("a")
        thread = threading.Thread(target=note_read, args=("b",))  # which knows of no review: it may belong to any
        thread.start()
        thread.join()
    note_read("c")
    assert (look.tools, look.whole) == ({"a", "b"}, False)


# -- a review that calls tools itself --------------------------------------------------------------------------------------


def test_a_supervisor_that_calls_a_tool_it_would_have_to_judge_is_refused_at_once(till):
    seen = []

    def review(action, state, policy):
        if action["name"] == "refund":
            with pytest.raises(ToolDeniedError) as caught:
                through("sync", gate, "credit", credit, {"usd": 1})
            seen.append(caught.value.stop_reason)
            through("sync", gate, "context", till.context, {"user_id": 1})
        return APPROVE

    gate = Gate(Says(review), tools={**till.tools, "credit": credit}, read_only=["context"])
    with ravi_otel.run("desk"):
        through("sync", gate, "refund", till.refund, SMALL)
    assert (seen, till.looked, len(till.paid)) == (["supervisor_block:called_in_review"], [1], 1)


# -- who never answers -------------------------------------------------------------------------------------------------------


class Never:
    """Answer never."""

    async def review(self, action, state, policy):
        await anyio.sleep_forever()

    async def ask(self, request):
        await anyio.sleep_forever()

    def executed(self, request, status):
        pass


@pytest.mark.parametrize("colour", ["async", "trio"])
@pytest.mark.parametrize("who", ["supervisor", "approver"])
def test_a_time_limit_ends_the_wait_for_who_never_answers(colour, till, who):
    more = {"supervisor": Never()} if who == "supervisor" else {"supervisor": Says(ESCALATE), "approver": Never()}
    gate = Gate(tools=till.tools, **more)
    with pytest.raises(DeadlineExceededError), ravi_otel.run("desk", limits=["time=0.2s"]):
        through(colour, gate, "refund", till.refund, LARGE)
    assert till.paid == []


@pytest.mark.parametrize("colour", ["async", "trio"])
def test_a_question_that_is_never_answered_ends_when_it_expires(colour, till, monkeypatch):
    monkeypatch.setattr("ravi_otel.supervisor._sync_async._GRACE_S", 0.05)
    gate = Gate(Says(ESCALATE), tools=till.tools, approver=Never(), expires_s=0.05)
    with ravi_otel.run("desk"), pytest.raises(ToolDeniedError) as caught:
        through(colour, gate, "refund", till.refund, LARGE)
    assert caught.value.stop_reason == "human_rejected"


class EndsFirst:
    """Be asked by a call that is over before the answer is awaited."""

    def __init__(self, end):
        self._end = end

    def ask(self, request):
        self._end()
        return self._answer()

    async def _answer(self):
        await anyio.sleep_forever()

    def executed(self, request, status):
        pass


@pytest.mark.parametrize("colour", ["async", "trio"])
def test_a_question_whose_run_is_over_before_it_is_awaited_is_closed(colour, till):
    with ravi_otel.run("desk") as run:
        gate = Gate(Says(ESCALATE), tools=till.tools, approver=EndsFirst(run.cancel))
        with pytest.raises(CancellationError):
            through(colour, gate, "refund", till.refund, LARGE)
    gc.collect()  # nobody was told of a coroutine that was never awaited
    assert till.paid == []


@pytest.mark.parametrize("expires_s", [None, 60])
def test_a_question_whose_task_is_cancelled_before_it_is_awaited_is_closed(till, expires_s):
    async def main():
        gate = Gate(Says(ESCALATE), tools=till.tools, approver=EndsFirst(asyncio.current_task().cancel), expires_s=expires_s)
        with ravi_otel.run("desk"):
            await ravi_otel.tool(till.refund_async, name="refund", gate=gate)(**LARGE)

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(main())
    gc.collect()
    assert till.paid == []


def test_what_cancels_the_program_while_a_supervisor_thinks_is_the_programs(till):
    async def main():
        with anyio.move_on_after(0.05) as stop, ravi_otel.run("desk"):
            await ravi_otel.tool(till.refund_async, name="refund", gate=Gate(Never(), tools=till.tools))(**LARGE)
        return stop.cancelled_caught

    assert anyio.run(main)


def test_an_answer_in_time_counts(till):
    gate = Gate(Says(ESCALATE), tools=till.tools, approver=Person(YES))
    with ravi_otel.run("desk", limits=["time=60s"]):
        through("async", gate, "refund", till.refund, LARGE)
    assert len(till.paid) == 1
