"""What an agent remembers, for how long, and in which scope."""

from __future__ import annotations

from contextlib import suppress

import anyio
import anyio.lowlevel
import pytest

import ravi_otel
from ravi_otel import HistoryRetention, SpawnBudget
from ravi_otel.agents.history import AgentMemory, HistoryError, MemoryHistory, SlidingWindow
from ravi_otel.agents.history._store import retention_of
from ravi_otel.errors import ConfigurationError
from ravi_otel.policy._contracts import AgentContextProtocol, ChatMessage

NONE, RUN, PERMANENT = HistoryRetention
pytestmark = pytest.mark.anyio


@pytest.fixture
def memory(store):
    return AgentMemory("worker", store)


def said(*texts):
    return [ChatMessage("user", text) for text in texts]


def texts(messages):
    return [message.content for message in messages]


async def window(memory, session="s"):
    return texts(await memory.get_prompt_window(session))


def test_it_is_what_an_agent_shows_of_its_memory(memory):
    assert isinstance(memory, AgentContextProtocol)
    assert memory.agent_id == "worker"


def test_a_store_becomes_the_memory_of_its_agent_and_a_memory_stays_what_it_is(store, memory):
    made = AgentMemory.of("lead", store)
    assert (made.agent_id, made.store) == ("lead", store)
    assert AgentMemory.of("lead", memory) is memory
    assert AgentMemory.of("lead", None) is None


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: AgentMemory.of("a", {}), "history={} is no HistoryStore; give MemoryHistory"),
        (lambda: AgentMemory("a", {}), r"AgentMemory\(store\)={} is no HistoryStore; give MemoryHistory"),
        (
            lambda: AgentMemory("a", MemoryHistory(), compaction=len),
            r"AgentMemory\(compaction\)=.* is no CompactionStrategy; give SlidingWindow",
        ),
        (lambda: AgentMemory("", MemoryHistory()), r"AgentMemory\(agent_id\)='' is empty"),
        (lambda: AgentMemory.of("a", MemoryHistory), r"history=MemoryHistory is a class; give an instance of it, MemoryHistory\(\.\.\.\)"),
        (lambda: AgentMemory("a", MemoryHistory), "is a class; give an instance of it"),
        (lambda: AgentMemory("a", MemoryHistory(), compaction=SlidingWindow), "=SlidingWindow is a class; give an instance of it"),
    ],
)
def test_what_is_no_store_is_refused_by_name(make, told):
    with pytest.raises(ConfigurationError, match=told):
        make()


async def test_outside_any_scope_a_session_is_kept_and_no_session_is_nothing(memory):
    await memory.remember("s", said("x"))
    await memory.remember(None, said("y"))
    assert (await window(memory), await window(memory, None)) == (["x"], [])


async def test_a_session_goes_on_in_the_next_run(memory):
    for text in ("one", "two"):
        with ravi_otel.run("r"):
            await memory.remember("s", said(text))
    with ravi_otel.run("r"):
        assert await window(memory) == ["one", "two"]


@pytest.mark.parametrize(("retention", "inside", "after"), [(NONE, [], []), (RUN, ["x"], []), (PERMANENT, ["x"], ["x"])])
@pytest.mark.parametrize("where", ["run", "agent", "spawn"])
async def test_the_retention_around_says_how_long(memory, store, where, retention, inside, after):
    with ravi_otel.run("r", spawn_budget=SpawnBudget(5), retention=retention if where == "run" else PERMANENT, run_id="fixed"):
        if where == "run":
            await memory.remember("s", said("x"))
        elif where == "agent":
            with ravi_otel.agent("worker", retention=retention):
                await memory.remember("s", said("x"))
        else:
            with ravi_otel.spawn("worker", retention=retention), ravi_otel.agent("worker"):
                await memory.remember("s", said("x"))
        assert await window(memory) == inside
    assert texts(await store.load("s", agent_name="worker", run_id="fixed")) == after


async def test_what_a_run_kept_for_itself_is_deleted_when_it_ends_however_it_ends(memory, store):
    with suppress(ZeroDivisionError):
        async with ravi_otel.run("r", run_id="fixed"), ravi_otel.agent("worker"):
            await memory.remember("s", said("x"))
            await memory.remember(None, said("y"))
            assert await window(memory) == ["x"]
            raise ZeroDivisionError
    assert texts(await store.load("s", agent_name="worker", run_id="fixed")) == []
    assert texts(await store.load(None, agent_name="worker", run_id="fixed")) == []


async def test_a_run_inside_a_run_forgets_its_own_alone(memory):
    with ravi_otel.run("outer", retention=RUN):
        await memory.remember("s", said("outer"))
        with ravi_otel.run("inner", retention=RUN):
            await memory.remember("s", said("inner"))
            assert await window(memory) == ["inner"]
        assert await window(memory) == ["outer"]


async def test_an_agent_outside_any_run_is_one_by_itself(memory):
    with ravi_otel.agent("worker"):
        await memory.remember("s", said("x"))
        with ravi_otel.agent("worker"):
            assert await window(memory) == ["x"]
        assert await window(memory) == ["x"]
    assert await window(memory) == []
    with ravi_otel.agent("worker"):
        assert await window(memory) == []


async def test_a_child_that_is_begun_again_remembers_what_it_knew_and_nothing_of_its_parents(store, memory):
    found = []

    async def child():
        found.append(await window(memory))
        await memory.remember("s", said(f"try {len(found)}"))
        if len(found) < 3:
            raise ConnectionError
        return ravi_otel.current_scope().supervision.retention

    with ravi_otel.run("r"), ravi_otel.agent("lead", retention=PERMANENT):
        await AgentMemory("lead", store).remember("s", said("the plan"))
        kept = await ravi_otel.supervise(child, ravi_otel.RetryPolicy(max_retries=3), agent="worker")
        assert await window(AgentMemory("lead", store)) == ["the plan"]
    assert (kept, found) == (RUN, [[], ["try 1"], ["try 1", "try 2"]])
    assert await window(memory) == []
    assert await window(AgentMemory("lead", store)) == ["the plan"]


async def test_a_paused_run_is_not_over(memory, store, instrumented):
    with ravi_otel.run("r", run_id="fixed", limits=["charge.rows=1:on=pause"]) as run, ravi_otel.agent("worker"):
        await memory.remember("s", said("x"))
        run.scope.charge("rows", 2)
    assert run.status == "paused"
    with ravi_otel.run("r", resume=run.snapshot(), limits=["charge.rows=5"]), ravi_otel.agent("worker"):
        assert await window(memory) == ["x"]
    assert texts(await store.load("s", agent_name="worker", run_id="fixed")) == []


async def test_what_a_task_says_after_the_end_of_its_run_is_not_kept(memory, store):
    over, asked = anyio.Event(), anyio.Event()

    async def straggler():
        await over.wait()
        await memory.remember("s", said("late"))
        asked.set()

    async with anyio.create_task_group() as group:
        with ravi_otel.run("r", run_id="fixed", retention=RUN):
            await memory.remember("s", said("in time"))
            group.start_soon(straggler)
            await anyio.lowlevel.checkpoint()
        over.set()
        await asked.wait()
    assert texts(await store.load("s", agent_name="worker", run_id="fixed")) == []


async def test_tenants_of_the_scopes_around_are_told_apart(memory):
    for tenant in ("a", "b"):
        with ravi_otel.run("r", session_id="s", tenant_id=tenant):
            await memory.remember("s", said(tenant))
    with ravi_otel.run("r", session_id="s", tenant_id="b"):
        assert await window(memory) == ["b"]
    assert await window(memory) == []


async def test_a_window_shortens_the_prompt_and_not_what_is_stored(store, turn):
    memory = AgentMemory("worker", store, compaction=SlidingWindow(2))
    for number in range(5):
        await memory.remember("s", turn(number))
    assert list(await memory.get_prompt_window("s")) == [*turn(3), *turn(4)]
    assert len(await store.load("s", agent_name="worker")) == 20


async def test_what_a_provider_would_refuse_is_kept_and_not_sent(store, turn):
    memory = AgentMemory("worker", store)
    broken = [*turn(1)[:2], ChatMessage("user", "half \ud800")]
    await memory.remember("s", broken)
    assert await memory.get_prompt_window("s") == (turn(1)[0], ChatMessage("user", "half \ufffd"))
    assert list(await store.load("s", agent_name="worker")) == broken


async def test_a_message_that_cannot_be_kept_is_told(memory):
    with ravi_otel.run("r"), pytest.raises(HistoryError, match="must be text or None"):
        await memory.remember("s", said(5))


async def test_the_first_agent_of_a_run_speaks_for_it_and_those_below_it_do_not():
    assert retention_of("lead") is None
    with ravi_otel.run("r", retention=NONE, spawn_budget=SpawnBudget(5)):
        assert retention_of("lead") is NONE
        with ravi_otel.spawn("lead", retention=PERMANENT):
            assert retention_of("lead") is None
            assert retention_of("other") is NONE
        with ravi_otel.agent("lead"):
            assert retention_of("worker") is None
