"""How a launched program ends: its own way, unless a limit ended it."""

import json
import os
import shlex
import signal
import sys
from pathlib import Path

import pytest
from launched import Desk, spans_in

from ravi_otel.testing import ScriptedLLM, Text

LONG = os.environ.get("RAVI_LONG")


@pytest.mark.parametrize(("args", "status"), [(["_exit", "6"], 6), *([(["3"], 3)] if LONG else [])])
def test_its_own_exit_status_is_kept(desk, args, status):
    done = desk.launch(*desk.program("exits", *args), flags=["--limit", "tool_calls=5"])
    assert (done.status, done.out) == (status, "done\n"), done.err


EXITS = """
import sys, ravi_otel
with ravi_otel.run("inner"):
    ravi_otel.tool(print)()
    sys.exit(int(sys.argv[1]))
"""


@pytest.mark.parametrize(("code", "inner", "outcome"), [("0", "ok", "ok"), ("3", "error", "failed")])
def test_a_run_that_sys_exit_leaves_ended_as_the_program_did_and_the_store_has_the_status(desk, code, inner, outcome):
    done = desk.launch(sys.executable, "-c", EXITS, code)
    spans = spans_in(desk.store)
    told = {span["name"]: {each["key"]: each["value"].get("stringValue") for each in span["attributes"]} for span in spans}
    assert told["invoke_workflow inner"].get("ravi.status", "ok") == inner
    assert "error.type" not in told["invoke_workflow python"]  # which is told from inside the program
    assert (done.status, done.run["outcome"], done.run["status"]) == (int(code), outcome, int(code))


@pytest.mark.parametrize("number", ["SIGKILL", *(["SIGTERM", "SIGSEGV"] if LONG else [])])
def test_a_program_that_a_signal_ended_is_seen_to_have_been_ended_by_it(desk, number):
    done = desk.launch(*desk.program("exits", number))
    assert done.status == -getattr(signal, number)
    assert done.run["outcome"] == "signal"


def test_signals_pass_through(desk):
    child = desk.start(*desk.program("waits"))
    assert child.stdout.readline() == "ready\n"
    for number in ("SIGINT", "SIGHUP", "SIGUSR1", "SIGUSR2"):
        os.kill(child.pid, getattr(signal, number))
        assert child.stdout.readline() == f"{number}\n"
    os.kill(child.pid, signal.SIGTERM)
    out, err = child.communicate(timeout=30)
    assert (out, child.returncode) == ("SIGTERM\n", 7), err


def test_a_refusal_that_nobody_catches_ends_with_status_4_after_the_usual_traceback(desk):
    done = desk.launch(*desk.program("calls", "5"), flags=["--limit", "requests=3"])
    assert (done.status, done.out, desk.sent) == (4, "hello there\n" * 3, 3)
    assert "Traceback (most recent call last)" in done.err
    assert "Raise --limit requests=3 or leave it out." in done.err


README = " ".join((Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8").split())
PAGE = (Path(__file__).parents[2] / "docs" / "zero-code.md").read_text(encoding="utf-8").partition("## Exit status")[2].partition("```")[0]
WORK = "import sys, ravi_otel\nwork = ravi_otel.tool(lambda: None, name='work')\n"
CAUGHT = "try:\n    work()\n    work()\nexcept ravi_otel.BudgetExhaustedError:\n    pass\n"
SWALLOWING = "while True:\n    try:\n        work()\n    except Exception:\n        pass\n"
ENDS = {
    "A refusal that the program does not catch ends it": ("a refusal that nobody caught", "work()\nwork()\n", 4),
    "one that goes on asking is ended: the exit status is 4": ("one too many that somebody did", SWALLOWING, 4),
    "A program that catches the refusal and comes to its own end": (
        "no limit ended it, also where one refused something and the program caught that",
        f"{CAUGHT}sys.exit(3)\n",
        3,
    ),
    "keeps its own status": ("a signal that ended it ends us too", CAUGHT, 0),
}


@pytest.mark.parametrize("sentence", ENDS)
def test_the_status_after_a_refusal_is_what_the_readme_and_the_page_say(desk, sentence):
    row, program, status = ENDS[sentence]
    statuses = [cells[0] for cells in (line.strip("| ").split(" | ") for line in PAGE.splitlines()) if row in "".join(cells)]
    done = desk.launch(sys.executable, "-c", WORK + program, flags=["--limit", "tool_calls=1"])
    assert (sentence in README, statuses, done.status) == (True, ["4" if status == 4 else "the program's own"], status), done.err
    assert ("… 99 more refused" in done.err) == (program == SWALLOWING)  # the hundredth too, which is held back when it is ended


def test_the_programs_own_excepthook_hears_of_a_refusal_as_of_anything_else(desk):
    done = desk.launch(*desk.program("own_hook", "again"), flags=["--limit", "tool_calls=1"])
    assert (done.status, done.out) == (4, "worked\nmy own hook: BudgetExhaustedError\n"), done.err


@pytest.mark.parametrize("shell", ["{}; exit $?", *(["exec {}", "{}"] if LONG else [])])
def test_a_refusal_that_nobody_catches_below_a_shell_is_one(desk, shell):
    done = desk.launch("sh", "-c", shell.format(" ".join(desk.program("greets", "5"))), flags=["--limit", "tool_calls=3"])
    assert (done.status, done.out) == (4, "hello there\n" * 3), done.err


POOL = """
import multiprocessing

def ask(_):
    import ravi_otel
    ravi_otel.tool(print)("asked", flush=True)

if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        pool.map(ask, range(3))
"""


def test_a_workers_refusal_that_is_raised_again_in_the_parent_is_one(desk):
    (desk.directory / "pool.py").write_text(POOL)
    done = desk.launch(sys.executable, "pool.py", flags=["--limit", "tool_calls=1"])
    assert (done.status, done.out) == (4, "asked\n"), done.err


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs process descriptors of Linux")
def test_a_process_that_outlives_the_program_is_spoken_of(desk, until):
    code = (
        "import os, time, ravi_otel\n"
        "ask = ravi_otel.tool(time.time)\n"
        "reading, writing = os.pipe()\n"
        "if not os.fork():\n"
        "    ask(); os.write(writing, b'x'); os.setsid()\n"
        "    while not os.path.exists('over'): time.sleep(0.02)\n"
        "    os._exit(0)\n"
        "os.read(reading, 1)\n"
    )
    child = desk.start(sys.executable, "-c", code, flags=["--limit", "tool_calls=5"])
    path = desk.directory / "over"
    try:
        assert child.wait(timeout=30) == 0
    finally:
        path.touch()
    assert "1 of its processes still run" in child.communicate(timeout=30)[1]


def test_a_program_that_swallows_refusals_is_ended_where_no_note_can_be_left(desk):
    code = Path(desk.program("runaway")[1]).read_text().replace("def work", "import shutil\nshutil.rmtree(sys.argv[3], True)\n\n\ndef work")
    (desk.directory / "lost.py").write_text(code)
    done = desk.launch(sys.executable, "lost.py", "10", "3", str(desk.store / "launches"), flags=["--limit", "requests=5"])
    assert (done.status, desk.sent) == (-15, 0), done.err


def test_a_program_that_meets_no_refusal_keeps_pythons_own_hooks(desk):
    code = "import ravi_otel, sys, threading; print(sys.excepthook is sys.__excepthook__, threading.excepthook is threading.__excepthook__)"
    done = desk.launch(sys.executable, "-c", code, flags=["--limit", "requests=3"])
    assert done.out == "True True\n", done.err


def test_the_report_may_go_to_a_file(desk):
    done = desk.launch(*desk.program("greets", "4"), flags=["--json", "--report", "report.json", "--limit", "tool_calls=5"])
    assert json.loads((desk.directory / "report.json").read_text())["exit_status"] == 0
    assert done.err == "ravi-otel: 80 % of the tool calls of run 'greets.py' used: 4 of 5\n"


def test_no_report_and_a_report_cannot_both_be_asked_for(desk):
    done = desk.launch(*desk.program("calls", "1"), flags=["--quiet", "--json"])
    assert (done.status, desk.sent) == (2, 0)
    assert "--quiet" in done.err


def test_a_refusal_that_a_framework_raises_again_in_its_own_words_is_known(desk):
    said = "except Exception as error:\n    said = f'{type(error).__name__}: {error}'\n"
    code = f"import ravi_otel\ncall = ravi_otel.tool(print)\ntry:\n    call(1), call(2)\n{said}raise RuntimeError(said)\n"
    done = desk.launch(sys.executable, "-c", code, flags=["--limit", "tool_calls=1"])
    assert (done.out, done.status, done.run["outcome"]) == ("1\n", 4, "stopped"), done.err


def test_a_failure_of_its_own_keeps_its_status_even_after_a_refusal(desk):
    done = desk.launch(*desk.program("own_hook"), flags=["--limit", "tool_calls=5"])
    assert (done.status, done.out) == (1, "worked\nmy own hook: KeyError\n"), done.err


@pytest.mark.parametrize(
    ("command", "status", "sentence"),
    [
        (["no-such-command"], 127, "was not found"),
        (["./not_executable.py"], 126, "ravi-otel run -- python ./not_executable.py"),
        ([], 2, "COMMAND is missing"),
    ],
)
def test_what_cannot_be_started_is_said_in_one_sentence(desk, command, status, sentence):
    (desk.directory / "not_executable.py").write_text("")
    done = desk.launch(*command)
    assert done.status == status
    assert sentence in done.err
    assert "Traceback" not in done.err


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--limit", "tokns=5"], "tokns"),
        (["--limit", "tokens=-5"], "-5"),
        (["--limit", "tokens"], "tokens"),
        (["--limit", "tokens=5", "--limit", "tokens=6"], "tokens=6"),
        (["--limit", "tenant.tokens=5"], "tenant"),
        (["--policy", "nowhere.toml"], "nowhere.toml"),
        (["--tag", "team"], "team"),
        (["--tag", "Team=x"], "Team"),
        (["--after-limit", "explode"], "explode"),
        (["--limits", "tokens=5"], "--limit"),
    ],
)
def test_a_wrong_flag_is_one_sentence_and_nothing_is_started(desk, flags, named):
    done = desk.launch(*desk.program("calls", "1"), flags=flags)
    assert done.status == 2
    assert named in done.err
    assert "Traceback" not in done.err
    assert desk.sent == 0


def test_quiet_says_nothing(desk):
    done = desk.launch(*desk.program("greets", "5"), flags=["--quiet", "--limit", "tool_calls=5"])
    assert (done.status, done.out, done.err) == (0, "hello there\n" * 5, "")


@pytest.fixture(scope="module")
def nightly(tmp_path_factory):
    """Launch a program once that three tests look at."""
    with ScriptedLLM(lambda _: Text("hello there")) as server:
        desk = Desk(server, tmp_path_factory.mktemp("nightly"))
        flags = ["--json", "--limit", "requests=5", "--name", "nightly", "--tag", "team=search"]
        return desk.launch(*desk.program("calls", "2"), flags=flags)


def test_the_report_as_json_is_one_document_on_standard_error(nightly):
    document = json.loads(nightly.err)
    assert (document["name"], document["exit_status"], document["outcome"]) == ("nightly", 0, "ok")
    assert [limit["used"] for limit in document["limits"]] == [2]
    assert sum(node["type"] == "call" for node in document["nodes"]) == 2


def test_the_budget_that_was_used_is_kept_with_the_run(nightly):
    (budget,) = nightly.run["budgets"]
    assert (budget["limit"], budget["threshold"], budget["used"], budget["held"], budget["denied"]) == ("requests", 5, 2, 0, 0)


def test_tags_are_on_every_span(nightly):
    tagged = [[each["key"] for each in span["attributes"]].count("ravi.tag.team") for span in spans_in(nightly.store)]
    assert tagged == [1, 1, 1]


@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_the_status_stays_what_it_is_when_nobody_reads_the_report(desk, flags):
    """The reader of both outputs leaves after the first line, as `2>&1 | head -1` does."""
    child = desk.start(*desk.program("greets", "5"), flags=["--limit", "tool_calls=3", *flags], out_and_err_in_one=True)
    assert child.stdout.readline()
    child.stdout.close()
    assert child.wait(timeout=60) == 4


def test_the_status_of_a_limit_stays_when_the_programs_own_output_is_read_by_nobody(desk):
    code = "import ravi_otel; print('hello'); ravi_otel.tool(print)('called')"
    child = desk.start(sys.executable, "-c", code, flags=["--limit", "tool_calls=0"])
    child.stdout.close()
    _, err = child.communicate(timeout=60)
    assert child.returncode == 4, err


def test_without_a_standard_error_there_is_no_report_and_nothing_of_it_in_the_programs_output(desk):
    whole = shlex.join([*desk.command("--limit", "tool_calls=3"), *desk.program("greets", "5")])
    done = desk.alone("sh", "-c", f"{whole} 2>&-")
    assert (done.status, done.out) == (4, "hello there\n" * 3)
