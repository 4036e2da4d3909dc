"""Programs of many processes, over each store of counters."""

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1]))

from redis_servers import redis_process, redis_server
from stores import MEMORY, REDIS, SQLITE, Store

__all__ = ["redis_process", "redis_server"]

LONG = os.environ.get("RAVI_LONG")


@pytest.fixture
def new_store(request, tmp_path):
    """Make a store of a kind, empty."""

    def make(kind):
        if kind == MEMORY:
            return Store(kind, "memory:")
        if kind == SQLITE:
            return Store(kind, f"sqlite:{tmp_path / 'ledger.db'}")
        assert kind == REDIS
        return Store(kind, request.getfixturevalue("redis_server").url)

    return make


@pytest.fixture(params=[MEMORY, SQLITE, REDIS])
def store(request, new_store):
    return new_store(request.param)
