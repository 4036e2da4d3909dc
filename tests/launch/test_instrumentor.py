"""`opentelemetry-instrument` finds us, with limits from the environment."""

import os
import sys
from pathlib import Path

import pytest

INSTRUMENT = [str(Path(sys.executable).with_name("opentelemetry-instrument")), "--traces_exporter", "none", "--metrics_exporter", "none",
              "--logs_exporter", "none"]  # fmt: skip


def test_limits_of_the_environment_hold(desk):
    done = desk.alone(*INSTRUMENT, *desk.program("calls", "3"), RAVI_LIMIT_REQUESTS="2")
    assert (done.status, done.out, desk.sent) == (1, "hello there\n" * 2, 2), done.err
    assert "Raise RAVI_LIMIT_REQUESTS=2 or leave it out." in done.err or "requests=2" in done.err


WRONG = [("RAVI_LIMIT_TOKENS", "lots"), ("RAVI_POLICY", "nowhere.toml")]


@pytest.mark.parametrize(("name", "value"), WRONG if os.environ.get("RAVI_LONG") else WRONG[:1])
def test_what_cannot_be_read_is_one_sentence_and_nothing_is_sent(desk, name, value):
    done = desk.alone(*INSTRUMENT, *desk.program("calls", "1"), **{name: value})
    assert (done.status, desk.sent) == (1, 0), done.err
    said = [line for line in done.err.splitlines() if "ravi-otel refuses every model call" in line]
    assert value in said[0]
    assert said[1:] == [f"ravi_otel.errors.ConfigurationError: {said[0]}"]  # the program's own traceback ends with it
    assert done.err.count("Traceback") == 1


def test_limits_of_a_policy_file_hold_and_one_of_agents_is_one_of_each_run(desk):
    (desk.directory / "policy.toml").write_text('limits = ["agents=1", "requests=1"]\n')
    done = desk.alone(*INSTRUMENT, *desk.program("calls", "2"), RAVI_POLICY="policy.toml")
    assert (done.status, desk.sent) == (1, 1), done.err
