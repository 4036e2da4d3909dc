"""Every event that a hook can hear is a signal too: a span, an event on one, a metric, a log record; one program fires them all."""

from __future__ import annotations

from contextlib import suppress

import pytest

import ravi_otel
from ravi_otel import HookEvent, HookManager, RunLogger, SpawnBudget, SpawnDeniedError, SpawnTracker
from ravi_otel.agents import OpenAIModel, OrchestratorAgent, ReActAgent, SubAgentConfig
from ravi_otel.agents.middleware import InputGuardrail
from ravi_otel.supervisor import Decision, DecisionKind
from ravi_otel.testing import Capture, ScriptedLLM, Text, ToolCalls

# What each is told as: spans by their operation, events on spans and log records by their name and what tells them apart, metrics.
SIGNALS = {
    HookEvent.FLOW_START: {"span": "invoke_workflow"},
    HookEvent.FLOW_END: {"span": "invoke_workflow", "metrics": ["gen_ai.invoke_workflow.duration", "ravi.run.ends"]},
    HookEvent.RUN_START: {"span": "invoke_agent"},
    HookEvent.RUN_END: {"span": "invoke_agent", "metrics": ["gen_ai.invoke_agent.duration", "ravi.agent.ends"]},
    HookEvent.STEP_START: {"event": ("ravi.step", {"ravi.step.phase": "start"})},
    HookEvent.STEP_END: {"event": ("ravi.step", {"ravi.step.phase": "end"}), "metrics": ["ravi.step.count"]},
    HookEvent.LLM_START: {"span": "chat"},
    HookEvent.LLM_END: {"span": "chat", "metrics": ["gen_ai.client.operation.duration", "gen_ai.client.token.usage"]},
    HookEvent.TOOL_START: {"span": "execute_tool"},
    HookEvent.TOOL_END: {"span": "execute_tool", "metrics": ["gen_ai.execute_tool.duration"]},
    HookEvent.GUARDRAIL_TRIP: {"event": ("ravi.guardrail.tripped", {"ravi.guardrail.name": "no_go"}), "metrics": ["ravi.guardrail.count"]},
    HookEvent.HANDOFF: {"event": ("ravi.handoff", {"ravi.handoff.to": "sub"}), "metrics": ["ravi.handoff.count"]},
    HookEvent.LIMIT_NEARING: {"event": ("ravi.limit.nearing", {}), "log": "ravi.limit.nearing", "metrics": ["ravi.limit.events"]},
    HookEvent.LIMIT_EXCEEDED: {"event": ("ravi.limit.exceeded", {}), "log": "ravi.limit.exceeded", "metrics": ["ravi.limit.events"]},
    HookEvent.SPAWN_DENIED: {
        "event": ("ravi.spawn.denied", {"ravi.agent.id": "third"}),
        "log": "ravi.spawn.denied",
        "metrics": ["ravi.spawn.events"],
    },
    HookEvent.PREEMPTED: {"event": ("ravi.spawn.preempted", {}), "log": "ravi.spawn.preempted", "metrics": ["ravi.agent.paused"]},
    HookEvent.RESUMED: {"event": ("ravi.spawn.resumed", {}), "log": "ravi.spawn.resumed", "metrics": ["ravi.spawn.events"]},
    HookEvent.REVIEW: {"event": ("ravi.review", {"ravi.review.decision": "approve"}), "metrics": ["ravi.review.decisions"]},
}
DONE = Text("done", usage=(10, 5))


class Lenient:
    """Approve everything."""

    def review(self, action, state, policy):
        return Decision(DecisionKind.APPROVE, "fine")


def _answers(request):
    if request.model == "lead" and len(request.body["messages"]) == 1:
        return ToolCalls([("delegate_to_sub", {"task": "go"}), ("delegate_to_other", {"task": "help"})], usage=(10, 5))
    return ToolCalls([("nothing", {})], usage=(10, 5)) if request.model == "poor" else DONE


def _program(hooks):
    sub = ReActAgent("sub", model=OpenAIModel("sub"), middleware=[InputGuardrail("go", name="no_go")])
    other = ReActAgent("other", model=OpenAIModel("other"))
    configs = [SubAgentConfig(agent=sub), SubAgentConfig(agent=other)]
    OrchestratorAgent("lead", model=OpenAIModel("lead"), sub_agents=configs, supervisor=Lenient(), hooks=hooks).run_blocking("go")
    ReActAgent("greedy", model=OpenAIModel("greedy"), limits=["tokens=15"]).run_blocking("go")
    ReActAgent("poor", model=OpenAIModel("poor"), limits=["turns=1"]).run_blocking("go")
    with ravi_otel.run("slots", spawn_budget=SpawnBudget(2)), ravi_otel.agent("root"), ravi_otel.agent("low"):
        tracker = SpawnTracker.current()
        tracker.pause("low")
        tracker.resume("low")
        with suppress(SpawnDeniedError), ravi_otel.agent("third"):
            pass


@pytest.fixture(scope="module")
def told():
    """Play the program once."""
    hooks = HookManager()
    log = RunLogger(hooks)
    with pytest.MonkeyPatch.context() as patch, ScriptedLLM(_answers) as server, Capture() as capture:
        patch.setenv("OPENAI_BASE_URL", server.base_url)
        patch.setenv("OPENAI_API_KEY", "any")
        providers = {name: getattr(capture, name) for name in ("tracer_provider", "meter_provider", "logger_provider")}
        with ravi_otel.instrument(**providers, hooks=hooks):
            _program(hooks)
        yield log, capture


def _events(capture, name):
    return [(span.name, event) for span in capture.spans() for event in span.events if event.name == name]


@pytest.mark.parametrize("event", list(HookEvent))
def test_every_event_of_a_program_has_its_signals(told, event):
    log, capture = told
    expected = SIGNALS[event]
    assert expected
    assert event in {each.event for each in log}
    if "span" in expected:
        assert expected["span"] in {span.attributes.get("gen_ai.operation.name") for span in capture.spans()}
    if "event" in expected:
        name, attributes = expected["event"]
        assert [each for _, each in _events(capture, name) if attributes.items() <= each.attributes.items()]
    if "log" in expected:
        assert capture.events(expected["log"])[0].trace_id
    for metric in expected.get("metrics", ()):
        assert capture.metric(metric)


def test_a_handoff_is_told_on_the_span_of_the_agent_that_delegates_and_counted_by_both(told):
    log, capture = told
    assert [name for name, _ in _events(capture, "ravi.handoff")] == ["invoke_agent lead"] * 2
    heard = [each.context for each in log if each.event is HookEvent.HANDOFF]
    assert {(each.agent_name, each.to, each.mode) for each in heard} == {("lead", "sub", "delegation"), ("lead", "other", "delegation")}
    counted = {tuple(point.attributes.values()): point.value for point in capture.metric("ravi.handoff.count")}
    assert counted == {("sub", "delegation", "lead"): 1, ("other", "delegation", "lead"): 1}


def test_a_slot_is_told_on_the_span_of_the_agent_that_lost_it_and_a_denial_where_it_was_asked_for(told):
    _, capture = told
    for what, asking in (("preempted", "low"), ("resumed", "low"), ("denied", "low")):
        ((name, event),) = _events(capture, f"ravi.spawn.{what}")
        (record,) = capture.events(f"ravi.spawn.{what}")
        assert name == f"invoke_agent {asking}"
        assert dict(event.attributes) == dict(record.attributes)
        assert event.attributes["ravi.spawn.max_agents"] == 2
    assert capture.events("ravi.spawn.denied")[0].attributes["ravi.limit.kind"] == "agents"


def test_trips_and_steps_are_counted_by_agent(told):
    _, capture = told
    (trip,) = capture.metric("ravi.guardrail.count")
    assert dict(trip.attributes) == {
        "ravi.guardrail.name": "no_go",
        "ravi.guardrail.level": "chat",
        "ravi.guardrail.stage": "input",
        "gen_ai.agent.name": "sub",
    }
    steps = {
        (point.attributes["gen_ai.agent.name"], point.attributes["ravi.status"]): point.value for point in capture.metric("ravi.step.count")
    }
    assert steps == {
        ("lead", "ok"): 2,
        ("sub", "stopped"): 1,
        ("other", "ok"): 1,
        ("greedy", "ok"): 1,
        ("poor", "ok"): 1,
        ("poor", "stopped"): 1,
    }


def test_a_handoff_outside_any_agent_is_told_on_the_run(told, monkeypatch):
    with Capture() as capture, ravi_otel.instrument(tracer_provider=capture.tracer_provider, meter_provider=capture.meter_provider):
        with ravi_otel.run("r"), ravi_otel.handoff("writer"):
            pass
        assert [name for name, _ in _events(capture, "ravi.handoff")] == ["invoke_workflow r"]
        (point,) = capture.metric("ravi.handoff.count")
        assert dict(point.attributes) == {"ravi.handoff.to": "writer", "ravi.handoff.mode": "handoff"}
