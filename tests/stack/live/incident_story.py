"""The fleet of examples/incident, played on a stack: on the day of the incident, and with the policy that came of it."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from typing import Any, NamedTuple

from stack_process import wait_for
from stack_servers import ROOT, Stack, program_environment

EXAMPLE = ROOT / "examples" / "incident"
WILD, TAMED = "production", "staging"
"""The environments: what happened, and what was tried afterwards."""

SERVICES = ("search-agents", "support-agents", "finance-agents")
THINKS_S = 2.0
"""How long the model takes for an answer on the day: three answers are between 80 % and the end, and an alert needs four seconds."""

PROMPTLY_S = 1.0


ALERTS = ("RaviBudgetBurnTooFast", "RaviBudgetNearLimit", "RaviBudgetExhausted", "RaviCallsRefused")
"""What is told of the finance team, in this order."""


class Played(NamedTuple):
    """Be what a fleet printed, and when: seconds since 1970."""

    environment: str
    printed: str
    start_s: float
    end_s: float


def play(stack: Stack, environment: str, thinks_s: float, **more: Any) -> Played:
    """Run the fleet against a stack to its end."""
    with tempfile.TemporaryDirectory(prefix="ravi-incident-") as store:
        attributes = f"deployment.environment.name={environment}"
        variables = program_environment(stack, OTEL_RESOURCE_ATTRIBUTES=attributes, RAVI_STORE=store, **more)
        command = [sys.executable, str(EXAMPLE / "fleet.py"), "--think", str(thinks_s)]
        start_s = time.time()
        done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    return Played(environment, done.stdout, start_s, time.time())


def play_wild(stack: Stack) -> Played:
    """Be the day of the incident; it is over when the webhook knows all of it."""
    stack.webhook.clear()
    played = play(stack, WILD, THINKS_S)
    for alert in ALERTS:
        told(stack, alert)
    return played._replace(end_s=time.time())


def play_tamed(stack: Stack) -> Played:
    """Be the same fleet with the policy."""
    played = play(stack, TAMED, PROMPTLY_S, RAVI_POLICY=EXAMPLE / "policy.toml")
    used = f'ravi_limit_used{{deployment_environment_name="{TAMED}", gen_ai_agent_name="reconciler"}}'
    wait_for(lambda: stack.query(used), used)
    return played._replace(end_s=time.time())


def told(stack: Stack, alert: str) -> dict[str, Any]:
    """Give what the webhook was told of an alert of the finance team."""
    return stack.webhook.wait_for(alert, service_name="finance-agents", deployment_environment_name=WILD)


def exceeded(stack: Stack) -> dict[str, str]:
    """Give the attributes of the log record that says that the team's budget is gone."""
    logql = f'{{service_name="finance-agents"}} | event_name="ravi.limit.exceeded" | deployment_environment_name="{WILD}"'
    return wait_for(lambda: stack.logs(logql), "the record of the exceeded limit")[0]["labels"]


def whole_trace(stack: Stack, trace_id: str) -> list[dict[str, Any]]:
    """Give the spans of the wild run, all of them: the run, the agent, and of 32 calls each but the last led to a tool."""

    def found() -> list[dict[str, Any]]:
        spans = stack.jaeger(trace_id)
        return spans if len(spans) == 2 + 32 + 31 else []

    return wait_for(found, f"the 65 spans of trace {trace_id}")


def refused(spans: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Give the spans of calls that a limit refused."""
    calls = [span for span in spans if span["attributes"].get("gen_ai.operation.name") == "chat"]
    return [span for span in calls if span["attributes"].get("error.type") == "ravi.limit_exceeded"]
