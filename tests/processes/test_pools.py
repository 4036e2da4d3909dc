"""Pools of processes, started in every way: what their work is charged to, and one budget for all of them over a shared ledger."""

import collections
import json
import os

import pytest
from stores import MEMORY, REDIS, SQLITE, play

from ravi_otel.testing import OtlpReceiver

LONG = os.environ.get("RAVI_LONG")
LIMIT, TIMES = 5, 8
METHODS = ("fork", "spawn", "forkserver")
SHORT = [("fork", MEMORY), ("spawn", SQLITE), ("forkserver", REDIS)]
PLAYED = [(method, kind) for method in METHODS for kind in (MEMORY, SQLITE, REDIS)] if LONG else SHORT


@pytest.mark.parametrize(("method", "kind"), PLAYED, ids=[f"{method}-over-{kind}" for method, kind in PLAYED])
def test_the_processes_of_a_pool_have_one_budget_over_a_shared_ledger(new_store, tmp_path, method, kind):
    store = new_store(kind)
    done = play(store, "pools", method, TIMES, cwd=tmp_path, fresh=True)
    assert (done.status, done.noise) == (0, [])
    own, *answers = json.loads(done.out)
    assert own[1] == "did"
    assert own[0] not in {pid for pid, _ in answers}
    if store.shared:  # the run's own limit of 1 is not theirs: they left it
        assert collections.Counter(said for _, said in answers) == {"did": LIMIT - 1, "refused": TIMES - LIMIT + 1}
        assert done.told == ["process limit_exceeded", "process limit_nearing", "run limit_nearing"]
        assert store.counted(f"tool_calls={LIMIT}") == (LIMIT, 0)
    else:
        for pid in {pid for pid, _ in answers}:
            said = collections.Counter(said for each, said in answers if each == pid)
            assert said["did"] == min(LIMIT, said.total())


@pytest.mark.parametrize("method", METHODS if LONG else ("fork",))
def test_a_worker_of_a_pool_sends_its_spans_before_it_ends(new_store, tmp_path, method):
    with OtlpReceiver() as backend:
        done = play(
            new_store(SQLITE),
            "pools",
            method,
            TIMES,
            cwd=tmp_path,
            fresh=True,
            OTEL_EXPORTER_OTLP_ENDPOINT=backend.url,
            OTEL_BSP_SCHEDULE_DELAY="60000",
        )
        assert (done.status, done.noise) == (0, [])
        assert [span.name for span in backend.spans if span.name != "invoke_workflow of the parent"] == ["execute_tool work"] * (TIMES + 1)
