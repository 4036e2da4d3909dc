"""Every test starts in a clean environment, raises our own bugs, and leaves the process as it found it."""

from __future__ import annotations

import gc
import http.client
import logging
import os
import signal
import sys
import threading
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import hypothesis  # now, and not in the summary, where the warning with which trio greets it would be an error
import openai._base_client as openai_client
import pytest
from opentelemetry import context as otel_context

import ravi_otel
from ravi_otel import _current, _flow
from ravi_otel._enforcement.engine import Engine
from ravi_otel._instrumentation.streams import OPEN
from ravi_otel._runtime.state import STATE
from ravi_otel._runtime.stopping import drain

sys.path.insert(0, str(Path(__file__).parent))

from redis_servers import proxy, redis_cluster, redis_process, redis_server, watched  # noqa: F401 - fixtures for whoever asks
from uncollected import Uncollected

OURS = {"RAVI_LONG", "RAVI_PICTURES", "RAVI_RECORDINGS", "RAVI_WRITE"}
"""Variables a developer sets for the tests themselves; all others that could change what a test sees are taken away."""

WRAPPED: list[tuple[type, str]] = [
    (openai_client.SyncAPIClient, "request"),
    (openai_client.AsyncAPIClient, "request"),
    (openai_client.BaseClient, "_build_request"),
    (openai_client.BaseClient, "_calculate_retry_timeout"),
    (openai_client.SyncAPIClient, "_process_response"),
    (openai_client.AsyncAPIClient, "_process_response"),
    (threading.Thread, "start"),
    (ThreadPoolExecutor, "submit"),
    (http.client.HTTPConnection, "endheaders"),
    (http.client.HTTPConnection, "getresponse"),
]
LOGGERS: list[logging.Logger] = [logging.getLogger(), logging.getLogger("ravi_otel")]
STARTS_PROGRAMS = ("tests/test_docs.py", "tests/test_house.py", "tests/processes/", "tests/launch/", "tests/examples/")
ORIGINALS: list[Any] = [owner.__dict__[name] for owner, name in WRAPPED]

# How long an example takes, and its making, depends on what else the machine is at.
hypothesis.settings.register_profile(
    "any machine",
    deadline=None,
    max_examples=400 if os.environ.get("RAVI_LONG") else 40,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("any machine")
for _name in [name for name in os.environ if name.startswith(("OTEL_", "OPENAI_", "AZURE_OPENAI_", "RAVI_")) and name not in OURS]:
    del os.environ[_name]
os.environ["RAVI_RAISE_BUGS"] = "1"
# No test speaks TLS, and to read the authorities of the machine costs each new client 20 ms: a folder without any is read in none.
os.environ.pop("SSL_CERT_FILE", None)
os.environ["SSL_CERT_DIR"] = str(Path(__file__).parent)
# Nor has any a plugin of pydantic, for which each new process would read what every installed package says of itself.
os.environ["PYDANTIC_DISABLE_PLUGINS"] = "__all__"
# What was compiled is kept, or each worker and each program that a test starts would compile it again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
Uncollected()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, Any, Any]:
    """Look for no garbage while thousands of tests are found: nothing that is made then goes."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Refuse names that differ from process to process: the workers must agree on what there is to be done.

    What starts programs, and takes longest, comes first, lest one worker is still at it when the others have nothing left.
    """
    items.sort(key=lambda item: not item.nodeid.startswith(STARTS_PROGRAMS))
    moving = [item.nodeid for item in items if " at 0x" in item.nodeid]
    if moving:
        raise pytest.UsageError(f"these tests are named by an address in memory; give their parameters ids: {', '.join(moving)}")


def pytest_collection_finish() -> None:
    # Its first run looks for who holds its random numbers, and from Python 3.14 on would not find those who are set aside below.
    hypothesis.find(hypothesis.strategies.none(), lambda _: True, settings=hypothesis.settings(database=None))
    gc.collect()
    gc.freeze()  # what every module made is not looked through again by each collection


@pytest.fixture(scope="session", autouse=True)
def _no_signal_is_ignored() -> Iterator[None]:
    """Hear what our caller ignores, such as a shell for its background jobs: programs inherit that."""
    usual = {signal.SIGINT: signal.default_int_handler, signal.SIGHUP: signal.SIG_DFL}
    before = {number: signal.getsignal(number) for number in usual}
    for number, handler in usual.items():
        if before[number] is signal.SIG_IGN:
            signal.signal(number, handler)
    yield
    for number, handler in before.items():
        if handler is signal.SIG_IGN:
            signal.signal(number, handler)


@pytest.fixture(scope="module", autouse=True)
def _what_came_before_is_not_looked_through() -> None:
    """Set aside what the tests before this file left: many tests collect garbage, and would look through all of it each time.

    Not while a stream is open that a test dropped and its loop has yet to close: set aside, it would stay open for good.
    """
    gc.collect()
    drain()
    if not OPEN:
        gc.freeze()


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def _process_as_it_was() -> Iterator[None]:
    levels = _levels()
    yield
    ravi_otel.uninstrument()
    left = _left_behind(levels)
    assert not left, f"the test left behind: {', '.join(left)}"


def _levels() -> list[tuple[int, bool]]:
    """Give what decides whether our log lines are heard: of the root logger and of ours, and of logging as a whole."""
    return [(logging.root.manager.disable, True), *((each.level, each.disabled) for each in LOGGERS)]


def _left_behind(levels: list[tuple[int, bool]]) -> list[str]:
    """Name what is not as it was, and mend it, so that one leaking test does not fail those after it."""
    left: list[str] = []
    if _levels() != levels:
        left.append(f"other levels of logging: {_levels()}, not {levels}")
        logging.disable(levels[0][0])
        for logger, (level, disabled) in zip(LOGGERS, levels[1:], strict=True):
            logger.setLevel(level)
            logger.disabled = disabled
    if _flow.around():
        left.append("a tool that the process still seems to be in")
        _flow.Inside(()).__enter__()
    if STATE.limits:
        left.append(f"{len(STATE.limits)} limit(s) of the process")
        STATE.install(Engine(), ())
    for (owner, name), original in zip(WRAPPED, ORIGINALS, strict=True):
        if owner.__dict__[name] is not original:
            left.append(f"a wrapped {owner.__name__}.{name}")
            setattr(owner, name, original)
    if _current.leaf() is not None:
        left.append("a current scope")
        otel_context.attach(otel_context.Context())
    if STATE.top_runs:
        left.append(f"{len(STATE.top_runs)} open run(s)")
        STATE.top_runs.clear()
    return left
