from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import termios
import time

import pytest
import warm_starts
from click.testing import CliRunner
from live_actors import Actor, limit, run, scope

from ravi_otel._cli.entry import commands
from ravi_otel._local.live import client as _client
from ravi_otel._local.store import Store

PROGRAM = """
import openai, sys, ravi_otel
ravi_otel.instrument()
with ravi_otel.run("nightly", limits=["tokens=1000", "requests=5"]):
    with ravi_otel.agent("researcher", budget=ravi_otel.ExecutionBudget(max_turns=20)):
        with ravi_otel.agent("critic"):
            print("open", flush=True)
            sys.stdin.read()
"""


@pytest.fixture
def store(tmp_path):
    return Store.open(tmp_path / ".ravi")


@pytest.fixture
def actor(store):
    with contextlib.ExitStack() as stack:

        def enter(*runs, **more):
            one = Actor(store.root, *runs, **more)
            stack.callback(one.leave)
            return one

        yield enter


@pytest.fixture
def top(store):
    def call(*arguments, width=120, **environment):
        given = {"COLUMNS": str(width), "NO_COLOR": "1"} | environment
        return CliRunner().invoke(commands, ["top", *arguments, "--store", str(store.root)], env=given)

    return call


def started(store, arguments, **more):
    """Run ours in a process of its own."""
    environment = {**os.environ, "RAVI_STORE": str(store.root), "COLUMNS": "150", "OPENAI_API_KEY": "any"}
    return warm_starts.start([sys.executable, *arguments], stdout=subprocess.PIPE, text=True, encoding="utf-8", env=environment, **more)


def test_a_running_program_is_shown_as_a_tree_and_as_json_and_is_gone_when_it_ends(store):
    with started(store, ["-c", PROGRAM], stdin=subprocess.PIPE) as program:
        assert program.stdout.readline() == "open\n"
        with started(store, ["-m", "ravi_otel", "top", "--once"]) as once, started(store, ["-m", "ravi_otel", "top", "--json"]) as as_json:
            printed, (told,) = once.stdout.read(), json.loads(as_json.stdout.read())
        assert (once.returncode, as_json.returncode) == (0, 0)
        lines = [line for line in printed.splitlines() if "└─" in line]
        assert [line[: line.index("open")].strip(" └─") for line in lines] == ["run nightly", "agent researcher", "agent critic"]
        assert f"(pid {program.pid})  1 run, 2 agents" in printed
        assert "0 of 1,000" in printed
        assert (told["pid"], told["answers"], told["error"]) == (program.pid, True, None)
        (run_told,) = told["runs"]
        assert (run_told["name"], [each["name"] for each in run_told["scopes"]]) == ("nightly", ["nightly", "researcher", "critic"])
        assert run_told["scopes"][0]["tokens_per_s"] is None or run_told["scopes"][0]["tokens_per_s"] >= 0
        program.stdin.close()
    with started(store, ["-m", "ravi_otel", "top", "--once"], stderr=subprocess.PIPE) as once:
        assert (once.stdout.read(), once.stderr.read().count("\n")) == ("", 1)
    assert once.returncode == 1


@pytest.mark.parametrize("option", ["--once", "--json"])
def test_a_store_that_is_not_there_is_a_sentence_and_status_2(option, tmp_path):
    done = CliRunner().invoke(commands, ["top", option, "--store", str(tmp_path / "nixda")])
    assert (done.exit_code, done.stdout, len(done.stderr.splitlines())) == (2, "", 1)
    assert "--store" in done.stderr


@pytest.mark.parametrize(("option", "printed"), [("--once", ""), ("--json", "[]\n")])
def test_nothing_running_is_a_sentence_and_status_1(option, printed, top, store):
    done = top(option)
    assert (done.exit_code, done.stdout) == (1, printed)
    assert done.stderr.startswith(f"Nobody listens in {store.root}. Start a program")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(("option", "printed"), [("--once", ""), ("--json", "[]\n")])
def test_a_socket_at_which_nobody_listens_is_named_by_its_process_and_status_1(option, printed, top, store):
    gone = Actor(store.root)
    gone.leave(behind=True)
    try:
        done = top(option)
    finally:
        gone.entry.remove()
    assert (done.exit_code, done.stdout) == (1, printed)
    assert done.stderr == (f"Nobody listens in {store.root}: not at the socket of process {gone.entry.pid}, either.\n")


def test_without_a_terminal_the_screen_is_refused_with_the_way_out(top):
    done = top()
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr == "Error: ravi-otel top needs a terminal. Use --once or --json where there is none.\n"


def test_without_the_extra_one_sentence_says_how_to_install_it(store):
    program = "import sys, ravi_otel._cli; sys.modules['textual'] = None; sys.stdin.isatty = sys.stdout.isatty = lambda: True; "
    program += "sys.argv = ['ravi-otel', 'top']; ravi_otel._cli.main()"
    with started(store, ["-c", program], stderr=subprocess.PIPE) as done:
        assert done.stdout.read() == ""
        said = done.stderr.read()
    assert done.returncode == 2
    assert said.endswith("Install it with: pip install 'ravi-otel[top]'\n")
    assert len(said.splitlines()) == 1


def test_once_and_json_do_not_import_textual(store):
    program = "import sys, atexit, ravi_otel._cli; sys.argv = ['ravi-otel', 'top', '--once']; "
    program += "atexit.register(lambda: print([name for name in sys.modules if name.startswith('textual')])); ravi_otel._cli.main()"
    with started(store, ["-c", program], stderr=subprocess.DEVNULL) as done:
        assert done.stdout.read() == "[]\n"


def test_a_silent_process_is_marked_beside_the_others_and_status_is_1(top, actor):
    actor(run("nightly"), program="good.py")
    actor(run("daily"), program="hung.py").hush()
    done = top("--once")
    assert done.exit_code == 1
    assert "good.py" in done.stdout
    assert "run nightly" in done.stdout
    assert "has not answered for" in done.stdout


def test_what_a_silent_process_has_open_is_null_in_json(top, actor):
    actor(run("daily")).hush()
    done = top("--json")
    (told,) = json.loads(done.stdout)
    assert done.exit_code == 1
    assert (told["pid"], told["runs"], told["program"], told["answers"]) == (os.getpid(), None, None, False)
    assert "has not answered" in told["error"]


def test_what_makes_no_sense_is_a_trouble_of_its_process_alone(top, actor):
    actor(run("nightly"), program="good.py")
    actor().raw = b'{"v":1,"ok":true,"process":{"pid":"\\u001b[2J"},"runs":[]}\n'
    done = top("--once")
    assert (done.exit_code, done.exception.__class__) == (1, SystemExit)
    assert "run nightly" in done.stdout
    assert "cannot be asked" in done.stdout or "makes no sense" in done.stdout
    assert "\x1b" not in done.stdout


def test_every_limit_of_a_scope_is_drawn_and_the_fullest_is_marked(top, actor):
    limits = (
        limit("requests", 1, 10),
        limit("tokens", 810, 1_000),
        limit("cost", 0.5, 0.5),
        limit("charge.rows", 1, 0),
        limit("turns", 79, 100),
    )
    actor(run("nightly", limits=limits))
    printed = top("--once", width=100).stdout
    drawn = [line.split() for line in printed.splitlines() if " of " in line]
    assert [line[0] for line in drawn] == ["charge.rows", "cost", "tokens", "turns", "requests"]
    marks = [line[line.index("of") - 2] for line in drawn]
    assert marks == ["!!", "!!", "!", "%", "%"]
    assert "$0.50 of $0.50" in printed


def test_unknown_figures_are_never_0(top, actor):
    unknown = {"input_tokens": None, "output_tokens": None, "cost_usd": None, "tokens_per_s": None, "last_event": None}
    actor(run("nightly", **unknown))
    (line,) = [line for line in top("--once", width=150).stdout.splitlines() if "run nightly" in line]
    assert line.split()[3:] == ["open", "-", "1m05", "?", "?", "?", "-", "-", "-"]


@pytest.mark.parametrize("width", [1, 20, 40, 60, 80, 200])
def test_hostile_names_and_every_width_stay_in_their_lines(width, top, actor):
    name = "ev\x1b[31mil\u202e\n\r[bold]x[/]漢字" + "y" * 150
    scopes = [scope(f"s{at}", f"s{at - 1}" if at else "nightly", name=name, last_event=name, agent_id=name) for at in range(30)]
    actor(run("nightly", *scopes, name=name, limits=(limit(name),)), program=name)
    done = top("--once", width=width)
    assert done.exit_code == 0
    assert len(done.stdout.splitlines()) == 34 if width >= 60 else 34 < len(done.stdout.splitlines()) < 40
    assert all(char == "\n" or char.isprintable() for char in done.stdout)


def test_rings_and_orphans_are_shown_once_each(top, actor):
    actor(run("nightly", scope("a", "b"), scope("b", "a"), scope("own", "own"), scope("orphan", "nobody"), scope("child", "nightly")))
    printed = top("--once").stdout
    assert [printed.count(f"agent {name} ") for name in ("a", "b", "own", "orphan", "child")] == [1] * 5


def test_an_output_that_carries_ascii_alone_gets_ascii(store, actor):
    actor(run("nightly", scope("müller…", "nightly", limits=(limit(held=10),))))
    with warm_starts.start(
        [sys.executable, "-m", "ravi_otel", "top", "--once", "--store", str(store.root)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONIOENCODING": "ascii", "COLUMNS": "100"},
    ) as done:
        printed = done.stdout.read().decode("ascii")
    assert done.returncode == 0
    assert "`-" in printed
    assert "[" not in printed
    assert "########" in printed


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="no terminals of its own to be had")
@pytest.mark.parametrize(("number", "status"), [(None, 0), (signal.SIGTERM, 143)])
def test_the_screen_is_left_with_q_and_with_sigterm_on_a_real_terminal(number, status, store, actor):
    actor(run("nightly"))
    ours, theirs = os.openpty()
    before = termios.tcgetattr(ours)
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100", "LINES": "30", "NO_COLOR": "1"}
    command = [sys.executable, "-m", "ravi_otel", "top", "--store", str(store.root)]
    with warm_starts.start(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment, start_new_session=True) as screen:
        os.close(theirs)
        shown = b""
        deadline = time.monotonic() + 60
        while b"run nightly" not in shown and time.monotonic() < deadline and screen.poll() is None:
            if select.select([ours], [], [], 1)[0]:
                with contextlib.suppress(OSError):  # it has ended: what it said is below
                    shown += os.read(ours, 65_536)
        assert b"run nightly" in shown
        if number is None:
            os.write(ours, b"q")
        else:
            screen.send_signal(number)
        with contextlib.suppress(OSError):  # the other end is closed
            while chunk := os.read(ours, 65_536):
                shown += chunk
        assert screen.wait(30) == status
    assert termios.tcgetattr(ours)[:4] == before[:4]
    os.close(ours)
    assert shown.rpartition(b"\x1b[?1049")[2].startswith(b"l")  # the terminal's own page is back


@pytest.mark.parametrize("option", ["--once", "--json"])
def test_a_directory_that_is_not_ours_alone_is_said_and_not_that_nothing_runs(option, top, store, actor):
    actor(run("nightly"))
    (store.root / "live").chmod(0o750)
    done = top(option)
    (store.root / "live").chmod(0o700)
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith("Error: What runs cannot be seen: ")
    assert "chmod 700" in done.stderr


def test_what_a_process_left_that_is_gone_is_removed_by_looking(top, store):
    with started(store, ["-c", PROGRAM], stdin=subprocess.PIPE) as program:
        assert program.stdout.readline() == "open\n"
        deadline = time.monotonic() + 30
        while "researcher" not in top("--once").stdout:
            assert time.monotonic() < deadline
        program.kill()
    assert list((store.root / "live").iterdir()) != []
    assert top("--once").exit_code == 1
    assert list((store.root / "live").iterdir()) == []


def test_processes_that_take_no_more_connections_hold_up_no_other(top, store, actor):
    actor(run("nightly"), program="good.py")
    with contextlib.ExitStack() as stack:
        for _ in range(3):
            entry = _client.make(store.root)
            stack.callback(entry.remove)
            listener = stack.enter_context(socket.socket(socket.AF_UNIX))
            listener.bind(str(entry.socket))
            listener.listen(1)
            entry.announce()
            for _ in range(3):  # more than its line takes
                connection = stack.enter_context(socket.socket(socket.AF_UNIX))
                connection.setblocking(False)
                with contextlib.suppress(BlockingIOError):
                    connection.connect(str(entry.socket))
        done = top("--once")
    assert done.exit_code == 1
    assert "run nightly" in done.stdout
    assert done.stdout.count("has not answered for") == 3


def test_a_directory_full_of_strangers_is_nobody(top, store):
    live = store.root / "live"
    live.mkdir(mode=0o700)
    (live / "1-abcdef.json").write_text('{"pid": 1, "socket": "/etc/passwd"}')
    (live / "hello").write_text("hello")
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.bind(str(live / "s"))
        assert top("--once").exit_code == 1
