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


@pytest.mark.parametrize("kind", ["sqlite", *(["redis"] if os.environ.get("RAVI_LONG") else [])])
def test_a_forked_child_takes_slices_of_its_own_and_what_its_parent_took_is_counted_once(new_store, kind, tmp_path):
    store = new_store(kind)
    whole = store.url
    store.url = f"{whole}{'&' if '?' in whole else '?'}slices=on"
    done = play(store, "sliced_forks", cwd=tmp_path)
    assert (done.status, done.err) == (0, "")
    told = json.loads(done.out)
    assert told["parent"] > 0
    assert told["began"] == [0, 0]
    assert min(told["had"]) > 0
    store.url = whole
    assert store.counted("tenant.charge.rows=1000000", tenant_id="acme") == (60 + 2 * 40 + 60, 0)
