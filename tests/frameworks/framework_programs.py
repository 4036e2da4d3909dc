"""Run every program as it is, under the launcher, and under each kind of limit; each in a directory and with a model of its own."""

import contextlib
import importlib.util
import json
import math
import sqlite3
import sys
import tempfile
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from story import COST, HANDOFF, REQUESTS, ROUNDS, TOKENS, TOOLS, Story

from ravi_otel._local import otlp as _otlp
from ravi_otel.testing import ScriptedLLM

sys.path.insert(0, str(Path(__file__).parents[1] / "launch"))
from launched import Desk, Finished

PROGRAMS = Path(__file__).parent / "programs"
AT_ONCE = 3


@dataclass(frozen=True)
class Program:
    """Say what a program does when nothing stops it: so many conversations at once, each of which may begin with a handover.

    `tells_results` says that the results of its tools go back to the model as such, and not as text; `follows` that an adapter sees its
    tools run, and `agents` are those that it works with, by name.
    """

    name: str
    conversations: int = 1
    hands_over: bool = False
    tells_results: bool = True
    follows: bool = False
    handoff: str = HANDOFF
    agents: tuple[str, ...] = ()

    @property
    def knows_tools(self):
        return self.tells_results or self.follows

    @property
    def requests(self):
        return self.conversations * REQUESTS + self.hands_over

    @property
    def tools(self):
        if not self.knows_tools:
            return Counter()
        every = dict.fromkeys(TOOLS, ROUNDS * self.conversations)
        return Counter(every | ({self.handoff: 1} if self.hands_over else {}))

    def may_send(self, kind):
        """Give the most requests under a limit: whatever is used up by the answers so far refuses the next one.

        Of tokens and cost each conversation may have one request in flight when the others pass the limit. Tools that nobody
        sees run are counted when their results come: a request goes out while those of all requests before fit.
        """
        if kind in ("requests", "agent"):
            return LIMITS[kind] + (self.hands_over and kind == "agent")
        if kind == "tool_calls":
            if not self.knows_tools:
                return self.requests
            return self.conversations + (LIMITS[kind] - self.hands_over) // len(TOOLS) + self.hands_over
        each = TOKENS if kind == "tokens" else COST
        return math.ceil(round(LIMITS[kind] / each, 6)) + self.conversations - 1


OF_ALL = [
    Program("pydantic_ai_agent", follows=True, agents=("clerk",)),
    Program("openai_agents_responses", hands_over=True, follows=True, agents=("desk", "clerk")),
    Program("openai_agents_chat", follows=True, agents=("clerk",)),
    Program("langchain_agent", follows=True, agents=("clerk",)),
    Program("langgraph_stream", follows=True, agents=("clerk",)),
    Program("langgraph_entrypoint", follows=True, agents=("clerk",)),
    Program("autogen_agent", follows=True, agents=("clerk",)),
    Program("smolagents_agent", tells_results=False, follows=True, agents=("clerk",)),
    Program("smolagents_code", tells_results=False, follows=True, agents=("clerk",)),
    Program("plain_threads", conversations=3),
    Program("plain_responses", conversations=2),
    Program("plain_workers", conversations=2),
]
OF_OPENAI_2 = [
    Program("crewai_crew", follows=True, agents=("clerk",)),
    Program("llama_index_agent", follows=True, agents=("clerk",)),
    Program("llama_index_workflow", hands_over=True, follows=True, handoff="handoff", agents=("desk", "clerk")),
]
"""Frameworks that do not work with the client's newest version, in an environment of their own."""

OLDER = importlib.util.find_spec("crewai") is not None
ALL = OF_OPENAI_2 if OLDER else OF_ALL
HERE = ["crewai", "llama-index"] if OLDER else ["langchain", "openai-agents", "pydantic-ai", "smolagents"]
"""The frameworks of this environment that are followed, but AutoGen, which looks at the names of agents itself."""

LIMITS = {"requests": 3, "tokens": 3000, "cost": 0.0012, "tool_calls": 3, "agent": 3}
"""By kind; "agent" is one of the requests that the clerk may make."""

WORDS = {"agent": "agent.clerk.requests"}
KINDS = ["alone", "launched", *LIMITS]


@dataclass(frozen=True)
class Seen:
    """Hold what became of one start of a program: how it ended, what reached the model, and what was told of it."""

    done: Finished
    sent: int
    report: dict
    spans: list

    @property
    def root(self):
        return self.report["nodes"][0]

    @property
    def calls(self):
        return [node for node in self.report["nodes"] if node["type"] == "call" and node["sent"]]

    @property
    def tools(self):
        return Counter(node["name"] for node in self.report["nodes"] if node["type"] == "tool")

    @property
    def agents(self):
        return tuple(node["name"] for node in self.report["nodes"] if node["type"] == "agent")

    @property
    def limit(self):
        (limit,) = self.report["limits"]
        return limit


def start(program, kind):
    with ScriptedLLM(Story()) as server, tempfile.TemporaryDirectory() as place:
        desk = Desk(server, Path(place))
        command = [sys.executable, str(PROGRAMS / f"{program.name}.py")]
        if kind == "alone":
            return Seen(desk.alone(*command, timeout=240), desk.sent, {}, [])
        limits = ["--limit", f"{WORDS.get(kind, kind)}={LIMITS[kind]}"] if kind in LIMITS else []
        done = desk.launch(*command, timeout=240, flags=["--json", "--report", "report.json", *limits])
        report = json.loads((Path(place) / "report.json").read_text())
        return Seen(done, desk.sent, report, list(spans_in(desk.store)))


def spans_in(store):
    """Give name and attributes of each span that the store keeps for a replay."""
    with contextlib.closing(sqlite3.connect(store / "runs.db")) as connection:
        kept = [data for (data,) in connection.execute("SELECT data FROM otlp WHERE signal = 'traces'")]
    for resource in _otlp.request("traces", kept).resource_spans:
        for scope in resource.scope_spans:
            for span in scope.spans:
                yield span.name, {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in span.attributes}


class Everything:
    """Start all of it at the first question, a few at once, and give each when it has ended."""

    def __init__(self):
        self._pool = ThreadPoolExecutor(AT_ONCE)
        self._seen: dict[tuple[str, str], Future] = {}

    def of(self, program, kind):
        if not self._seen:
            # The one that waits longest for its end goes first.
            for each in sorted(ALL, key=lambda one: one.name != "plain_workers"):
                for one in reversed(KINDS):
                    if one == "agent" and not each.agents:
                        continue
                    self._seen[each.name, one] = self._pool.submit(start, each, one)
        return self._seen[program.name, kind].result()

    def ended(self):
        return {key: future.result() for key, future in self._seen.items() if future.done() and future.exception() is None}

    def stop(self):
        self._pool.shutdown(cancel_futures=True)


EVERYTHING = Everything()
