"""Writing harms no program, and loses nothing that can be kept: through forks, kills, full disks and files that cannot be used."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
import textwrap
import threading
import time

import pytest
from kept_by import environment, rows, run, started

from ravi_otel._local.queries import Queries
from ravi_otel._local.store import Store
from ravi_otel._local.writer import Writer
from ravi_otel.testing import ScriptedLLM, Text

MANY = """
ravi_otel.instrument()
with ravi_otel.run("desk"):
    for _ in range(20):
        ask()
"""


def test_a_killed_process_loses_at_most_the_last_instant_and_what_was_in_flight_is_known(tmp_path):
    store = tmp_path / "store"
    program = """
    slow = ScriptedLLM(Text("late", usage=(1, 1), think_s=60.0)).__enter__()
    ravi_otel.instrument()
    with ravi_otel.run("desk"):
        for _ in range(5):
            ask()
        print("asked", flush=True)
        client = openai.OpenAI(base_url=slow.base_url, api_key="any", max_retries=0)
        ask()
    """
    process = started(store, program)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "asked\n"
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline and not _is_in_flight(store):
            threading.Event().wait(0.02)
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=10)
    assert _is_in_flight(store)
    (desk,) = rows(store, "runs")
    (killed,) = rows(store, "processes")
    assert (desk["status"], "ended" in desk, "ended" in killed) == ("open", False, False)
    assert desk["requests"] == 5
    with Queries(Store.find(store)) as ask:  # what the sixth has used nobody will ever know
        lost, sums = ask.run(desk["run"]), [ask.spend(by, since=since).total for by in (("model",), ("run",), ()) for since in (None, 1)]
    assert lost.status == "lost"
    assert {each.cost_text[:1] for each in (lost.spent, *sums)} == {"≥"}
    assert {(each.unknown_usage, each.unknown_cost, each.input_text) for each in (lost.spent, *sums)} == {(1, 1, "≥150")}


def _is_in_flight(store) -> bool:
    try:
        return [each["status"] for each in rows(store, "calls", order="began")] == ["ok"] * 5 + ["open"]
    except sqlite3.Error:
        return False


def test_a_forked_child_writes_on_its_own_and_nothing_twice(tmp_path):
    program = """
    ravi_otel.instrument()
    with ravi_otel.run("desk"):
        for _ in range(3):
            ask()
        child = os.fork()
        if not child:
            client = openai.OpenAI(base_url=server.base_url, api_key="any", max_retries=0)
        for _ in range(4 if child else 5):
            ask("of a child" if not child else "of the parent")
        if child:
            assert os.waitpid(child, 0)[1] == 0
    if not child:
        sys.exit(0)
    """
    run(tmp_path / "store", program)
    first, second = rows(tmp_path / "store", "processes", order="began")
    assert second["parent"] == first["process"]
    calls = rows(tmp_path / "store", "calls")
    assert sorted(each["process"] for each in calls) == sorted([first["process"]] * 7 + [second["process"]] * 5)
    used = {each["kind"]: (each["process"], each["requests"], each["input_tokens"]) for each in rows(tmp_path / "store", "runs")}
    assert used == {"run": (first["process"], 7, 210), "process": (second["process"], 5, 150)}


def test_sixteen_processes_share_one_file(tmp_path):
    processes = [started(tmp_path / "store", MANY) for _ in range(16)]
    for process in processes:
        _, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
        assert "not complete" not in err
    assert len(rows(tmp_path / "store", "calls")) == 320
    assert sum(each["requests"] for each in rows(tmp_path / "store", "runs")) == 320
    assert sum(each["calls"] for each in rows(tmp_path / "store", "hourly")) == 320
    assert [each["outcome"] for each in rows(tmp_path / "store", "processes")] == ["ok"] * 16


@pytest.mark.parametrize("way", ["fork", "spawn", "forkserver"])
def test_workers_of_multiprocessing_leave_nothing_behind(tmp_path, way):
    program = f"""
    import multiprocessing, openai, sys, ravi_otel
    def work(url):
        ravi_otel.instrument()
        client = openai.OpenAI(base_url=url, api_key="any", max_retries=0)
        with ravi_otel.run("work"):
            client.chat.completions.create(model="gpt-4o-mini", messages=[{{"role": "user", "content": "hi"}}])
    if __name__ == "__main__":
        from ravi_otel.testing import ScriptedLLM, Text
        with ScriptedLLM(Text("x", usage=(30, 10))) as server:
            with multiprocessing.get_context({way!r}).Pool(2) as pool:
                pool.map(work, [server.base_url] * 6, chunksize=1)
                pool.close()
                pool.join()
    """
    place = tmp_path / "program.py"
    place.write_text(textwrap.dedent(program))
    done = subprocess.run(
        [sys.executable, str(place)], env=environment(tmp_path / "store"), capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert len(rows(tmp_path / "store", "calls")) == 6
    assert {each["status"] for each in rows(tmp_path / "store", "runs")} == {"ok"}


@pytest.mark.parametrize("first", ["ravi_otel.instrument()", "pass"], ids=["instrumented", "not instrumented"])
def test_a_worker_that_is_told_to_end_writes_what_it_has_and_dies_as_it_would(tmp_path, first):
    program = f"""
    import multiprocessing, openai, os, signal, sys, threading, ravi_otel
    def work(url):
        ravi_otel.instrument()
        client = openai.OpenAI(base_url=url, api_key="any", max_retries=0)
        for _ in range(3):
            client.chat.completions.create(model="gpt-4o-mini", messages=[{{"role": "user", "content": "hi"}}])
    def wait(url, told):
        work(url)
        told.set()
        while True:
            threading.Event().wait(0.1)  # a handler in Python that comes right before a longer one would wait for its end
    def idle(told):
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
        told.set()
        threading.Event().wait()
    def own(url, told):
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(7))
        wait(url, told)
    if __name__ == "__main__":
        from ravi_otel.testing import ScriptedLLM, Text
        {first}
        with ScriptedLLM(Text("x", usage=(30, 10))) as server:
            fork = multiprocessing.get_context("fork")
            with fork.Pool(2) as pool:
                pool.map(work, [server.base_url] * 4, chunksize=1)
            for target, given in ((wait, [server.base_url]), (idle, []), (own, [server.base_url])):
                told = fork.Event()
                process = fork.Process(target=target, args=(*given, told))
                process.start()
                assert told.wait(30)
                process.terminate()
                process.join()
                print(process.exitcode)
    """
    place = tmp_path / "program.py"
    place.write_text(textwrap.dedent(program))
    done = subprocess.run(
        [sys.executable, str(place)], env=environment(tmp_path / "store"), capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["-15", "-15", "7"]
    assert len(rows(tmp_path / "store", "calls")) == 18
    told_to_end = rows(tmp_path / "store", "processes", "outcome = 'signal'")
    assert {each["status"] for each in told_to_end} == {-15}


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_worker_that_is_deep_in_c_writes_what_it_has_when_it_is_told_to_end(tmp_path, method):
    program = f"""
    import hashlib, multiprocessing, openai, signal, ravi_otel
    def work(url, told):
        ravi_otel.instrument()
        client = openai.OpenAI(base_url=url, api_key="any", max_retries=0)
        client.chat.completions.create(model="gpt-4o-mini", messages=[{{"role": "user", "content": "hi"}}])
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
        told.set()
        hashlib.pbkdf2_hmac("sha256", b"", b"", 2**31 - 1)  # where Python calls no handler
    if __name__ == "__main__":
        from ravi_otel.testing import ScriptedLLM, Text
        with ScriptedLLM(Text("x", usage=(30, 10))) as server:
            made = multiprocessing.get_context({method!r})
            told = made.Event()
            process = made.Process(target=work, args=(server.base_url, told))
            process.start()
            assert told.wait(60)
            process.terminate()
            process.join(30)
            print(process.exitcode)
            process.kill()
    """
    place = tmp_path / "program.py"
    place.write_text(textwrap.dedent(program))
    done = subprocess.run(
        [sys.executable, str(place)], env=environment(tmp_path / "store"), capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["-15"]
    assert len(rows(tmp_path / "store", "calls")) == 1
    assert [(each["outcome"], each["status"]) for each in rows(tmp_path / "store", "processes")] == [("signal", -15)]


def test_greenlets_of_gevent_write_too(tmp_path):
    pytest.importorskip("gevent")
    program = """
    import gevent
    ravi_otel.instrument()
    def work():
        with ravi_otel.run("desk"):
            client.chat.completions.create(model="gpt-4o-mini", messages=[{"role": "user", "content": "hi"}])
    gevent.joinall([gevent.spawn(work) for _ in range(10)])
    print("ended")
    """
    with ScriptedLLM(Text("x", usage=(30, 10))) as model:  # not where threads are greenlets
        first = "import gevent.monkey; gevent.monkey.patch_all()\n"
        client = f"client = openai.OpenAI(base_url={model.base_url!r}, api_key='any', max_retries=0)\n"
        prelude = "import openai, ravi_otel\n"
        done = subprocess.run(
            [sys.executable, "-c", first + prelude + client + textwrap.dedent(program)],
            env=environment(tmp_path / "store"),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "ended\n"  # and no child of a program that one starts runs on as a copy of it
    assert [each["requests"] for each in rows(tmp_path / "store", "runs")] == [1] * 10
    assert [each["outcome"] for each in rows(tmp_path / "store", "processes")] == ["ok"]
    assert sum(each["records"] for each in rows(tmp_path / "store", "otlp", "signal = 'traces'")) == 20


def test_a_process_that_is_told_to_end_says_so_and_ends_what_was_open(tmp_path):
    program = """
    ravi_otel.instrument()
    with ravi_otel.run("desk"):
        ask()
        print("asked", flush=True)
        threading.Event().wait(60)
    """
    process = started(tmp_path / "store", program)
    assert process.stdout is not None
    process.stdout.readline()
    process.terminate()
    process.communicate(timeout=20)
    (ended,), (desk,) = rows(tmp_path / "store", "processes"), rows(tmp_path / "store", "runs")
    assert (ended["outcome"], ended["status"]) == ("signal", -signal.SIGTERM)
    assert (desk["status"], desk["requests"], "ended" in desk) == ("cancelled", 1, True)


def test_a_server_that_is_stopped_cleanly_is_not_lost(tmp_path):
    run(tmp_path / "store", "ravi_otel.instrument()\nfor _ in range(3): ask()")
    (process,) = rows(tmp_path / "store", "processes")
    assert (process["outcome"], "ended" in process) == ("ok", True)
    assert [each["calls"] for each in rows(tmp_path / "store", "hourly")] == [3]


def test_a_program_that_fails_says_so(tmp_path):
    process = started(tmp_path / "store", "ravi_otel.instrument()\nask()\nraise ValueError('mine')")
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert err.strip().endswith("ValueError: mine")
    assert [each["outcome"] for each in rows(tmp_path / "store", "processes")] == ["failed"]


def test_a_process_that_does_nothing_writes_nothing(tmp_path):
    run(tmp_path / "store", "ravi_otel.instrument()\nprint(threading.active_count())")
    assert rows(tmp_path / "store", "processes") == []


# -- what cannot be written ---------------------------------------------------------------------------------------


def test_a_full_disk_does_no_harm_and_is_said_once(tmp_path):
    program = """
    import resource
    ravi_otel.instrument()
    ask(); ravi_otel.flush()
    size = os.path.getsize(os.environ["RAVI_STORE"] + "/runs.db-wal")
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
    for _ in range(50):
        assert ask().choices[0].message.content == "It will be there tomorrow."
    ravi_otel.flush()
    for _ in range(50):
        ask()
    print("done")
    """
    done = run(tmp_path / "store", program)
    assert done.stdout == "done\n"
    assert done.stderr.count("is not complete") == 1
    assert "full" in done.stderr or "I/O error" in done.stderr or "disk" in done.stderr


def test_a_locked_file_is_waited_for_by_our_thread_alone(tmp_path):
    store = tmp_path / "store"
    run(store, "ravi_otel.instrument()\nask()")
    other = sqlite3.connect(store / "runs.db", isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    program = """
    ravi_otel.instrument()
    began = time.monotonic()
    for _ in range(20):
        ask()
    print(f"{time.monotonic() - began:.3f}", flush=True)
    sys.stdin.readline()
    """
    process = started(store, program)
    assert process.stdout is not None
    assert float(process.stdout.readline()) < 5.0
    other.execute("ROLLBACK")
    other.close()
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert len(rows(store, "calls")) == 21


@pytest.mark.parametrize(
    ("content", "said"),
    [(b"no database at all " * 500, "file is not a database"), (None, "format 99")],
    ids=["damaged", "of a newer version"],
)
def test_a_file_that_cannot_be_used_is_left_alone_and_said_once(tmp_path, content, said):
    store = tmp_path / "store"
    store.mkdir(mode=0o700)
    if content is None:
        run(store, "ravi_otel.instrument()\nask()")
        with sqlite3.connect(store / "runs.db") as other:
            other.execute("PRAGMA user_version=99")
        other.close()
    else:
        (store / "runs.db").write_bytes(content)
    before = (store / "runs.db").read_bytes()
    done = run(store, MANY + "print('done')")
    assert done.stdout == "done\n"
    assert done.stderr.count(said) == 1
    assert (store / "runs.db").read_bytes() == before


@pytest.mark.parametrize("value", ["half \ud800 a letter", 2**70, object()])
def test_a_row_that_no_column_can_hold_is_dropped_alone_and_counted(tmp_path, value):
    writer = Writer(Store.open(tmp_path / "store"), name="desk")
    for text in ("before", value, "after"):
        writer.put(lambda batch, text: batch.add("INSERT INTO notes (text) VALUES (?)", (text,)), text)
    writer.flush(10)
    writer.leave()
    assert [each["text"] for each in rows(tmp_path / "store", "notes")] == ["before", "after"]
    assert [each["lost"] for each in rows(tmp_path / "store", "processes")] == [1]


def test_a_page_that_is_damaged_meanwhile_does_no_harm(tmp_path):
    store = tmp_path / "store"
    run(store, MANY)
    with sqlite3.connect(store / "runs.db") as other:
        other.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    other.close()
    whole = bytearray((store / "runs.db").read_bytes())
    whole[4096 * 2 :] = b"\xff" * (len(whole) - 4096 * 2)
    (store / "runs.db").write_bytes(whole)
    done = run(store, MANY + "print('done')")
    assert done.stdout == "done\n"
    assert done.stderr.count("ravi-otel:") == 1


def test_a_store_that_is_removed_is_made_again(tmp_path):
    store = tmp_path / "store"
    program = """
    import shutil
    ravi_otel.instrument()
    ask(); ravi_otel.flush()
    shutil.rmtree(os.environ["RAVI_STORE"])
    with ravi_otel.run("desk"):
        ask()
    """
    run(store, program)
    assert [each["name"] for each in rows(store, "runs", "kind = 'run'")] == ["desk"]
    assert len(rows(store, "processes")) == 1


def test_of_a_run_that_goes_on_the_new_file_has_what_came_after_the_old_one_was_removed(tmp_path):
    store = tmp_path / "store"
    program = """
    ravi_otel.instrument()
    with ravi_otel.run("desk"):
        ask(); ask(); ravi_otel.flush()
        os.rename(os.environ["RAVI_STORE"] + "/runs.db", os.environ["RAVI_STORE"] + "/old.db")
        ask()
    """
    run(store, program)
    assert [(each["name"], each["status"], each["requests"]) for each in rows(store, "runs")] == [("desk", "ok", 1)]
    assert len(rows(store, "calls")) == sum(each["calls"] for each in rows(store, "hourly")) == 1


def test_a_store_of_the_former_layout_is_left_alone(tmp_path):
    store = tmp_path / "store"
    (store / "runs" / "20250101T000000-abcdef").mkdir(parents=True)
    (store / "store.json").write_text('{"store": "ravi-otel", "format": 1}')
    (store / "runs" / "20250101T000000-abcdef" / "run.json").write_text("{}")
    run(store, MANY)
    assert "has 1 run of the former layout" in Store.find(store).former
    assert (store / "runs" / "20250101T000000-abcdef" / "run.json").read_text() == "{}"
    assert len(rows(store, "calls")) == 20
