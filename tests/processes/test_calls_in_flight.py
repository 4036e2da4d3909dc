"""A fork in the middle of a call: it is the parent's, whatever becomes of the child."""

import json
import os

import pytest
from stores import MEMORY, REDIS, SQLITE, play

USED = 11


@pytest.mark.parametrize("kind", [MEMORY, SQLITE, REDIS] if os.environ.get("RAVI_LONG") else [REDIS])
def test_a_call_under_way_stays_the_parents_whatever_a_child_does(new_store, tmp_path, kind):
    store = new_store(kind)
    done = play(store, "flight", store.url, cwd=tmp_path, OPENAI_API_KEY="any")
    assert (done.status, done.err) == (0, "")
    told = json.loads(done.out)
    used, held = told["in flight"]
    assert used == 0
    assert held > USED
    by_children = USED if store.shared else 0
    assert told["a child that does nothing"] == [0, [0, held]]
    assert told["a child that calls"] == [0, [by_children, held]]
    assert told["a child that takes it down"] == [0, [by_children, held]]
    assert told["over"] == [by_children + USED, 0]
    if store.shared:
        assert store.counted("tokens=1000") == (2 * USED, 0)
