from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest
import warm_starts

from ravi_otel._cli.support_desk import answer
from ravi_otel._local.queries import Queries
from ravi_otel._local.store import Store
from ravi_otel.testing import Failure, ScriptedLLM, Text

BLOCKED = "import sys; sys.modules['uvicorn'] = None; sys.argv = ['ravi-otel', 'demo']; from ravi_otel._cli import main; main()"


def run(*arguments, program=("-m", "ravi_otel"), columns=100, **environment):
    clean = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR")}
    given = clean | {"COLUMNS": str(columns), "PYTHONIOENCODING": "utf-8"} | environment
    return warm_starts.run(
        [sys.executable, *program, *arguments], capture_output=True, text=True, encoding="utf-8", timeout=60, env=given, check=False
    )


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch, tmp_path):
    """Keep runs nowhere in the working directory."""
    monkeypatch.setenv("RAVI_STORE", str(tmp_path))


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    return tmp_path_factory.mktemp("kept")


@pytest.fixture(scope="module")
def demo(kept):
    return run("demo", RAVI_STORE=str(kept))


@pytest.fixture(scope="module")
def again(kept):
    return run("demo", RAVI_STORE=str(kept), HTTP_PROXY="http://127.0.0.1:9", ALL_PROXY="http://127.0.0.1:9")


def test_the_demo_ends_well_and_says_nothing_on_standard_error(demo):
    assert (demo.returncode, demo.stderr) == (0, "")


def test_the_run_is_kept_with_what_was_said(demo, kept):
    assert demo.stdout.rstrip().endswith("The run is kept, with what was said: look at it with `ravi-otel ui`.")
    with Queries(Store.find(kept)) as ask:
        assert {row.name for row in ask.runs().rows} >= {"support-desk"}
        assert ask.search("kettle")


def test_the_worker_does_its_work_with_tools(demo):
    for words in (
        'look_up_customer({"email": "ada@example.com"})',
        'issue_refund({"order_id": "A-1007", "amount_usd": 39.9})',
        "answer: Hello Ada",
    ):
        assert words in demo.stdout


def test_the_warning_and_the_refusal_are_told_as_they_happen(demo):
    told, tree = demo.stdout.split("run support-desk", 1)
    assert "! warning: parcel-chaser has used 83 % of its tokens: 832 of 1,000" in told
    assert "x refused: parcel-chaser has used 988 of 1,000 tokens" in told
    assert told.index("! warning") < told.index("x refused") < told.index("swallows BudgetExhaustedError")
    assert "! 83 % of the tokens of agent parcel-chaser: 832 of 1,000" in tree


def test_nothing_of_the_runaway_reaches_the_server_after_the_refusal(demo):
    assert "19 requests were sent, 25 calls failed, 25 of them refused before they were sent" in demo.stdout
    assert "The model server received 23 requests, 0 of them after the refusal." in demo.stdout


def test_the_tree_shows_calls_tools_figures_and_the_reason_of_the_refusal(demo):
    tree = demo.stdout[demo.stdout.index("run support-desk") :]
    for words in ("agent refund-clerk", "tool issue_refund", "chat gpt-4.1-mini, streamed", "… 12 more chat", "… 24 more refused"):
        assert words in tree
    assert re.search(r"chat gpt-4.1-mini +\d+ +25 +27 +~\$0\.000053", tree)
    assert "988 of 1000 tokens used in agent 'parcel-chaser'" in tree


def test_the_budget_table_has_the_runaway_first(demo):
    table = demo.stdout[demo.stdout.index("allowed") :].splitlines()
    assert table[2].split() == ["agent", "parcel-chaser", "tokens", "1,000", "988", "0", "98", "nearing,", "exceeded", "25"]
    kinds = [row.split()[2] for row in table[3:7]]
    assert [kind for kind in kinds if kind != "time"][:3] == [
        "turns",
        "tokens",
        "cost",
    ]  # how much of its time it took depends on the machine


def test_two_demos_differ_in_milliseconds_only(demo, again):
    def exact(text):  # limits stand in the order of how full they are, and so does that on time: its whole line goes
        return re.sub(r" +[\d,<]+(?= {2,}[≥~]*\d| *$)|^.*time .*\n", "", text, flags=re.MULTILINE)

    assert exact(again.stdout) == exact(demo.stdout)


def test_a_proxy_in_the_environment_does_not_take_the_demo_off_this_machine(again):
    assert (again.returncode, again.stderr) == (0, "")


def test_a_pipe_gets_no_colors_and_no_json_lines(demo):
    assert "\x1b" not in demo.stdout
    assert '"event"' not in demo.stdout + demo.stderr


def test_an_output_of_ascii_and_80_columns_is_enough():
    done = run("demo", columns=80, PYTHONIOENCODING="ascii")
    assert done.returncode == 0
    assert "`- ... 24 more refused" in done.stdout


def test_a_reader_who_leaves_early_sees_no_traceback():
    with warm_starts.start([sys.executable, "-m", "ravi_otel", "demo"], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert b"Traceback" not in process.stderr.read()


def test_without_the_server_the_demo_says_how_to_install_it():
    done = run(program=("-c", BLOCKED))
    assert done.returncode == 2
    assert "pip install 'ravi-otel[testing]'" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("key", [{}, {"OPENAI_API_KEY": " "}])
def test_live_without_a_key_says_what_to_do(key):
    done = run("demo", "--live", **key)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("Error: OPENAI_API_KEY is not set: ")
    assert "leave out --live" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_live_talks_to_the_api_that_the_environment_names():
    with ScriptedLLM(answer) as server:
        done = run("demo", "--live", OPENAI_API_KEY="k", OPENAI_BASE_URL=server.base_url, OPENAI_MODEL="gpt-4o-mini")
    assert (done.returncode, done.stderr) == (0, "")
    assert {request.model for request in server.requests} == {"gpt-4o-mini"}
    assert "x refused: parcel-chaser" in done.stdout
    assert len(server.requests) == 23


def test_live_with_a_refused_key_fails_in_one_sentence_below_the_tree():
    with ScriptedLLM(Failure(401, "Incorrect API key provided: \x1b[31mk.")) as server:
        done = run("demo", "--live", OPENAI_API_KEY="k", OPENAI_BASE_URL=server.base_url)
    assert done.returncode == 1
    assert "error, AuthenticationError" in done.stdout
    assert done.stderr.startswith("Error: the call to the API failed with AuthenticationError: ")
    assert len(done.stderr.splitlines()) == 1
    assert "\x1b" not in done.stderr


def test_live_with_a_model_without_a_price_shows_its_cost_as_unknown():
    with ScriptedLLM(answer) as server:
        done = run("demo", "--live", OPENAI_API_KEY="k", OPENAI_BASE_URL=server.base_url, OPENAI_MODEL="my-own-model")
    assert done.returncode == 0
    assert re.search(r"run support-desk .* \?$", done.stdout, re.MULTILINE)


def test_live_survives_a_model_that_asks_for_tools_that_do_not_exist():
    from ravi_otel.testing import ToolCalls

    def odd(request):
        asked = sum(1 for message in request.body["messages"] if message["role"] == "assistant")
        return ToolCalls([("rm_rf", "{"), ("look_up_order", {"nr": 1}), ("look_up_order", "[1]")]) if asked == 0 else Text("DONE")

    with ScriptedLLM(odd) as server:
        done = run("demo", "--live", OPENAI_API_KEY="k", OPENAI_BASE_URL=server.base_url)
    assert (done.returncode, done.stderr) == (0, "")


def test_live_with_a_worker_past_its_budget_ends_in_one_sentence():
    with ScriptedLLM(lambda request: Text("DONE", usage=(20_000, 1)) if "tools" in request.body else Text("x")) as server:
        done = run("demo", "--live", OPENAI_API_KEY="k", OPENAI_BASE_URL=server.base_url)
    assert done.returncode == 1
    assert re.match(r"Error: \d+ of 12000 tokens used in agent ", done.stderr)
    assert "agent refund-clerk" in done.stdout
