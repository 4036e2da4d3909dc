"""Make every metric move: `python dashboard_load.py MODEL_URL PART`, until the line `stop` or the end of its input.

Each part says `moving` once all that it does has been done. Parts are programs of their own, since each needs another setting.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import openai

import ravi_otel
from ravi_otel import HookEvent, HookManager, Priority, SpawnBudget
from ravi_otel.agents import OpenAIModel, OrchestratorAgent, ReActAgent, SubAgentConfig
from ravi_otel.agents.middleware import InputGuardrail
from ravi_otel.supervisor import Decision, DecisionKind, ToolGateway
from ravi_otel.testing import Answer, Failure, Request, Text, ToolCalls, Vector

STOP = threading.Event()
PAUSE_S = 0.5


def answer(request: Request) -> Answer:
    """Play the models: by name one fails, one has to be asked twice, one is cut."""
    if request.path.endswith("/embeddings"):
        return Vector()
    if request.model == "gpt-4.1":
        return Failure(500)
    if request.model == "gpt-4.1-nano" and request.index % 2 == 0:
        return Failure(429, retry_after_s=0)
    if request.model == "o4-mini":
        return Text("half of", usage=(10, 900), finish_reason="length")
    if request.model == "lead" and len(request.body["messages"]) == 1:
        return ToolCalls([("delegate_to_sub", {"task": "go"}), ("delegate_to_other", {"task": "help"})], usage=(10, 5))
    usage: dict[str, Any] = {
        "prompt_tokens": 400,
        "completion_tokens": 60,
        "total_tokens": 460,
        "prompt_tokens_details": {"cached_tokens": 128, "cache_write_tokens": 64},
    }
    usage["completion_tokens_details"] = {"reasoning_tokens": 16}
    return Text("a b c d", usage=usage, model=f"{request.model}-2026-01-01" if request.model == "gpt-4o-mini" else None)


def ask(client: openai.OpenAI, model: str = "gpt-4o-mini", **more: Any) -> None:
    """Ask once, whatever comes of it; a stream is read to its end."""
    with contextlib.suppress(openai.OpenAIError, ravi_otel.RaviError):
        reply = client.chat.completions.create(model=model, messages=[{"role": "user", "content": "Say something."}], **more)
        if more.get("stream"):
            list(reply)


@ravi_otel.tool
def search(query: str) -> str:
    """Search, in vain where nothing is asked for."""
    if not query:
        raise ValueError("nothing to search for")
    return query


def calls(client: openai.OpenAI) -> None:
    """Call models in every way, and tools."""
    with ravi_otel.run("triage", tags={"team": "search", "tenant": "acme"}, tenant_id="acme"), ravi_otel.agent("researcher"):
        for model in ("gpt-4o-mini", "gpt-4.1", "gpt-4.1-nano", "house-model"):
            ask(client, model)
        ask(client, stream=True)
        ask(client, stream=True, stream_options={"include_usage": False})
        client.embeddings.create(model="text-embedding-3-small", input="words")
        for query in ("map", ""):
            with contextlib.suppress(ValueError):
                search(query)
    ask(client)  # in no scope


def limits(client: openai.OpenAI) -> None:
    """Come near limits, pass them, be refused, overrun them, be cut by them, and set them aside."""
    for limit in ("cost=0.0002", "requests=2:on=observe"):
        with ravi_otel.run("wild", limits=[limit], tags={"team": "ops", "tenant": "globex"}):
            for _ in range(4):
                ask(client)
    for limit in ("tokens=1000", "requests=2", "turns=1:suspend=allow"):
        with contextlib.suppress(ravi_otel.RaviError), ravi_otel.run("held", limits=[limit]), ravi_otel.agent("writer"):
            for _ in range(4):
                ask(client)
            with ravi_otel.suspend_limits("summary"):
                ask(client)
    with contextlib.suppress(ravi_otel.RaviError), ravi_otel.run("cut", limits=["tokens=1000:admission=strict"]):
        ask(client, "o4-mini")
    with contextlib.suppress(ravi_otel.RaviError, openai.OpenAIError), ravi_otel.run("failing"), ravi_otel.agent("hasty"):
        client.chat.completions.create(model="gpt-4.1", messages=[{"role": "user", "content": "Say something."}])
    with contextlib.suppress(ravi_otel.RaviError), ravi_otel.run("rented", limits=["tenant.cost=0.0005"], tenant_id="initech"):
        for _ in range(2):
            ask(client)
    with ravi_otel.run("overrun", limits=["tokens=600"]):
        ask(client, max_completion_tokens=5)


def shares(client: openai.OpenAI) -> None:
    """Ask for a part of what another agent holds."""
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with ravi_otel.agent("first", share=900):
            held.set()
            done.wait(20)

    with ravi_otel.run("shared", limits=["tokens=1000"]):
        other = threading.Thread(target=hold)
        other.start()
        held.wait(20)
        with contextlib.suppress(ravi_otel.RaviError), ravi_otel.agent("second", share=900):
            ask(client)
        done.set()
        other.join()


def slots(client: openai.OpenAI) -> None:
    """Have an agent denied, and one preempted, that waits while more urgent work goes on, and resumes."""
    opened, preempted = threading.Event(), threading.Event()

    def read() -> None:
        with contextlib.suppress(ravi_otel.RaviError), ravi_otel.agent("reader", priority=Priority.LOW, when_paused="wait"):
            opened.set()
            preempted.wait(20)
            ask(client)

    with ravi_otel.run("team", spawn_budget=SpawnBudget(max_agents=2)), ravi_otel.agent("editor"):
        reader = threading.Thread(target=read)
        reader.start()
        opened.wait(20)
        with contextlib.suppress(ravi_otel.RaviError), ravi_otel.agent("other", priority=Priority.LOW):
            pass
        with ravi_otel.agent("urgent", priority=Priority.CRITICAL):
            preempted.set()
            STOP.wait(2)
        reader.join()


def team(client: openai.OpenAI) -> None:
    """Have an agent delegate, a guardrail stop one that it delegates to, and another agent stopped by its limit."""
    del client
    sub = ReActAgent("sub", model=OpenAIModel("gpt-4o-mini"), middleware=[InputGuardrail("go", name="no_go")])
    other = ReActAgent("other", model=OpenAIModel("gpt-4o-mini"))
    with ravi_otel.run("project"):
        OrchestratorAgent(
            "lead", model=OpenAIModel("lead"), sub_agents=[SubAgentConfig(agent=sub), SubAgentConfig(agent=other)]
        ).run_blocking("go")
        ReActAgent("greedy", model=OpenAIModel("gpt-4o-mini"), limits=["tokens=15"]).run_blocking("go")


@dataclass(frozen=True)
class _Policy:
    most: int = 2


class _Desk:
    def review(self, action: Any, state: Any, policy: _Policy) -> Decision:
        if action["args"]["query"] == "secret":
            return Decision(DecisionKind.BLOCK, "not_for_you")
        return Decision(DecisionKind.APPROVE, "harmless")


def gate(client: openai.OpenAI) -> None:
    """Have a gate approve and block."""
    del client
    with ravi_otel.run("gated"), ToolGateway(registry={"search": lambda query: query}, supervisor=_Desk(), policy=_Policy()) as gateway:
        gateway.call("search", {"query": "map"})
        with contextlib.suppress(ravi_otel.RaviError):
            gateway.call("search", {"query": "secret"})


def carried(client: openai.OpenAI) -> None:
    """Take work from somebody whom nobody believes."""
    with ravi_otel.continue_run({"baggage": "ravi.carry=nonsense"}):
        ask(client)


def rising(client: openai.OpenAI) -> None:
    """Use up a limit slowly, so that there is a pace and a time left."""
    limits = ["tokens=1M", "cost=5", "tenant.tokens=5M:per=day"]
    with ravi_otel.run("report", limits=limits, tenant_id="hooli"), ravi_otel.agent("reporter", limits=["tokens=500k"]):
        while not STOP.is_set():
            ask(client)
            STOP.wait(PAUSE_S)


PARTS: dict[str, tuple[Callable[[openai.OpenAI], None], ...]] = {
    "all": (calls, limits, shares, slots, team, gate, carried),
    "latest": (calls,),
    "lossy": (calls,),
    "storeless": (limits,),
}


def main(url: str, part: str) -> None:
    """Do a part's work again and again; the first three rounds are what makes it all move."""
    hooks = HookManager()
    hooks.register(HookEvent.LLM_END, lambda _: 1 / 0)
    ledger = {"ledger": "redis://127.0.0.1:1"} if part == "storeless" else {}
    os.environ |= {"OPENAI_BASE_URL": url, "OPENAI_API_KEY": "any"}  # for agents of ours, which make clients of their own
    ravi_otel.instrument(hooks=hooks, **ledger)
    threading.Thread(target=lambda: (sys.stdin.readline(), STOP.set()), daemon=True).start()
    with openai.OpenAI(base_url=url, api_key="any", max_retries=1) as client:
        slow = threading.Thread(target=rising, args=(client,))
        slow.start()
        rounds = 0
        while not STOP.is_set():
            for work in PARTS[part]:
                work(client)
            rounds += 1
            if rounds == 3:
                print("moving", flush=True)
            STOP.wait(PAUSE_S)
        slow.join()
    ravi_otel.flush()


if __name__ == "__main__":
    os.environ.setdefault("RAVI_TIME_PER_OUTPUT_CHUNK", "1")
    main(sys.argv[1], sys.argv[2])
