"""Carry a run from one process to another: what it takes along, what it lends, and what it gets back.

Outbound, the facts of the current scope and a signed ceiling travel in the `baggage` header to hosts that are listed, and to no other.
Inbound they only tighten, and are believed only when a known key signed them or the peer is trusted.
"""

import typing as _typing

from ravi_otel._lazy import lazy_names as _lazy_names

if _typing.TYPE_CHECKING:
    from ravi_otel.carrier._continue import ContinuedRun, continue_run
    from ravi_otel.carrier._lending import Lent, lend, take_return
    from ravi_otel.carrier._outbound import child_environment, outbound_headers, task_headers

__all__ = [
    "ContinuedRun",
    "Lent",
    "child_environment",
    "continue_run",
    "lend",
    "outbound_headers",
    "take_return",
    "task_headers",
]

_HOMES = {
    "_continue": ("ContinuedRun", "continue_run"),
    "_lending": ("Lent", "lend", "take_return"),
    "_outbound": ("child_environment", "outbound_headers", "task_headers"),
}
"""Module → the public names that live in it: each is imported when a program first asks for one of its names."""

__getattr__, __dir__ = _lazy_names(__name__, _HOMES)
