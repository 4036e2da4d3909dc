"""What every store of ours keeps to."""

from __future__ import annotations

import json
import re

import anyio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ravi_otel import HistoryRetention
from ravi_otel.agents.history import HistoryError, HistoryStore, MemoryHistory, SqliteHistory
from ravi_otel.agents.history._messages import sendable
from ravi_otel.errors import ConfigurationError
from ravi_otel.policy._contracts import ChatMessage

NONE, RUN, PERMANENT = HistoryRetention
pytestmark = pytest.mark.anyio
STEADY = {"deadline": None, "derandomize": True, "suppress_health_check": list(HealthCheck)}
HALVES = "\ud83d\ude00"
"""Two halves that are kept apart, and one character where they are not."""


def said(*texts):
    return [ChatMessage("user", text) for text in texts]


def texts(messages):
    return [message.content for message in messages]


async def test_it_is_a_store_that_a_runs_end_can_ask(store):
    assert isinstance(store, HistoryStore)
    assert callable(store.run_ended)


async def test_it_gives_nothing_where_nothing_was_kept(store, path):
    assert list(await store.load("s")) == []
    await store.clear("s")
    await store.forget_run("r")
    assert not path.exists()


async def test_messages_come_back_in_order_and_as_they_were(store, turn):
    odd = [ChatMessage("developer", ""), ChatMessage("user", "a\0b\u2028\n", name="é"), ChatMessage("assistant", HALVES)]
    await store.append("s", turn(1), retention=PERMANENT, run_id="r1")
    await store.append("s", odd, retention=PERMANENT, run_id="r2")
    found = await store.load("s")
    assert list(found) == turn(1) + odd
    assert found[6].content.encode("utf-16", "surrogatepass") == HALVES.encode("utf-16", "surrogatepass")
    assert [len(message.content or "") for message in found][-1] == 2


TEXT = st.text(st.characters(exclude_categories=()), max_size=10)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**62), 2**62) | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)
TEXTS = st.none() | TEXT
MESSAGES = st.builds(
    ChatMessage,
    st.sampled_from(["system", "developer", "user", "assistant", "tool"]),
    TEXTS,
    TEXTS,
    TEXTS,
    st.lists(st.dictionaries(TEXT, JSON, max_size=3), max_size=2).map(tuple),
)


@settings(max_examples=60, **STEADY)
@given(st.lists(MESSAGES, max_size=4))
def test_whatever_is_kept_is_read_again_exactly(messages):
    async def kept(given):
        store = MemoryHistory()
        await store.append("s", given, retention=PERMANENT)
        return await store.load("s")

    once = anyio.run(kept, messages)
    assert repr(once) == repr(tuple(messages))
    assert repr(anyio.run(kept, once)) == repr(once)


@settings(max_examples=60, **STEADY)
@given(st.lists(MESSAGES, max_size=4))
def test_what_can_be_sent_has_no_half_character_and_the_same_shape(messages):
    for message in messages:
        sent = sendable(message).as_json()
        assert sent.keys() == message.as_json().keys()
        assert re.sub("[\ud800-\udfff]", "\ufffd", json.dumps(message.as_json(), ensure_ascii=False)) == json.dumps(
            sent, ensure_ascii=False
        )


async def test_what_the_program_changes_afterwards_is_not_changed_in_the_store(store):
    call = {"id": "c", "function": {"name": "look"}}
    await store.append("s", [ChatMessage("assistant", tool_calls=(call,))], retention=PERMANENT)
    call["id"] = "other"
    (kept,) = await store.load("s")
    assert kept.tool_calls == ({"id": "c", "function": {"name": "look"}},)
    kept.tool_calls[0]["id"] = "other"
    assert (await store.load("s"))[0].tool_calls[0]["id"] == "c"


def deep(levels):
    return {"a": deep(levels - 1)} if levels else {}


@pytest.mark.parametrize(
    ("message", "told"),
    [
        (ChatMessage("user", 5), r"messages\[1\].content=5 must be text or None"),
        (ChatMessage("boss", "x"), r"messages\[1\].role='boss' must be one of system, developer"),
        ({"role": "user"}, r"messages\[1\]=.* is no ChatMessage"),
        (ChatMessage("assistant", tool_calls=("look",)), r"must be JSON objects"),
        (ChatMessage("assistant", tool_calls=({"n": float("nan")},)), r"has nan in it, which JSON cannot write"),
        (ChatMessage("assistant", tool_calls=({"n": 2**63},)), r"beyond 64 bits"),
        (ChatMessage("assistant", tool_calls=({5: "x"},)), r"a key of .*=5 must be text"),
        (ChatMessage("assistant", tool_calls=({"n": {1, 2}},)), r"which is no JSON"),
        (ChatMessage("assistant", tool_calls=(deep(40),)), r"nested deeper than 32 levels"),
        (ChatMessage("assistant", tool_calls=(deep(800),)), r"nested deeper than 32 levels"),
        (ChatMessage("tool", "x" * 17_000_000), r"messages take \d+ bytes, and one append holds 16777216"),
    ],
)
async def test_what_cannot_be_kept_is_refused_by_name_and_nothing_of_it_is_kept(store, message, told):
    with pytest.raises(HistoryError, match=told):
        await store.append("s", [ChatMessage("user", "first"), message], retention=PERMANENT)
    assert list(await store.load("s")) == []


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"session_id": ""}, "session_id='' is empty"),
        ({"session_id": "a\nb"}, "session_id=.*control character"),
        ({"session_id": None}, "session_id=None and run_id=None name no conversation"),
        ({"retention": "for ever"}, "retention='for ever' is unknown"),
        ({"retention": RUN}, "retention='run' with run_id=None would never end"),
        ({"tenant_id": 5}, "tenant_id=5 is not text"),
    ],
)
async def test_a_wrong_name_is_refused_by_name(store, asked, told):
    with pytest.raises(ConfigurationError, match=told):
        await store.append(**{"session_id": "s", "messages": said("x"), "retention": PERMANENT, **asked})


async def test_sessions_agents_and_tenants_never_see_one_anothers(store):
    places = [
        {"session_id": session, "agent_name": agent, "tenant_id": tenant}
        for session in ("s", "S", "s'")
        for agent in (None, "lead", "None")
        for tenant in (None, "t", "None")
    ]
    for number, place in enumerate(places):
        await store.append(messages=said(str(number)), retention=PERMANENT, run_id="r", **place)
    for number, place in enumerate(places):
        assert texts(await store.load(**place)) == [str(number)]


async def test_none_keeps_nothing(store, path):
    await store.append("s", said("x"), retention=NONE, run_id="r")
    assert list(await store.load("s", run_id="r")) == []
    assert not path.exists()


async def test_what_is_kept_for_a_run_is_seen_by_that_run_alone_and_forgotten_with_it(store):
    await store.append("s", said("kept"), retention=PERMANENT, run_id="r1")
    await store.append("s", said("for now"), retention=RUN, run_id="r1")
    assert texts(await store.load("s", run_id="r1")) == ["kept", "for now"]
    assert texts(await store.load("s", run_id="r2")) == texts(await store.load("s")) == ["kept"]
    await store.forget_run("r1")
    await store.forget_run("r1")
    assert texts(await store.load("s", run_id="r1")) == ["kept"]


async def test_a_run_of_the_same_id_in_another_tenant_is_another_run(store):
    for tenant in ("a", "b"):
        await store.append("s", said(tenant), retention=RUN, run_id="r", tenant_id=tenant)
    await store.forget_run("r", tenant_id="a")
    assert texts(await store.load("s", run_id="r", tenant_id="a")) == []
    assert texts(await store.load("s", run_id="r", tenant_id="b")) == ["b"]


@pytest.mark.parametrize("retention", [RUN, PERMANENT])
async def test_without_a_session_a_run_keeps_for_itself_until_it_ends(store, retention):
    await store.append(None, said("mine"), retention=retention, run_id="r1")
    assert texts(await store.load(None, run_id="r1")) == ["mine"]
    assert texts(await store.load(None, run_id="r2")) == []
    await store.forget_run("r1")
    assert texts(await store.load(None, run_id="r1")) == []


async def test_clearing_a_session_deletes_it_for_every_agent_and_run_and_nothing_else(store):
    for agent in ("lead", "researcher"):
        await store.append("s", said("x"), retention=PERMANENT, run_id="r", agent_name=agent)
        await store.append("s", said("y"), retention=RUN, run_id="r", agent_name=agent)
    await store.append("other", said("z"), retention=PERMANENT, run_id="r")
    await store.append("s", said("theirs"), retention=PERMANENT, run_id="r", tenant_id="t")
    await store.clear("s")
    assert [texts(await store.load("s", run_id="r", agent_name=agent)) for agent in ("lead", "researcher")] == [[], []]
    assert texts(await store.load("other")) == ["z"]
    assert texts(await store.load("s", tenant_id="t")) == ["theirs"]


async def test_what_each_of_two_overlapping_runs_appends_stays_together_and_in_order(store):
    for text in ("a1", "b1", "a2", "b2", "a3"):
        await store.append("s", said(text), retention=PERMANENT, run_id=text[0])
    assert texts(await store.load("s")) == ["a1", "a2", "a3", "b1", "b2"]


async def test_turns_that_are_appended_at_once_are_all_there_each_in_one_piece(store, turn):
    async def work(run):
        for number in range(6):
            await store.append("s", turn(f"{run}{number}"), retention=PERMANENT, run_id=run)

    async with anyio.create_task_group() as group:
        for run in "abcd":
            group.start_soon(work, run)
    found = list(await store.load("s"))
    runs = [found[at].content.split()[1][0] for at in range(0, 96, 24)]
    assert sorted(runs) == list("abcd")
    assert found == [message for run in runs for number in range(6) for message in turn(f"{run}{number}")]


async def test_one_load_gives_the_newest_that_fit_in_whole_appends(store):
    for number in range(5):
        await store.append("s", said(str(number), "x" * 5_000_000), retention=PERMANENT)
    assert [text for text in texts(await store.load("s")) if len(text) == 1] == ["2", "3", "4"]


async def test_the_sessions_in_memory_are_bounded_and_the_least_recently_used_goes_first():
    store = MemoryHistory(most_sessions=2)
    for session in ("a", "b"):
        await store.append(session, said(session), retention=PERMANENT)
    await store.load("a")
    await store.append("c", said("c"), retention=RUN, run_id="r")
    await store.append("d", said("d"), retention=RUN, run_id="r")
    assert [texts(await store.load(session, run_id="r")) for session in "abcd"] == [[], [], ["c"], ["d"]]
    await store.forget_run("r")
    assert (store._sessions, store._of_runs) == ({}, {})


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: SqliteHistory(""), r"SqliteHistory\(path\)='' is no path of a file; give one such as 'history.db'"),
        (lambda: SqliteHistory(b"history.db"), "is no path of a file"),
        (lambda: SqliteHistory(5), "=5 is no path of a file"),
        (lambda: SqliteHistory(":memory:"), "give MemoryHistory"),
        (lambda: SqliteHistory("a.db", busy_s=-1), "busy_s=-1"),
        (lambda: MemoryHistory(most_sessions=0), "most_sessions=0"),
    ],
)
def test_a_store_is_not_made_of_what_cannot_be_one(make, told):
    with pytest.raises(ConfigurationError, match=told):
        make()
