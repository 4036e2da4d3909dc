"""Forking while threads and an event loop count (reliability 18): no hang, nothing lost, nothing doubled, nothing said.

RAVI_LONG is how many forks: 1000 is what was promised.
"""

import json
import os

import pytest
from stores import play

FORKS = int(os.environ.get("RAVI_LONG", "6"))


@pytest.mark.timeout(120 + FORKS)
def test_forks_under_load_lose_nothing_and_count_nothing_twice(store, tmp_path):
    done = play(store, "forks", store.url, FORKS, cwd=tmp_path, timeout_s=90 + FORKS)
    assert (done.status, done.err) == (0, "")
    told = json.loads(done.out)
    assert told["statuses"] == [0]
    assert told["sessions"] > 0
    assert told["tools"] > 0
    if store.shared:
        assert store.counted("tool_calls=1000000000") == (told["tools"] + told["sessions"] + FORKS, 0)
        assert store.counted("session.charge.rows=1000000", session_id="s") == (told["sessions"] + FORKS, 0)
    else:  # each child began at zero
        assert told["used"] == told["tools"] + told["sessions"]


def test_no_lock_that_another_thread_holds_at_a_fork_stops_the_child(store, tmp_path):
    done = play(store, "locked", store.url, cwd=tmp_path)
    assert (done.status, done.out, done.err) == (0, "", "")
    if store.shared:
        assert store.counted("tool_calls=1000000000") == (2, 0)
