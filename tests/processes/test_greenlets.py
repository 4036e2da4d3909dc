"""Greenlets of gevent are limited, and wait for each other, as threads and tasks do."""

import os
import sys

import pytest
from stores import MEMORY, PROGRAMS, REDIS, SQLITE, finish, start

from ravi_otel.testing import ScriptedLLM, Text

ORDERS = ["before", "after", "no threads"]
STRICT = [*((order, "tokens=2000:admission=strict") for order in ORDERS), ("after", "cost=0.01usd:admission=strict")]
COUNTED = [("before", SQLITE), ("after", REDIS), ("no threads", MEMORY)]
if os.environ.get("RAVI_LONG"):
    STRICT = [(order, f"{limit}:admission=strict") for order in ORDERS for limit in ("tokens=2000", "cost=0.01usd")]
    COUNTED = [(order, kind) for order in ORDERS for kind in (MEMORY, SQLITE, REDIS) if (order, kind) != ("no threads", REDIS)]


@pytest.fixture
def play(new_store, tmp_path):
    """Run the program of a hundred greenlets; give all, the answered, those that others held off, and how many requests arrived."""

    def played(order, limit, kind=MEMORY):
        store = new_store(kind)
        with ScriptedLLM(Text("yes", usage=(8, 2), think_s=0.01)) as llm:
            done = finish(start(store, sys.executable, PROGRAMS / "greenlets.py", order, limit, llm.base_url, cwd=tmp_path, fresh=True))
            assert (done.status, done.noise) == (0, []), done.err
            return [*map(int, done.out.split()), len(llm.requests)]

    return played


@pytest.mark.parametrize(("order", "limit"), STRICT)
def test_greenlets_wait_for_what_others_hold_whenever_gevent_patched(play, order, limit):
    assert play(order, limit) == [100, 100, 0, 100]


@pytest.mark.parametrize(("order", "kind"), COUNTED)
def test_a_limit_of_requests_holds_over_greenlets_whenever_gevent_patched(play, order, kind):
    assert play(order, "requests=17", kind) == [100, 17, 0, 17]
