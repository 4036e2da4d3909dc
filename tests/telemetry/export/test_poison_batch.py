"""One batch that always fails, and those behind it."""

from __future__ import annotations

import gzip
import io

import pytest
from misbehaving import Collector, status


class Picky(Collector):
    """Fail on each request that holds a span called "poison"."""

    def handle(self, handler):
        body = handler.rfile.read(int(handler.headers["content-length"]))
        plain = gzip.decompress(body) if handler.headers.get("content-encoding") == "gzip" else body
        if b"poison" in plain:
            status(503).give(handler)
            return
        connection, handler.rfile = handler.rfile, io.BytesIO(body)
        super().handle(handler)
        handler.rfile = connection


@pytest.fixture
def collector(monkeypatch):
    monkeypatch.setattr("ravi_otel._telemetry.export.retry_queue._FIRST_PAUSE_S", 0.01)
    made = Picky()
    yield made
    made.close()


@pytest.mark.parametrize("kept", [False, True], ids=["in memory", "with a spool"])
def test_a_batch_that_always_fails_does_not_hold_up_those_behind_it(collector, exporting, spool, kept):
    exports = exporting(OTEL_BSP_MAX_EXPORT_BATCH_SIZE="1", **({"RAVI_EXPORT_SPOOL": str(spool)} if kept else {}))
    good = [f"good {number}" for number in range(20)]
    exports.spans("poison", *good)
    collector.wait(lambda: len(collector.received) == len(good))
    assert sorted(collector.received) == sorted(good)
    assert exports.flush() is False
    exports.end(within_s=1.0)
    assert exports.lost == ({} if kept else {"shutdown": 1})
    assert len(list(spool.rglob("*.otlp"))) == int(kept)


def test_at_the_end_those_behind_a_batch_that_always_fails_are_sent(collector, exporting, monkeypatch):
    monkeypatch.setattr("ravi_otel._telemetry.export.retry_queue._FIRST_PAUSE_S", 0.5)
    exports = exporting(OTEL_BSP_MAX_EXPORT_BATCH_SIZE="1")
    exports.spans("poison")
    assert exports.flush() is False
    good = [f"good {number}" for number in range(20)]
    exports.spans(*good)
    exports.end()
    assert (sorted(collector.received), exports.lost) == (sorted(good), {"shutdown": 1})
