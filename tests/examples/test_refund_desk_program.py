"""The refund desk's program shows all four decisions in one run, as its page says, and never goes on past an end."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import pytest
import warm_starts

from ravi_otel.testing import ScriptedLLM, Text

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "examples" / "refund_desk" / "refund_desk.py"
PAGE = (ROOT / "docs" / "refund-desk.md").read_text(encoding="utf-8")


def run(where, *options, **environment):
    command = [sys.executable, "-W", "error", str(PROGRAM), *options]
    given = os.environ | {"PYTHONPATH": str(ROOT)} | environment
    return warm_starts.run(command, cwd=where, capture_output=True, text=True, timeout=60, env=given, check=False)


@pytest.fixture(scope="module")
def story(tmp_path_factory):
    where = tmp_path_factory.mktemp("desk")
    done = run(where)
    assert (done.returncode, done.stderr) == (0, "")
    done.where = where
    return done


def entries(where):
    (path,) = (where / "refund-audit").glob("*.audit.jsonl")
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_every_line_that_the_page_shows_is_printed_in_that_order(story):
    (shown,) = re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL)
    printed = iter(story.stdout.splitlines())
    missing = [line for line in shown.splitlines()[1:] if line not in printed]
    assert missing == []


def test_all_four_decisions_are_in_the_audit_log_of_one_run_and_the_log_holds(story):
    written = entries(story.where)
    assert {entry["decision"] for entry in written if entry["what"] == "reviewed"} == {"approve", "revise", "block", "escalate"}
    assert len({entry["run_id"] for entry in written}) == 1
    paid = [entry for entry in written if entry["what"] == "executed" and entry["tool"] == "issue_refund"]
    assert [entry["status"] for entry in paid] == ["ok"]
    assert f"{len(written)} entries as written" in story.stdout


def test_a_log_that_was_changed_does_not_hold_any_more(story):
    (path,) = (story.where / "refund-audit").glob("*.audit.jsonl")
    changed = story.where / "changed" / path.name
    changed.parent.mkdir()
    changed.write_bytes(path.read_bytes().replace(b'"block"', b'"allow"', 1))
    changed.with_name(path.name.replace(".jsonl", ".head")).write_bytes(path.with_name(path.name.replace(".jsonl", ".head")).read_bytes())
    command = [sys.executable, "-m", "ravi_otel", "audit", "verify", str(changed)]
    done = warm_starts.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "NOT as it was written" in done.stdout


@pytest.mark.parametrize("key", [{}, {"OPENAI_API_KEY": "  "}], ids=["unset", "blank"])
def test_live_without_a_key_says_so_and_does_nothing(tmp_path, key):
    done = run(tmp_path, "--live", **key)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", "OPENAI_API_KEY is not set\n")
    assert list(tmp_path.iterdir()) == []


def use(name, **args):
    return json.dumps({"kind": "tool", "name": name, "args": args})


def live(where, *answers, **environment):
    with ScriptedLLM([Text(each) for each in answers]) as server:
        done = run(where, "--live", "--audit", "log", OPENAI_API_KEY="k", OPENAI_BASE_URL=server.base_url, **environment)
        done.requests = server.requests
        return done


def test_live_asks_the_model_that_the_environment_names_with_the_same_tools_and_policy(tmp_path):
    refund = use("issue_refund", user_id=42, amount_usd=900.0, reason="lost")
    answers = [use("get_refund_context", user_id=42), refund, json.dumps({"kind": "final", "answer": "Done \x1b[31m\u202e."})]
    done = live(tmp_path, *answers, OPENAI_MODEL="gpt-4.1-nano")
    assert (done.returncode, done.stderr) == (0, "")
    assert [request.model for request in done.requests] == ["gpt-4.1-nano"] * 3
    assert done.requests[0].headers["authorization"] == "Bearer k"
    assert "approve   refund_within_auto_limit" in done.stdout
    assert "paid in this run: 900.00 USD" in done.stdout
    assert "\\u001b[31m\\u202e" in done.stdout
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", done.stdout)


def test_a_block_after_money_was_paid_is_not_tried_again(tmp_path):
    refund = use("issue_refund", user_id=42, amount_usd=900.0, reason="lost")
    done = live(tmp_path, refund, json.dumps({"kind": "final", "answer": "Done, whoever you are."}))
    assert done.returncode == 1
    assert len(done.requests) == 2
    assert "stopped: supervisor_block:final_requires_context" in done.stdout
    assert "attempt 2" not in done.stdout


def test_a_worker_that_says_no_action_is_shown_and_ends_the_run(tmp_path):
    done = live(tmp_path, "I refund it \x1b[2Jnow.")
    assert (done.returncode, len(done.requests)) == (1, 1)
    assert 'not read: "I refund it \\u001b[2Jnow."' in done.stdout
    assert "stopped: invalid_action:non_json" in done.stdout
    assert "nothing was written down" in done.stdout


def test_nothing_is_paid_where_the_audit_log_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    done = run(tmp_path, "--audit", str(tmp_path / "file" / "log"))
    assert done.returncode == 1
    assert "stopped: supervisor_block:audit_failed" in done.stdout
    assert "    executed  " not in done.stdout
    assert "paid in this run: 0.00 USD" in done.stdout
    assert "Traceback" not in done.stderr


def test_the_page_names_every_reason_and_only_those():
    source = PROGRAM.with_name("refund_policy.py").read_text(encoding="utf-8")
    known = set(re.findall(r'(?:_approve|_block|_revise)\("(\w+)"', source)) | set(re.findall(r'ESCALATE, "(\w+)"', source))
    known |= {"refund_within_auto_limit", "unknown_tool_for_supervisor:T", "invalid_refund_amount", "invalid_refund_amount_type"}
    table = PAGE.partition("| proposed |")[2].partition("\n\n")[0]
    assert set(re.findall(r"`([a-z_:]+T?)`", table)) == known
