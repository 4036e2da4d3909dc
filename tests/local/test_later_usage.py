"""What a run's tree shows of responses made in the background: neither unknown for ever, nor twice."""

from __future__ import annotations

import gc
import json
from typing import Any

import openai
import pytest
from recorded import Record, as_json

import ravi_otel
from ravi_otel._local.tree import Leaf
from ravi_otel._runtime.background_calls import AWAITED
from ravi_otel.testing import Capture, Raw, ScriptedLLM, Text

USAGE = {"input_tokens": 11, "output_tokens": 7, "total_tokens": 18}


def answer(status: str, usage: Any = None) -> Raw:
    body = {"id": "resp_1", "object": "response", "model": "gpt-4o-mini", "status": status, "output": [], "usage": usage}
    return Raw(json.dumps(body).encode(), content_type="application/json")


@pytest.fixture
def told() -> Any:
    """Begin one response in the background and look twice; give its tree and its spans."""
    AWAITED.forget()
    record = Record()
    with (
        ScriptedLLM([answer("queued"), answer("completed", USAGE), answer("completed", USAGE)]) as llm,
        Capture() as seen,
        ravi_otel.instrument(tracer_provider=seen.tracer_provider) as handle,
    ):
        handle.listen(record)
        client = openai.OpenAI(api_key="k", base_url=llm.base_url, max_retries=0)
        with ravi_otel.run("r"):
            client.responses.create(model="gpt-4o-mini", input="hi", extra_body={"background": True})
            for _ in range(2):
                client.responses.retrieve("resp_1")
        client.close()
    return record, seen


def test_the_tree_shows_the_usage_with_the_look_that_brought_it(told):
    (run,) = [branch for branch in told[0].branches() if branch.facts.kind == "run"]
    leaves = [leaf for leaf in run.children if isinstance(leaf, Leaf)]
    assert [(leaf.operation, leaf.usage and leaf.usage.total_tokens, leaf.generative, bool(leaf.sums.untold_calls)) for leaf in leaves] == [
        ("chat", None, True, False),
        ("fetch_response", 18, True, False),
        ("fetch_response", None, False, False),
    ]


def test_a_stream_that_ends_after_its_run_is_in_what_the_run_has_used_also_once_that_is_forgotten():
    record = Record()
    with (
        ScriptedLLM(Text("a b c", usage=(30, 10))) as llm,
        ravi_otel.instrument() as handle,
        openai.OpenAI(api_key="k", base_url=llm.base_url, max_retries=0) as client,
    ):
        handle.listen(record)
        with ravi_otel.run("r", limits=["tokens=100"]), ravi_otel.agent("a"):
            stream = client.chat.completions.create(
                model="gpt-4o-mini",
                messages=[{"role": "user", "content": "hi"}],
                stream=True,
                stream_options={"include_usage": True},
            )
        for _ in stream:
            pass
        del stream, _
        gc.collect()
    document = json.loads(as_json(record))
    used = {node["name"]: (node["input_tokens"], node["output_tokens"]) for node in document["nodes"] if node["type"] in ("run", "agent")}
    assert used == {"r": (30, 10), "a": (30, 10)}
    assert [(limit["limit"], limit["used"], limit["held"]) for limit in document["limits"]] == [("tokens", 40, 0)]
