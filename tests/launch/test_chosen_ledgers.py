"""A launched program that counts in a ledger which others count in, too."""

import sys

import pytest

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
    assert not list(desk.store.glob("runs/*/ledger.db"))


def test_a_ledger_that_cannot_be_reached_starts_nothing_and_tells_no_password(desk):
    done = desk.launch(
        *desk.program("session_tools", "1"), flags=["--limit", "tool_calls=1", "--ledger", f"redis://:{SECRET}@127.0.0.1:1/0"]
    )
    assert (done.out, done.status) == ("", 1), done.err
    assert "redis://127.0.0.1:1" in done.err
    assert SECRET not in done.err
    assert all(SECRET not in path.read_text(errors="replace") for path in desk.store.rglob("*") if path.is_file())


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
