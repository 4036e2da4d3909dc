"""Limits that processes share and limits of this process alone, around the same calls: both hold, however long one of them has to wait."""

import asyncio
import sqlite3

import pytest

import ravi_otel
from ravi_otel import BudgetExhaustedError
from ravi_otel.testing import Text

pytestmark = pytest.mark.anyio
CALLS = 8


@pytest.fixture(params=["sqlite", "redis"])
def shared(request, monkeypatch, tmp_path, stage):
    """Count what is shared in a file or in a Redis."""
    url = f"sqlite:{tmp_path / 'ledger.db'}" if request.param == "sqlite" else request.getfixturevalue("redis_server").url
    monkeypatch.setenv("RAVI_LEDGER", url)
    with ravi_otel.instrument():
        yield


async def test_calls_that_wait_for_a_local_limit_count_in_the_shared_one(shared, stage, ask):
    stage.answer = Text("ok", usage=(5, 5))
    async with stage.async_client() as client, ravi_otel.run("r", limits=["requests=12"]) as run:
        async with ravi_otel.agent("a", limits=["tokens=200"]) as agent:  # three at once, as each may take 50 and more
            done = await asyncio.gather(*[ask(client, max_tokens=50) for _ in range(CALLS)])
            assert len(done) == stage.sent == CALLS
            assert run.remaining("requests") == 12 - CALLS
            assert agent.remaining("tokens") == 200 - CALLS * 10
        more = await asyncio.gather(*[ask(client) for _ in range(CALLS)], return_exceptions=True)
    assert (stage.sent, sum(isinstance(one, BudgetExhaustedError) for one in more)) == (12, CALLS - 4)


def test_a_stream_is_cut_where_its_closed_limit_can_no_longer_be_counted(monkeypatch, tmp_path, stage, ask):
    file = tmp_path / "ledger.db"
    monkeypatch.setenv("RAVI_LEDGER", f"sqlite:{file}")
    stage.answer = Text("word " * 2_000, usage=(5, 2_000))
    came = []
    other = sqlite3.connect(file, isolation_level=None)

    def read(stream):
        for chunk in stream:
            came.append(chunk)
            if len(came) == 10:
                other.execute("BEGIN EXCLUSIVE")

    with ravi_otel.instrument(), stage.client() as client, ravi_otel.run("r", limits=["tokens=500"]):
        with pytest.raises(BudgetExhaustedError, match="cannot be used") as raised:
            read(ask(client, stream=True))
        other.execute("ROLLBACK")
    other.close()
    assert raised.value.reason == "store_failed"
    assert len(came) < 500
