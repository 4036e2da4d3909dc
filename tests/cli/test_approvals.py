"""Answer requests from the command line."""

from __future__ import annotations

import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import warm_starts
from approval_desk import pending, requested
from click.testing import CliRunner

from ravi_otel._cli.entry import commands
from ravi_otel.supervisor import ApprovalAnswer, ApprovalQueue
from ravi_otel.supervisor.approval._queue import QueueFile, current_login, seal_of
from ravi_otel.supervisor.approval._redis_store import RedisStore

ANNA = ["--as", "anna"]


@pytest.fixture
def path(tmp_path, monkeypatch):
    path = tmp_path / "approvals.db"
    monkeypatch.setenv("RAVI_APPROVALS", str(path))
    monkeypatch.setenv("COLUMNS", "160")
    return path


@pytest.fixture
def put(path):
    def enter(arguments=None, **changes):
        request = replace(requested(arguments), **{"expires_at": None, **changes})
        QueueFile(path).enter(request, seal_of(request))
        return request

    return enter


def done(*words, status=0):
    result = CliRunner().invoke(commands, ["approvals", *words])
    assert result.exit_code == status, result.output
    return result.output


def stored(path, request):
    return QueueFile(path).find(request.id)


def test_what_waits_is_listed(put):
    put({"user_id": 42}, id="first-one", agent_name="desk")
    put({"user_id": 43}, id="second-one")
    lines = done("list").splitlines()
    assert [line.split()[0] for line in lines if "-o" in line] == ["first-on", "second-o"]
    assert '{"user_id":42}' in lines[2]
    assert "desk" in lines[2]


def test_an_empty_queue_says_so_and_makes_no_file(path):
    assert done("list") == "Nothing waits for an answer.\n"
    assert json.loads(done("list", "--json")) == []
    assert not path.exists()
    assert "there is no queue of approvals" in done("show", "x", status=2)
    assert not path.exists()


def test_answered_ones_are_listed_with_all(put):
    request = put()
    done("reject", request.id)
    assert done("list") == "Nothing waits for an answer.\n"
    assert "rejected" in done("list", "--all")


def test_a_request_is_shown_exactly_and_cleaned(put):
    request = put({"to": "p\u0430ypal\x1b[2J\u202e"}, tool="issue_refund", reason="why\x1b]0;x\x07", agent_name="de\u202esk")
    text = done("show", request.id)
    assert '    "to": "p\\u0430ypal\\u001b[2J\\u202e"' in text
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "It waits for an answer." in text


def test_json_holds_everything(put):
    request = put(risk_score=0.5)
    (known,) = json.loads(done("list", "--json"))
    assert known == json.loads(done("show", request.id, "--json"))
    assert (known["arguments"], known["state"], known["risk_score"]) == (request.arguments, "pending", 0.5)


def test_an_approval_records_who_and_why_and_the_login(put, path):
    request = put()
    assert done("approve", request.id, *ANNA, "--comment", "looks right").splitlines()[-1].startswith("approved request-")
    row = stored(path, request)
    assert (row.state, row.who, row.comment, row.login) == ("approved", "anna", "looks right", current_login())


def test_without_a_name_the_login_is_who(put, path):
    request = put()
    assert f"by {current_login()}: issue_refund" in done("reject", request.id)
    assert stored(path, request).login == current_login()


def test_the_beginning_of_an_id_is_enough_when_it_is_one_requests(put, path):
    one, _ = put({"a": 1}, id="abcd-1111"), put({"a": 2}, id="abcd-2222")
    assert "several requests" in done("approve", "abcd", status=2)
    assert "no request" in done("approve", "zzz", status=2)
    assert "no request" in done("approve", "", status=2)
    done("approve", "abcd-1")
    assert stored(path, one).state == "approved"


@pytest.mark.parametrize(
    ("words", "edited"),
    [
        (["--set", "amount_usd=500"], {"user_id": 42, "amount_usd": 500}),
        (["--set", "amount_usd=500", "--set", "reason=late"], {"user_id": 42, "amount_usd": 500, "reason": "late"}),
        (["--args", '{"user_id": 42, "amount_usd": 7.5}'], {"user_id": 42, "amount_usd": 7.5}),
    ],
)
def test_an_edit_approves_other_arguments_and_keeps_the_asked_ones(put, path, words, edited):
    request = put()
    assert "reviewed again before anything runs" in done("edit", request.id, *words)
    row = stored(path, request)
    assert (row.state, row.edited, row.request.arguments) == ("approved", edited, request.arguments)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--set", "amount_us=5"], "did you mean 'amount_usd'"),
        (["--set", "amount_usd=1200"], "Nothing was changed"),
        (["--set", "amount_usd=abc"], "was a number, and 'abc' is text"),
        (["--args", "[1]"], "must be a JSON object"),
        (["--args", '{"user_id": NaN}'], "no number of JSON"),
        (["--set", "user_id=1", "--args", "{}"], "two different things"),
        (["--set", "user_id=1", "--as", "\x1b[2J"], "has a control character"),
    ],
)
def test_an_edit_that_cannot_be_read_answers_nothing(put, path, words, why):
    request = put()
    assert why in done("edit", request.id, *words, status=2)
    assert stored(path, request).state == "pending"


@pytest.mark.parametrize(
    ("script", "status", "state"),
    [("s/1200/300/", 0, "approved"), ("s/x/x/", 2, "pending"), ("s/1200/true/", 2, "pending"), ("s/1200/[/", 2, "pending")],
)
def test_an_edit_without_words_opens_the_editor(put, path, monkeypatch, script, status, state):
    request = put()
    monkeypatch.setenv("EDITOR", f"sed -i {script}")
    done("edit", request.id, status=status)
    row = stored(path, request)
    assert row.state == state
    assert row.edited == ({"user_id": 42, "amount_usd": 300} if status == 0 else None)


def test_what_is_over_is_refused_in_one_sentence(put, path):
    request = put()
    done("approve", request.id, *ANNA)
    for words in (["approve", request.id], ["edit", request.id, "--set", "user_id=1"]):
        waits = " ".join(done(*words, status=1).split())
        assert "was approved by anna" in waits
        assert "only `ravi-otel approvals reject` takes it back" in waits
    assert QueueFile(path).enter(replace(request, id="use"), seal_of(request)).approved
    assert "was used by process" in done("approve", request.id, status=1)
    QueueFile(path).end(replace(request, id="use"), "ok")
    assert "the call ended with ok" in done("edit", request.id, "--set", "user_id=1", status=1)
    other = put({"a": 1})
    done("reject", other.id)
    assert f"was rejected by {current_login()}" in done("approve", other.id, status=1)
    late = put({"a": 2}, requested_at=0.0, expires_at=None)
    _expire(path, late)
    assert "expired at 1970-01-01 00:00:01 UTC, which counts as rejected" in done("approve", late.id, status=1)


def test_an_approval_that_was_not_used_is_taken_back(put, path):
    request = put()
    done("edit", request.id, "--set", "amount_usd=800", *ANNA)
    assert "Takes back the approval of anna" in done("reject", request.id, "--as", "boss", "--comment", "wrong customer")
    row = stored(path, request)
    assert (row.state, row.who, row.comment, row.edited) == ("rejected", "boss", "wrong customer", None)
    assert "was rejected by boss" in done("approve", request.id, status=1)
    assert not QueueFile(path).enter(replace(request, id="use"), seal_of(request)).approved


def test_a_used_one_is_shown_and_listed_alike_and_an_approved_one_with_its_end(put, path):
    used, waits = put({"a": 1}, id="used-one"), put({"a": 2}, id="wait-one", expires_at=4e9)
    for request in (used, waits):
        done("approve", request.id)
    QueueFile(path).enter(replace(used, id="use"), seal_of(used))
    QueueFile(path).end(replace(used, id="use"), "ok")
    assert done("show", used.id).splitlines()[0].split()[-1] == "ok"
    states = {line.split()[0]: line.split() for line in done("list", "--all").splitlines() if "-o" in line}
    assert states["used-one"][1] == "ok"
    assert (states["wait-one"][1], states["wait-one"][4][-1]) == ("approved", "d")


def _expire(path, request):
    at = QueueFile(path)
    with at._transaction() as connection:
        connection.execute("UPDATE requests SET expires_at = 1 WHERE id = ?", (request.id,))


def test_a_row_that_was_changed_is_shown_as_that_and_not_answered(put, path):
    request = put()
    with QueueFile(path)._transaction() as connection:
        connection.execute("UPDATE requests SET arguments = '{\"user_id\":1}'")
    assert "changed" in done("list")
    assert "somebody wrote to the queue" in done("show", request.id)
    assert "somebody wrote to the queue" in done("approve", request.id, status=1)


def test_who_approves_again_sees_what_became_of_it_before(put, path):
    request = put()
    done("approve", request.id)
    QueueFile(path).enter(replace(request, id="taker"), seal_of(request))
    again = replace(request, id="asked-again")
    QueueFile(path).enter(again, seal_of(again))
    assert "The same was asked before: request" in done("show", "asked-again")
    assert "did not say yet how it ended" in " ".join(done("show", "asked-again").split())


def test_old_ones_go_only_when_they_are_told_to(put, path):
    request, _ = put(), put({"a": 1})
    done("reject", request.id)
    assert done("prune", "--older-than", "1h") == "0 requests deleted.\n"
    with QueueFile(path)._transaction() as connection:
        connection.execute("UPDATE requests SET requested_at = 1, answered_at = 1, taken_at = NULL")
    assert done("prune", "--older-than", "1h", "--dry-run") == "1 request would be deleted.\n"
    assert done("prune", "--older-than", "1h") == "1 request deleted.\n"
    assert len(json.loads(done("list", "--all", "--json"))) == 1
    assert "Missing option '--older-than'" in done("prune", status=2)


def test_a_program_that_waits_is_answered_from_another_terminal(path):
    request = replace(requested(), expires_at=None)
    with ThreadPoolExecutor(1) as thread:
        asked = thread.submit(ApprovalQueue().ask, request)
        pending(path)
        words = [sys.executable, "-m", "ravi_otel", "approvals", "approve", request.id, "--comment", "ok"]
        other = warm_starts.run(words, capture_output=True, text=True, check=False, env=os.environ, timeout=60)
        assert other.returncode == 0, other.stderr
        assert asked.result(30) == ApprovalAnswer(approved=True, comment="ok", who=current_login())


def test_a_file_that_was_named_with_queue_is_told_to_be_named_otherwise(tmp_path):
    other = tmp_path / "notes.txt"
    other.write_text("no database")
    other.chmod(0o600)
    assert "name the queue's file with --queue" in " ".join(done("list", "--queue", str(other), status=1).split())


def test_another_file_is_named_with_queue(tmp_path, put, path):
    request = put()
    other = tmp_path / "moved.db"
    path.rename(other)
    assert request.id[:8] in done("list", "--queue", str(other))


def test_a_name_that_somebody_gives_themselves_makes_nobody_an_approver(put, path):
    request = put(approvers=("anna",))
    assert "approvers anna" in done("show", request.id)
    for words in (["approve", request.id, "--yes", *ANNA], ["reject", request.id, *ANNA]):
        assert f"{current_login()} may not decide about issue_refund: anna may." in done(*words, status=1)
    assert stored(path, request).state == "pending"
    mine = put({"user_id": 43}, approvers=(current_login(),), user_id=current_login(), requester_may_approve=False)
    assert "requested it, and may not approve it" in done("approve", mine.id, "--yes", *ANNA, status=1)
    done("reject", mine.id)
    assert stored(path, mine).state == "rejected"


def test_requests_of_other_machines_are_listed_and_answered_over_a_redis(redis_server, monkeypatch, tmp_path):
    url = redis_server.url
    request = replace(requested(), expires_at=None)
    RedisStore(url).enter(request, seal_of(request))
    assert request.id[:8] in done("list", "--queue", url)
    monkeypatch.setenv("RAVI_APPROVALS", url)
    assert "approved" in done("approve", request.id, "--yes", *ANNA)
    assert RedisStore(url).find(request.id).who == "anna"
    assert done("list") == "Nothing waits for an answer.\n"
    assert "cannot be used" in done("list", "--queue", "redis://127.0.0.1:1/0", status=1)
