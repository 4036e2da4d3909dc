"""Whatever a collector answers, and whenever the program ends: each span has arrived, is counted as lost, or is on the disk."""

from __future__ import annotations

import os
import random

import pytest
from misbehaving import status

SEEDS = range(int(os.environ.get("RAVI_LONG", "0")) or 4)
ANSWERS = (
    status(200),
    status(503),
    status(503, headers={"retry-after": "0"}),
    status(429, headers={"retry-after": "0.02"}),
    status(400),
)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kept", [False, True], ids=["in memory", "with a spool"])
def test_no_span_is_lost_without_being_counted(collector, exporting, spool, seed, kept):
    chosen = random.Random(seed)
    collector.most_body = chosen.choice([1 << 40, 900, 2_000])
    collector.answers.extend(chosen.choice(ANSWERS) for _ in range(chosen.randint(0, 12)))
    batches = {"OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "7", "OTEL_BSP_SCHEDULE_DELAY": "20"}
    exports = exporting(**batches, **({"RAVI_EXPORT_SPOOL": str(spool)} if kept else {}))
    sent = [f"span {number}" for number in range(chosen.randint(1, 120))]
    for name in sent:
        exports.spans(name, text="x" * chosen.choice([1, 50, 300]))
        if chosen.random() < 0.02:
            exports.flush(0.1)
    exports.end(within_s=chosen.choice([0.6, 0.7, 1.5]))
    lost = exports.lost
    if kept:
        collector.answers.clear()
        after = exporting()
        flushed = [after.flush()]
        while not flushed[-1]:  # it returns as soon as one item is refused, and the others go on
            flushed.append(after.flush())
        assert all(flushed) is not any(after.lost.values())
        lost = exports.lost + after.lost
        assert not any(spool.rglob("*.otlp"))
    assert set(collector.received) <= set(sent)
    assert len(set(collector.received)) + sum(lost.values()) >= len(sent)
