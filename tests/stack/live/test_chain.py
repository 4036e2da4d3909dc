"""A real program's calls, from the client through the collector into Prometheus, Jaeger and Loki, and from each to the others."""

from __future__ import annotations

import subprocess
import sys
import uuid
from typing import Any

import pytest
from stack_process import wait_for
from stack_servers import Stack, program_environment

from ravi_otel.testing import ScriptedLLM, Text

PROGRAM = """
import sys
import openai, ravi_otel
ravi_otel.instrument()
with openai.OpenAI(base_url=sys.argv[1], api_key="k") as client, ravi_otel.run("triage", limits=["requests=2"]):
    with ravi_otel.agent("researcher"):
        for _ in range(3):
            try:
                client.chat.completions.create(model="gpt-4o-mini", messages=[{"role": "user", "content": "Say hello."}])
            except ravi_otel.BudgetExhaustedError:
                print("refused", flush=True)
"""


def run(stack: Stack, program: str, service: str, protocol: str) -> str:
    """Run a program against a scripted model and this stack; give what it printed."""
    with ScriptedLLM(Text("hi", usage=(5, 5))) as model:
        ended = subprocess.run(
            [sys.executable, "-c", program, model.base_url], env=program_environment(stack, **stack.environment(service, protocol)),
            capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.fixture(scope="module", params=["http/protobuf", "grpc"])
def service(request: pytest.FixtureRequest, stack: Stack) -> str:
    """Run the program once under a service name of its own: two calls are answered, the third is refused."""
    name = f"chain-{uuid.uuid4().hex[:8]}"
    assert run(stack, PROGRAM, name, request.param) == "refused\n"
    return name


def limit_records(stack: Stack, service: str) -> list[dict[str, Any]]:
    records = stack.logs(f'{{service_name="{service}"}}')
    return [record for record in records if "ravi.limit.exceeded" in {record["labels"].get("event_name"), record["line"]}]


def whole_trace(stack: Stack, trace_id: str) -> list[dict[str, Any]]:
    """Give the program's trace once all of it is there: the run, the agent and three calls."""

    def found() -> list[dict[str, Any]]:
        spans = stack.jaeger(trace_id)
        return spans if len(spans) >= 5 else []

    return wait_for(found, f"the five spans of trace {trace_id} in Jaeger")


def names(spans: list[dict[str, Any]]) -> list[str]:
    return sorted(span["operationName"] for span in spans)


def test_each_call_is_counted_in_prometheus_under_its_service(stack: Stack, service: str):
    counted = f'gen_ai_client_operation_duration_seconds_count{{service_name="{service}", error_type=""}}'
    assert wait_for(lambda: stack.value(counted), counted) == 2
    tokens = f'sum by (gen_ai_token_type) (gen_ai_client_token_usage_sum{{service_name="{service}"}})'
    by_type = {one["metric"]["gen_ai_token_type"]: float(one["value"][1]) for one in wait_for(lambda: stack.query(tokens), tokens)}
    assert by_type == {"input": 10, "output": 10}


def test_the_environment_is_a_label_too(stack: Stack, service: str):
    selector = f'gen_ai_client_operation_duration_seconds_count{{service_name="{service}"}}'
    series = wait_for(lambda: stack.series(selector), selector)
    assert {one["deployment_environment_name"] for one in series} == {"test"}


def test_an_exemplar_leads_to_the_trace_that_jaeger_has(stack: Stack, service: str):
    buckets = f'gen_ai_client_operation_duration_seconds_bucket{{service_name="{service}"}}'
    exemplars = wait_for(lambda: stack.exemplars(buckets), f"an exemplar of {buckets}")
    trace_id = exemplars[0]["labels"]["trace_id"]
    spans = whole_trace(stack, trace_id)
    assert names(spans) == [*["chat gpt-4o-mini"] * 3, "invoke_agent researcher", "invoke_workflow triage"]
    assert exemplars[0]["labels"]["span_id"] in {span["spanID"] for span in spans}
    assert {span["process"]["serviceName"] for span in spans} == {service}


def test_a_refusal_is_a_log_record_whose_trace_jaeger_has(stack: Stack, service: str):
    (record,) = wait_for(lambda: limit_records(stack, service), "the limit's record in Loki")
    spans = whole_trace(stack, record["labels"]["trace_id"])
    refused = [span for span in spans if span["attributes"].get("error.type") == "ravi.limit_exceeded"]
    assert names(refused) == ["chat gpt-4o-mini"]
    stopped = [span for span in spans if span["attributes"].get("ravi.stop_reason") == "limit_requests"]
    assert "invoke_workflow triage" in names(stopped)
    assert record["labels"]["ravi_limit_kind"] == "requests"


def test_a_trace_found_in_jaeger_by_its_service_is_the_whole_tree(stack: Stack, service: str):
    (found,) = wait_for(lambda: stack.jaeger_search(service), f"a trace of {service}")
    spans = whole_trace(stack, found[0]["traceID"])
    chats = [span for span in spans if span["operationName"] == "chat gpt-4o-mini"]
    assert len(chats) == 3
    (agent,) = [span for span in spans if span["operationName"] == "invoke_agent researcher"]
    assert {chat["references"][0]["spanID"] for chat in chats} == {agent["spanID"]}


def test_spans_are_counted_before_they_are_sampled(stack: Stack, service: str):
    counted = f'traces_span_metrics_calls_total{{service_name="{service}", span_name="chat gpt-4o-mini"}}'
    asked = f"sum({counted})"
    assert wait_for(lambda: stack.value(asked) == 3 and stack.value(asked), asked) == 3
