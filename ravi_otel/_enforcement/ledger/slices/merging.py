"""Make one answer of what the shared ledger and this process's own said."""

from __future__ import annotations

from ravi_otel._enforcement.ledger.contract import Extended, Grant, Reservation


def both(far: Extended, near: Extended) -> Extended:
    """Tell what was extended in both ledgers: nothing where the shared one had none."""
    more = {} if far.short is not None else {**near.more, **far.more}
    return Extended(more, far.short, [*far.crossings, *near.crossings])


def merged(request: Reservation, far: Grant, near: Grant) -> Grant:
    """Make one grant of what both ledgers granted, in the order of the request."""
    held = {id(line): hold for grant in (far, near) for line, hold in grant.holds}
    observed = far.observed or near.observed
    crossings = [*far.crossings, *near.crossings]
    return Grant(
        request.op_id, lines=request.lines, held=[held.get(id(line), 0) for line in request.lines], crossings=crossings, observed=observed
    )
