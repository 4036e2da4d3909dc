"""Sums by whatever grouping, and between whatever times, are those of the calls, and those that the program counted itself."""

from __future__ import annotations

import itertools
import json
import time

import pytest
from kept_by import run

from ravi_otel._local.queries import GROUPINGS, Queries
from ravi_otel._local.store import Store

WORK = """
import collections, json, random
chance, own = random.Random(SEED), collections.Counter()
def answer(request):
    kind, given, made = request.body["messages"][-1]["content"].split("|")
    if kind == "fails":
        return Failure(500)
    total = {"total_tokens": int(given)}
    usage = {"told": (int(given), int(made)), "untold": "missing", "total": total}[kind]
    return Text("It will be there tomorrow.", usage=usage)
server = ScriptedLLM(answer).__enter__()
client = openai.OpenAI(base_url=server.base_url, api_key="any", max_retries=0)
def call():
    kind, stream = chance.choice(["told", "told", "told", "untold", "total", "fails"]), chance.random() < 0.2
    model, given, made = chance.choice(["gpt-4o-mini", "gpt-4o", "no-such-model"]), chance.randint(1, 500), chance.randint(1, 300)
    messages = [{"role": "user", "content": f"{'told' if stream else kind}|{given}|{made}"}]
    try:
        answer = client.chat.completions.create(model=model, messages=messages, stream=stream)
        if stream:
            next(iter(answer))
            answer.close()
    except openai.APIError:
        pass
    own["requests"] += 1
    own["unsplit"] += given if kind == "total" and not stream else 0
@ravi_otel.tool
def search():
    own["tools"] += 1
def report():
    tokens = chance.randint(1, 1_000)
    ravi_otel.ExecutionTracker().consume(tokens=tokens, cost=0.01, turns=1, external=True)
    own["unsplit"] += tokens
def inner(depth):
    scope = chance.choice([
        lambda: ravi_otel.run("inner", user_id=chance.choice([None, "ann", "bob"])),
        lambda: ravi_otel.agent(chance.choice(["planner", "writer"])),
        lambda: ravi_otel.apply_limits(["tokens=1M"]),
    ])
    with scope():
        work(depth + 1)
def work(depth):
    for _ in range(chance.randint(1, 4)):
        chance.choice([call, call, search, report, *([lambda: inner(depth)] * 2 if depth < 4 else [])])()
ravi_otel.instrument()
for _ in range(8):
    whose = {"tenant_id": chance.choice([None, "acme"]), "session_id": chance.choice([None, "one", "two"])}
    with ravi_otel.run("desk", user_id=chance.choice([None, "ann"]), tags=chance.choice([{}, {"team": "a"}, {"team": "b"}]), **whose):
        work(0)
print(json.dumps(own))
"""

FIGURES = (
    *("requests", "turns", "input_tokens", "output_tokens", "unsplit_tokens", "total_tokens", "cost_nano", "tool_calls", "refused"),
    *("errors", "unknown_usage", "unknown_cost", "estimated", "assumed"),
)


@pytest.mark.parametrize("seed", [1, 2])
def test_whatever_it_is_added_up_by_the_sums_are_the_same_and_what_the_program_counted(tmp_path, seed):
    since = time.time_ns()
    own = json.loads(run(tmp_path, WORK.replace("SEED", str(seed))).stdout)
    until = time.time_ns()
    with Queries(Store.find(tmp_path)) as ask:
        middle = ask.runs(order="began", most=4).rows[-1].began
        whole = _total(ask, ())
        assert (whole["requests"], whole["tool_calls"], whole["unsplit_tokens"]) == (own["requests"], own["tools"], own["unsplit"])
        groupings = [each for each in GROUPINGS if each != "tool"] + ["tag.team"]
        for by in itertools.chain(*(itertools.combinations(groupings, number) for number in (1, 2))):
            assert _total(ask, by) == whole
            assert _total(ask, by, since=since, until=until) == whole
            early, late = _total(ask, by, until=middle), _total(ask, by, since=middle)
            assert {name: early[name] + late[name] for name in FIGURES} == whole


def _total(ask, by, **between):
    total = ask.spend(by, **between).total
    return {name: getattr(total, name) or 0 for name in FIGURES}
