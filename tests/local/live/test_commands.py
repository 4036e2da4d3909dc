"""What an operator asks for is done to the real run, agent or limit, or refused in one sentence; and it leaves a trace."""

import contextlib
import json
import logging
import os
import pwd
import socket
import struct

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import ravi_otel
from ravi_otel import AgentPausedError, BudgetExhaustedError, CancellationError, Priority, SpawnBudget
from ravi_otel._local.live import server as _server
from ravi_otel._local.live.client import Peer
from ravi_otel._local.live.protocol import MOST_REQUEST, CommandError
from ravi_otel.supervisor import AuditLog, Gate
from ravi_otel.supervisor._audit import read_entries, verify_all

OPS = ("state", "follow", "pause", "resume", "reprioritize", "set_limit")
FIELDS = ("scope_id", "reason", "priority", "kind", "value", "by")


@pytest.fixture
def scene(ask_it):
    """A run with a root and a worker at work; give its session, the run's handle, and the ids of the three."""
    with (
        ravi_otel.run("r", limits=["requests=2", "tool_calls=3:on=stop"], spawn_budget=SpawnBudget(3)) as run,
        ravi_otel.agent("root") as root,
        ravi_otel.agent("worker") as worker,
    ):
        yield ask_it(), run, root.scope.facts.scope_id, worker.scope.facts.scope_id


def lookup(order: int) -> str:
    return f"order {order}"


def run_id_of(run):
    return run.scope.facts.scope_id


def go_on():
    ravi_otel.current_scope().checkpoint()


def test_a_run_is_cancelled_with_the_reason(scene, client):
    session, run, *_ = scene
    session.command("cancel", run_id_of(run), reason="it loops")
    with pytest.raises(CancellationError, match="it loops"):
        client()


def test_any_other_scope_is_closed_and_the_run_goes_on(scene, client):
    session, *_ = scene
    with ravi_otel.apply_limits([], name="piece") as piece:
        session.command("cancel", piece.scope.facts.scope_id)
        with pytest.raises(BudgetExhaustedError, match="closed"):
            client()
    client()
    assert session.state().runs[0].status == "open"


def test_a_run_is_closed_and_its_next_call_refused(scene, client):
    session, run, *_ = scene
    session.command("close", run_id_of(run))
    with pytest.raises(BudgetExhaustedError, match="closed"):
        client()
    assert session.state().runs[0].status == "closed"


def test_an_agent_is_cancelled_with_the_reason_and_the_run_goes_on(scene, client):
    session, run, _, worker = scene
    session.command("cancel", worker, reason="too slow")
    with pytest.raises(CancellationError, match="agent 'worker' of run 'r' was cancelled: too slow"):
        client()
    assert session.state().runs[0].scopes[-1].status == "cancelled"
    assert (session.state().runs[0].status, run.scope.cancellation.cancelled) == ("open", False)


def test_a_limit_that_is_set_stands_in_the_programs_audit_log_with_who_asked(scene, tmp_path):
    session, run, *_ = scene
    gate = Gate(tools=[lookup], audit=AuditLog(tmp_path / "audit"))
    session.command("set_limit", run_id_of(run), kind="requests", value=7, by="ana")
    session.command("set_limit", run_id_of(run), kind="requests", value=8)
    read = [entry for each in verify_all(tmp_path / "audit") for entry in read_entries(each, lambda text, most: text[:most])]
    me = pwd.getpwuid(os.getuid()).pw_name
    assert [(each.run, each.what, each.says, each.who, each.person) for each in read] == [
        (run.scope.facts.run_id, "limit set", "requests of run r: 2 before, 7 now", "ana", True),
        (run.scope.facts.run_id, "limit set", "requests of run r: 7 before, 8 now", me, True),
    ]
    assert "lookup" in gate.signatures


def test_an_agent_is_paused_and_resumed(scene):
    session, _, _, worker = scene
    session.command("pause", worker)
    with pytest.raises(AgentPausedError):
        go_on()
    assert session.state().runs[0].scopes[-1].status == "paused"
    session.command("resume", worker)
    go_on()


def test_an_agent_gets_another_priority(scene):
    session, run, _, worker = scene
    session.command("reprioritize", worker, priority="critical")
    assert session.state().runs[0].scopes[-1].priority == "critical"
    run.scope.spawn.acquire("a", Priority.LOW)
    run.scope.spawn.acquire("b", Priority.CRITICAL)  # takes the slot of "a", and not that of the worker
    go_on()


def test_a_limit_is_raised_while_the_run_works(scene, client):
    session, run, *_ = scene
    client()
    client()
    with pytest.raises(BudgetExhaustedError):
        client()
    session.command("set_limit", run_id_of(run), kind="requests", value=3)
    client()
    session.command("set_limit", run_id_of(run), kind="agents", value=5.0)
    assert run.scope.spawn.stats().limit == 5


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (lambda session, run, root, worker: session.command("cancel", "nobody"), "scope_id='nobody' is not open any more."),
        (lambda session, run, root, worker: session.command("pause", run), "run 'r' has no slot: only agents have."),
        (lambda session, run, root, worker: session.command("pause", root), "agent 'root' is the root of its run, which is never paused"),
        (lambda session, run, root, worker: session.command("resume", worker), "agent 'worker' is not paused."),
        (
            lambda session, run, root, worker: session.command("reprioritize", worker, priority="vital"),
            "priority='vital' is unknown. It is one of: background",
        ),
        (
            lambda session, run, root, worker: session.command("set_limit", run, kind="tokens", value=5),
            "run 'r' has no such limit; it has agents, requests, tool_calls",
        ),
        (lambda session, run, root, worker: session.command("set_limit", run, kind="requests", value=-1), "-1"),
        (lambda session, run, root, worker: session.command("set_limit", run, kind="requests", value=1.5), "1.5"),
        (lambda session, run, root, worker: session.command("set_limit", run, kind="requests", value=True), "value=True must be a number"),
        (lambda session, run, root, worker: session.command("set_limit", run, kind="k" * 300, value=1), "must be the kind of a limit"),
        (
            lambda session, run, root, worker: session.command("cancel", run, reason="r" * 1_001),
            "must be a text of at most 1000 characters",
        ),
    ],
)
def test_what_cannot_be_done_is_said_in_one_sentence_and_nothing_is_changed(scene, ask, said):
    session, run, root, worker = scene
    before = [limit.limit for limit in run.limits]
    with pytest.raises(CommandError) as refused:
        ask(session, run_id_of(run), root, worker)
    assert said in str(refused.value)
    assert [limit.limit for limit in run.limits] == before
    go_on()


def test_an_agent_that_is_paused_already_is_not_paused_again(scene):
    session, _, _, worker = scene
    session.command("pause", worker)
    with pytest.raises(CommandError, match="is paused already"):
        session.command("pause", worker)


def test_of_agents_of_one_id_the_very_one_is_steered_that_was_chosen(scene):
    session, run, _, worker = scene
    slots = run.scope.spawn
    chosen = ravi_otel.current_scope().lease
    with ravi_otel.agent("worker") as newest:
        session.command("reprioritize", worker, priority="high")
        assert (chosen.priority, newest.scope.lease.priority) == (Priority.HIGH, Priority.NORMAL)
        session.command("pause", worker)
        assert (chosen.paused, newest.paused) == (True, False)
        slots.pause(newest.scope.lease)
        session.command("resume", worker)
        assert (chosen.paused, newest.paused) == (False, True)
        with pytest.raises(CommandError, match="is not paused"):
            session.command("resume", worker)


def test_each_command_is_logged_with_who_gave_it_and_told_to_who_follows_the_run(scene, caplog):
    session, run, *_ = scene
    progress = run.progress()
    with caplog.at_level(logging.WARNING, "ravi_otel"):
        session.command("set_limit", run_id_of(run), kind="requests", value=9, by="ann\x1b")
        session.command("cancel", run_id_of(run), reason="enough\x1b[2J")
    who = f"by {pwd.getpwuid(os.geteuid()).pw_name} (uid {os.geteuid()}, pid {os.getpid()})"
    assert [record.getMessage() for record in caplog.records] == [
        f"ravi-otel: set_limit of run 'r' (kind='requests', value=9) {who} for 'ann', over the live socket",
        f"ravi-otel: cancel of run 'r' (reason='enough [2J') {who}, over the live socket",
    ]
    told = [next(progress) for _ in range(2)]
    assert [(event.event, event.data["op"], event.data["by_pid"], event.data["by"]) for event in told] == [
        ("command", "set_limit", os.getpid(), "ann\x1b"),
        ("command", "cancel", os.getpid(), None),
    ]
    assert {event.data["by_user"] for event in told} == {pwd.getpwuid(os.geteuid()).pw_name}


# -- what comes over the socket ---------------------------------------------------------------------------------------------------


class Line:
    """Speak to the socket without the client."""

    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(20)
        self.socket.connect(str(path))
        self.file = self.socket.makefile("rb")

    def ask(self, raw):
        self.socket.sendall(raw)
        return self.hear()

    def hear(self):
        line = self.file.readline()
        return json.loads(line) if line else None

    def __enter__(self):
        return self

    def __exit__(self, *_error):
        self.file.close()
        self.socket.close()


@pytest.fixture
def line(scene):
    with Line(scene[0].path) as line:
        yield line


@pytest.mark.parametrize(
    "raw",
    [
        b"\n", b"nothing\n", b"[]\n", b"{}\n", b"null\n", b'{"v":1}\n', b'{"v":1,"op":"shout"}\n', b'{"v":1,"op":null}\n',
        b'{"v":2,"op":"state"}\n', b'{"v":true,"op":"state"}\n', b'{"v":1,"op":["state"]}\n', b'{"v":1,"op":"cancel"}\n',
        b'{"v":1,"op":"cancel","scope_id":{}}\n', b'{"v":1,"op":"set_limit","scope_id":"x","kind":1,"value":NaN}\n',
        b"[" * 50_000 + b"\n", b"\xff\xfe\n", b"9" * 10_000 + b"\n",
    ],
    ids=lambda raw: repr(raw[:40]),
)  # fmt: skip
def test_nonsense_is_answered_with_one_sentence_and_the_connection_goes_on(line, raw):
    answer = line.ask(raw)
    assert (answer["v"], answer["ok"]) == (1, False)
    assert 0 < len(answer["error"]) < 1_000
    assert "\n" not in answer["error"]
    assert line.ask(b'{"v":1,"op":"state"}\n')["ok"] is True


@pytest.mark.parametrize("value", ["1e999", '"5"', "null", "[5]", "1" + "0" * 400])
def test_a_value_that_is_no_number_of_sense_is_refused(scene, line, value):
    target = run_id_of(scene[1])
    answer = line.ask(f'{{"v":1,"op":"set_limit","scope_id":"{target}","kind":"requests","value":{value}}}\n'.encode())
    assert "value=" in answer["error"]


def test_requests_may_come_in_pieces_and_several_at_once(line):
    line.socket.sendall(b'{"v":1,')
    assert line.ask(b'"op":"state"}\n{"v":1,"op":"huh"}\n')["ok"] is True
    assert "op='huh' is unknown" in line.hear()["error"]


def test_a_request_that_is_too_long_is_refused_and_the_connection_ends(line):
    answer = line.ask(b"x" * (MOST_REQUEST + 10))
    assert f"at most {MOST_REQUEST} bytes" in answer["error"]
    with contextlib.suppress(ConnectionResetError):  # what was still to be read is thrown away
        assert line.hear() is None


def test_half_a_request_is_waited_for_in_vain_only_so_long(scene, monkeypatch):
    monkeypatch.setattr(_server, "REQUEST_S", 0.05)
    with Line(scene[0].path) as slow:
        assert slow.ask(b'{"v":1,') is None


def test_who_reads_no_answer_holds_up_nobody_else(scene, monkeypatch):
    monkeypatch.setattr(_server, "REQUEST_S", 0.2)
    with Line(scene[0].path) as deaf:
        deaf.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
        deaf.socket.sendall(b'{"v":1,"op":"state"}\n' * 2_000)
        assert scene[0].state().runs


def test_eight_at_a_time_are_answered_and_the_next_when_one_has_gone(scene):
    first = [Line(scene[0].path) for _ in range(_server.MOST_CONNECTIONS)]
    assert all(one.ask(b'{"v":1,"op":"state"}\n')["ok"] for one in first)
    with Line(scene[0].path) as late:
        late.socket.sendall(b'{"v":1,"op":"state"}\n')
        first.pop().__exit__()
        assert late.hear()["ok"] is True
    for one in first:
        one.__exit__()


def test_of_eight_that_say_nothing_the_one_that_has_for_longest_makes_room(scene, monkeypatch):
    monkeypatch.setattr(_server, "GRACE_S", 0.05)
    silent = [Line(scene[0].path) for _ in range(_server.MOST_CONNECTIONS)]
    assert all(one.ask(b'{"v":1,"op":"state"}\n')["ok"] for one in silent)
    assert all(one.ask(b'{"v":1,"op":"state"}\n')["ok"] for one in silent[1:])  # meanwhile the first one's thread waits
    assert scene[0].state().runs
    assert silent[0].socket.recv(1) == b""  # it was closed, and only it
    assert all(one.ask(b'{"v":1,"op":"state"}\n')["ok"] for one in silent[1:])
    for one in silent:
        one.__exit__()


def test_a_reason_of_control_characters_and_half_ones_is_cleaned_before_the_program_reads_it(scene):
    session, run, *_ = scene
    session.command("cancel", run_id_of(run), reason="that\x1b[2J is\ud800\u202e enough\n")
    with pytest.raises(CancellationError) as refused:
        go_on()
    assert "that [2J is?  enough" in str(refused.value)
    assert str(refused.value).isprintable()


def test_who_hangs_up_at_once_leaves_nothing(scene):
    for _ in range(30):
        rude = socket.socket(socket.AF_UNIX)
        rude.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        rude.connect(str(scene[0].path))
        rude.close()
    assert scene[0].state().runs


WORDS = st.sampled_from(["requests", "high", "state", "\ud800"])
JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=300) | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(request=st.fixed_dictionaries({"op": st.sampled_from([*OPS]) | JUNK}, optional=dict.fromkeys(FIELDS, JUNK)), of=st.booleans())
def test_whatever_is_asked_is_done_or_answered_in_one_sentence(live, request, of):
    with ravi_otel.run("r", limits=["requests=2"], spawn_budget=SpawnBudget(3)), ravi_otel.agent("root"), ravi_otel.agent("a") as agent:
        about = {"scope_id": agent.scope.facts.scope_id} if of else {}
        said = _server.answer(json.dumps({"v": 1, **request, **about}).encode(), live.scopes, Peer(0, 1))
    if said is not None:
        known = json.loads(said)
        assert known["ok"] or 0 < len(known["error"]) <= 1_000
        assert "fault of ravi-otel" not in known.get("error", "")
