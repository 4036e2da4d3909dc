"""Servers that serve from several processes: one budget for all of them over a shared ledger, one each without."""

import collections
import contextlib
import http.client
import os
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from redis_servers import free_port, until
from stores import MEMORY, REDIS, SQLITE, finish, start

LIMIT, OF_SESSION, ASKED = 6, 4, 10
LONG = os.environ.get("RAVI_LONG")
ENOUGH_S = 60


def gunicorn(*more):
    return lambda port: [
        sys.executable,
        "-m",
        "gunicorn",
        "--no-control-socket",
        "--workers",
        "2",
        "--bind",
        f"127.0.0.1:{port}",
        *more,
        "web:wsgi",
    ]


SERVERS = {
    "gunicorn": gunicorn(),
    "gunicorn-preload": gunicorn("--preload"),
    "gunicorn-gthread": gunicorn("--worker-class", "gthread", "--threads", "2"),
    "gunicorn-gthread-preload": gunicorn("--worker-class", "gthread", "--threads", "2", "--preload"),
    "gunicorn-gevent": gunicorn("--worker-class", "gevent"),
    "gunicorn-gevent-preload": gunicorn("--worker-class", "gevent", "--preload"),
    "uvicorn": lambda port: [sys.executable, "-m", "uvicorn", "--workers", "2", "--port", str(port), "web:asgi"],
}
SHORT = [("gunicorn-gthread", REDIS), ("gunicorn-gevent", REDIS), ("gunicorn-preload", SQLITE), ("uvicorn", REDIS)]
PLAYED = [(server, kind) for server in SERVERS for kind in (MEMORY, SQLITE, REDIS)] if LONG else SHORT


class Site:
    """Ask the server, each time over a connection of its own."""

    def __init__(self, port):
        self.port = port

    def get(self, path="/"):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=ENOUGH_S)
        with contextlib.closing(connection):
            connection.request("GET", path)
            return connection.getresponse().read().decode()

    def is_up(self):
        with contextlib.suppress(OSError, http.client.HTTPException):
            return self.get("/who")
        return None

    def know(self, number):
        """Ask who answers until so many processes have."""
        known = set()
        deadline = time.monotonic() + ENOUGH_S
        while len(known) < number:
            assert time.monotonic() < deadline, f"only {known} answer"
            with ThreadPoolExecutor(4) as pool:
                known.update(pool.map(lambda _: self.get("/who"), range(8)))
        return known

    def ask(self, times, path="/"):
        """Ask that often, four at once; give what came of it by process."""
        with ThreadPoolExecutor(4) as pool:
            answers = pool.map(lambda _: self.get(path).split(maxsplit=1), range(times))
            by_process = collections.defaultdict(collections.Counter)
            for pid, said in answers:
                by_process[pid][said] += 1
            return by_process


@pytest.fixture
def served(new_store, tmp_path):
    """Run a server over a store; give the site, and a way to end it."""
    children = []

    def serve(server, store):
        port = free_port()
        child = start(store, *SERVERS[server](port), cwd=tmp_path, fresh=True)
        children.append(child)
        site = Site(port)
        until(site.is_up, f"{server} does not answer", ENOUGH_S)
        return site, child

    yield serve
    for child in children:
        with contextlib.suppress(OSError):
            os.killpg(child.pid, signal.SIGKILL)
        child.communicate()


def end(child):
    child.send_signal(signal.SIGTERM)
    return finish(child)


@pytest.mark.parametrize(("server", "kind"), PLAYED, ids=[f"{server}-over-{kind}" for server, kind in PLAYED])
def test_the_workers_of_a_server_have_one_budget_over_a_shared_ledger(new_store, served, server, kind):
    store = new_store(kind)
    site, child = served(server, store)
    workers = site.know(2)
    of_session = site.ask(OF_SESSION + 1, "/?session=s") if store.shared else {}
    did = sum(said["did"] for said in of_session.values())
    answers = site.ask(ASKED)
    done = end(child)
    assert done.status == 0, done.err
    assert set(answers) <= workers
    assert "Traceback" not in done.err
    if store.shared:
        assert did == OF_SESSION
        assert sum(said["did"] for said in answers.values()) == LIMIT - OF_SESSION
        assert sum(said["refused by the process"] for said in answers.values()) == ASKED - LIMIT + OF_SESSION
        assert done.told == [f"{scope} limit_{event}" for scope in ("process", "session") for event in ("exceeded", "nearing")]
        assert store.counted(f"tool_calls={LIMIT}") == (LIMIT, 0)
        assert store.counted(f"session.tool_calls={OF_SESSION}", session_id="s") == (OF_SESSION, 0)
    else:
        for said in answers.values():
            assert said["did"] == min(LIMIT, said.total())
