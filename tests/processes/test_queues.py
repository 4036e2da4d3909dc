"""A queue's workers, forked by Celery: one budget for all of them over a shared ledger."""

import collections
import contextlib
import os
import signal
import sys

import pytest
from redis_servers import until
from stores import MEMORY, REDIS, SQLITE, finish, start

from ravi_otel.testing import OtlpReceiver

LONG = os.environ.get("RAVI_LONG")
LIMIT, TASKS = 5, 8
QUIET = ["--without-gossip", "--without-mingle", "--without-heartbeat", "--loglevel", "WARNING"]


@pytest.fixture
def backend():
    with OtlpReceiver() as receiver:
        yield receiver


@pytest.mark.parametrize("kind", [MEMORY, SQLITE, REDIS] if LONG else [REDIS])
def test_the_workers_of_a_queue_have_one_budget_over_a_shared_ledger(new_store, tmp_path, backend, kind):
    store = new_store(kind)
    for folder in ("queue", "control"):
        (tmp_path / folder).mkdir()
    command = [sys.executable, "-m", "celery", "-A", "queue_of_tasks", "worker", "-P", "prefork", "-c", "2", *QUIET]
    told = {"OTEL_EXPORTER_OTLP_ENDPOINT": backend.url, "OTEL_BSP_SCHEDULE_DELAY": "60000"}
    child = start(store, *command, cwd=tmp_path, fresh=True, TASKS=str(tmp_path), **told)
    written = tmp_path / "done"
    try:
        until(lambda: written.exists() and written.read_text().count("\n") == TASKS, "the tasks are not done", 60)
        if LONG:  # a worker takes seconds for its end
            child.send_signal(signal.SIGTERM)
    finally:
        with contextlib.suppress(OSError):
            if not LONG:
                os.killpg(child.pid, signal.SIGKILL)
        done = finish(child)
    if LONG:
        assert done.status == 0, done.err
        assert [span.name for span in backend.spans] == ["execute_tool work"] * TASKS
    assert "Traceback" not in done.err
    answers = collections.defaultdict(collections.Counter)
    for line in written.read_text().splitlines():
        pid, said = line.split()
        answers[pid][said] += 1
    assert str(child.pid) not in answers
    if store.shared:
        total = sum(answers.values(), collections.Counter())
        assert (total["did"], total["refused"]) == (LIMIT, TASKS - LIMIT)
        assert (done.err.count('"event": "limit_nearing"'), done.err.count('"event": "limit_exceeded"')) == (1, 1)
        assert store.counted(f"tool_calls={LIMIT}") == (LIMIT, 0)
    else:
        for said in answers.values():
            assert said["did"] == min(LIMIT, said.total())
