"""Who follows a process is told what is open and what happens, soon, cheaply, and without holding anything of the program's."""

import contextlib
import gc
import json
import queue
import re
import socket
import threading
import time
import weakref
from pathlib import Path

import pytest

import ravi_otel
from ravi_otel import BudgetExhaustedError, SpawnBudget
from ravi_otel._local.live import server as _server
from ravi_otel._local.live.client import Session, Watch
from ravi_otel._local.live.open_scopes import OpenScopes
from ravi_otel._local.live.protocol import Happened, LiveError, ProcessState
from ravi_otel.policy._limits import place_of


@pytest.fixture
def told(ask_it):
    """Follow this process; give what takes the next that is told and fits."""
    came = queue.Queue()
    connections = []

    def follow(session):
        with contextlib.suppress(LiveError):
            for each in session.follow(connections.append):
                came.put(each)

    def begin():
        threading.Thread(target=follow, args=(ask_it(),)).start()
        return lambda fits: next(each for each in iter(lambda: came.get(timeout=20), None) if fits(each))

    yield begin
    for each in connections:
        with contextlib.suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)


def events(of, kind):
    return [event for event in of.events if event.event == kind] if isinstance(of, Happened) else []


def test_what_is_open_is_told_at_once_and_again_when_it_has_changed(told, client):
    with ravi_otel.run("r", limits=["requests=5"]):
        until_told = told()
        assert until_told(lambda each: isinstance(each, ProcessState)).runs[0].scopes[0].requests == 0
        client()
        state = until_told(lambda each: isinstance(each, ProcessState) and each.runs[0].scopes[0].requests == 1)
        assert state.runs[0].scopes[0].limits[0].used == 1
        with ravi_otel.agent("a"):
            until_told(lambda each: isinstance(each, ProcessState) and len(each.runs[0].scopes) == 2)


def test_what_happens_is_told_as_it_does(told, client):
    @ravi_otel.tool
    def look():
        return "there"

    with ravi_otel.run("r") as run:
        until_told = told()
        until_told(lambda each: isinstance(each, ProcessState))
        with ravi_otel.agent("a"):
            client()
            look()
            run.report("half of it")
        found, wanted = [], ("scope_opened", "llm_start", "llm_end", "tool_start", "tool_end", "report", "scope_closed")
        while not {event.event for event in found} >= set(wanted):
            found += until_told(lambda each: isinstance(each, Happened)).events
    assert [event.event for event in found if event.event in wanted] == list(wanted)
    ended = next(event for event in found if event.event == "llm_end")
    assert (ended.run_id, ended.agent, ended.call, ended.status) == (run.id, "a", "chat gpt-4o-mini", "ok")
    assert (ended.input_tokens, ended.output_tokens) == (100, 50)
    assert ended.cost_usd == pytest.approx(0.15)
    assert abs(ended.at_unix_s - time.time()) < 60
    assert next(event for event in found if event.event == "report").sentence == "half of it"


def test_a_refused_call_is_told_with_its_own_sentence_and_kept_for_who_comes_later(told, client, ask_it):
    with ravi_otel.run("r", limits=["requests=1"]), ravi_otel.agent("a"):
        until_told = told()
        until_told(lambda each: isinstance(each, ProcessState))
        client()
        with pytest.raises(BudgetExhaustedError) as refused:
            client()
        came = until_told(lambda each: any(one.status == "refused" for one in events(each, "llm_end")))
        (event,) = [each for each in events(came, "llm_end") if each.status == "refused"]
        state = ask_it().state()
    assert (event.sentence, event.limit_kind, event.agent) == (str(refused.value), "requests", "a")
    (kept,) = state.refusals
    assert (kept.event, kept.sentence, kept.call, kept.call_id) == ("refused", event.sentence, "chat gpt-4o-mini", event.call_id)
    agent = state.runs[0].scopes[-1]
    assert (agent.refused, agent.last_refusal) == (1, event.sentence)


def test_a_refusal_is_no_state_any_more_once_a_call_goes_through_that_began_after_it(client, ask_it):
    with ravi_otel.run("r", limits=["requests=1"]) as run, ravi_otel.agent("a"):
        client()
        with pytest.raises(BudgetExhaustedError):
            client()
        assert ask_it().state().runs[0].scopes[-1].last_refusal is not None
        run.set_limit("requests", 3)
        client()
        agent = ask_it().state().runs[0].scopes[-1]
    assert (agent.refused, agent.last_refusal) == (1, None)


def test_a_call_that_goes_through_takes_nothing_from_the_refusal_of_a_tool(client, ask_it):
    @ravi_otel.tool
    def search():
        return "found"

    with ravi_otel.run("r"), ravi_otel.agent("a", limits=["tool_calls=1"]):
        search()
        with pytest.raises(BudgetExhaustedError):
            search()
        client()
        agent = ask_it().state().runs[0].scopes[-1]
    assert agent.last_refusal is not None


def test_a_limit_says_how_it_is_written_when_it_warns_and_whether_it_is_only_watched(client, ask_it):
    with ravi_otel.run("r", limits=["requests=4:warn=0.5"]):
        client()
        (limit,) = ask_it().state().runs[0].scopes[0].limits
    assert (limit.title, limit.spec, limit.warn_at, limit.only_watched, limit.refused) == ("requests", "requests=4:warn=0.5", 0.5, False, 0)
    assert re.fullmatch(rf"{re.escape(__file__)}:\d+", limit.source)
    assert limit.declared is None


def test_a_limit_is_known_by_the_line_of_a_package_whose_name_begins_as_ours_does(client, ask_it):
    file = f"{Path(ravi_otel.__file__).parent}_app/main.py"
    program = {"ravi_otel": ravi_otel}
    exec(compile("\ndef begun():\n    return ravi_otel.run('r', limits=['cost=0.5usd'])\n", file, "exec"), program)
    with program["begun"]():
        (limit,) = ask_it().state().runs[0].scopes[0].limits
    assert limit.source == f"{file}:3"


def test_a_limit_that_was_set_since_says_what_was_written(client, ask_it):
    with ravi_otel.run("r", limits=["cost=0.5usd"]) as run:
        run.set_limit("cost", 0.75)
        (limit,) = ask_it().state().runs[0].scopes[0].limits
    assert (limit.limit, limit.declared) == (0.75, 0.5)


@pytest.mark.parametrize(
    ("origin", "place"),
    [
        ("--limit tokens=5", "--limit"),
        ("RAVI_LIMIT_COST=2.5usd", "RAVI_LIMIT_COST"),
        ("tokens=5 in policy.yaml:3 (profile ci)", "policy.yaml:3 (profile ci)"),
        ("tokens=5 in policy.toml limits[2]", "policy.toml limits[2]"),
        ("ExecutionBudget.max_tokens", None),
    ],
)
def test_where_a_limit_was_written_is_read_from_what_a_refusal_calls_it(origin, place):
    assert place_of(origin) == place


def test_a_run_says_for_whom_it_works_and_a_scope_what_it_waits_for_and_what_a_pause_does(ask_it):
    with (
        ravi_otel.run("r", user_id="ann", tenant_id="acme", session_id="s-1", spawn_budget=SpawnBudget(4)),
        ravi_otel.agent("root"),
        ravi_otel.agent("ends"),
        ravi_otel.agent("waits", when_paused="wait"),
        ravi_otel.waiting("approval"),
    ):
        (run,) = ask_it().state().runs
    assert (run.user, run.tenant, run.session) == ("ann", "acme", "s-1")
    assert [(scope.name, scope.pauses, scope.waits_for) for scope in run.scopes] == [
        ("r", None, None),
        ("root", None, None),
        ("ends", False, None),
        ("waits", True, "approval"),
    ]


def test_a_process_that_is_followed_holds_no_scope_any_longer_than_else():
    scopes = OpenScopes(lambda: None, lambda: None)
    follower = scopes.follow()
    with ravi_otel.instrument() as handle:
        handle.listen(scopes)
        with ravi_otel.run("r") as run:
            known = weakref.ref(run.scope)
        del run
        gc.collect()
        assert known() is None
    assert [event["event"] for event in follower.take()[0]] == ["scope_opened", "scope_closed"]


def test_who_is_too_slow_is_told_how_many_events_had_to_make_room():
    scopes = OpenScopes(lambda: None, lambda: None)
    follower = scopes.follow()
    with ravi_otel.instrument() as handle, ravi_otel.run("r") as run:
        handle.listen(scopes)
        for number in range(300):
            run.report(str(number))
    events, missed = follower.take()
    assert (len(events), missed, events[-1]["event"]) == (250, 50, "report")
    assert follower.take() is None


def test_an_event_takes_the_program_microseconds_when_it_is_followed():
    scopes = OpenScopes(lambda: None, lambda: None)
    followers = [scopes.follow()]
    best = 1.0
    with ravi_otel.instrument() as handle, ravi_otel.run("r") as run:
        handle.listen(scopes)
        notice = run.scope.facts
        for _ in range(20):
            began = time.thread_time()
            for _ in range(200):
                scopes._emit("report", notice, call=("chat", "gpt-4.1"), status="ok", call_id="op")
            best = min(best, (time.thread_time() - began) / 200)
    assert followers
    assert best < 20e-6  # 1 to 3 on a machine that is quiet


def test_watching_a_store_finds_its_processes_and_tells_of_news(store, live, client, until):
    news = threading.Event()
    with contextlib.closing(Watch(store, news.set)) as watch, ravi_otel.run("r"):
        (watched,) = until(lambda: watch.look(patience_s=20))
        assert watched.process.runs[0].name == "r"
        news.clear()
        client()
        assert until(lambda: watch.look()[0].process.runs[0].scopes[0].requests) == 1
        assert news.is_set()
        live.stop()
        until(lambda: not watch.look())
    until(lambda: not any(thread.name == "ravi-otel-follow" for thread in threading.enumerate()))


def test_one_that_follows_and_goes_leaves_its_place(ask_it, until, live, monkeypatch):
    monkeypatch.setattr(_server, "ALIVE_S", 0.05)
    with ravi_otel.run("r"):
        path = ask_it().path
        with socket.socket(socket.AF_UNIX) as one:
            one.settimeout(20)
            one.connect(str(path))
            one.sendall(b'{"v":1,"op":"follow"}\n')
            with one.makefile("rb") as lines:
                assert json.loads(lines.readline())["ok"] is True
        until(lambda: not live.scopes._followers)


def test_an_answer_that_makes_no_sense_ends_it_with_one_sentence(store):
    listens = _server.make
    store.mkdir(mode=0o700)
    entry = listens(store)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(entry.socket))
        listener.listen(1)

        def serve():
            connection, _ = listener.accept()
            with connection:
                connection.recv(1_000)
                connection.sendall(b'{"v":1,"ok":true,"events":[{"event":5}],"missed":0}\n')

        thread = threading.Thread(target=serve)
        thread.start()

        with pytest.raises(LiveError, match=r"it told events\[0\].event=5 makes no sense"):
            next(Session(entry.socket, entry.pid).follow())
        thread.join()
