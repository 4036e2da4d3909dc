"""What the overlays do to spans of a real collector: which traces stay, what is counted, and under which names."""

from __future__ import annotations

import subprocess
import sys
import uuid
from collections.abc import Iterator

import pytest
import yaml
from stack_process import wait_for
from stack_servers import Stack, program_environment, running_stack
from told import gauge, send, span, trace_id

from ravi_otel._stack.doctor.telemetry import SERVICE
from ravi_otel.testing import ScriptedLLM, Text

PLAIN = 40
SAID = "the user's own words"


def service_name() -> str:
    return f"told-{uuid.uuid4().hex[:8]}"


@pytest.fixture(scope="module")
def sampled() -> Iterator[Stack]:
    """Have the production overlay keep nothing of the rest, and soon let go of it."""
    with running_stack(overlays=("production",), only=("collector", "jaeger", "prometheus")) as own:
        derived = own.configs.path("collector", "/etc/otelcol/production.yaml")
        config = yaml.safe_load(derived.read_text())
        sampling = config["processors"]["tail_sampling"]
        sampling["decision_wait_after_root_received"] = "1s"
        next(policy for policy in sampling["policies"] if policy["name"] == "rest")["probabilistic"]["sampling_percentage"] = 0
        derived.write_text(yaml.safe_dump(config))
        own.server("collector").restart()
        yield own


def test_every_error_and_every_limit_is_kept_and_the_rest_counted(sampled: Stack):
    service = service_name()
    kept = {
        "an error": span(trace_id(), error=True),
        "a refused call": span(trace_id(), has={"ravi.limit.decision": "denied"}),
        "a refusal of ours": span(trace_id(), has={"error.type": "ravi.limit_exceeded"}),
        "a limit that is near": span(trace_id(), events=["ravi.limit.nearing"]),
        "a limit that is exceeded": span(trace_id(), events=["ravi.limit.exceeded"]),
        "a guardrail": span(trace_id(), events=["ravi.guardrail.tripped"]),
        "what the gate blocked": span(trace_id(), events=[("ravi.review", {"ravi.review.decision": "block"})]),
        "an agent that got no slot": span(trace_id(), events=["ravi.spawn.denied"]),
        "a run that was stopped": span(trace_id(), has={"ravi.status": "stopped", "ravi.stop_reason": "max_steps"}),
        "an agent that was paused": span(trace_id(), has={"ravi.status": "paused", "ravi.stop_reason": "paused"}),
        "a slow one": span(trace_id(), lasts_s=61.0),
    }
    dropped = [span(trace_id(), has={"ravi.limit.decision": "admitted"}) for _ in range(PLAIN)]
    dropped.append(span(trace_id(), events=[("ravi.review", {"ravi.review.decision": "approve"})]))
    dropped.append(span(trace_id(), events=["ravi.limit.state"]))
    send(sampled.otlp_http, service, "traces", spans=[*kept.values(), *dropped])

    for what, one in kept.items():
        wait_for(lambda trace=one["traceId"]: sampled.jaeger(trace), what)
    counted = f'sum(traces_span_metrics_calls_total{{service_name="{service}"}})'
    wait_for(lambda: sampled.value(counted) == len(kept) + len(dropped), f"{counted} to be {len(kept) + len(dropped)}")
    found = {spans[0]["traceID"] for spans in sampled.jaeger_search(service)}
    assert found == {one["traceId"] for one in kept.values()}


def test_what_the_doctor_sends_is_kept_at_once(sampled: Stack):
    plain = span(trace_id())
    send(sampled.otlp_http, SERVICE, "traces", spans=[plain])
    wait_for(lambda: sampled.jaeger(plain["traceId"]), "the doctor's span in Jaeger")


def test_a_span_is_counted_under_its_service_model_and_error(sampled: Stack):
    service = service_name()
    has = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "m-1", "error.type": "timeout"}
    send(sampled.otlp_http, service, "traces", spans=[span(trace_id(), "chat m-1", error=True, has=has)])
    counted = f'traces_span_metrics_calls_total{{service_name="{service}"}}'
    labels = wait_for(lambda: sampled.series(counted), counted)[0]
    expected = {"span_name": "chat m-1", "gen_ai_operation_name": "chat", "gen_ai_request_model": "m-1", "error_type": "timeout"}
    assert {name: labels[name] for name in expected} == expected
    assert (labels["status_code"], labels["deployment_environment_name"]) == ("STATUS_CODE_ERROR", "test")
    lasted = f'traces_span_metrics_duration_seconds_count{{service_name="{service}"}}'
    assert wait_for(lambda: sampled.value(lasted), lasted) == 1


def test_an_error_of_a_run_that_still_goes_on_is_seen_with_what_came_before_it(sampled: Stack):
    service, trace = service_name(), trace_id()
    send(sampled.otlp_http, service, "traces", spans=[span(trace, "early", root=False)])
    send(sampled.otlp_http, service, "traces", spans=[span(trace, "late", root=False, error=True)])
    names = {"early", "late"}
    wait_for(lambda: {each["operationName"] for each in sampled.jaeger(trace)} == names, "both spans in Jaeger")


def test_what_comes_after_a_trace_was_kept_is_kept_too(sampled: Stack):
    service, trace = service_name(), trace_id()
    send(sampled.otlp_http, service, "traces", spans=[span(trace, "failed", error=True)])
    wait_for(lambda: sampled.jaeger(trace), "the trace in Jaeger")
    send(sampled.otlp_http, service, "traces", spans=[span(trace, "straggler", root=False)])
    wait_for(lambda: len(sampled.jaeger(trace)) == 2, "the straggler in Jaeger")


PROGRAM = """
import sys
import openai, ravi_otel
ravi_otel.instrument()
with openai.OpenAI(base_url=sys.argv[1], api_key="k") as client, ravi_otel.run("triage", limits=sys.argv[2:]):
    for _ in range(3):
        try:
            client.chat.completions.create(model="gpt-4o-mini", messages=[{"role": "user", "content": "Say hello."}])
        except ravi_otel.BudgetExhaustedError:
            print("refused")
"""


def play(stack: Stack, service: str, *limits: str) -> str:
    """Run a program of three calls against a scripted model and the stack; give what it printed."""
    with ScriptedLLM(Text("hi", usage=(5, 5))) as model:
        environ = program_environment(stack, **stack.environment(service))
        command = [sys.executable, "-c", PROGRAM, model.base_url, *limits]
        return subprocess.run(command, env=environ, capture_output=True, text=True, check=True, timeout=60).stdout


def test_the_trace_of_a_refused_call_is_kept_and_a_run_without_a_limit_is_counted_alone(sampled: Stack):
    refused, free = service_name(), service_name()
    assert play(sampled, free) == ""
    assert play(sampled, refused, "requests=2") == "refused\n"
    spans = wait_for(lambda: sampled.jaeger_search(refused), "the refused run in Jaeger")[0]
    assert sorted(each["operationName"] for each in spans) == ["chat gpt-4o-mini"] * 3 + ["invoke_workflow triage"]
    for service in (refused, free):
        counted = f'sum(traces_span_metrics_calls_total{{service_name="{service}"}})'
        wait_for(lambda counted=counted: sampled.value(counted) == 4, f"{counted} to be 4")
    judged = "sum(otelcol_processor_tail_sampling_sampling_traces_on_memory)"
    wait_for(lambda: sampled.value(judged) == 0, "every trace to be judged")
    assert sampled.jaeger_search(free) == []


@pytest.fixture(scope="module")
def bridged() -> Iterator[Stack]:
    with running_stack(overlays=("bridge",), only=("collector", "jaeger", "prometheus", "loki")) as own:
        yield own


OPENINFERENCE = {
    "openinference.span.kind": "LLM",
    "llm.model_name": "gpt-4o-mini",
    "llm.provider": "azure",
    "llm.token_count.prompt": 30,
    "llm.token_count.completion": 10,
    "llm.token_count.prompt_details.cache_read": 5,
    "llm.cost.total": 0.25,
    "session.id": "chat-7",
    "input.value": SAID,
    "output.value": SAID,
    "llm.input_messages.0.message.content": SAID,
    "llm.invocation_parameters": f'{{"user": "{SAID}"}}',
}
OPENLLMETRY = {
    "gen_ai.system": "OpenAI",
    "llm.request.type": "chat",
    "gen_ai.request.model": "gpt-4o",
    "gen_ai.usage.prompt_tokens": 7,
    "gen_ai.usage.completion_tokens": 3,
    "gen_ai.prompt.0.content": SAID,
    "gen_ai.completion.0.content": SAID,
    "traceloop.entity.input": SAID,
    "traceloop.association.properties.session_id": "chat-8",
}
OLDER = {"gen_ai.system": "az.ai.openai", "gen_ai.operation.name": "chat", "gen_ai.usage.input_tokens": 1, "gen_ai.usage.prompt_tokens": 9}
FOREIGN = [
    (
        OPENINFERENCE,
        {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": "azure.ai.openai",
            "gen_ai.request.model": "gpt-4o-mini",
            "gen_ai.usage.input_tokens": 30,
            "gen_ai.usage.output_tokens": 10,
            "gen_ai.usage.cache_read.input_tokens": 5,
            "gen_ai.conversation.id": "chat-7",
            "gen_ai.usage.cost.amount": 0.25,
            "gen_ai.usage.cost.currency": "USD",
        },
    ),
    ({"openinference.span.kind": "TOOL", "tool.name": "search", "tool.parameters": SAID}, {"gen_ai.tool.name": "search"}),
    (
        {"openinference.span.kind": "AGENT", "agent.name": "planner"},
        {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": "planner"},
    ),
    (
        OPENLLMETRY,
        {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": "openai",
            "gen_ai.request.model": "gpt-4o",
            "gen_ai.usage.input_tokens": 7,
            "gen_ai.usage.output_tokens": 3,
        },
    ),
    (
        {"traceloop.span.kind": "tool", "traceloop.entity.name": "search", "traceloop.workflow.name": "triage"},
        {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "search", "gen_ai.workflow.name": "triage"},
    ),
    (OLDER, {"gen_ai.operation.name": "chat", "gen_ai.provider.name": "azure.ai.openai", "gen_ai.usage.input_tokens": 1}),
]
IDS = ["openinference call", "openinference tool", "openinference agent", "openllmetry call", "openllmetry tool", "older gen_ai"]


@pytest.mark.parametrize(("has", "becomes"), FOREIGN, ids=IDS)
def test_a_span_of_another_instrumentation_has_our_names_and_nothing_of_what_was_said(bridged: Stack, has, becomes):
    trace = trace_id()
    told = span(trace, has=has, events=[("gen_ai.content.prompt", {"gen_ai.prompt": SAID})])
    send(bridged.otlp_http, service_name(), "traces", spans=[told])
    found = wait_for(lambda: bridged.jaeger(trace), "the span in Jaeger")[0]
    assert {name: found["attributes"].get(name) for name in becomes} == becomes
    assert SAID not in str(found)


def test_a_span_of_ours_is_left_as_it_is(bridged: Stack):
    trace = trace_id()
    has = {"gen_ai.operation.name": "chat", "gen_ai.input.messages": SAID, "openinference.span.kind": "TOOL"}
    send(bridged.otlp_http, service_name(), "traces", scope="ravi_otel", spans=[span(trace, has=has)])
    found = wait_for(lambda: bridged.jaeger(trace), "the span in Jaeger")[0]["attributes"]
    assert {name: found[name] for name in has} == has


def test_a_metric_of_another_instrumentation_has_the_label_that_dashboards_read(bridged: Stack):
    service = service_name()
    point = gauge("gen_ai.client.told", 3, **{"gen_ai.system": "OpenAI", "gen_ai.response.model": "gpt-4o"})
    send(bridged.otlp_http, service, "metrics", metrics=[point])
    selector = f'gen_ai_client_told{{service_name="{service}"}}'
    labels = wait_for(lambda: bridged.series(selector), selector)[0]
    assert (labels["gen_ai_provider_name"], labels["gen_ai_request_model"]) == ("openai", "gpt-4o")


def test_a_log_record_of_another_instrumentation_does_not_say_what_was_said(bridged: Stack):
    service = service_name()
    told = {
        "body": {"stringValue": SAID},
        "eventName": "gen_ai.user.message",
        "attributes": [{"key": "content", "value": {"stringValue": SAID}}],
    }
    send(bridged.otlp_http, service, "logs", logRecords=[told, {"body": {"stringValue": "plain words"}}])
    records = wait_for(lambda: bridged.logs(f'{{service_name="{service}"}}'), "the log records in Loki")
    assert {record["line"] for record in records} == {"content left out by the collector", "plain words"}
    assert SAID not in str(records)
