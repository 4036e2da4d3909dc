"""Look at the ledger that processes share: whether it opens, and whether it is fit to hold budgets. No counter is touched."""

from __future__ import annotations

from collections.abc import Iterator

from ravi_otel._enforcement.ledger.choosing import VARIABLE, read_choice
from ravi_otel._stack.doctor.finding import Asked, Finding, broken, left_out
from ravi_otel._stack.doctor.ledger_file import look_at_file
from ravi_otel._stack.doctor.ledger_server import look_at_server
from ravi_otel.errors import RaviError


def examine(asked: Asked) -> Iterator[Finding]:
    """Look at the ledger of --ledger, else of RAVI_LEDGER."""
    named, url = ("--ledger", asked.ledger) if asked.ledger is not None else (VARIABLE, asked.said(VARIABLE))
    if not url:
        yield left_out("ledger", f"no {VARIABLE} is set: limits are counted by each process, or by each `ravi-otel run`, for itself")
        return
    try:
        choice = read_choice(named, url)
    except RaviError as error:
        yield broken("ledger.url", str(error), f"Change {named} as the sentence says.")
        return
    if choice.store == "memory":
        yield left_out("ledger", "memory: counts in each process for itself")
    elif choice.store == "sqlite":
        yield from look_at_file(choice)
    else:
        yield from look_at_server(choice, asked)
