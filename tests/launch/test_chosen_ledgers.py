"""A launched program that counts in a ledger which others count in, too."""

import json
import os
import sys

import pytest
from redis_servers import server

SECRET = "hunter2"
OWN = """
import ravi_otel
try:
    ravi_otel.instrument(ledger={ledger!r})
except ravi_otel.ConfigurationError as error:
    print(error)
else:
    print("taken")
"""


@pytest.mark.parametrize("said", ["flag", "variable"])
def test_programs_count_together_what_is_not_one_runs_alone(desk, tmp_path, said):
    url = f"sqlite:{tmp_path / 'shared.db'}"
    flags, variables = (["--ledger", url], {}) if said == "flag" else ([], {"RAVI_LEDGER": url})
    dones = [
        desk.launch(*desk.program("session_tools", "2"), flags=["--json", "--limit", "tool_calls=10", *flags], **variables)
        for _ in range(2)
    ]  # fmt: skip
    assert [done.out.split("\n")[:2] for done in dones] == [["did", "did"], ["did", "refused by the session"]], dones[1].err
    for done, used in zip(dones, (2, 1), strict=True):
        assert f'"used": {used}' in done.err, done.err
    assert not list(desk.store.glob("launches/*/ledger.db"))


def test_a_ledger_that_cannot_be_reached_starts_nothing_and_tells_no_password(desk):
    done = desk.launch(
        *desk.program("session_tools", "1"), flags=["--limit", "tool_calls=1", "--ledger", f"redis://:{SECRET}@127.0.0.1:1/0"]
    )
    assert (done.out, done.status) == ("", 6), done.err
    assert "redis://127.0.0.1:1" in done.err
    assert SECRET not in done.err
    assert all(SECRET not in path.read_text(errors="replace") for path in desk.store.rglob("*") if path.is_file())


OUTAGE = """
import os, signal, sys
import openai

client = openai.OpenAI(max_retries=0)
def ask():
    client.chat.completions.create(model="gpt-4o-mini", messages=[{"role": "user", "content": "hi"}])

ask()
os.kill(int(sys.argv[1]), signal.SIGKILL)
if sys.argv[2] == "swallows":
    while True:
        try:
            ask()
        except openai.OpenAIError:
            raise
        except Exception:
            pass
elif sys.argv[2] == "wraps":
    try:
        ask()
    except Exception as error:
        raise RuntimeError(f"the agent failed: {error}") from None
ask()
"""


@pytest.mark.parametrize("how", ["wraps", *(["raises", "swallows"] if os.environ.get("RAVI_LONG") else [])])
def test_a_program_that_the_stores_outage_ended_is_told_to_be_that_and_no_limits(desk, how):
    (desk.directory / "outage.py").write_text(OUTAGE)
    with server() as redis:
        done = desk.launch(
            sys.executable,
            "outage.py",
            str(redis.process.pid),
            how,
            flags=["--json", "--limit", "requests=50", "--ledger", f"{redis.url}"],
        )
    assert (done.status, desk.sent) == (6, 1), done.err
    report = json.loads(done.err.splitlines()[-1])
    assert (report["outcome"], report["exit_status"]) == ("store_failed", 6)
    assert '"stop_reason": "store_failed"' in done.err, report
    assert "limit_requests" not in done.err
    assert f"the shared ledger redis://127.0.0.1:{redis.port}" in report["said"][0]
    assert "A limit ended" not in report["said"][0]


def test_a_program_may_not_count_elsewhere_than_the_run_around_it(desk, tmp_path):
    url = f"sqlite:{tmp_path / 'shared.db'}"
    (tmp_path / "own.py").write_text("".join(OWN.format(ledger=each) for each in (url, "memory:", f"sqlite:{tmp_path / 'other.db'}")))
    done = desk.launch(sys.executable, str(tmp_path / "own.py"), flags=["--ledger", url])
    taken, memory, refused = done.out.splitlines()
    assert (taken, memory) == ("taken", "taken")
    assert refused.startswith(f"instrument(ledger=sqlite:{tmp_path / 'other.db'}) is another ledger than that of the `ravi-otel run`")


def test_a_limit_that_renews_is_one_for_all_starts_of_a_service(desk, tmp_path):
    flags = ["--json", "--limit", "tool_calls=3:per=day", "--ledger", f"sqlite:{tmp_path / 'shared.db'}"]
    shops = ("shop", "shop", "mail")
    dones = [desk.launch(*desk.program("plain_tools", "2"), flags=flags, OTEL_SERVICE_NAME=name) for name in shops]
    assert [done.out.split("\n").count("did") for done in dones] == [2, 1, 2], dones[1].err
    assert "in service 'shop', day" in dones[1].out
    assert all(f'"used": {used}' in done.err for used, done in zip((2, 3, 2), dones, strict=True)), [done.err for done in dones]


def test_a_limit_that_does_not_renew_or_is_the_runs_is_each_starts_own(desk, tmp_path):
    flags = ["--limit", "tool_calls=3", "--limit", "run.tool_calls=2:per=day", "--ledger", f"sqlite:{tmp_path / 'shared.db'}"]
    dones = [desk.launch(*desk.program("plain_tools", "2"), flags=flags) for _ in range(2)]
    assert [done.out.split("\n").count("did") for done in dones] == [2, 2], dones[-1].err
