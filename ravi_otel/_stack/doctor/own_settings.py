"""Look at our own variables: policy and limits, what crosses to other processes, the spool, and names that are none."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ravi_otel._enforcement.ledger.choosing import LEASE, lease_of
from ravi_otel._enforcement.ledger.choosing import VARIABLE as LEDGER
from ravi_otel._extras import load
from ravi_otel._runtime.config import effective
from ravi_otel._stack import files
from ravi_otel._stack.doctor import names, spool
from ravi_otel._stack.doctor.finding import Asked, Finding, broken, left_out, odd, well
from ravi_otel.carrier.configured import BAGGAGE, NAMES, TO, TRUST, check_configured
from ravi_otel.carrier.keys import VARIABLE as KEYS
from ravi_otel.errors import RaviError
from ravi_otel.local._wording import clean

_PREFIX: Final = "RAVI_"


def examine(asked: Asked) -> Iterator[Finding]:
    """Look at RAVI_* variables, and at the policy file."""
    yield from _policy(asked)
    yield from _carrying(asked)
    yield from _lease(asked)
    yield from spool.examine(asked)
    yield from _unknown(asked)


def _policy(asked: Asked) -> Iterator[Finding]:
    environ = {name: value for name, value in asked.environ.items() if name != LEDGER}  # which is looked at by itself
    try:
        policy = effective(environ=environ, file=asked.policy)
        if policy.gate is not None:
            load("ravi_otel.supervisor.rule_files").read_rules(policy.gate)
    except RaviError as error:
        yield broken("settings.policy", str(error), "Mend what the sentence names; `ravi-otel limits` shows what counts then.")
        return
    named = asked.policy or asked.said("RAVI_POLICY")
    limits = len(policy.limits)
    said = f"{limits} limit{'' if limits == 1 else 's'} from environment and policy file"
    yield well("settings.policy", f"{said} ({clean(str(named), 120)})" if named else said)
    if policy.observe and limits:
        yield odd("settings.policy", "limits only observe: nothing is refused", "Unset RAVI_ENFORCEMENT, or set it to enforce.")


def _carrying(asked: Asked) -> Iterator[Finding]:
    try:
        check_configured(asked.environ)
    except RaviError as error:
        yield broken("settings.carrying", f"{error} Nothing is carried to or from other processes.", "Mend the variable it names.")
        return
    keys, to, trust = asked.said(KEYS), asked.said(TO), asked.said(TRUST)
    if to and not keys:
        yield odd("settings.carrying", f"{TO} is set and {KEYS} is not: what is carried is not signed", f"Set {KEYS} on both sides.")
    if asked.said(NAMES) and not (keys or trust):
        yield odd("settings.carrying", f"{NAMES} is set, and nothing from outside is believed", f"Set {KEYS}, or {TRUST}.")
    if trust and not keys:
        yield odd(
            "settings.carrying",
            f"{TRUST} believes peers by their address, without a signature",
            f"Set {KEYS} on both sides, and unset {TRUST}.",
        )
    if keys and (to or trust or asked.said(NAMES)):
        yield well("settings.carrying", "what crosses to other processes is signed")
    if asked.said(BAGGAGE) and not to:
        yield left_out("settings.carrying", f"{BAGGAGE} is set, and {TO} names no host that our entry goes to")


def _lease(asked: Asked) -> Iterator[Finding]:
    try:
        lease_of(asked.said(LEASE))
    except RaviError as error:
        yield broken("settings.lease", str(error), f"Set {LEASE} to seconds such as 30, or unset it.")


def _unknown(asked: Asked) -> Iterator[Finding]:
    known = names.OURS | set(files.settings(files.shipped(), environ={}))
    for name in sorted(asked.environ):
        if not name.upper().startswith(_PREFIX) or name in known or name.startswith(("RAVI_LIMIT_", "RAVI_LAUNCH")):
            continue
        close = names.meant(name, known)
        way_out = f"Write {close}." if close else "Take it away, or write the name that was meant."
        tell = broken if close and names.is_weighty(close) and not asked.said(close) else odd
        yield tell("settings.names", f"{clean(name, 80)} is no variable of ours", way_out)
    if "RAVI_RAISE_BUGS" in asked.environ:
        yield odd("settings.bugs", "RAVI_RAISE_BUGS is set: a bug of ours ends a call of yours", "Unset it outside of tests.")
