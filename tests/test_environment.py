"""What the environment says to a program that instruments itself."""

import os
import sqlite3
import sys

import pytest
import warm_starts

import ravi_otel
from ravi_otel.testing import ScriptedLLM, Text

PROGRAM = """
import openai, ravi_otel
ravi_otel.instrument({arguments})
client = openai.OpenAI(max_retries=0)
with ravi_otel.run("mine"):
    for _ in range(3):
        client.chat.completions.create(model="gpt-4o-mini", messages=[{{"role": "user", "content": "hi"}}])
"""


@pytest.fixture
def play(tmp_path):
    def start(arguments="", **environ):
        with ScriptedLLM(lambda _: Text("hello there")) as server:
            kept = {name: value for name, value in os.environ.items() if not name.startswith(("RAVI_", "OTEL_"))}
            place = {"OPENAI_BASE_URL": server.base_url, "OPENAI_API_KEY": "any"}
            done = warm_starts.run(
                [sys.executable, "-c", PROGRAM.format(arguments=arguments)],
                env=kept | place | environ,
                cwd=tmp_path,
                capture_output=True,
                text=True,
                check=False,
            )
            return done, len(server.requests)

    return start


def test_a_limit_in_the_environment_holds_beside_those_in_code(play):
    done, sent = play('limits=["tokens=1000"]', RAVI_LIMIT_REQUESTS="2")
    assert (done.returncode, sent) == (1, 2), done.stderr
    assert "2 of 2 requests used in this process" in done.stderr


def test_code_is_stronger_than_the_environment(play):
    done, sent = play('limits=["requests=3"]', RAVI_LIMIT_REQUESTS="1")
    assert (done.returncode, sent) == (0, 3), done.stderr


def test_a_limit_in_the_environment_that_cannot_be_read_is_one_sentence(play):
    done, sent = play(RAVI_LIMIT_TOKNS="5")
    assert sent == 0
    assert "RAVI_LIMIT_TOKNS" in done.stderr.splitlines()[-1]


def test_a_store_in_the_environment_keeps_the_run(play, tmp_path):
    done, sent = play(RAVI_STORE=str(tmp_path / "kept"))
    assert (done.returncode, sent, done.stderr) == (0, 3, "")
    connection = sqlite3.connect(tmp_path / "kept" / "runs.db")
    assert connection.execute("SELECT outcome FROM processes").fetchall() == [("ok",)]
    assert connection.execute("SELECT model, count(*) FROM calls").fetchall() == [("gpt-4o-mini", 3)]
    connection.close()


def test_without_a_store_in_the_environment_nothing_is_written(play, tmp_path):
    done, _ = play()
    assert (done.returncode, done.stderr, list(tmp_path.iterdir())) == (0, "", [])


def test_asking_again_without_arguments_changes_nothing_under_limits_of_the_environment(monkeypatch):
    monkeypatch.setenv("RAVI_LIMIT_REQUESTS", "9")
    with ravi_otel.instrument(limits=["tokens=1000"]) as first:
        assert ravi_otel.instrument() is first
