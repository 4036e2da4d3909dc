"""Run a refund desk whose worker proposes, and whose gate decides: up to 1,000 USD at once, above by a person, 2,000 USD a run.

    python examples/refund_desk/refund_desk.py
    OPENAI_API_KEY=... python examples/refund_desk/refund_desk.py --live

The first plays the worker with a scripted model, the second asks a real one; tools, policy, person and audit are the same. The tools are
in `refund_tools.py`, the decisions in `refund_policy.py`; docs/refund-desk.md explains what is printed.
"""

import argparse
import json
import os
import subprocess
import sys
from functools import partial

import anyio
import openai
import refund_policy
from refund_tools import RefundTools
from refund_worker import scripted_worker

import ravi_otel
from ravi_otel.agents import OpenAIModel, SupervisedAgent
from ravi_otel.supervisor import AuditLog

INSTRUCTIONS = "You work at the refund desk of a shop. Look the customer up, pay back what is owed, tell the customer, then report."
MAIL = "From user 42: order A-1042 never arrived. Please pay back the 1,200 USD, and send me an e-mail when it is done."
AGAIN = "Your last attempt was ended by {reason}, and nothing was paid. Begin again, in the right order."
OUT_OF_ORDER = ("supervisor_block:email_before_refund", "supervisor_block:final_requires_context")
ATTEMPTS = 2


def desk(model, tools, state, audit):
    """Put the worker, the tools and the gate together."""
    return SupervisedAgent(
        "refund-desk",
        model=model,
        instructions=INSTRUCTIONS,
        tools=list(tools.registry.values()),
        supervisor=refund_policy.RefundSupervisor(),
        policy=refund_policy.Policy(),
        approver=refund_policy.simulated_person(),
        state=state,
        audit=audit,
        read_only=refund_policy.READ_ONLY,
        budget=refund_policy.BUDGET,
        per_tool_limit=refund_policy.PER_TOOL_LIMIT,
        read_only_repeat_limit=refund_policy.CONTEXT_REPEATS,
    )


async def answer_mail(model, audit):
    """Have the mail worked on in one run; a worker that was blocked for the order of its steps may try once more."""
    state, tools = refund_policy.RuntimeState(), RefundTools()
    agent = desk(model, tools, state, audit)
    limits = [ravi_otel.cost_limit(0.05), ravi_otel.time_limit(120)]
    task = MAIL
    async with ravi_otel.run("refunds", limits=limits) as run:
        for attempt in range(1, ATTEMPTS + 1):
            result = await agent.run(task)
            show(attempt, result)
            if result.stop_reason not in OUT_OF_ORDER or state.executed_refund_total_usd:
                break  # what may have been paid is not tried again
            task = f"{MAIL}\n\n{AGAIN.format(reason=result.stop_reason)}"
    print(f"paid in this run: {state.executed_refund_total_usd:.2f} USD")
    return result, audit.path(run.id)


def show(attempt, result):
    """Print what was proposed, what was decided about it, and what was done, step by step."""
    print(f"attempt {attempt}")
    for row in result.history:
        action = row["action"]
        said = action["args"] if action["kind"] == "tool" else action["answer"]
        print(f"  step {row['step']}: {action.get('name', 'final')} {shown(said)}")
        for line in decided(row):
            print(f"    {line}")
        if row["executed_action"] is not None and action["kind"] == "tool":
            print(f"    executed  {row['executed_from']} {shown(row['executed_action']['args'])}")
        if row["observation"] is not None:
            print(f"    observed  {shown(row['observation'])}")
    if result.raw_action is not None:
        print(f"  not read: {shown(result.raw_action[:300])}")
    if result.error is not None and not result.history:
        print(f"  {shown(str(result.error)[:300])}")
    print(f"  {result.status}: {result.stop_reason}" + (f": {shown(result.answer)}" if result.answer else ""))


def decided(row):
    """Give a line for each decision, and for the person's answer between those it came between."""
    first = row["supervisor"]
    human = row.get("human_approval")
    for decision in [] if first is None else [first, *first.get("then", ())]:
        risk = f" (risk {decision['risk_score']})" if "risk_score" in decision else ""
        revised = f" -> {shown(decision['revised_action'].get('args'))}" if "revised_action" in decision else ""
        yield f"{decision['decision']:<9} {shown(decision['reason'])[1:-1]}{risk}{revised}"
        if human is not None and decision["decision"] == "escalate":
            edited = f" -> {shown(human['revised_action']['args'])}" if human["revised_action"] else ""
            yield f"human     {shown(human['comment'])[1:-1]}{edited}"
            human = None


def shown(value):
    """Write as JSON what a model or a tool said: no character of theirs reaches the terminal as it is."""
    return json.dumps(value, default=str)


async def work(audit, *, live):
    """Have the mail answered by the real model, or by the scripted one."""
    if live:
        return await answer_mail(OpenAIModel(), audit)
    with scripted_worker() as server:
        async with openai.AsyncOpenAI(base_url=server.base_url, api_key="scripted") as client:
            return await answer_mail(OpenAIModel("gpt-4.1-mini", client=client), audit)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--live", action="store_true", help="ask the real model, OPENAI_MODEL or gpt-4.1-mini")
    parser.add_argument("--audit", metavar="DIR", default="refund-audit", help="where the audit log is written (%(default)s)")
    options = parser.parse_args()
    if options.live and not os.environ.get("OPENAI_API_KEY", "").strip():
        print("OPENAI_API_KEY is not set", file=sys.stderr)
        return 2

    ravi_otel.instrument()
    try:
        result, path = anyio.run(partial(work, AuditLog(options.audit), live=options.live))
    except (openai.OpenAIError, ravi_otel.RaviError) as error:
        print(f"refund_desk: {error}", file=sys.stderr)
        return 1
    if not path.exists():
        print("audit: nothing was written down, and nothing was done")
        return 1
    print(f"audit: {path}", flush=True)
    checked = subprocess.run([sys.executable, "-m", "ravi_otel", "audit", "verify", str(path)], check=False)
    return 0 if result.ok and checked.returncode == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
