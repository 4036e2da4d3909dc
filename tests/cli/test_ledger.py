"""What an operator sees of shared budgets, and what becomes of setting and closing them."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path

import pytest
import redis
from click.testing import CliRunner

from ravi_otel._cli.entry import commands
from ravi_otel._enforcement import errors_text
from ravi_otel._enforcement.ledger.account import Account
from ravi_otel._enforcement.ledger.choosing import open_ledger
from ravi_otel._enforcement.ledger.contract import new_op_id
from ravi_otel._enforcement.ledger.judge import Denied, Grant, Line, Reservation
from ravi_otel._enforcement.ledger.operators import named
from ravi_otel._flow import run_sync
from ravi_otel.errors import BudgetExhaustedError
from ravi_otel.policy import parse_limit
from ravi_otel.policy._limits import ScopeKind
from ravi_otel.policy._runs import ScopeFacts
from ravi_otel.supervisor import AuditLog
from ravi_otel.supervisor._audit import verify
from ravi_otel.supervisor.approval._queue import current_login

ACME = ScopeFacts("t", ScopeKind.TENANT, name="acme", tenant_id="acme")
CHAT = ScopeFacts("s", ScopeKind.SESSION, name="chat-7", session_id="chat-7", tenant_id="acme")
OTHER = ScopeFacts("s", ScopeKind.SESSION, session_id="chat-7", tenant_id="globex")


def account(spec, facts=ACME, **more):
    return Account(parse_limit(spec), facts, origin=spec, **more)


class Program:
    """Be a program that counts in a ledger."""

    def __init__(self, ledger):
        self.ledger = ledger

    def take(self, one, want):
        op = new_op_id()
        return op, run_sync(self.ledger.reserve(Reservation(op, [Line(one, want, want)])))

    def spend(self, one, amount):
        op, answer = self.take(one, amount)
        run_sync(self.ledger.settle(op, {one.kind: amount}))
        return answer


@pytest.fixture(params=["sqlite", "redis"])
def url(request, tmp_path):
    if request.param == "sqlite":
        return f"sqlite:{tmp_path / 'ledger.db'}"
    return f"{request.getfixturevalue('redis_process').url}&namespace={uuid.uuid4().hex}"


in_a_file = pytest.mark.parametrize("url", ["sqlite"], indirect=True)


@pytest.fixture
def program(url):
    ledger = open_ledger(url)
    yield Program(ledger)
    ledger.close()


@pytest.fixture
def operator(url):
    def act(*arguments, answer=None, columns="160", **environment):
        runner = CliRunner(env={"COLUMNS": columns, "RAVI_LEDGER": url, "NO_COLOR": "1"} | environment)
        return runner.invoke(commands, ["ledger", *arguments], input=answer)

    return act


def counters(operator, *arguments):
    done = operator("show", "--json", *arguments)
    return json.loads(done.stdout)["counters"]


def test_show_tells_of_each_counter_its_limit_what_is_used_and_what_is_held(program, operator):
    tokens = account("tokens=1k", CHAT)
    program.spend(account("cost=5usd"), 2 * 10**9)
    program.spend(tokens, 300)
    program.take(tokens, 200)
    done = operator("show")
    assert done.exit_code == 0, done.output
    rows = [line.split() for line in done.stdout.splitlines()]
    assert any({"tenant:acme", "cost", "$5.00", "$2.00"} <= set(row) for row in rows)
    assert any({"session:chat-7", "acme", "tokens", "1000", "300", "200", "500"} <= set(row) for row in rows)


def test_show_as_json_has_amounts_as_programs_state_them(program, operator):
    program.spend(account("cost=5usd"), 2 * 10**9)
    done = operator("show", "--json")
    told = json.loads(done.stdout)
    (one,) = told["counters"]
    assert (one["scope"], one["name"], one["tenant"], one["counts"]) == ("tenant", "acme", "acme", "cost")
    assert (one["limit"], one["used"], one["held"], one["denied"], one["ratio"]) == (5.0, 2.0, 0.0, 0, 0.4)
    assert (told["waiting"], told["left_out"]) == (0, False)


def test_show_tells_when_each_counter_was_last_used(program, operator):
    before = int(time.time())
    program.spend(account("tokens=1k"), 1)
    (one,) = counters(operator)
    assert before <= one["used_s"] <= time.time()
    assert "?" not in operator("show").stdout


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ((), 3),
        (("tenant:acme",), 1),
        (("session:chat-7",), 2),
        (("session:chat",), 2),
        (("session:chat-7", "--tenant", "globex"), 1),
        (("--tenant", "acme"), 2),
        (("session:chat-7", "tenant:acme"), 3),
        (("-n", "1"), 1),
    ],
)
def test_show_finds_scopes_by_their_ids_and_tenants(program, operator, wanted, found):
    for facts in (ACME, CHAT, OTHER):
        program.spend(account("tokens=1k", facts), 1)
    assert len(counters(operator, *wanted)) == found


def test_a_counter_is_found_by_the_beginning_of_its_id(program, operator):
    program.spend(account("tokens=1k"), 1)
    (one,) = counters(operator)
    assert counters(operator, one["id"][:6]) == [one]


@in_a_file
def test_looking_changes_nothing_and_needs_no_right_to_write(program, operator, tmp_path):
    program.spend(account("tokens=1k"), 1)
    program.ledger.close()
    before = (tmp_path / "ledger.db").read_bytes()
    assert len(counters(operator)) == 1
    assert (tmp_path / "ledger.db").read_bytes() == before


LOOK = """
import os, sys
from click.testing import CliRunner
from ravi_otel._cli.entry import commands

def show(path):
    return CliRunner(env={"COLUMNS": "160"}).invoke(commands, ["ledger", "show", "--ledger", f"sqlite:{path}"])

assert show(sys.argv[1]).exit_code == 0  # what it imports is imported by now
if os.geteuid() == 0:
    os.seteuid(65534)  # root may write anything
if not os.path.exists(sys.argv[2]):
    sys.exit(77)
done = show(sys.argv[2])
print(done.output)
sys.exit(done.exit_code)
"""


@pytest.fixture
def looked_at_without_rights(tmp_path):
    """Show a ledger that was copied to where nothing can be written."""

    def look(*files):
        with tempfile.TemporaryDirectory() as place:
            for file in files:
                shutil.copy(file, place)
                Path(place, file.name).chmod(0o444)
            Path(place).chmod(0o555)
            command = [sys.executable, "-c", LOOK, str(files[0]), f"{place}/{files[0].name}"]
            done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
            Path(place).chmod(0o755)
        if done.returncode == 77:
            pytest.skip("the place for temporary files is root's alone, so nobody else can look into a file there")
        return done

    return look


@in_a_file
def test_a_file_is_shown_where_nothing_can_be_written(program, operator, tmp_path, looked_at_without_rights):
    program.spend(account("tokens=1k"), 1)
    program.ledger.close()
    done = looked_at_without_rights(tmp_path / "ledger.db")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "tenant:acme" in done.stdout


@in_a_file
def test_a_file_is_not_shown_without_what_waits_in_its_log(program, operator, tmp_path, looked_at_without_rights):
    program.spend(account("tokens=1k"), 1)
    log = tmp_path / "ledger.db-wal"
    assert log.stat().st_size
    done = looked_at_without_rights(tmp_path / "ledger.db", log)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "cannot be used, because of an error of SQLite" in done.stdout


@in_a_file
@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (("show", "nothing"), 2, "names no scope and no counter"),
        (("show", "tenat:acme"), 2, "did you mean tenant:?"),
        (("show", "run:elsewhere"), 1, "No counter of run:elsewhere is in sqlite:"),
        (("show", "tenant:acem"), 1, "did you mean tenant:acme?"),
        (("show", "--tenant", "acem"), 1, "did you mean acme?"),
        (("show", "tenant:acme", "tenant:acem"), 0, "No counter of tenant:acem is in sqlite:"),
        (("show", "sevice:default"), 2, "did you mean service:?"),
        (("set-limit", "run:elsewhere", "tokens=5"), 1, "No counter of run:elsewhere is in sqlite:"),
        (("set-limit", "tenant:ac", "tokens=5"), 1, "did you mean tenant:acme?"),
        (("set-limit", "tenant:acme", "cost=5"), 2, "is counted nowhere in 'tenant:acme': there is tokens"),
        (("set-limit", "tenant:acme", "tokns=5"), 2, "tokns"),
        (("set-limit", "tenant:acme", "session.tokens=5"), 2, "'session.tokens=5' names another scope than 'tenant:acme'"),
        (("set-limit", "tenant:acme", "run.tokens=5"), 2, "write the limit without one"),
        (("set-limit", "tenant:acme", "tokens=5:warn=0.2"), 2, "'tokens=5:warn=0.2' states warn, which only the program"),
        (("set-limit", "tenant:acme", "tokens=5:store=open:on=stop"), 2, "states store, on, which"),
        (("set-limit", "tenant:acme", "tenant.tokens=5"), 0, "1000 before, 5 now"),
        (("top", "--once", "--every", "nan"), 2, "--every nan is no number of seconds"),
        (("close", "run:elsewhere", "--yes"), 1, "No counter of run:elsewhere is in sqlite:"),
        (("close", "tenant:acme", "--json"), 2, "give --yes"),
        (("show", "--ledger", "memory:"), 2, "--ledger memory: its counters are in the process that counts"),
        (("show", "--ledger", "sqlite:/nowhere.db"), 2, "there is no such file"),
        (("show", "--ledger", "mongo://u:secret@h"), 2, "names no ledger that is known"),
        (("top",), 2, "needs a terminal"),
    ],
)
def test_what_cannot_be_done_is_one_sentence_and_a_status(program, operator, arguments, status, said):
    program.spend(account("tokens=1k"), 1)
    done = operator(*arguments)
    assert done.exit_code == status, done.output
    assert said in done.output
    assert "secret" not in done.output


@in_a_file
def test_without_a_ledger_the_way_out_is_said(operator):
    done = operator("show", RAVI_LEDGER="")
    assert done.exit_code == 2
    assert "--ledger sqlite:PATH" in done.stderr


def test_a_limit_that_is_set_holds_at_the_next_call_and_a_program_that_states_its_own_again_keeps_it(program, operator):
    tokens = account("tokens=100")
    program.spend(tokens, 90)
    assert program.take(tokens, 50)[1].reason == "too_large"
    done = operator("set-limit", "tenant:acme", "tokens=200")
    assert done.stdout == "tenant:acme tokens: 100 before, 200 now; 90 used.\n"
    assert isinstance(program.spend(tokens, 50), Grant)
    assert isinstance(program.spend(account("tokens=100"), 50), Grant)
    (one,) = counters(operator)
    assert (one["limit"], one["used"], one["near"]) == (200, 190, True)


def test_what_is_set_is_written_into_the_audit_log_that_is_named(program, operator, tmp_path):
    program.spend(account("tokens=100"), 9)
    operator("set-limit", "tenant:acme", "tokens=200", "--audit", str(tmp_path / "audit"))
    log = AuditLog(tmp_path / "audit").path(None)
    (entry,) = [json.loads(line) for line in log.read_bytes().splitlines()]
    assert [entry[name] for name in ("limit", "before", "now", "scope", "scope_name", "who")] == [
        "tokens",
        100,
        200,
        "tenant",
        "acme",
        current_login(),
    ]
    assert verify(log).ok


def test_a_limit_that_is_lowered_refuses_at_the_next_call(program, operator):
    tokens = account("tokens=100")
    program.spend(tokens, 50)
    assert json.loads(operator("set-limit", "tenant:acme", "tokens=10", "--json").stdout)["counters"][0]["limit"] == 10
    assert isinstance(program.spend(tokens, 1), Denied)


def test_one_of_several_limits_of_a_scope_is_named_by_its_words_or_its_id(program, operator):
    program.spend(account("tokens=100:per=90m"), 1)
    program.spend(account("tokens=100:per=120m"), 1)
    done = operator("set-limit", "tenant:acme", "tokens=200")
    assert done.exit_code == 2
    assert "2 counters" in done.stderr
    ids = {one["counts"]: one["id"] for one in counters(operator)}
    for label, name in ids.items():
        assert any(name in line and label in line for line in done.stderr.splitlines())
    assert operator("set-limit", ids["tokens:per=90m"], "tokens=200").exit_code == 0
    assert operator("set-limit", "tenant:acme", "tokens=300:per=120m").exit_code == 0
    assert sorted(one["limit"] for one in counters(operator)) == [200, 300]


def test_a_limit_without_a_window_is_named_by_its_words_beside_one_that_has_one(program, operator):
    program.spend(account("tokens=100"), 1)
    program.spend(account("tokens=100:per=day", part=("2026-11-22",)), 1)
    assert operator("set-limit", "tenant:acme", "tokens=200").exit_code == 0
    assert {one["counts"]: one["limit"] for one in counters(operator)} == {"tokens": 200, "tokens:per=day": 100}


def test_a_limit_by_user_is_set_for_all_users_who_are_there(program, operator):
    for user in ("ann", "bob"):
        program.spend(account("tokens=2:per=day:by=user", part=("2026-11-22", user)), 1)
    done = operator("set-limit", "tenant:acme", "tokens=5:per=day:by=user")
    assert done.exit_code == 0, done.output
    assert done.stdout.count("2 before, 5 now") == 2
    assert "users that come later begin with what programs state" in done.stderr
    assert [one["limit"] for one in counters(operator)] == [5, 5]
    assert operator("set-limit", "tenant:acme", "tokens=9").exit_code == 2  # it is not said of whom


def test_limits_of_two_time_zones_are_told_apart(program, operator):
    for zone in ("UTC", "Europe/Berlin"):
        program.spend(account(f"tokens=100:per=day:tz={zone}", part=("2026-11-22",)), 1)
    assert {one["counts"]: (one["per"], one["tz"], one["by"]) for one in counters(operator)} == {
        "tokens:per=day": ("day", "UTC", None),
        "tokens:per=day:tz=Europe/Berlin": ("day", "Europe/Berlin", None),
    }
    assert operator("set-limit", "tenant:acme", "tokens=5:per=day").exit_code == 2
    assert operator("set-limit", "tenant:acme", "tokens=5:per=day:tz=Europe/Berlin").exit_code == 0


@pytest.mark.parametrize("scope", ["tenant:1", "tenant:", "tenant"])
def test_what_is_closed_or_set_is_named_in_full(program, operator, scope):
    program.spend(account("tokens=100", ScopeFacts("t", ScopeKind.TENANT, name="12", tenant_id="12")), 1)
    (one,) = counters(operator)
    for name in (scope, one["id"][:6]):
        assert operator("close", name, "--yes").exit_code
        assert operator("set-limit", name, "tokens=1000").exit_code
    assert counters(operator) == [one]
    assert operator("close", one["id"], "--yes").exit_code == 0


@pytest.mark.parametrize("name", ["service:default", "process:default", "process:service:default", "process"])
def test_a_service_is_called_as_errors_call_it(program, operator, name):
    service = ScopeFacts("service:default", ScopeKind.PROCESS, name="default")
    program.spend(account("tokens=100", service), 1)
    program.spend(account("tokens=100"), 1)
    assert [one["scope"] for one in counters(operator, name)] == ["process"]
    assert operator("set-limit", name, "tokens=200").exit_code == 0


def test_in_a_narrow_terminal_the_id_is_what_stays(program, operator):
    program.spend(account("tool_calls=9:per=day:by=user", part=("2026-11-22", "somebody@a-long-name.example")), 1)
    (one,) = counters(operator)
    assert one["id"] in operator("show", columns="80").stdout


def test_a_closed_scope_refuses_in_every_process_until_a_limit_is_set_again(program, operator):
    tokens, chats = account("tokens=100"), account("requests=9", CHAT)
    program.spend(tokens, 10)
    program.spend(chats, 1)
    done = operator("close", "tenant:acme", "--yes")
    assert (done.exit_code, done.stdout) == (0, "tenant:acme is closed: 1 counter.\n")
    denied = program.take(tokens, 1)[1]
    assert (denied.reason, [*denied.crossings]) == ("draining", [])
    assert str(errors_text.RefusalErrors(denied).refused()).startswith("An operator has closed the limit of tokens in tenant 'acme'")
    assert isinstance(program.spend(chats, 1), Grant)
    operator("set-limit", "tenant:acme", "tokens=50")
    assert isinstance(program.spend(tokens, 1), Grant)


def test_what_was_lost_is_refused_until_the_loss_is_accepted(program, operator, url):
    tokens, chats = account("tokens=100"), account("requests=9", CHAT)
    program.spend(tokens, 60)
    program.spend(chats, 1)
    forget(url)
    for one in (tokens, chats):
        with pytest.raises(
            BudgetExhaustedError, match="have a session's, a tenant's or the process's own limit counted anew by `ravi-otel"
        ):
            program.take(one, 1)
    asked = operator("accept-loss", answer="n\n")
    assert (asked.exit_code, "Count anew from nothing whatever" in asked.output) == (1, True)
    with pytest.raises(BudgetExhaustedError):
        program.take(tokens, 1)
    done = operator("accept-loss", "--yes")
    assert (done.exit_code, "has forgotten until now is counted anew from nothing." in done.stdout) == (0, True)
    assert isinstance(program.spend(tokens, 60), Grant)
    assert isinstance(program.spend(chats, 1), Grant)
    assert {one["limit"]: one["used"] for one in counters(operator)} == {100: 60, 9: 1}
    assert operator("accept-loss", "--yes", "--tenant", "acme").exit_code == 2


@pytest.mark.parametrize("command", [("show",), ("accept-loss", "--yes"), ("close", "tenant:acme", "--yes")], ids=lambda words: words[0])
def test_a_server_that_nobody_answers_at_is_one_sentence(command):
    done = CliRunner().invoke(commands, ["ledger", *command, "--ledger", "redis://127.0.0.1:1"])
    assert (done.exit_code, done.output.count("\n")) == (1, 1)
    assert done.output.startswith("Error: The shared ledger redis://127.0.0.1:1 cannot be used")


def test_what_accept_loss_was_done_to_is_said_with_its_namespace_and_where_it_was_not_there(redis_server, tmp_path):
    elsewhere = f"{redis_server.url}{'&' if '?' in redis_server.url else '?'}namespace=blue"
    done = CliRunner().invoke(commands, ["ledger", "accept-loss", "--yes", "--ledger", elsewhere])
    assert (done.exit_code, "namespace 'blue' has forgotten" in done.stdout) == (0, True)
    done = CliRunner().invoke(commands, ["ledger", "accept-loss", "--yes", "--ledger", f"sqlite:{tmp_path}/misspelt.db"])
    assert (done.exit_code, f"There is no file {tmp_path}/misspelt.db yet" in done.stderr) == (0, True)


def forget(url):
    """Have a ledger forget all that was counted in it."""
    if url.startswith("sqlite:"):
        with contextlib.closing(sqlite3.connect(url.removeprefix("sqlite:"), isolation_level=None)) as connection:
            connection.execute("DELETE FROM accounts")
            connection.execute("DELETE FROM names")
    else:
        with contextlib.closing(redis.Redis.from_url(url.partition("?")[0])) as client:
            client.delete(*client.keys(f"*{url.rpartition('=')[2]}*"))


@in_a_file
def test_closing_says_what_opens_again(program, operator):
    for spec, part in (
        ("tokens=100", ()),
        ("requests=9:by=user", ("", "ann")),
        ("turns=9:per=month:tz=Europe/Berlin", ("2026-11",)),
        ("tool_calls=9:per=day:by=user", ("2026-11-22", "ann")),
    ):
        program.spend(account(spec, part=part), 1)
    done = operator("close", "tenant:acme", "--yes")
    assert done.stdout == "tenant:acme is closed: 4 counters.\n"
    assert "Closed is what is there now." in done.stderr
    assert "requests:by=user is open for each user that was not there yet." in done.stderr
    assert re.search(r"turns:per=month:tz=Europe/Berlin is open from \d{4}-\d\d-\d\d 2[23]:00 UTC on\.", done.stderr)
    assert re.search(
        r"tool_calls:per=day:by=user is open for each user that was not there yet and from [-\d]{10} 00:00 UTC on", done.stderr
    )
    assert "tokens is open" not in done.stderr


@pytest.mark.parametrize(("answer", "status", "limit"), [("n\n", 1, 100), ("y\n", 0, 0), ("", 1, 100)])
def test_closing_asks_first(program, operator, answer, status, limit):
    program.spend(account("tokens=100"), 10)
    done = operator("close", "tenant:acme", answer=answer)
    assert done.exit_code == status
    assert "Close tenant:acme, 1 counter?" in done.stdout
    assert counters(operator)[0]["limit"] == limit


def test_a_name_that_several_tenants_have_is_not_closed_for_all_of_them(program, operator):
    for facts in (CHAT, OTHER):
        program.spend(account("tokens=100", facts), 10)
    done = operator("close", "session:chat-7", "--yes")
    assert done.exit_code == 2
    assert "session:chat-7 of acme, session:chat-7 of globex" in done.stderr
    assert operator("close", "session:chat-7", "--tenant", "globex", "--yes").exit_code == 0
    assert [one["limit"] for one in counters(operator, "--tenant", "acme")] == [100]


def test_what_is_held_when_a_scope_is_closed_is_settled_as_ever(program, operator):
    tokens = account("tokens=100")
    op, _ = program.take(tokens, 40)
    operator("close", "tenant:acme", "--yes")
    run_sync(program.ledger.settle(op, {"tokens": 30}))
    (one,) = counters(operator)
    assert (one["used"], one["held"], one["limit"]) == (30, 0, 0)


def test_top_tells_how_fast_a_counter_fills(program, operator):
    program.spend(account("tokens=100"), 10)
    done = operator("top", "--once", "--every", "0.2", "--json")
    (one,) = json.loads(done.stdout)
    assert (one["used"], one["per_s"], one["left_s"]) == (10, 0.0, None)
    assert "used up in" in operator("top", "--once", "--every", "0.2").stdout


def test_names_from_outside_cannot_move_the_cursor(program, operator):
    evil = ScopeFacts("s", ScopeKind.SESSION, session_id="\x1b[2Jgone\n\u202e", tenant_id="\x1b]0;x\x07")
    program.spend(account("tokens=100", evil), 10)
    for arguments in (("show",), ("close", "session:\x1b[2Jgone"), ("top", "--once", "--every", "0.2")):
        done = operator(*arguments, answer="n\n")
        assert not {"\x1b", "\x07", "\u202e"} & set(done.output)
        assert "session:gone" in done.output


@in_a_file
@pytest.mark.parametrize(
    "key", ["", "[" * 5_000, "null", '["run"]', '["nothing", ["x"], "tokens"]', '["run", [], "tokens"]', '["run", [1], 5]', "x" * 9_000]
)
def test_a_key_that_is_none_is_shown_as_unknown(program, operator, url, key):
    program.spend(account("tokens=100"), 10)
    assert named(key) is None
    with sqlite3.connect(url.removeprefix("sqlite:")) as connection:
        connection.execute("UPDATE names SET key = ?", (key,))
    connection.close()
    (one,) = counters(operator)
    assert (one["scope"], one["counts"]) == (None, None)
    assert operator("show").exit_code == 0


@in_a_file
@pytest.mark.parametrize(
    ("column", "content"), [("used", b"\0"), ("used", -5), ("value", "many"), ("epoch", b"\0"), ("seen", "many"), ("held", "9" * 500)]
)
def test_what_no_ledger_writes_is_one_sentence(program, operator, url, column, content):
    program.spend(account("tokens=100"), 10)
    with sqlite3.connect(url.removeprefix("sqlite:")) as connection:
        connection.execute(f"UPDATE accounts SET {column} = ?", (content,))
    connection.close()
    done = operator("show")
    assert (done.exit_code, done.stderr.count("\n")) == (1, 1)
