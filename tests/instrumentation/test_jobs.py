"""A batch is paid for when its results are there: begun while anything is left, refused once nothing is."""

from __future__ import annotations

from typing import Any

import pytest

import ravi_otel
from ravi_otel import BudgetExhaustedError
from ravi_otel.testing import Raw

BATCH: dict[str, Any] = {"input_file_id": "file-in", "endpoint": "/v1/chat/completions", "completion_window": "24h"}
ANSWER = Raw(b'{"id": "batch_1", "object": "batch", "status": "validating"}')


async def begin(client: Any) -> None:
    made = client.batches.create(**BATCH)
    if hasattr(made, "__await__"):
        await made


@pytest.mark.parametrize("limit", ["cost=0usd", "requests=0"])
def test_where_nothing_may_be_spent_no_batch_is_begun(limit: str, colour: str, stage: Any, clients: Any) -> None:
    client = clients.make(colour, stage.play(ANSWER))
    with ravi_otel.instrument(), ravi_otel.run("r", limits=[limit]), pytest.raises(BudgetExhaustedError):
        clients.run(colour, begin(client))
    assert len(stage.server.requests) == 0


def test_a_batch_is_begun_while_anything_is_left_and_holds_nothing(colour: str, stage: Any, clients: Any) -> None:
    client = clients.make(colour, stage.play(ANSWER))
    with ravi_otel.instrument(), ravi_otel.run("r", limits=["cost=0.01usd"]) as run:
        clients.run(colour, begin(client))
        assert [reading.held for reading in run.limits] == [0]
        assert run.stats().cost_usd is None
