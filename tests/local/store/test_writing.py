"""Exit, fork and kill are tried in processes of their own; the rest runs here."""

from __future__ import annotations

import json
import logging
import os
import signal
import stat
import subprocess
import sys
import textwrap
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import warm_starts
from opentelemetry import trace
from opentelemetry._logs import LogRecord
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.trace import TracerProvider, sampling

from ravi_otel.local.store.writing import FileSink

ROOT = Path(__file__).parents[3]
PRELUDE = """
import os, sys, threading
from pathlib import Path
from opentelemetry.sdk.trace import TracerProvider
from ravi_otel.local.store.writing import FileSink

sink = FileSink(Path(sys.argv[1]))
provider = TracerProvider(shutdown_on_exit=False)
provider.add_span_processor(sink.span_processor())
tracer = provider.get_tracer("ravi_otel")

def tell(name, number, **attributes):
    for i in range(number):
        tracer.start_span(f"{name}-{i}", attributes=attributes).end()
"""
SIGNALS = {"traces": ("resourceSpans", "scopeSpans", "spans"), "metrics": ("resourceMetrics", "scopeMetrics", "metrics")}
SIGNALS["logs"] = ("resourceLogs", "scopeLogs", "logRecords")


def run(program: str, directory: Path, **env: str) -> subprocess.CompletedProcess[str]:
    return warm_starts.run(
        [sys.executable, "-c", PRELUDE + textwrap.dedent(program), str(directory)],
        env=os.environ | {"PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"} | env,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def passes(program: str, directory: Path, **env: str) -> str:
    done = run(program, directory, **env)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def records(directory: Path, of: str = "traces", *, torn: int = 0) -> list[dict[str, Any]]:
    """Read a store as a stranger would, checking the format; `torn` last lines may be half-written."""
    resources, scopes, items = SIGNALS[of]
    found: list[dict[str, Any]] = []
    for path in sorted(directory.glob(f"*.{of}*.jsonl")):
        lines = path.read_bytes().split(b"\n")
        if lines[-1]:
            torn -= 1
            assert torn >= 0, f"{path.name} ends in a half-written line"
        for line in lines[:-1]:
            known = json.loads(line.decode("utf-8"))
            assert list(known) == [resources]
            for about in known[resources]:
                assert set(about) <= {"resource", "schemaUrl", scopes}
                for group in about[scopes]:
                    assert set(group) <= {"scope", "schemaUrl", items}
                    found += group[items]
    return found


def names(directory: Path, **known: Any) -> Counter[str]:
    return Counter(each["name"] for each in records(directory, **known))


def tracer_of(sink: FileSink, **known: Any) -> Any:
    provider = TracerProvider(shutdown_on_exit=False, **known)
    provider.add_span_processor(sink.span_processor())
    return provider.get_tracer("ravi_otel")


@pytest.fixture
def sink(tmp_path):
    made = FileSink(tmp_path)
    yield made
    made.close()


def test_a_process_that_tells_nothing_leaves_no_file_and_no_thread(tmp_path, sink):
    before = threading.active_count()
    tracer_of(sink)
    assert sink.flush() is True
    assert sink.close() is True
    assert list(tmp_path.iterdir()) == []
    assert threading.active_count() == before


def test_five_thousand_spans_in_a_tight_loop_are_all_there(tmp_path, sink):
    tracer = tracer_of(sink)
    for number in range(5_000):
        tracer.start_span(str(number)).end()
    assert sink.flush() is True
    assert names(tmp_path) == Counter(map(str, range(5_000)))


def test_spans_of_many_threads_are_all_there_once(tmp_path, sink):
    tracer = tracer_of(sink)

    def tell(who: int) -> None:
        for number in range(1_000):
            tracer.start_span(f"{who}-{number}").end()

    threads = [threading.Thread(target=tell, args=(who,)) for who in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sink.flush() is True
    assert names(tmp_path) == Counter(f"{who}-{number}" for who in range(8) for number in range(1_000))


def test_a_span_of_every_field_has_the_official_form(tmp_path, sink):
    with tracer_of(sink).start_as_current_span("parent") as parent:
        span = tracer_of(sink).start_span("child", kind=trace.SpanKind.CLIENT, attributes={"n": 3, "t": "x", "f": 0.5, "b": True})
        span.add_event("happened", {"k": ("a", "b")})
        span.end()
    sink.flush()
    (found,) = [each for each in records(tmp_path) if each["name"] == "child"]
    assert found["traceId"] == f"{span.context.trace_id:032x}"
    assert found["spanId"] == f"{span.context.span_id:016x}"
    assert found["parentSpanId"] == f"{parent.get_span_context().span_id:016x}"
    assert found["kind"] == 3
    assert found["startTimeUnixNano"] == str(span.start_time)
    assert {each["key"]: each["value"] for each in found["attributes"]} == {
        "n": {"intValue": "3"},
        "t": {"stringValue": "x"},
        "f": {"doubleValue": 0.5},
        "b": {"boolValue": True},
    }
    (event,) = found["events"]
    assert event["attributes"] == [{"key": "k", "value": {"arrayValue": {"values": [{"stringValue": "a"}, {"stringValue": "b"}]}}}]


def test_files_are_readable_by_their_owner_only(tmp_path, sink):
    tracer_of(sink).start_span("s").end()
    sink.flush()
    (path,) = tmp_path.iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.name.startswith(f"{os.getpid()}-")
    assert path.name.endswith(".traces.jsonl")


def test_each_signal_has_a_file_of_its_own(tmp_path, sink):
    tracer_of(sink).start_span("s").end()
    meters = MeterProvider([sink.metric_reader()], shutdown_on_exit=False)
    meters.get_meter("m").create_counter("c").add(1)
    loggers = LoggerProvider(shutdown_on_exit=False)
    loggers.add_log_record_processor(sink.log_processor())
    loggers.get_logger("l").emit(LogRecord(body="said"))
    meters.shutdown()
    loggers.shutdown()
    assert sink.flush() is True
    assert [len(records(tmp_path, each)) for each in SIGNALS] == [1, 1, 1]
    assert records(tmp_path, "metrics")[0]["sum"]["dataPoints"][0]["asInt"] == "1"
    assert records(tmp_path, "logs")[0]["body"] == {"stringValue": "said"}


def test_a_log_processor_for_one_scope_takes_no_other(tmp_path, sink):
    loggers = LoggerProvider(shutdown_on_exit=False)
    loggers.add_log_record_processor(sink.log_processor(only="ours"))
    loggers.get_logger("ours").emit(LogRecord(body="said"))
    loggers.get_logger("theirs").emit(LogRecord(body="private"))
    sink.flush()
    assert [each["body"] for each in records(tmp_path, "logs")] == [{"stringValue": "said"}]


def test_what_is_not_sampled_is_not_kept(tmp_path, sink):
    tracer_of(sink, sampler=sampling.ALWAYS_OFF).start_span("s").end()
    sink.flush()
    assert list(tmp_path.iterdir()) == []


def test_a_span_after_the_close_is_written_all_the_same(tmp_path, sink):
    tracer = tracer_of(sink)
    tracer.start_span("before").end()
    assert sink.close() is True
    tracer.start_span("after").end()
    assert sink.close() is True
    assert names(tmp_path) == {"before": 1, "after": 1}


def test_a_long_value_is_cut(tmp_path, sink):
    tracer_of(sink).start_span("s", attributes={"text": "é" * 100_000}).end()
    sink.flush()
    (found,) = records(tmp_path)
    assert found["attributes"][0]["value"]["stringValue"] == "é" * 2048


def test_the_oldest_part_goes_when_there_is_too_much_and_that_is_said_once(tmp_path, caplog):
    lost: Counter[str] = Counter()
    sink = FileSink(tmp_path, most_bytes=200_000)
    sink.lost = lambda reason, number: lost.update({reason: number})
    tracer = tracer_of(sink)
    with caplog.at_level(logging.WARNING, "ravi_otel"):
        for number in range(2_000):
            tracer.start_span(str(number), attributes={"text": "x" * 100}).end()
            sink.flush()
        sink.close()
    kept = [int(each["name"]) for each in records(tmp_path)]
    assert sorted(kept) == list(range(2_000 - len(kept), 2_000))
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 200_000
    assert lost == {"store_full": 2_000 - len(kept)}
    assert len(caplog.records) == 1
    sink.close()


def test_a_directory_that_is_gone_does_no_harm_and_is_counted_and_said_once(tmp_path, caplog):
    lost: Counter[str] = Counter()
    sink = FileSink(tmp_path / "gone")
    sink.lost = lambda reason, number: lost.update({reason: number})
    tracer = tracer_of(sink)
    with caplog.at_level(logging.WARNING, "ravi_otel"):
        for _ in range(10):
            tracer.start_span("s").end()
            assert sink.flush() is False
        sink.close()  # what the thread lost, it has told now
    assert lost == {"store_failed": 10}
    assert [record.getMessage() for record in caplog.records] == [
        f"ravi-otel: the local store at {tmp_path / 'gone'} is not complete: No such file or directory"
    ]
    sink.close()


def test_a_disk_that_does_not_answer_is_waited_for_once_and_bounds_the_memory(tmp_path, monkeypatch):
    monkeypatch.setattr("ravi_otel.local.store.writing._MOST_WAITING", 10)
    monkeypatch.setattr("ravi_otel.local.store.writing._PATIENCE_S", 1.0)
    lost: Counter[str] = Counter()
    sink = FileSink(tmp_path)
    sink.lost = lambda reason, number: lost.update({reason: number})
    answers, hangs, append = threading.Event(), threading.Event(), sink._append

    def hung(*args: Any) -> bool:
        hangs.set()
        answers.wait(100)
        return append(*args)

    monkeypatch.setattr(sink, "_append", hung)
    tracer = tracer_of(sink)
    tracer.start_span("first").end()
    assert hangs.wait(10)
    began = time.monotonic()
    for number in range(100):
        tracer.start_span(str(number)).end()
    assert time.monotonic() - began < 60  # each would wait for a second
    assert lost == {"store_failed": 90}
    answers.set()
    sink.close()
    assert names(tmp_path) == Counter(["first", *map(str, range(90, 100))])


def test_a_file_taken_away_is_made_again(tmp_path, sink):
    tracer = tracer_of(sink)
    tracer.start_span("first").end()
    sink.flush()
    for path in tmp_path.iterdir():
        path.unlink()
    tracer.start_span("second").end()
    sink.flush()
    assert names(tmp_path) == {"second": 1}


class Hostile:
    """Stands for a record of another SDK version, which lacks what we read."""


def test_a_record_that_cannot_be_written_takes_no_other_with_it(tmp_path, caplog):
    lost: Counter[str] = Counter()
    sink = FileSink(tmp_path)
    sink.lost = lambda reason, number: lost.update({reason: number})
    sink.put("traces", Hostile())
    tracer_of(sink).start_span("fine").end()
    sink.close()
    assert names(tmp_path) == {"fine": 1}
    assert lost == {"not_encodable": 1}
    sink.close()


def test_a_span_that_ends_inside_our_writing_waits_for_the_next_turn(tmp_path, monkeypatch):
    sink = FileSink(tmp_path)
    tracer = tracer_of(sink)
    append = sink._append

    def finaliser_runs(*args: Any) -> bool:
        monkeypatch.setattr(sink, "_append", append)
        tracer.start_span("inner").end()
        assert sink.flush() is True  # by the same thread, which is writing: it neither waits for itself nor writes into it
        return append(*args)

    monkeypatch.setattr(sink, "_append", finaliser_runs)
    tracer.start_span("outer").end()
    sink.close()
    sink.close()
    assert names(tmp_path) == {"outer": 1, "inner": 1}


def test_everything_is_written_at_exit(tmp_path):
    passes('tell("s", 3000)', tmp_path)
    assert sum(names(tmp_path).values()) == 3_000


def test_what_ends_after_our_own_exit_is_written_too(tmp_path):
    passes(
        """
        import atexit
        late = tracer.start_span("late")
        atexit._run_exitfuncs()
        late.end()
        os._exit(0)
        """,
        tmp_path,
    )
    assert names(tmp_path) == {"late": 1}


def test_a_forked_child_writes_its_own_files_and_nothing_of_the_parents(tmp_path):
    passes(
        """
        tell("parent", 50)
        child = os.fork()
        if child == 0:
            tell("child", 50)
            sys.exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        tell("after", 50)
        """,
        tmp_path,
    )
    assert names(tmp_path) == Counter(f"{who}-{i}" for who in ("parent", "child", "after") for i in range(50))
    assert len(list(tmp_path.iterdir())) == 2


def test_forks_under_load_lose_and_double_nothing(tmp_path):
    forks = 1_000 if os.environ.get("RAVI_LONG") else 30
    passes(
        """
        stop = threading.Event()
        told = [0] * 4
        def load(who):
            while not stop.wait(0.0005):   # a thousand forks take a minute, and without a pause more than a process may keep
                tracer.start_span(f"load-{who}-{told[who]}").end()
                told[who] += 1
        threads = [threading.Thread(target=load, args=(who,)) for who in range(4)]
        for thread in threads: thread.start()
        for fork in range(int(os.environ["FORKS"])):
            child = os.fork()
            if child == 0:
                tell(f"child-{fork}", 20)
                sink.close()
                os._exit(0)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        stop.set()
        for thread in threads: thread.join()
        tell("end-%d" % sum(told), 1)
        """,
        tmp_path,
        FORKS=str(forks),
    )
    found = names(tmp_path)
    assert max(found.values()) == 1
    assert {f"child-{fork}-{i}" for fork in range(forks) for i in range(20)} <= found.keys()
    (end,) = [name for name in found if name.startswith("end-")]
    assert sum(name.startswith("load-") for name in found) == int(end.split("-")[1])


def test_workers_of_multiprocessing_leave_nothing_behind(tmp_path):
    passes(
        """
        import multiprocessing
        def work(who):
            tell(f"worker-{who}", 20)
        if __name__ == "__main__":
            fork = multiprocessing.get_context("fork")
            workers = [fork.Process(target=work, args=(who,)) for who in range(4)]
            for worker in workers: worker.start()
            for worker in workers: worker.join()
        """,
        tmp_path,
    )
    assert names(tmp_path) == Counter(f"worker-{who}-{i}" for who in range(4) for i in range(20))


def test_a_child_that_closes_every_descriptor_has_none_of_our_lines_in_its_files(tmp_path):
    theirs = tmp_path / "theirs"
    store = tmp_path / "store"
    store.mkdir()
    passes(
        f"""
        tell("before", 10)
        sink.flush()
        os.closerange(3, 256)
        file = os.open({str(theirs)!r}, os.O_CREAT | os.O_WRONLY)
        tell("after", 10)
        sink.flush()
        os.write(file, b"mine")
        """,
        store,
    )
    assert theirs.read_bytes() == b"mine"
    assert sum(names(store).values()) == 20


@pytest.mark.parametrize("after_s", [0.05, 0.2, 0.5])
def test_kill_leaves_whole_lines_but_perhaps_the_last(tmp_path, after_s):
    store = tmp_path / "store"
    store.mkdir()
    program = PRELUDE + "print('on', flush=True)\nwhile True: tell('s', 100, text='x' * 500)"
    process = warm_starts.start(
        [sys.executable, "-c", program, str(store)], env=os.environ | {"PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        process.stdout.readline()
        threading.Event().wait(after_s)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait(10)
        process.stdout.close()
    assert records(store, torn=1)


@pytest.mark.skipif(not hasattr(signal, "SIGXFSZ"), reason="a limit on the size of files is a thing of Unix")
def test_a_full_disk_does_no_harm_and_leaves_whole_lines(tmp_path):
    done = run(
        """
        import resource, collections
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        lost = collections.Counter()
        sink.lost = lambda reason, number: lost.update({reason: number})
        for _ in range(40):
            tell("s", 50, text="x" * 100)
            sink.flush()
        sink.close()
        print(lost["store_failed"])
        """,
        tmp_path,
    )
    assert done.returncode == 0
    assert done.stderr.count("is not complete: File too large") == 1
    kept = len(records(tmp_path))
    assert kept > 100
    assert kept + int(done.stdout) == 2_000


def test_a_hundred_spans_of_a_megabyte_each_take_little_memory(tmp_path):
    grown = passes(
        """
        import resource
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for number in range(400):
            tracer.start_span("s", attributes={"text": str(number % 10) * 1_000_000}).end()
        print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
        """,
        tmp_path,
    )
    assert float(grown) < 64
    assert len(records(tmp_path)) == 400
