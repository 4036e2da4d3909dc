"""Verify audit logs from the command line."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import warm_starts
from click.testing import CliRunner

from ravi_otel._cli.entry import commands
from ravi_otel.supervisor import AuditLog


@pytest.fixture
def log(tmp_path):
    log = AuditLog(tmp_path / "audit")
    for run_id in ("one", "two"):
        for at in range(3):
            log.note("effective", run_id=run_id, agent_name="a", tool="t", op_id=str(at), arguments={"x": at})
    return log


def verified(*words, status=0):
    result = CliRunner().invoke(commands, ["audit", "verify", *words])
    assert result.exit_code == status, result.output
    return result.output


def test_a_whole_log_is_said_to_be_one_with_its_head(log):
    assert verified(str(log.path("one"))) == f"one.audit.jsonl: 3 entries as written, head {log.head('one')}\n"


def test_a_directory_is_verified_file_by_file(log):
    path = log.path("two")
    path.write_bytes(path.read_bytes().replace(b'"op_id":"1"', b'"op_id":"7"'))
    lines = verified(str(log.directory), status=1).splitlines()
    assert lines[0].startswith("one.audit.jsonl: 3 entries as written")
    assert lines[1:] == ["two.audit.jsonl: NOT as it was written", "  line 2: its content was changed"]


def test_json_names_the_first_bad_line(log):
    path = log.path("one")
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:2]))
    (known,) = json.loads(verified(str(path), "--json", status=1))
    assert (known["ok"], known["entries"], known["bad_line"]) == (False, 2, 3)
    assert "its end was cut off" in known["problems"][0]


def test_a_hash_that_was_kept_elsewhere_must_be_there(log):
    assert "3 entries as written" in verified(str(log.path("one")), "--head", log.head("one"))
    assert "no entry has the hash" in verified(str(log.path("one")), "--head", log.head("two"), status=1)


@pytest.mark.parametrize("words", [["--head", "abc"], []])
def test_what_cannot_be_verified_is_one_sentence(log, words):
    path = log.path("one") if words else log.directory / "none"
    assert verified(str(path), *words, status=2).startswith("Error: ")


def test_a_directory_without_a_log_is_no_success(tmp_path):
    assert verified(str(tmp_path), status=1).startswith("There is no audit log here, so nothing was verified")
    assert json.loads(verified(str(tmp_path), "--json", status=1)) == []


def test_the_status_tells_what_was_found_when_nobody_reads_the_rest(log):
    command = [sys.executable, "-m", "ravi_otel", "audit", "verify", str(log.directory)]
    with warm_starts.start(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        child.stdout.close()
        assert (child.stderr.read(), child.wait()) == (b"", 0)


def shown(*words, status=0):
    result = CliRunner().invoke(commands, ["audit", "show", *words])
    assert result.exit_code == status, result.output
    return result.stdout


@pytest.fixture
def decided(log):
    log.note("approved", run_id="one", agent_name="a", tool="t", op_id="9", arguments={"x": 9}, who="ana", approved=False)
    facts = {"run_id": "one", "agent_name": None, "scope": "run", "scope_name": "r", "login": "web"}
    log.note_limit("cost@a\x1b[2J", "cost", 0.5, 2.0, **facts, who="ben")
    return log


def test_what_is_written_is_shown_the_newest_first_and_each_log_is_verified(decided):
    first, second, *rest = shown(str(decided.directory)).splitlines()
    assert first.endswith("one  limit set  cost@a of run r: $0.50 before, $2.00 now  by ben")
    assert "  one  rejected  t  " in second
    assert second.endswith("  by ana")
    assert len(rest) == 6
    path = decided.path("two")
    path.write_bytes(path.read_bytes().replace(b'"op_id":"1"', b'"op_id":"7"'))
    assert "changed" in shown(str(decided.directory), status=1)


def test_what_is_shown_is_narrowed_down_and_cut_and_given_as_json(decided):
    (entry,) = json.loads(shown(str(decided.directory), "--what", "limit set", "--run", "one", "--person", "ben", "--json"))
    assert (entry["who"], entry["person"], entry["says"]) == ("ben", True, "cost@a of run r: $0.50 before, $2.00 now")
    assert len(shown(str(decided.path("two")), "--tool", "t", "-n", "2").splitlines()) == 2
    assert shown(str(decided.directory), "--text", "nothing of this") == ""


def test_a_call_that_was_not_run_is_not_said_to_be_executed(tmp_path):
    open_log = AuditLog(tmp_path / "open", content=True)
    for status, reason in (("ok", None), ("refused", "supervisor_block:rejected"), ("error", None)):
        facts = {"run_id": "one", "agent_name": "a", "tool": "t", "op_id": status, "arguments": {"x": 1}}
        open_log.note("executed", **facts, status=status, stop_reason=reason)
    failed, refused, ran = json.loads(shown(str(open_log.directory), "--json"))
    assert [each["what"] for each in (ran, refused, failed)] == ["executed", "not run", "failed"]
    assert (ran["says"], refused["says"]) == ("x=1", "supervisor_block:rejected; x=1")


@pytest.mark.parametrize(
    ("executed_from", "said"),
    [("original", "as asked"), ("supervisor_revised", "as the supervisor put it right"), ("human_revised", "as a person edited it")],
)
def test_whose_arguments_were_executed_is_said_in_words(tmp_path, executed_from, said):
    log = AuditLog(tmp_path / "audit")
    log.note("effective", run_id="one", agent_name="a", tool="t", op_id="1", arguments={"x": 1}, executed_from=executed_from)
    told = shown(str(log.directory))
    assert said in told
    assert "executed_from" not in told
