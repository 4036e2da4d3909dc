"""Programs that work for the pictures of the page, on a scripted model: `python scenes.py NAME` plays one until its input ends."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import openai

import ravi_otel
from ravi_otel.errors import RaviError
from ravi_otel.supervisor import ApprovalQueue, AuditLog, Decision, DecisionKind, Gate
from ravi_otel.testing import Answer, Request, ScriptedLLM, Text, ToolCalls

Work = Callable[["Model"], Awaitable[None]]

_TICKET = (
    "Ticket 4417: the customer says that order 881 was charged twice. Find the policy that applies, and whether a refund was made already."
)
_FOUND = '{"hits": 2, "first": "Refunds, § 4: a duplicate charge is refunded in full within 14 days…"}'


class Model:
    """Be a scripted model; what it says and uses is in the question: a word that picks the answer."""

    def __init__(self, client: openai.AsyncOpenAI) -> None:
        self.client = client

    async def ask(self, messages: list[Any], *, model: str = "gpt-4.1", usage: tuple[int, int] = (1200, 300), think_s: float = 0.1) -> Any:
        """Make one call and return what was answered."""
        told = {"x-usage": f"{usage[0]},{usage[1]}", "x-think": str(think_s)}
        reply = await self.client.chat.completions.create(model=model, messages=messages, extra_headers=told, max_tokens=600)
        return reply.choices[0].message

    async def stream(self, text: str, *, model: str, usage: tuple[int, int]) -> None:
        """Read one answer as it is written."""
        told = {"x-usage": f"{usage[0]},{usage[1]}", "x-chunk": "0.3"}
        messages: Any = [{"role": "user", "content": text}]
        more: Any = {"stream_options": {"include_usage": True}}
        async for _ in await self.client.chat.completions.create(model=model, messages=messages, stream=True, extra_headers=told, **more):
            pass


def answer(request: Request) -> Answer:
    """Answer as the question's headers say: with a search where a tool is to be called, else with a sentence."""
    headers = {name.lower(): value for name, value in request.headers.items()}
    given, taken = (int(part) for part in headers["x-usage"].split(","))
    last = request.body["messages"][-1]["content"]
    pace = {"think_s": float(headers.get("x-think", 0)), "chunk_s": float(headers.get("x-chunk", 0)), "usage": (given, taken)}
    if "search" in last or last.startswith("{"):
        return ToolCalls(
            [("search", {"query": "order 881 duplicate charge"})],
            text="The results repeat. Let me try once more with the order number.",
            **pace,
        )
    return Text(
        "Both charges are of the same minute, and the second has no shipment. Paragraph 4 applies: it is refunded in full. " * 2, **pace
    )


@ravi_otel.tool
async def search(query: str) -> str:
    """Search the policies."""
    await asyncio.sleep(0.03)
    return _FOUND


@ravi_otel.tool
async def get_customer(customer: int) -> str:
    """Read a customer's card."""
    await asyncio.sleep(0.02)
    return '{"id": 5512, "name": "Ada", "plan": "plus"}'


class Caps:
    """Let small amounts through, and ask a person about others."""

    def review(self, action: Any, state: Any, policy: Any) -> Decision:
        """Decide about one call."""
        amount = action["args"].get("amount", 0)
        if amount > 50:
            return Decision(DecisionKind.ESCALATE, "refund_above_50_needs_a_person", risk_score=0.4)
        return Decision(DecisionKind.APPROVE, "small_amount")


async def refund(order: int, amount: float, currency: str = "USD", reason: str = "duplicate charge") -> str:
    """Pay money back."""
    return f"refunded {amount} {currency} of {order}"


async def close_account(customer: int, reason: str, amount: float = 0.0) -> str:
    """Close an account and pay out what is left on it."""
    return f"closed {customer}"


def gated(function: Any) -> Any:
    """Return a tool that is decided about before each call."""
    gate = Gate(Caps(), tools=[function], approver=ApprovalQueue(), audit=AuditLog("audit", content=True))
    return ravi_otel.tool(function, gate=gate)


async def triage(model: Model) -> None:
    """Play a support desk: one agent plans, one runs in a circle until it is refused, one waits for a person."""
    limits = ["cost=0.48usd", "time=300s", "tokens=400k"]
    with ravi_otel.run("triage-42", limits=limits, user_id="u42", tenant_id="acme", session_id="ticket-4417", tags={"team": "support"}):
        await asyncio.gather(_planner(model), _researcher(model), _writer(model))


async def _planner(model: Model) -> None:
    with ravi_otel.agent("planner", limits=["turns=40"], priority=ravi_otel.Priority.HIGH):
        for turn in range(12):
            await model.ask([{"role": "user", "content": f"Plan step {turn} of ticket 4417."}], usage=(2600 + 210 * turn, 140), think_s=0.3)
            await asyncio.sleep(0.15)
        while True:
            await model.stream(f"Tell the customer where ticket 4417 stands, line {turn}.", model="gpt-4.1-mini", usage=(400, 120))


async def _researcher(model: Model) -> None:
    messages: list[Any] = [
        {
            "role": "system",
            "content": "You research refund cases for the support desk. Use search, and answer with the paragraph that applies.",
        },
        {"role": "user", "content": f"{_TICKET} Use search."},
    ]
    with ravi_otel.agent("researcher", limits=["turns=20", ravi_otel.cost_limit(0.4)]):
        for turn in range(23):
            try:
                said = await model.ask(messages, usage=(1300 + 420 * turn, 256), think_s=0.12)
            except RaviError:
                await asyncio.sleep(0.2)
                continue
            messages.append(said.model_dump(exclude_none=True))
            messages.append({"role": "tool", "tool_call_id": said.tool_calls[0].id, "content": await search("order 881 duplicate charge")})
        await asyncio.Event().wait()


async def _writer(model: Model) -> None:
    await asyncio.sleep(1.5)
    with ravi_otel.agent("writer", limits=["turns=20"]):
        for turn in range(6):
            await model.ask(
                [{"role": "user", "content": f"Draft {turn} of the answer about order 881."}], usage=(1900 + 300 * turn, 260), think_s=0.2
            )
            if turn == 1:
                await get_customer(5512)
        await gated(refund)(order=881, amount=120.0)


async def nightly(model: Model) -> None:
    """Play a night's work: an orchestrator, agents that stream side by side, and one that yields to urgent work."""
    name = "nightly-summaries-2026-11-04-eu-central-1-customers-with-open-tickets"
    limits = ["cost=5usd", "tokens=4M", "requests=2000"]
    with ravi_otel.run(name, limits=limits, user_id="scheduler", tenant_id="globex", tags={"team": "insight"}):
        await asyncio.gather(
            _streams(model, "orchestrator", "turns=200", ravi_otel.Priority.HIGH),
            _streams(model, "quarterly-churn-and-refund-pattern-summariser-for-the-board", "tokens=900k", ravi_otel.Priority.NORMAL),
            *(_streams(model, f"summariser-{number}", "tokens=400k", ravi_otel.Priority.NORMAL) for number in range(1, 4)),
            _streams(model, "urgent-desk", "tool_calls=8", ravi_otel.Priority.CRITICAL),
        )


async def _streams(model: Model, name: str, limit: str, priority: ravi_otel.Priority) -> None:
    pace = len(name) % 7 + 4
    with ravi_otel.agent(name, limits=[limit], priority=priority):
        for _ in range(pace):
            await model.ask(
                [{"role": "user", "content": "Sum up one ticket."}], model="gpt-4.1-mini", usage=(2_100 * pace, 90 * pace), think_s=0.3
            )
        while True:
            await model.stream(
                "Sum up the tickets of the day, one paragraph a customer, with what was promised to whom.",
                model="gpt-4.1-mini",
                usage=(940 * pace, 70 * pace),
            )


async def closure(model: Model) -> None:
    """Play a clerk that asks a person before it closes an account."""
    with ravi_otel.run("account-closure-19", limits=["cost=0.30usd"], user_id="u7", tenant_id="acme"):
        await model.ask([{"role": "user", "content": "Close the account of customer 5512."}], usage=(900, 80))
        await gated(close_account)(customer=5512, reason="customer asked by e-mail, twice", amount=61.2)


async def contacts(model: Model) -> None:
    """Play an import that was named by somebody who tries things, and that is told no by a limit of a tool."""
    agent = ravi_otel.agent("<img src=x onerror=alert(1)>", limits=["tool.search=5"])
    with ravi_otel.run("import-contacts-7", limits=["time=90s"], user_id="u3"), agent:
        for turn in range(6):
            await model.ask([{"role": "user", "content": f"Contact {turn}"}], usage=(1800, 90), think_s=0.05)
            with contextlib.suppress(RaviError):
                await search(f"contact {turn}")
        await asyncio.Event().wait()


async def faq(model: Model) -> None:
    """Play a program whose model has no price."""
    with ravi_otel.run("faq", limits=[ravi_otel.cost_limit(1.0, on_unpriced="warn")], tenant_id="acme"):
        await model.ask([{"role": "user", "content": "When do you open?"}], usage=(4_000, 1_200))
        for turn in range(9):
            await model.ask([{"role": "user", "content": f"Question {turn}"}], model="local/llama-3.3-70b", usage=(600, 90), think_s=0.05)
        await asyncio.Event().wait()


async def refunds(model: Model) -> None:
    """Play refunds that a person decides about, one after the other."""
    with ravi_otel.run("refunds-of-the-day", limits=["cost=1usd"], user_id="u11", tenant_id="acme"), ravi_otel.agent("clerk"):
        for order, amount in ((870, 64.0), (871, 900.0), (874, 75.5), (875, 12.0)):
            await model.ask([{"role": "user", "content": f"Order {order} came broken."}], usage=(1100, 120), think_s=0.02)
            with contextlib.suppress(RaviError):
                await gated(refund)(order=order, amount=amount, reason="came broken")


async def play(work: Work) -> None:
    """Work until standard input ends."""
    with ScriptedLLM(answer) as server:
        async with openai.AsyncOpenAI(base_url=server.base_url, api_key="none", max_retries=0) as client:
            at_work = asyncio.ensure_future(work(Model(client)))
            await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
            if work is not refunds:
                at_work.cancel()
            with contextlib.suppress(asyncio.CancelledError, RaviError):
                await at_work


WORKS: dict[str, Work] = {
    "support_desk": triage,
    "nightly": nightly,
    "closure": closure,
    "contacts": contacts,
    "faq": faq,
    "refunds": refunds,
}

if __name__ == "__main__":
    name = sys.argv[1]
    sys.argv = [f"{name}.py"]  # what the page calls a program
    ravi_otel.instrument()
    asyncio.run(play(WORKS[name]))
