"""Who answers in a store: for tests that speak to whatever process is there."""

from ravi_otel._local.live.client import Session, entries, sweep
from ravi_otel._local.live.protocol import LiveError


def sessions(store):
    """List the processes of a store that answer now, by number, once what dead ones left is removed."""
    sweep(store)
    found = []
    for entry in entries(store):
        session = Session(entry.socket, entry.pid)
        try:
            session.state()
        except LiveError:
            continue
        found.append(session)
    return sorted(found, key=lambda session: session.pid)
