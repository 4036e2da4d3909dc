"""Run a support desk whose agents are held to budgets.

    OPENAI_API_KEY=... python examples/support_desk.py

Its two agents and their tools are plain code too: `ravi_otel/_cli/support_desk.py`. `ravi-otel demo` shows the
same desk with a scripted model, no key needed.
"""

import sys

import openai

import ravi_otel
from ravi_otel._cli import support_desk


def main() -> None:
    ravi_otel.instrument()
    try:
        client = openai.OpenAI()
    except openai.OpenAIError as error:
        sys.exit(f"support_desk: {error}")

    with ravi_otel.run("support-desk", limits=[ravi_otel.cost_limit(0.05), ravi_otel.time_limit(120)]) as run:
        print(support_desk.answer_refund(client, "gpt-4.1-mini", support_desk.MAIL))
        support_desk.chase_parcel(client, "gpt-4.1-mini")

    print(run.cost_usd, run.stats())
    for limit in run.limits:
        print(limit.limit.label, limit.used, "of", limit.limit.amount, *limit.events)


if __name__ == "__main__":
    main()
