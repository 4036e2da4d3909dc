"""What a program does to the descriptors and to the file of its ledger, on purpose or not."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from ravi_otel._enforcement.ledger.sqlite.ledger import SqliteLedger
from ravi_otel.errors import BudgetExhaustedError

PROGRAM = """
import os, sys
from ravi_otel._enforcement.ledger.sqlite.ledger import SqliteLedger
from ravi_otel.errors import BudgetExhaustedError

ledger = SqliteLedger(sys.argv[1])
ledger.prepare()
os.closerange(3, 300)
own = [open(f"{sys.argv[1]}.own{number}", "w+b", buffering=0) for number in range(12 * int(sys.argv[2]))]
for each in own:
    each.write(b"DATA" * 50)
for _ in range(3):
    try:
        ledger.prepare()
        print("went on")
    except BudgetExhaustedError as error:
        print(error.reason, error)
ledger.close()
for each in own:
    each.seek(0)
    assert each.read() == b"DATA" * 50
"""


def after(path: Path, own: int) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(PROGRAM), str(path), str(own)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("own", [0, 1])
def test_nothing_is_written_into_files_that_got_the_numbers_of_the_ledger(tmp_path, own):
    said = after(tmp_path / "ledger.db", own)
    assert said.count("store_failed") == 3, said
    assert "the program closed descriptors" in said
    assert all(file.read_bytes() == b"DATA" * 50 for file in tmp_path.glob("*.own*"))


def test_what_was_counted_before_the_descriptors_were_closed_is_still_there_for_others(tmp_path):
    after(tmp_path / "ledger.db", 1)
    SqliteLedger(tmp_path / "ledger.db", create=False).prepare()


def test_two_ledgers_on_one_file_do_not_disturb_each_other(tmp_path):
    one, other = SqliteLedger(tmp_path / "ledger.db"), SqliteLedger(tmp_path / "ledger.db")
    one.prepare()
    other.prepare()
    one.close()
    other.prepare()
    one.prepare()
    other.close()
    one.prepare()
    one.close()


@pytest.mark.parametrize("harm", ["missing", "empty"])
def test_who_did_not_make_the_ledger_refuses_one_that_is_gone_or_empty(tmp_path, harm):
    path = tmp_path / "ledger.db"
    if harm == "empty":
        path.touch()
    with pytest.raises(BudgetExhaustedError) as refused:
        SqliteLedger(path, create=False).prepare()
    assert refused.value.reason == "store_lost"
    assert path.exists() == (harm == "empty")


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only the superuser can become another user")
def test_a_process_that_became_another_user_is_told_what_to_do(tmp_path):
    path = tmp_path / "run" / "ledger.db"
    path.parent.mkdir(mode=0o700)
    ledger = SqliteLedger(path)
    ledger.prepare()
    os.seteuid(65534)
    try:
        with pytest.raises(BudgetExhaustedError, match="belongs to the user who started the run") as refused:
            ledger.prepare()
    finally:
        os.seteuid(0)
    assert refused.value.reason == "store_failed"
    ledger.prepare()
    ledger.close()


CONNECTIONS = """
import functools, os, sqlite3, sys, threading

class Told(sqlite3.Connection):
    open = 0

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.is_open = True
        Told.open += 1

    def close(self):
        super().close()
        Told.open -= self.is_open
        self.is_open = False

sqlite3.connect = functools.partial(sqlite3.connect, factory=Told)
import ravi_otel

@ravi_otel.tool
def work():
    pass

def ask():
    with ravi_otel.run("r", tenant_id="acme", limits=["tenant.tool_calls=1000"]):
        work()

ravi_otel.instrument(ledger=f"sqlite:{sys.argv[1]}")
ask()
thread = threading.Thread(target=ask)
thread.start()
thread.join()
print("in use", Told.open > 0, flush=True)
if not os.fork():
    Told.open = 0  # the parent's are closed there
    ask()
    ravi_otel.uninstrument()
    print("in a child", Told.open, flush=True)
    os._exit(0)
os.wait()
ravi_otel.uninstrument()
print("afterwards", Told.open)
ravi_otel.instrument(ledger=f"sqlite:{sys.argv[2]}")
try:
    ask()
except ravi_otel.BudgetError as error:
    print(error.reason)
ravi_otel.uninstrument()
print("of a file that is none", Told.open)
"""


def test_every_connection_is_closed_by_its_owner(tmp_path: Path) -> None:
    """On CPython 3.13 and later a program with -W error would fail of one that is not."""
    none = tmp_path / "none.db"
    none.write_text("this is no database, and long enough to be read as one\n" * 100)
    none.chmod(0o600)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", CONNECTIONS, str(tmp_path / "ledger.db"), str(none)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.stdout.splitlines() == ["in use True", "in a child 0", "afterwards 0", "store_failed", "of a file that is none 0"], (
        done.stderr
    )
