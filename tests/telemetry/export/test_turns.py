"""One batch that always fails, and those behind it."""

from __future__ import annotations

import gzip
import io

import pytest
from misbehaving import Collector, status

from ravi_otel.telemetry.export import turns as turns_module
from ravi_otel.telemetry.export.turns import TRIES, Turns


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
    monkeypatch.setattr("ravi_otel.telemetry.export.lane._FIRST_PAUSE_S", 0.01)
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
    monkeypatch.setattr("ravi_otel.telemetry.export.lane._FIRST_PAUSE_S", 0.5)
    exports = exporting(OTEL_BSP_MAX_EXPORT_BATCH_SIZE="1")
    exports.spans("poison")
    assert exports.flush() is False
    good = [f"good {number}" for number in range(20)]
    exports.spans(*good)
    exports.end()
    assert (sorted(collector.received), exports.lost) == (sorted(good), {"shutdown": 1})


def test_while_nothing_goes_none_is_to_blame_and_the_oldest_come_first():
    turns = Turns()
    for key in ["one", "two"]:
        for _ in range(TRIES):
            turns.failed(key)
    assert ([turns.rank(key) for key in ["one", "two", "three"]], turns.known(0.0)) == ([1, 1, 0], ["one", "two"])
    turns.went("three")
    assert ([turns.rank(key) for key in ["one", "two"]], turns.pauses(0.0)) == ([0, 0], False)


def test_one_that_fails_while_others_go_waits_longer_each_time(monkeypatch):
    monkeypatch.setattr(turns_module.time, "monotonic", lambda: 100.0)
    turns = Turns()
    for _ in range(TRIES):
        turns.failed("poison")
    pauses = []
    for number in range(8):
        turns.went(f"good {number}")
        turns.failed("poison")
        turns.failed("poison")
        pauses.append(turns.due_s("poison") - 100.0)
    assert pauses == [30, 60, 120, 240, 480, 600, 600, 600]
    assert (turns.known(100.0), turns.pauses(100.0), turns.known(701.0)) == ([], True, ["poison"])
