"""However an agent, a flow or a team ends: its result, spans, hooks, stored run and metrics say the same status and stop reason."""

from __future__ import annotations

import asyncio
import json
import os
from contextlib import ExitStack

import anyio
import pytest
from desk_stage import REFUND, Desk, Judge, agent_of, final, use
from team_stage import lead_of

import ravi_otel
from ravi_otel import HookEvent, HookManager, Priority, SpawnBudget, SpawnTracker
from ravi_otel._local.store import Store
from ravi_otel._telemetry import names
from ravi_otel.agents import AgentContext, Flow, OrchestratorAgent, ReActAgent, SubAgentConfig, build_supervisor, handoff, run_agent
from ravi_otel.agents.history import HistoryError, MemoryHistory
from ravi_otel.agents.middleware import InputGuardrail, agent_middleware
from ravi_otel.errors import LLMTimeout, MiddlewareTermination, StopRun
from ravi_otel.policy._limits import ScopeKind
from ravi_otel.supervisor import Budget, CallbackApprover, Decision, DecisionKind
from ravi_otel.testing import Capture, Failure, Text, ToolCalls
from ravi_otel.testing._script import FINAL

DONE = Text("done", usage=(10, 5))
LONG = os.environ.get("RAVI_LONG")


def asked(*calls, **more):
    return ToolCalls(calls, usage=(10, 5), **more)


def double(x: int) -> int:
    """Double a number."""
    return 2 * x


def crash() -> str:
    """Crash."""
    raise ZeroDivisionError("nothing to share")


def stop() -> str:
    """Stop the run."""
    raise StopRun("enough_seen")


def cancel() -> str:
    """Cancel the agent."""
    AgentContext.current().scope.cancellation.cancel("enough")
    return "cancelled"


def close() -> str:
    """Close the agent."""
    AgentContext.current().scope.close()
    return "closed"


async def hang() -> str:
    """Wait without end."""
    await anyio.sleep_forever()
    return "never"


class Lost(MemoryHistory):
    """Be a store that cannot be read."""

    async def load(self, *_, **__):
        raise HistoryError("the disk is gone")


class Late:
    """Be a model that answers too late."""

    async def generate(self, messages, *, tools=()):
        raise LLMTimeout("no answer in time")


@agent_middleware
async def terminates(context, call_next):
    raise MiddlewareTermination("not today")


@agent_middleware
async def awaits_what_was_cancelled(context, call_next):
    task = asyncio.ensure_future(asyncio.sleep(60))
    task.cancel()
    await task


def reacting(*script, tools=(double, crash, stop, cancel, close, hang), **more):
    return lambda team: ReActAgent("r", model=team.plays("r", *(script or (lambda _: asked(("double", {"x": 1})),))), tools=tools, **more)


def supervised(*script, **more):
    return lambda team: agent_of(team, Desk(), *script, **more)


def _rejects(approval):
    return False


def _blocks(what, reason="over_the_cap"):
    return Judge(**{what: Decision(DecisionKind.BLOCK, reason)})


LOOKS = [use("look", user_id=number) for number in range(9)]

REACT = {
    ("ok", "success"): reacting(DONE),
    ("stopped", "max_steps"): reacting(max_steps=2),
    ("stopped", "loop_detected:same_error"): reacting(lambda _: asked(("crash", {}))),
    ("stopped", "tool_missing:nope"): reacting(lambda _: asked(("nope", {}))),
    ("stopped", "tool_bad_args:double"): reacting(lambda _: asked(("double", {"y": 1}))),
    ("stopped", "enough_seen"): reacting(asked(("stop", {}))),
    ("stopped", "cancelled"): reacting(asked(("cancel", {})), DONE),
    ("stopped", "closed"): reacting(asked(("close", {})), DONE),
    ("stopped", "llm_length"): reacting(Text("half", finish_reason="length")),
    ("stopped", "llm_content_filter"): reacting(Text("", finish_reason="content_filter")),
    ("stopped", "llm_broken_off"): reacting(Text("half", finish_reason="error")),
    ("stopped", "llm_empty"): reacting(Text("")),
    ("stopped", "llm_timeout"): lambda _: ReActAgent("r", model=Late()),
    ("error", "llm_error:AuthenticationError"): reacting(Failure(401, headers=FINAL)),
    ("error", "history_error"): lambda team: ReActAgent("r", model=team.plays("r", DONE), history=Lost()),
    ("stopped", "guardrail:no_go"): reacting(DONE, middleware=[InputGuardrail("go", name="no_go")]),
    ("stopped", "guardrail:no_run"): reacting(DONE, middleware=[InputGuardrail("go", name="no_run", level="agent")]),
    ("stopped", "middleware_terminated"): reacting(DONE, middleware=[terminates]),
    ("stopped", "limit_turns"): reacting(limits=["turns=2"]),
    ("stopped", "limit_tokens"): reacting(limits=["tokens=20:on=stop"]),
    ("stopped", "limit_requests"): reacting(limits=["requests=2:on=final"]),
    ("paused", "limit_turns"): reacting(limits=["turns=1:on=pause"]),
    ("stopped", "deadline"): reacting(asked(("hang", {})), limits=["time=0.2s"]),
}
SUPERVISED = {
    ("ok", "success"): supervised(final("Bye.")),
    ("stopped", "supervisor_block:over_the_cap"): supervised(use("refund", **REFUND), supervisor=_blocks("refund")),
    ("stopped", "supervisor_block:unfounded"): supervised(final("Bye."), supervisor=_blocks("final", "unfounded")),
    ("stopped", "human_rejected"): supervised(
        use("refund", **REFUND),
        supervisor=Judge(refund=Decision(DecisionKind.ESCALATE, "ask")),
        approver=CallbackApprover(_rejects),
    ),
    ("stopped", "tool_denied:refund"): supervised(use("refund", **REFUND), allow=["look"]),
    ("stopped", "tool_error:crash"): supervised(use("crash")),
    ("stopped", "tool_bad_result:lie"): supervised(use("lie")),
    ("stopped", "max_tool_calls"): supervised(*LOOKS, budget=Budget(max_tool_calls=1)),
    ("stopped", "max_steps"): supervised(*LOOKS, budget=Budget(max_steps=2)),
    ("stopped", "max_seconds"): supervised(use("wait"), budget=Budget(max_seconds=0.2)),
    ("stopped", "loop_detected:per_tool_limit"): supervised(*LOOKS, per_tool_limit=1),
    ("stopped", "loop_detected:signature_repeat"): supervised(*[use("look", user_id=1)] * 4, per_tool_limit=None),
    ("stopped", "invalid_action:non_json"): supervised(Text("Let me think.")),
    ("stopped", "invalid_action:unknown_tool:nope"): supervised(use("nope")),
    ("stopped", "llm_empty"): supervised(Text(" ")),
    ("stopped", "limit_turns"): supervised(*LOOKS, limits=["turns=1"]),
}
SUBMITTING = {
    ("ok", "success"): lambda team: build_supervisor("Work.", model=team.plays("s", asked(("submit", {"answer": "42"})))),
    ("stopped", "not_accepted"): lambda team: build_supervisor(
        "Work.", model=team.plays("s", asked(("submit", {"answer": "41"}))), check=lambda answer: answer == "42"
    ),
}
ORCHESTRATING = {
    ("ok", "success"): lambda team: lead_of(team, ReActAgent("sub", model=team.plays("sub", DONE))),
    ("stopped", "max_steps"): lambda team: lead_of(team, ReActAgent("sub", model=team.plays("sub", DONE)), max_steps=1),
}
FLOWING = {
    ("ok", "success"): lambda team: Flow("f", [reacting(DONE)(team)]),
    ("stopped", "max_steps"): lambda team: Flow("f", [reacting(max_steps=1)(team)]),
    ("stopped", "enough_seen"): lambda team: Flow("f", [reacting(asked(("stop", {})))(team)]),
    ("error", "llm_error:AuthenticationError"): lambda team: Flow("f", [reacting(Failure(401, headers=FINAL))(team)]),
    ("stopped", "deadline"): lambda team: Flow("f", [reacting(asked(("hang", {})))(team)], limits=["time=0.2s"]),
    ("paused", "limit_turns"): lambda team: Flow("f", [reacting(limits=["turns=1:on=pause"])(team)]),
}
ENDS = [
    pytest.param(end, make, id=f"{kind}-{end[0]}-{end[1]}")
    for kind, ends in {
        "react": REACT,
        "supervised": SUPERVISED,
        "submitting": SUBMITTING,
        "orchestrating": ORCHESTRATING,
        "flow": FLOWING,
    }.items()
    for end, make in ends.items()
]


class Heard:
    """Read what was said of the ends of runs and agents, by name, on each way out."""

    def __init__(self, capture, ends, place, leave):
        self.capture = capture
        self._ends = ends
        self._place = place
        self._leave = leave

    def spans(self, operation, key):
        spans = [span for span in self.capture.spans() if span.attributes.get("gen_ai.operation.name") == operation]
        return [(span.attributes[key], *_of_span(span)) for span in spans]

    def hooks(self, event, key):
        return [(told[key], told["status"], told["stop_reason"]) for told in self._ends if told["event"] == event]

    def stored(self, kind):
        self._leave()  # what is not written yet is written at the end
        connection = Store.find(self._place).connect()
        found = connection.execute("SELECT name, status, stop_reason FROM scopes WHERE kind = ?", (kind.value,)).fetchall()
        connection.close()
        return found

    def metric(self, name, key):
        points = [point for point in self.capture.metric(name) for _ in range(int(point.value))]
        return [(point.attributes[key], point.attributes["ravi.status"], point.attributes["ravi.stop_reason"]) for point in points]

    def agents(self):
        """Give the ends of agents on each way out, with the metric's last; reasons cut as metrics have them."""
        told = self.spans(names.INVOKE_AGENT, "gen_ai.agent.name")
        return told, self.hooks("run_end", "agent_name"), self.stored(ScopeKind.AGENT), self.metric("ravi.agent.ends", "gen_ai.agent.name")

    def runs(self):
        """Give the same of runs."""
        told = self.spans(names.INVOKE_WORKFLOW, "gen_ai.workflow.name")
        return told, self.hooks("flow_end", "flow_name"), self.stored(ScopeKind.RUN), self.metric("ravi.run.ends", "gen_ai.workflow.name")


def _of_span(span):
    """Read a span's end; one that tells none has succeeded, and only an error is one in the span's own status."""
    status = span.attributes.get("ravi.status", "ok")
    assert (status == "error") == ("error.type" in span.attributes) == (span.status.status_code.name == "ERROR")
    return status, span.attributes.get("ravi.stop_reason", "success")


def _cut(ends):
    return sorted((name, status, reason.partition(":")[0]) for name, status, reason in ends)


def same(told):
    """Give what the first way out says, if all say the same."""
    spans, hooks, stored, counted = told
    assert sorted(spans) == sorted(hooks) == sorted(stored)
    assert _cut(spans) == sorted(counted)
    return sorted(spans)


@pytest.fixture
def heard(team, tmp_path, monkeypatch):
    monkeypatch.setenv("RAVI_STORE", str(tmp_path))
    monkeypatch.setenv("RAVI_LIVE", "off")
    hooks, ends = HookManager(), []
    for event in (HookEvent.RUN_END, HookEvent.FLOW_END):
        hooks.register(event, ends.append)
    with Capture() as capture, ExitStack() as instrumented:
        instrumented.enter_context(
            ravi_otel.instrument(
                tracer_provider=capture.tracer_provider,
                meter_provider=capture.meter_provider,
                logger_provider=capture.logger_provider,
                hooks=hooks,
            )
        )
        yield Heard(capture, ends, tmp_path, instrumented.close)


ENTRIES = ("blocking", "asyncio", "trio")
EVERYWHERE = {"deadline", "max_seconds", "cancelled", "closed", "success"}
"""What ends so ends so wherever it is run; the other ends take turns, and RAVI_LONG has all of them everywhere."""
ENDED = [
    pytest.param(*each.values, entry, id=f"{each.id}-{entry}")
    for at, each in enumerate(ENDS)
    for entry in (ENTRIES if LONG or each.values[0][1] in EVERYWHERE else ENTRIES[at % 3 :][:1])
]


@pytest.mark.parametrize(("end", "make", "entry"), ENDED)
def test_every_end_is_told_the_same_everywhere(team, heard, end, make, entry):
    worker = make(team)
    result = worker.run_blocking("go") if entry == "blocking" else anyio.run(worker.run, "go", backend=entry)
    assert (result.status, result.stop_reason) == end
    assert set(same(heard.runs())) == {(worker.name, *end)}
    agents = same(heard.agents())
    first = result.results[-1].agent_name if isinstance(worker, Flow) else worker.name
    assert not agents or (first, *end) in agents  # the time of a flow may be up before its agent begins


@pytest.mark.parametrize("around", ["run_agent", "a run"])
def test_an_agent_that_a_limit_around_it_ended_says_so_and_so_does_the_run(team, heard, go, around):
    agent = reacting()(team)

    async def main():
        if around == "run_agent":
            return await run_agent(agent, "go", limits=["turns=2"])
        async with ravi_otel.run("r", limits=["turns=2"]):
            return await agent.run("go")

    result = go(main)
    assert (result.status, result.stop_reason) == ("stopped", "limit_turns")
    assert same(heard.agents()) == same(heard.runs()) == [("r", "stopped", "limit_turns")]


def test_a_middleware_that_waits_for_what_was_cancelled_is_an_error_everywhere(team, heard):
    result = anyio.run(reacting(DONE, middleware=[awaits_what_was_cancelled])(team).run, "go")
    assert (result.status, result.stop_reason) == ("error", "error")
    assert same(heard.agents()) == same(heard.runs()) == [("r", "error", "error")]


def test_a_mistake_of_the_program_is_an_error_of_the_agent_and_of_its_run(team, heard, go):
    @agent_middleware
    async def mistaken(context, call_next):
        raise KeyError("x")

    with pytest.raises(KeyError):
        go(reacting(DONE, middleware=[mistaken])(team).run, "go")
    assert same(heard.agents()) == same(heard.runs()) == [("r", "error", "error")]


def test_the_programs_own_cancellation_is_told_as_one(team, heard, go):
    async def main():
        with anyio.move_on_after(0.2):
            await reacting(asked(("hang", {})))(team).run("go")

    go(main)
    assert same(heard.agents()) == same(heard.runs()) == [("r", "cancelled", "cancelled")]


def test_an_agent_that_lost_its_slot_is_paused_and_its_run_is_not(team, heard, go):
    async def lose() -> str:
        SpawnTracker.current().reprioritize("r", Priority.LOW)
        return "lost"

    agent = ReActAgent("r", model=team.plays("r", asked(("lose", {})), DONE), tools=[lose])

    async def main():
        async with ravi_otel.run("outer", spawn_budget=SpawnBudget(2)), ravi_otel.agent("root"):
            with ravi_otel.agent("urgent", priority=Priority.HIGH):
                pass
            return await agent.run("go")

    result = go(main)
    assert (result.status, result.stop_reason) in {("paused", "paused"), ("ok", "success")}
    assert ("r", result.status, result.stop_reason) in same(heard.agents())
    assert same(heard.runs()) == [("outer", "ok", "success")]


@pytest.mark.parametrize(
    ("sub", "limits", "end"),
    [
        (reacting(DONE), (), ("ok", "success")),
        (reacting(max_steps=1), (), ("stopped", "max_steps")),
        (reacting(), ["turns=1"], ("stopped", "limit_turns")),
        (reacting(Failure(401, headers=FINAL)), (), ("error", "llm_error:AuthenticationError")),
        (reacting(asked(("hang", {}))), (), ("stopped", "ask_timeout")),
    ],
    ids=lambda given: given[1] if isinstance(given, tuple) and given else "",
)
@pytest.mark.parametrize("way", ["delegation", "handoff"])
def test_what_a_lead_is_told_of_a_sub_agent_is_what_the_sub_agent_says(team, heard, go, way, sub, limits, end):
    agent = sub(team)
    patience = 0.3 if end[1] == "ask_timeout" else None
    if way == "handoff":
        tool, call = handoff(agent, limits, ask_timeout=patience), "transfer_to_r"
        lead = ReActAgent("lead", model=team.plays("lead", asked((call, {"task": "go"})), DONE), tools=[tool])
    else:
        agent.limits = (*agent.limits, *ravi_otel.policy.parse_limits(limits)) if limits else agent.limits
        lead = lead_of(team, SubAgentConfig(agent=agent, ask_timeout=patience))
    result = go(lead.run, "go")
    assert result.ok
    (told,) = team.told("lead")
    assert (told["status"], told.get("stop_reason", "success")) == end
    assert ("r", *end) in same(heard.agents())
    assert same(heard.runs()) == [("lead", "ok", "success")]


def test_a_spawned_agent_that_is_asked_in_vain_says_that_it_took_too_long(team, heard, go):
    slow = reacting(asked(("hang", {})))(team)

    async def talk() -> str:
        ctx = AgentContext.current()
        handle = await ctx.spawn(slow.id, boot="go")
        answer = await ctx.ask(handle, "and?", timeout=0.3)
        return json.dumps([answer.status, answer.stop_reason])

    lead = OrchestratorAgent("lead", model=team.plays("lead", asked(("talk", {})), DONE), tools=[talk])
    assert go(lead.run, "go").ok
    assert team.told("lead") == [["stopped", "ask_timeout"]]
    assert ("lead", "ok", "success") in same(heard.agents())


def test_a_supervised_agent_of_ours_tells_its_end_on_each_attempt(team, heard, go):
    attempts = []

    async def child():
        attempts.append(1)
        if len(attempts) == 1:
            raise OSError("the network is down")
        return await reacting(max_steps=1)(team).run("go")

    async def main():
        async with ravi_otel.run("outer"):
            return await ravi_otel.supervise(child, agent="keeper")

    result = go(main)
    assert (result.status, result.stop_reason) == ("stopped", "max_steps")
    assert same(heard.agents()) == [("keeper", "error", "error"), ("keeper", "stopped", "max_steps"), ("r", "stopped", "max_steps")]
    assert same(heard.runs()) == [("outer", "ok", "success")]


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (StopRun("seen_enough"), "seen_enough"),
        (ravi_otel.ToolDeniedError("no", tool="pay", stop_reason="tool_denied:pay"), "tool_denied:pay"),
        (MiddlewareTermination("no", guardrail="pii"), "guardrail:pii"),
    ],
    ids=lambda given: given if isinstance(given, str) else "",
)
def test_what_ends_a_plain_agent_is_named_where_the_error_names_it(heard, error, reason):
    with pytest.raises(type(error)), ravi_otel.run("plain"), ravi_otel.agent("a"):
        raise error
    assert same(heard.agents()) == [("a", "error", reason)]
    assert same(heard.runs()) == [("plain", "error", reason)]


@pytest.mark.parametrize("reason", ["", "x" * 5_000, "half a pair \ud800", 7, None])
def test_a_strange_reason_of_the_programs_own_is_told_short_and_fails_nothing(heard, reason):
    with pytest.raises(StopRun), ravi_otel.run("r"):
        raise StopRun(reason, "enough")
    ((_, status, told),) = heard.spans(names.INVOKE_WORKFLOW, "gen_ai.workflow.name")
    assert (status, len(told) <= 256) == ("error", True)
    told.encode()
    (point,) = heard.capture.metric("ravi.run.ends")
    assert point.attributes["ravi.status"] == "error"
    assert len(point.attributes["ravi.stop_reason"]) <= 256


def test_reasons_of_the_programs_own_stay_few_on_metrics(heard):
    for number in range(150):
        with pytest.raises(StopRun), ravi_otel.run("r"):
            raise StopRun(f"customer {number}")
    with pytest.raises(StopRun), ravi_otel.run("r"):
        raise StopRun("max_steps")
    reasons = {point.attributes["ravi.stop_reason"] for point in heard.capture.metric("ravi.run.ends")}
    assert len(reasons) == 102
    assert reasons >= {"_other", "max_steps"}
