from __future__ import annotations

import pytest

from ravi_otel._enforcement.engine import Engine
from ravi_otel.hooks._listeners import Listener
from ravi_otel.policy._limits import Kind


class Heard(Listener):
    """Keep what is counted."""

    def __init__(self):
        self.counted_so_far = []

    def counted(self, event):
        self.counted_so_far.append((event.what, event.limit_kind, event.amount))


@pytest.mark.parametrize(
    ("kind", "granted", "used", "told"),
    [(Kind.COST, 500_000_000, 2_000_000_000, 1.5), (Kind.TOKENS, 300, 450, 150), (Kind.OUTPUT_TOKENS, 1, 3, 2)],
)
def test_overage_is_told_in_the_unit_of_its_kind(desk, kind, granted, used, told):
    engine, heard = Engine(ledger=desk.ledger), Heard()
    engine.listeners.add(heard)
    grant = desk.take((desk.account(kind, 10**10), granted))
    engine.settle(grant.op_id, {kind: used})
    assert heard.counted_so_far == [("overage", kind, told)]
