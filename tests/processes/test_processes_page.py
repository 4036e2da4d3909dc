"""What docs/processes.md says is what is played."""

import os
import re
import sys
from pathlib import Path

import warm_starts
from test_pools import METHODS
from test_servers import SERVERS

from ravi_otel._enforcement.ledger.choosing import _OURS, _STORES

PAGE = (Path(__file__).parents[2] / "docs" / "processes.md").read_text(encoding="utf-8")
COMMANDS = {
    "gunicorn": "`gunicorn`",
    "gunicorn-preload": "`gunicorn --preload`",
    "gunicorn-gthread": "`gunicorn --worker-class gthread`",
    "gunicorn-gthread-preload": "`gunicorn --worker-class gthread --preload`",
    "gunicorn-gevent": "`gunicorn --worker-class gevent`",
    "gunicorn-gevent-preload": "`gunicorn --worker-class gevent --preload`",
    "uvicorn": "`uvicorn --workers`",
}


def rows(heading):
    """Give the rows of the table whose first heading is this."""
    table = PAGE.partition(f"| {heading} |")[2].partition("\n\n")[0]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table.splitlines()[2:]]


def test_every_way_to_start_processes_on_the_page_is_played_and_the_other_way_round():
    said = [row[0] for row in rows("started by")]
    assert list(COMMANDS) == list(SERVERS)
    pools = [f"`ProcessPoolExecutor`, `{method}`" for method in METHODS]
    assert said == [*COMMANDS.values(), "`celery worker --pool prefork`", *pools]
    for row in rows("started by"):
        who = "process" if "Pool" in row[0] else "worker"
        assert row[1:] == [f"each {who} has the whole limit", f"all {who}{'es' if who == 'process' else 's'} together"]


def test_every_scheme_and_option_is_on_the_page():
    assert [scheme for scheme in _STORES if f"{scheme}:" not in PAGE and "+" not in scheme] == []
    assert all(f"`{scheme}://" in PAGE for scheme in ("redis+sentinel", "redis+cluster"))
    options = {row[0].strip("`").partition("=")[0] for row in rows("option")}
    assert options == {*_OURS["redis"], *_OURS["sqlite"], "timeout_s"}


def test_the_program_on_the_page_spends_what_the_next_one_is_refused(tmp_path):
    (program,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("RAVI_", "OTEL_"))}
    first, second = (
        warm_starts.run([sys.executable, "-c", program], cwd=tmp_path, env=kept, capture_output=True, text=True, check=False, timeout=60)
        for _ in range(2)
    )
    assert (first.returncode, first.stdout) == (0, "A B C\n")
    (refusal,) = re.findall(r"`(3 of 3 tool calls used .*?)`", PAGE)
    assert second.returncode == 1
    assert second.stderr.splitlines()[-1].startswith(f"ravi_otel.errors.BudgetExhaustedError: {refusal}")
