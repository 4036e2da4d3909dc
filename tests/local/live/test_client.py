"""Whoever answers on a socket is not trusted: answers are bounded in size, time and shape, and so is what is believed of a store."""

import json
import os
import socket
import threading
from pathlib import Path

import pytest
from listing import sessions

import ravi_otel
from ravi_otel._local.live import client as _client
from ravi_otel._local.live.client import Entry, Session, entry_at, make
from ravi_otel._local.live.protocol import CommandError, LiveError, as_fields, read_state, state_line

LIMIT = {"kind": "tokens", "used": 1, "held": 0, "limit": 2, "ratio": 0.5, "unit": "{token}"}
SCOPE = {
    "scope_id": "s", "parent_id": None, "kind": "run", "name": "r", "agent_id": None, "status": "open", "priority": None, "depth": 0,
    "age_s": 1.0, "input_tokens": 1, "output_tokens": None, "cost_usd": None, "requests": 1, "tool_calls": 0, "tokens_per_s": None,
    "last_event": None, "last_event_age_s": None, "limits_left_out": 0, "limits": [LIMIT],
}  # fmt: skip
RUN = {"run_id": "r-1", "name": "r", "status": "open", "age_s": 1.0, "scopes": [SCOPE]}
STATE = {"v": 1, "ok": True, "process": {"pid": 1, "program": "p.py", "started_unix_s": 0.0}, "runs": [RUN]}


@pytest.fixture
def stranger(store):
    """Listen where a process would, and answer each connection with the bytes given."""
    store.mkdir(mode=0o700)
    entry = make(store)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(entry.socket))
    listener.listen(8)
    entry.announce()
    stop = threading.Event()

    def begin(answer, *, endless=False):
        def serve():
            while not stop.is_set():
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    connection.settimeout(20)
                    try:
                        connection.recv(65_536)
                        connection.sendall(answer)
                        while endless:
                            connection.sendall(b"x" * 65_536)
                    except OSError:
                        continue

        threading.Thread(target=serve, daemon=True).start()
        return Session(entry.socket, entry.pid, timeout_s=5)

    yield begin
    stop.set()
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    entry.remove()


def line(said):
    return json.dumps(said).encode() + b"\n"


def test_a_state_is_read_as_it_was_said(stranger):
    state = stranger(line(STATE)).state()
    assert (state.pid, state.runs[0].scopes[0].limits[0].kind, state.runs[0].scopes[0].cost_usd) == (1, "tokens", None)
    told = as_fields(state)["runs"][0]
    assert told.items() >= {**RUN, "scopes": told["scopes"]}.items()
    assert told["scopes"][0].items() >= {**SCOPE, "limits": told["scopes"][0]["limits"]}.items()
    assert told["scopes"][0]["limits"][0].items() >= LIMIT.items()
    assert read_state(json.loads(state_line(state))) == state


def test_a_state_of_a_later_version_with_more_in_it_is_read_all_the_same(stranger):
    more = {**STATE, "mood": "fine", "runs": [{**RUN, "colour": "red"}]}
    assert stranger(line(more)).state().runs[0].run_id == "r-1"


@pytest.mark.parametrize(
    ("place", "value"),
    [
        *((("process", name), value) for name, value in [("pid", -1), ("pid", True), ("program", 5), ("started_unix_s", "now")]),
        *((("runs", 0, name), value) for name, value in [("run_id", 5), ("status", "odd"), ("scopes", {}), ("age_s", None)]),
        *((("runs", 0, "scopes", 0, name), value) for name, value in [
            ("scope_id", None), ("kind", "king"), ("status", "asleep"), ("depth", 1.5), ("cost_usd", "free"), ("name", "x" * 257),
            ("requests", -1), ("input_tokens", 1e308), ("last_event", ["x"]), ("limits", None), ("priority", "vital"), ("age_s", 2.0**70),
        ]),
        *((("runs", 0, "scopes", 0, "limits", 0, name), value) for name, value in [("kind", None), ("used", "all"), ("ratio", True)]),
        (("runs",), [RUN] * 501), (("runs", 0, "scopes"), [SCOPE] * 2_001), (("runs", 0, "scopes", 0, "limits"), [LIMIT] * 51),
        (("process",), None), (("runs",), None), (("left_out",), -1),
    ],
    ids=lambda value: ".".join(map(str, value)) if isinstance(value, tuple) else None,
)  # fmt: skip
def test_a_field_that_makes_no_sense_is_named_and_nothing_is_shown(place, value):
    state = json.loads(json.dumps(STATE))
    inner = state
    for name in place[:-1]:
        inner = inner[name]
    inner[place[-1]] = value
    with pytest.raises(LiveError, match=r"which makes no sense") as error:
        read_state(state)
    assert str(place[-1]) in str(error.value)
    assert len(str(error.value)) < 400


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b"", "closed the connection"), (b"\n", "not a line of JSON"), (b"[]\n", "not a JSON object"),
        (b'{"v":9}\n', "v=9 is another version"),
        (b'{"v":1}\n', "ok=None"), (b'{"v":1,"ok":false}\n', "without a sentence"), (b'{"v":1,"ok":true}\n', "process=None"),
        (b'{"v":1,"ok":false,"error":"' + b"x" * 1_001 + b'"}\n', "without a sentence"), (b"[" * 100_000 + b"\n", "JSON"),
        (b'{"v":1,"ok":true,"process":NaN}\n', "JSON"), (b'{"v":1,"ok"', "closed the connection"),
    ],
    ids=lambda value: value if isinstance(value, str) else repr(value[:30]),
)  # fmt: skip
def test_an_answer_that_makes_no_sense_is_an_error_in_one_sentence(stranger, raw, said):
    with pytest.raises(LiveError, match=said):
        stranger(raw).state()


def test_a_refusal_is_told_in_the_processes_own_words(stranger):
    with pytest.raises(CommandError, match=r"^not today$"):
        stranger(line({"v": 1, "ok": False, "error": "not today"})).command("pause", "s")


def test_an_answer_without_an_end_is_read_only_so_far(stranger, monkeypatch):
    monkeypatch.setattr(_client, "MOST_ANSWER", 100_000)
    with pytest.raises(LiveError, match="longer than 100000 bytes"):
        stranger(b"x", endless=True).state()


def test_who_never_answers_is_waited_for_only_so_long(store):
    store.mkdir(mode=0o700)
    entry = make(store)
    with socket.socket(socket.AF_UNIX) as mute:
        mute.bind(str(entry.socket))
        mute.listen(8)
        with pytest.raises(LiveError, match="did not answer in time"):
            Session(entry.socket, 5, timeout_s=0.05).state()


# -- what is believed of a store --------------------------------------------------------------------------------------------------


def test_a_store_without_any_process_has_no_sessions(store):
    assert sessions(store) == []
    store.mkdir()
    assert sessions(store) == []


@pytest.mark.parametrize("name", ["1-abcdef.json", "x.json", "1-abcdef.sock", "../1-abcdef.json"])
def test_what_is_no_entry_is_said_to_be_none(store, name):
    (store / "live").mkdir(parents=True, mode=0o700)
    assert entry_at(store / "live" / name) is None


def write(store, **changes):
    """Leave an entry of a process that is gone, changed as asked for."""
    (store / "live").mkdir(parents=True, mode=0o700, exist_ok=True)
    path = store / "live" / "4194303-abcdef.json"
    gone = {"pid": 4194303, "start": "1", "machine": "elsewhere", "socket": str(path.with_suffix(".sock"))}
    path.write_text(json.dumps({**gone, **changes}), encoding="ascii")
    return path


def test_what_a_dead_process_left_is_removed_and_what_one_of_another_machine_left_is_not(store, tmp_path):
    live_one = make_dead(store)
    other = write(store)
    assert sessions(store) == []
    assert (live_one.path.exists(), live_one.socket.exists(), other.exists()) == (False, False, True)


def make_dead(store):
    """Leave what a process leaves that is killed: its number goes to nobody meanwhile, since it is not waited for."""
    store.mkdir(mode=0o700, exist_ok=True)
    child = os.fork()
    if not child:
        entry = make(store)
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(entry.socket))
        entry.announce()
        os._exit(0)
    os.waitpid(child, 0)
    (path,) = (store / "live").glob(f"{child}-*.json")
    return Entry(path, path.with_suffix(".sock"), json.loads(path.read_text(encoding="ascii")))


@pytest.mark.parametrize(
    "socket_named",
    [5, None, "", "/elsewhere", "relative/ravi-live-x/s", "/elsewhere/ravi-live-x/other", "/elsewhere/s", "x\0y", "x" * 5_000],
    ids=lambda value: repr(value)[:20],
)
def test_an_entry_that_points_anywhere_else_is_left_alone(store, socket_named):
    path = write(store, socket=socket_named)
    assert sessions(store) == []
    assert path.exists()


def test_an_entry_that_is_a_link_is_not_followed(store, tmp_path):
    told = write(store)
    told.rename(tmp_path / "elsewhere.json")
    told.symlink_to(tmp_path / "elsewhere.json")
    assert entry_at(told) is None


def test_a_socket_that_is_a_link_or_a_file_is_not_used(store, live, ask_it, tmp_path):
    with ravi_otel.run("r"):
        session = ask_it()
        link = store / "live" / "1-000000.sock"
        link.symlink_to(session.path)
        with pytest.raises(LiveError, match="is not a socket of yours"):
            Session(link, 1).state()
    plain = store / "live" / "2-000000.sock"
    plain.write_text("")
    with pytest.raises(LiveError, match="is not a socket of yours"):
        Session(plain, 2).state()


@pytest.mark.parametrize("mode", [0o755, 0o710, 0o777])
def test_a_directory_that_others_can_look_into_is_not_used(store, live, ask_it, mode):
    with ravi_otel.run("r"):
        session = ask_it()
        (store / "live").chmod(mode)
        assert sessions(store) == []
        with pytest.raises(LiveError, match="is not yours alone"):
            session.state()


def test_a_directory_that_is_a_link_is_not_used(store, live, ask_it, tmp_path):
    with ravi_otel.run("r"):
        ask_it()
        real = tmp_path / "real"
        (store / "live").rename(real)
        Path(store / "live").symlink_to(real)
        assert sessions(store) == []
