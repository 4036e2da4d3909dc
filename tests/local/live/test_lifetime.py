"""A process is watched from its first work to its end, by its owner alone, only where a store is; and never notices."""

import json
import logging
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import warm_starts
from listing import sessions

import ravi_otel
from ravi_otel._local import store as _store
from ravi_otel._local.live import client as _client
from ravi_otel._local.live import server as _server
from ravi_otel._local.live.client import Entry
from ravi_otel._local.live.server import Live, Server

ROOT = Path(__file__).parents[3]
PROGRAM = """
CLIENT
import os, sys, time
import ravi_otel
ravi_otel.instrument()
with ravi_otel.run("r"), ravi_otel.agent("a"):
    print("works", flush=True)
    WORK
"""


class Started:
    """Be a program that was started; it goes on when it is told to. One that imports no client is in no launcher's run."""

    def __init__(self, work, before=(), client="", warm=True, **environment):
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("RAVI_", "OTEL_"))}
        self.process = (warm_starts.start if warm and not before else subprocess.Popen)(
            [*before, sys.executable, "-W", "error", "-c", PROGRAM.replace("WORK", work).replace("CLIENT", client)],
            env={**kept, "PYTHONPATH": str(ROOT), **environment},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def __enter__(self):
        return self

    def __exit__(self, *_error):
        self.process.kill()
        self.process.communicate()

    def hear(self):
        """Read one line and nothing behind it, which `communicate` would not find any more."""
        line = b""
        while (piece := os.read(self.process.stdout.fileno(), 1)) not in {b"", b"\n"}:
            line += piece
        return line.decode().strip()

    def go_on(self):
        out, err = self.process.communicate("go\n", timeout=60)
        return out, err, self.process.returncode


def left(store):
    return sorted(path.name for path in (store / "live").iterdir())


def test_a_process_is_found_while_it_works_and_leaves_nothing(store, until):
    with Started("input()", RAVI_STORE=str(store)) as program:
        assert program.hear() == "works"
        (session,) = until(lambda: sessions(store))
        state = session.state()
        assert (state.pid, [scope.name for scope in state.runs[0].scopes]) == (program.process.pid, ["r", "a"])
        assert program.go_on()[1:] == ("", 0)
    assert left(store) == []


def test_what_a_killed_process_left_is_removed_by_who_looks(store, until):
    with Started("input()", RAVI_STORE=str(store)) as program:
        program.hear()
        until(lambda: sessions(store))
        program.process.send_signal(signal.SIGKILL)
        program.process.wait(60)
    assert len(left(store)) == 2
    assert sessions(store) == []
    assert left(store) == []


def test_what_a_killed_process_left_is_removed_by_the_next_that_works(store, until, live):
    with Started("input()", RAVI_STORE=str(store)) as program:
        program.hear()
        until(lambda: sessions(store))
        program.process.kill()
        program.process.wait(60)
    with ravi_otel.run("r"):
        until(lambda: left(store) and all(name.startswith(f"{os.getpid()}-") for name in left(store)))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_a_forked_child_is_watched_at_its_own_socket_and_never_answers_at_its_parents(store, until):
    work = """
    child = os.fork()
    if child:
        input()
        os._exit(0)  # without a word, as one that is killed: the child still lives
    with ravi_otel.run("of the child"):
        print(os.getpid(), flush=True)
        while os.getppid() == PARENT: time.sleep(0.005)
        print("orphan", flush=True)
        while not os.path.exists(os.environ["GO"]): time.sleep(0.005)
"""
    work = work.replace("child = os.fork()", "PARENT = os.getpid(); child = os.fork()")
    go = store.parent / "go"
    with Started(work, RAVI_STORE=str(store), GO=str(go)) as program:
        parent = program.process.pid
        program.hear()
        child = int(program.hear())
        both = until(lambda: (found := sessions(store)) and len(found) == 2 and found)
        names = {session.pid: [run.name for run in session.state().runs] for session in both}
        assert names == {parent: ["r"], child: ["of the child"]}
        program.process.stdin.write("go\n")
        program.process.stdin.flush()
        program.process.wait(60)
        assert program.hear() == "orphan"
        until(lambda: [session.pid for session in sessions(store)] == [child])  # nobody keeps the parent's socket open
        go.write_text("")
        until(lambda: sessions(store) == [])


@pytest.mark.parametrize("environment", [{}, {"RAVI_LIVE": "off"}, {"RAVI_LIVE": "perhaps"}], ids=["no store", "off", "neither"])
def test_without_a_store_or_switched_off_nothing_is_started_and_nothing_imported(store, environment):
    named = {"RAVI_STORE": str(store), **environment} if environment else {}
    work = "import threading; print([t.name for t in threading.enumerate()], 'ravi_otel._local.live.server' in sys.modules)"
    with Started(work, warm=False, **named) as program:
        out, err, status = program.go_on()
    assert status == 0
    assert "ravi-otel-live" not in out
    assert not (store / "live").exists()
    assert (environment == {}) == ("False" in out)
    assert ("RAVI_LIVE='perhaps' is neither on nor off" in err) == (environment.get("RAVI_LIVE") == "perhaps")


def test_a_launched_program_is_watched_in_the_launchers_store(store, until):
    launcher = [sys.executable, "-m", "ravi_otel", "run", "--quiet", "--limit", "tokens=5000", "--"]
    with Started("input()", launcher, client="import openai", RAVI_STORE=str(store)) as program:
        program.hear()
        (session,) = until(lambda: sessions(store))
        around, inner = session.state().runs
        assert [limit.kind for limit in around.scopes[0].limits] == ["tokens"]
        assert inner.scopes[0].parent_id == around.scopes[0].scope_id
        session.command("set_limit", around.scopes[0].scope_id, kind="tokens", value=7000)
        assert session.state().runs[0].scopes[0].limits[0].limit == 7000
        assert program.go_on()[2] == 0
    assert left(store) == []


def test_the_end_of_instrumentation_takes_the_socket_away_and_a_new_one_opens_another(live, store, until):
    with ravi_otel.run("r"):
        until(lambda: sessions(store))
        live.stop()
        assert left(store) == []
        until(lambda: not any(thread.name.startswith("ravi-otel-live") for thread in threading.enumerate()))


def test_instrument_and_uninstrument_begin_and_end_it(store, until, monkeypatch):
    monkeypatch.setenv("RAVI_STORE", str(store))
    for _ in range(2):
        with ravi_otel.instrument(), ravi_otel.run("r"):
            assert until(lambda: sessions(store))[0].pid == os.getpid()
        assert left(store) == []


# -- its owner alone --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o777])
def test_whatever_the_umask_only_its_owner_gets_at_it(store, until, umask):
    store.parent.joinpath("s").mkdir(mode=0o700)
    before = os.umask(umask)
    try:
        with ravi_otel.instrument() as handle:
            live = Live(store)
            (store / "store.json").write_text('{"store": "ravi-otel", "format": 1}')
            (store / "store.json").chmod(0o600)
            handle.listen(live.scopes)
            with ravi_otel.run("r"):
                session = until(lambda: sessions(store))[0]
                modes = [stat.S_IMODE(path.stat().st_mode) for path in (session.path.parent, session.path)]
            live.stop()
    finally:
        os.umask(before)
    assert modes == [0o700, 0o600]


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can be somebody else")
def test_another_user_who_gets_at_the_socket_is_not_answered(live, store, ask_it):
    with ravi_otel.run("r"):
        session = ask_it()
        for path in (store.parent, store, store / "live"):
            path.chmod(0o755)
        session.path.chmod(0o666)
        child = os.fork()
        if not child:
            os.setuid(65_534)
            with socket.socket(socket.AF_UNIX) as stranger:
                stranger.settimeout(20)
                stranger.connect(str(session.path))
                try:
                    stranger.sendall(b'{"v":1,"op":"state"}\n')
                    answer = stranger.recv(100)
                except OSError:
                    answer = b""
            os._exit(0 if answer == b"" else 1)
        assert os.waitpid(child, 0)[1] == 0


def wrong_mode(directory):
    directory.mkdir(mode=0o755)
    directory.chmod(0o755)


def a_link(directory):
    directory.parent.joinpath("real").mkdir(mode=0o700)
    directory.symlink_to(directory.parent / "real")


@pytest.mark.parametrize(
    "make_wrong", [wrong_mode, a_link, lambda directory: directory.write_text("")], ids=["open to all", "a link", "a file"]
)
def test_in_a_directory_that_is_not_its_owners_alone_nothing_is_opened_and_the_program_works(store, live, until, caplog, make_wrong):
    store.mkdir(mode=0o700)
    (store / "store.json").write_text('{"store": "ravi-otel", "format": 1}')
    make_wrong(store / "live")
    with caplog.at_level(logging.INFO, "ravi_otel"), ravi_otel.run("r"):
        (said,) = until(lambda: [record.getMessage() for record in caplog.records if "watched" in record.getMessage()])
    assert said.startswith("ravi-otel: this process cannot be watched live: ")
    assert not list(store.rglob("*.sock"))


def test_a_path_that_is_too_long_for_a_socket_has_it_elsewhere_as_safe(store, until):
    deep = store / ("d" * 80)
    live = Live(deep)
    with ravi_otel.instrument() as handle:
        handle.listen(live.scopes)
        with ravi_otel.run("r") as run:
            session = until(lambda: sessions(deep))[0]
            assert session.state().runs[0].run_id == run.id
        apart = session.path.parent
        assert (deep in session.path.parents, stat.S_IMODE(apart.stat().st_mode)) == (False, 0o700)
        live.stop()
    assert (left(deep), apart.exists()) == ([], False)


def test_a_store_that_cannot_be_written_keeps_nobody_from_working(tmp_path, until, caplog):
    (tmp_path / "file").write_text("")
    live = Live(tmp_path / "file" / "store")
    with ravi_otel.instrument() as handle, caplog.at_level(logging.INFO, "ravi_otel"):
        handle.listen(live.scopes)
        with ravi_otel.run("r"):
            until(lambda: [record for record in caplog.records if "cannot be watched" in record.getMessage()])
    live.stop()


def test_an_entry_says_nothing_but_who_listens_where(live, store, ask_it):
    with ravi_otel.run("secret name"):
        ask_it()
        (path,) = (store / "live").glob("*.json")
    assert set(json.loads(path.read_text(encoding="ascii"))) == {"pid", "start", "machine", "socket"}
    assert _client.entry_at(path).pid == os.getpid()


# -- what is the program's own ----------------------------------------------------------------------------------------------------

ASK = """
    from pathlib import Path
    import socket, stat
    here = Path(os.environ["RAVI_STORE"], "live")
    while not list(here.glob("*.sock")): time.sleep(0.005)
    caller = socket.socket(socket.AF_UNIX)
    if ASKS:
        while caller.connect_ex(str(next(here.glob("*.sock")))): time.sleep(0.005)
        caller.sendall(b'{"v":1,"op":"state"}\\n')
        assert caller.recv(10)
    for number in range(3, 256):  # sockets only: another thread of ours may be reading a file
        try:
            if stat.S_ISSOCK(os.fstat(number).st_mode): os.close(number)
        except OSError: pass
    caller.detach()
    pairs = [socket.socketpair() for _ in range(8)]
    [one.setblocking(False) for pair in pairs for one in pair]
    ravi_otel.uninstrument()
    for pair in pairs:
        for one, other in (pair, pair[::-1]):
            one.send(b"mine")
            assert other.recv(10) == b"mine", "something else came"
    [one.close() for pair in pairs for one in pair]
    print("all mine")
"""


@pytest.mark.parametrize("asks", ["False", "True"], ids=["nobody asks", "somebody asks"])
def test_a_program_that_closes_every_socket_keeps_what_it_opens_afterwards(store, asks):
    with Started(ASK.replace("ASKS", asks), RAVI_STORE=str(store)) as program:
        assert program.hear() == "works"
        assert program.go_on() == ("all mine\n", "", 0)


def test_a_server_whose_descriptor_was_closed_ends_and_closes_nothing_of_anybodys(store, until):
    store.mkdir(mode=0o700)
    entry = _client.make(store)
    served = Server(entry, Live(store).scopes)
    served.open()
    thread = threading.Thread(target=served.serve)
    number = served._listener.raw.fileno()
    os.close(number)
    mine = os.open(os.devnull, os.O_RDONLY)
    assert mine == number
    thread.start()
    thread.join(20)
    assert not thread.is_alive()
    served.stop()
    os.close(mine)  # it is there still
    entry.remove()


def test_where_nothing_can_be_told_no_directory_is_left(store, until, monkeypatch, caplog):
    deep, made = store / ("d" * 80), []

    def fails(entry):
        made.append(entry.socket.parent)
        raise OSError("no room")

    monkeypatch.setattr(Entry, "announce", fails)
    live = Live(deep)
    with ravi_otel.instrument() as handle, caplog.at_level(logging.INFO, "ravi_otel"):
        handle.listen(live.scopes)
        with ravi_otel.run("r"):
            until(lambda: [record for record in caplog.records if "cannot be watched" in record.getMessage()])
    live.stop()
    assert (deep in made[0].parents, made[0].exists()) == (False, False)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_while_the_socket_is_being_opened_leaves_none_of_it_in_the_child(store, until, monkeypatch):
    listens, go_on = threading.Event(), threading.Event()
    really = Server.open

    def slow(self):
        really(self)
        listens.set()
        assert go_on.wait(20)

    monkeypatch.setattr(Server, "open", slow)
    live = Live(store)
    with ravi_otel.instrument() as handle:
        handle.listen(live.scopes)
        with ravi_otel.run("r"):
            assert listens.wait(20)
            number = live._server._listener.raw.fileno()
            about = os.fstat(number)
            child = os.fork()
            if not child:
                live.renew()
                try:
                    there = os.fstat(number)
                except OSError:
                    os._exit(0)
                os._exit(1 if (there.st_dev, there.st_ino) == (about.st_dev, about.st_ino) else 0)
            assert os.waitpid(child, 0)[1] == 0
            go_on.set()
            until(lambda: sessions(store))
        live.stop()


# -- however it goes, nothing stays open ------------------------------------------------------------------------------------------


@pytest.fixture
def opened(monkeypatch):
    """Collect every socket that is made from here on."""
    made = []

    class Counted(socket.socket):
        def __init__(self, *given, **more):
            super().__init__(*given, **more)
            made.append(self)

    monkeypatch.setattr(socket, "socket", Counted)
    return made


def test_where_there_are_no_more_descriptors_nothing_stays_open(store, until, monkeypatch, caplog, opened):
    def none(*_given):
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(socket.socket, "bind", none)
    live = Live(store)
    with ravi_otel.instrument() as handle, caplog.at_level(logging.INFO, "ravi_otel"):
        handle.listen(live.scopes)
        with ravi_otel.run("r"):
            until(lambda: [record for record in caplog.records if "cannot be watched" in record.getMessage()])
    live.stop()
    assert [each.fileno() for each in opened] == [-1]
    assert left(store) == []


def test_a_fault_of_ours_before_it_serves_leaves_nothing_open(store, until, monkeypatch, opened):
    def fault(_store):
        raise ValueError("a bug of ours")

    monkeypatch.setattr(_server, "sweep", fault)
    monkeypatch.setattr(_server, "swallow", lambda *_: None)
    live = Live(store)
    with ravi_otel.instrument() as handle:
        handle.listen(live.scopes)
        with ravi_otel.run("r"):
            until(lambda: len(opened) == 1 and not any(thread.name.startswith("ravi-otel-live") for thread in threading.enumerate()))
    live.stop()
    assert [each.fileno() for each in opened] == [-1]
    assert left(store) == []


def test_a_connection_whose_number_the_program_has_closed_takes_nothing_from_the_next_of_that_number(live, store, ask_it, until):
    with ravi_otel.run("r"):
        path = ask_it().path
        until(lambda: not live._server._connections)
        with socket.socket(socket.AF_UNIX) as first, socket.socket(socket.AF_UNIX) as second, second.makefile("rb") as answers:
            first.connect(str(path))
            connection = until(lambda: [*live._server._connections][-1:])[0]
            os.close(connection.raw.fileno())
            second.settimeout(20)
            second.connect(str(path))
            for _ in range(2):
                second.sendall(b'{"v":1,"op":"state"}\n')
                assert json.loads(answers.readline())["ok"] is True
                first.close()


# -- what others left -------------------------------------------------------------------------------------------------------------


def leave(store, name, **said):
    """Leave what a process would have, with a socket that nobody listens on."""
    directory = store / "live"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(directory / f"{name}.sock"))
    path = directory / f"{name}.json"
    path.write_text(
        json.dumps({**_store.this_process(), "pid": int(name.partition("-")[0]), "socket": str(directory / f"{name}.sock"), **said})
    )
    path.chmod(0o600)
    os.utime(path, (1, 1))


def test_what_was_left_in_an_earlier_boot_of_this_machine_is_removed(live, store, ask_it, monkeypatch):
    monkeypatch.setattr(_store, "_machine", lambda: "here now")
    with ravi_otel.run("r"):
        ask_it()
        leave(store, "1-aaaaaa", machine="here before")
        leave(store, "2-aaaaaa", machine="elsewhere before")
        assert [session.pid for session in sessions(store)] == [os.getpid()]
        assert [name for name in left(store) if name.endswith("-aaaaaa.json")] == ["2-aaaaaa.json"]


def test_however_many_were_left_they_hide_none_that_runs(live, store, ask_it, monkeypatch):
    monkeypatch.setattr(_client, "MOST_ENTRIES", 3)
    with ravi_otel.run("r"):
        ask_it()
        for number in range(1, 6):
            leave(store, f"{number}-aaaaaa", machine="elsewhere")
        assert [session.pid for session in sessions(store)] == [os.getpid()]
