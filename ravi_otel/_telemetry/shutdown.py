"""Flush and close providers within a time that is ours to state, whatever the collector does."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from typing import Any

from ravi_otel._forksafe import without_signals

_log = logging.getLogger("ravi_otel")


class Closer:
    """Shut one provider down from a thread that already runs.

    The thread is started early because Python 3.12 starts none while it exits; it is a daemon, so a hung exporter
    does not hold the process. After a fork the child calls `renew`.
    """

    __slots__ = ("_done", "_go", "provider")

    def __init__(self, provider: Any) -> None:
        self.provider = provider
        self.renew()

    def renew(self) -> None:
        """Start the thread, again in a forked child where it is gone."""
        self._go = threading.Event()
        self._done = threading.Event()
        with without_signals():
            threading.Thread(target=self._run, args=(self._go, self._done), name="ravi-otel-closer", daemon=True).start()

    def begin(self) -> None:
        """Let the shutdown begin."""
        self._go.set()

    def finished(self, timeout_s: float) -> bool:
        """Wait for its end, `timeout_s` at most."""
        return self._done.wait(max(0.0, timeout_s))

    def _run(self, go: threading.Event, done: threading.Event) -> None:
        go.wait()
        try:
            self.provider.shutdown()
        except Exception as error:  # noqa: BLE001 - an exporter's failure at the end must not print a traceback over the program's output
            _log.debug("a telemetry provider failed to shut down: %r", error)
        finally:
            done.set()


def close(closers: Sequence[Closer], timeout_s: float) -> bool:
    """Shut all down at once; False when one had not ended after `timeout_s`."""
    for closer in closers:
        closer.begin()
    deadline = time.monotonic() + timeout_s
    ended = [closer.finished(deadline - time.monotonic()) for closer in closers]
    return all(ended)


def flush(providers: Sequence[Any], timeout_s: float) -> bool:
    """Flush all at once, each in a daemon thread because `force_flush` ignores its own timeout.

    False when one failed or had not ended after `timeout_s`, or when the interpreter is exiting.
    """
    results: list[bool] = []
    threads = [threading.Thread(target=_flush, args=(provider, timeout_s, results), daemon=True) for provider in providers]
    deadline = time.monotonic() + timeout_s
    try:
        for thread in threads:
            thread.start()
    except RuntimeError:
        return False
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    return len(results) == len(threads) and all(results)


def _flush(provider: Any, timeout_s: float, results: list[bool]) -> None:
    try:
        results.append(provider.force_flush(timeout_millis=max(1, int(timeout_s * 1000))) is not False)
    except Exception as error:  # noqa: BLE001 - what cannot be flushed is reported by the result
        _log.debug("a telemetry provider failed to flush: %r", error)
        results.append(False)
