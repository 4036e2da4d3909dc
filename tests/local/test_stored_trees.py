"""The tree of a stored run has the figures that the live one has, also of calls that end after their run was closed."""

from __future__ import annotations

import contextlib
import contextvars
import io
import json
import threading

import openai
import pytest
from recorded import Record, as_json

import ravi_otel
from ravi_otel import token_limit
from ravi_otel._local import recorder as _recorder
from ravi_otel._local.queries import Queries
from ravi_otel._local.render import console, render
from ravi_otel._local.store import Store
from ravi_otel.testing import Failure, ScriptedLLM, Text

CHAT = {"model": "gpt-4o-mini", "messages": [{"role": "user", "content": "Where is my order?"}], "max_tokens": 100}


class Desk:
    """Make runs against a scripted model, live and stored at once."""

    def __init__(self, store, monkeypatch):
        monkeypatch.setenv("RAVI_STORE", str(store))
        monkeypatch.setenv("RAVI_LIVE", "off")
        self.root = store
        self.live = Record()

    @contextlib.contextmanager
    def working(self, model):
        with ScriptedLLM(model) as server:
            self.server = server
            ravi_otel.instrument().listen(self.live)
            try:
                with openai.OpenAI(base_url=server.base_url, api_key="any", max_retries=0) as client:
                    yield client
            finally:
                ravi_otel.uninstrument()

    def stored(self, name=None):
        for recorder in list(_recorder._recorders.values()):
            recorder.writer.flush(10)
        with Queries(Store.find(self.root)) as ask:
            (row,) = [row for row in ask.runs(every=True).rows if row.kind == "run" and name in (None, row.name)]
            return ask.record(row.run), ask.tree(row.run)


@pytest.fixture
def desk(tmp_path, monkeypatch):
    return Desk(tmp_path / ".ravi", monkeypatch)


def told(record):
    """Give every node of a record by its place, without times."""
    nodes = json.loads(as_json(record))["nodes"]
    titles = {node["id"]: f"{node['type']} {node['name']}" for node in nodes}
    return [
        (titles.get(node["parent"]), {key: value for key, value in node.items() if key not in ("id", "parent", "duration_ms")})
        for node in nodes
        if node["type"] != "process"
    ]


def test_a_stored_run_equals_the_live_one_in_every_figure(desk):
    answers = [Text("a", usage=(30, 10)), Text("b", usage="missing"), Failure(400, "no"), Text("c", usage=(5, 5)), Text("d", usage=(7, 7))]
    with desk.working(answers) as client, ravi_otel.run("desk", limits=["tokens=10k"], user_id="u1"):
        with ravi_otel.agent("lead", limits=["requests=9"]):
            client.chat.completions.create(**CHAT)
            client.chat.completions.create(**CHAT)
            with ravi_otel.agent("sub"), contextlib.suppress(openai.APIStatusError):
                client.chat.completions.create(**CHAT)
        with contextlib.suppress(ravi_otel.BudgetExhaustedError), ravi_otel.agent("cut", limits=["requests=1"]):
            client.chat.completions.create(**CHAT)
            client.chat.completions.create(**CHAT)
        ravi_otel.tool(lambda: 1)()
    record, _ = desk.stored()
    live = [(None if parent and parent.startswith("process") else parent, node) for parent, node in told(desk.live)]
    assert told(record) == live
    assert json.loads(as_json(record))["limits"] == json.loads(as_json(desk.live))["limits"]


def left(desk, *, limits, agent=(), answered=True):
    """Leave a run while a call in it waits for its answer, and let it come; without `answered`, read it before that."""
    with desk.working(Text("x", usage=(500, 60))) as client:
        desk.server.hold()
        with ravi_otel.run("left", limits=limits), ravi_otel.agent("lead", limits=agent):
            call = threading.Thread(target=contextvars.copy_context().run, args=(client.chat.completions.create,), kwargs=CHAT)
            call.start()
            desk.server.wait_for(1)
        found = None if answered else desk.stored()[0]
        desk.server.release()
        call.join(10)
        assert not call.is_alive()
    return found or desk.stored()[0]


def table(record):
    return {reading.limit.label: (reading.used, reading.held) for branch in record.branches() for reading in branch.limits}


@pytest.mark.parametrize("admission", ["estimate", "strict", "after"])
def test_what_a_call_used_after_its_run_was_closed_reaches_the_table(desk, admission):
    record = left(desk, limits=[token_limit(50_000, admission=admission)], agent=["output_tokens=5k"])
    assert table(record) == {"tokens": (560, 0), "output_tokens": (60, 0)}


def test_a_table_says_what_was_held_when_the_run_was_closed_and_never_settled(desk):
    record = left(desk, limits=["tokens=50k"], answered=False)
    assert table(record)["tokens"][1] > 0
    out = io.StringIO()
    render(record, console(out, width=120))
    assert "Held in what was closed: by calls that had not ended then" in out.getvalue()


def test_a_run_is_shown_with_the_limits_it_shared_as_they_stood_at_its_end(desk):
    with desk.working(lambda _: Text("Soon.")) as client:
        for name in ("first", "second"):
            with ravi_otel.run(name, tenant_id="acme", limits=["tenant.requests=9:per=24h", "requests=5"]):
                client.chat.completions.create(**CHAT)
    for name, used in (("first", 1), ("second", 2)):
        _, tree = desk.stored(name)
        assert {(each.scope, each.scope_name, each.used, each.limit.amount) for each in tree.limits} == {
            ("tenant", "acme", used, 9),
            ("run", name, 1, 5),
        }


def test_a_limit_that_runs_in_one_another_shared_is_shown_once(desk):
    with desk.working(lambda _: Text("Soon.")) as client, ravi_otel.run("outer", tenant_id="acme", limits=["tenant.requests=9"]):
        with ravi_otel.run("inner"):
            client.chat.completions.create(**CHAT)
        client.chat.completions.create(**CHAT)
    assert [(each.scope, each.used) for each in desk.stored("outer")[1].limits] == [("tenant", 2)]
