"""Write this process's spans, metrics and log records into the local store, without losing any and without being in the way."""

from __future__ import annotations

import atexit
import contextlib
import logging
import math
import queue
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from opentelemetry.sdk._logs import LogRecordProcessor
from opentelemetry.sdk.metrics.export import MetricExporter, MetricExportResult, MetricReader, MetricsData, PeriodicExportingMetricReader
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor

from ravi_otel._forksafe import renew_while_alive, without_signals
from ravi_otel.local.store import encoding
from ravi_otel.local.store.encoding import Signal
from ravi_otel.local.store.parts import MOST_BYTES, Parts

_log = logging.getLogger("ravi_otel")

_MOST_WAITING: Final = 4096
_MOST_LINE: Final = 100
_MOST_LINE_CHARS: Final = 1_000_000
_GATHER_S: Final = 0.02
_QUIET: Final = 25
_METRICS_EVERY_MS: Final = 60_000
_PATIENCE_S: Final = 5.0
_MOST_KNOWN: Final = 64

_Groups = dict[tuple[Signal, str, str], list[str]]
Waiting = tuple[Signal, Any, Any, Any]
"""A record that waits: its signal, resource and scope, and the record itself, or its text where that is written already."""


_opened: dict[Path, FileSink] = {}


class FileSink:
    """Be this process's end of a run's directory.

    Records are put in line and written by a thread of ours; when `4096` wait, whoever brings the next one writes them.
    Nothing is opened before the first record. A forked child writes files of its own. At the end of the process, and
    from then on, every record is written by whoever brings it. `most_bytes` bounds what this process keeps, oldest out;
    an attribute's value is cut at `most_value_bytes` bytes. What is lost is told to `lost(reason, number)`:
    "store_failed" (disk full, directory gone), "store_full" (older parts that made room), "not_encodable".
    """

    def __init__(self, directory: Path, *, most_bytes: int = MOST_BYTES, most_value_bytes: int = encoding.VALUE_BYTES) -> None:
        self.lost: Callable[[str, int], object] = _nobody
        self._directory = directory.absolute()
        self._most = most_bytes
        self._most_value = most_value_bytes
        self._said: set[str] = set()
        self._leaving = False
        self._renew()
        atexit.register(_call, weakref.WeakMethod(self._leave))
        renew_while_alive(self, FileSink._renew)

    def _renew(self) -> None:
        """Begin anew: at the start, and in a forked child, where the thread is gone and what waits is the parent's."""
        self._waiting: deque[Waiting] = deque()
        self._awake = False
        self._writer: tuple[threading.Thread, queue.SimpleQueue[bool]] | None = None  # one, so that no thread sees half of it
        self._starting = threading.RLock()
        self._lock = threading.RLock()
        self._writing = False
        self._failed = False
        self._stuck = -1
        self._written = 0
        self._parts: Parts | None = None
        self._known: dict[int, tuple[Any, str]] = {}
        self._untold: list[tuple[str, int, str]] = []

    @classmethod
    def of(cls, directory: Path) -> FileSink:
        """Give this process's one sink of that directory: who asks again, asks for the same."""
        place = directory.absolute()
        found = _opened.get(place)
        return _opened.setdefault(place, cls(place)) if found is None else found

    def span_processor(self) -> SpanProcessor:
        """Give what to add to a tracer provider."""
        return _Spans(self)

    def log_processor(self, only: str | None = None) -> LogRecordProcessor:
        """Give what to add to a logger provider; with `only`, the records of that scope are taken, no others."""
        return _Logs(self, only)

    def metric_reader(self) -> MetricReader:
        """Give what to build a meter provider with: it writes every minute, and when it is shut down."""
        return PeriodicExportingMetricReader(_Metrics(self), export_interval_millis=_METRICS_EVERY_MS)

    def put(self, signal: Signal, record: Any) -> None:
        """Take a span or a log record; never raises, and waits only when very many are waiting."""
        try:
            scope, about = record.instrumentation_scope, record.resource
            waiting = self._waiting
            heavy = encoding.is_heavy(record)
            if heavy:  # its values are cut and let go of here, not when the thread comes
                record = encoding.record(signal, record, self._most_value)
                heavy = len(record) > encoding.HEAVY * 2
            waiting.append((signal, about, scope, record))
            if heavy or self._leaving or len(waiting) > _MOST_WAITING:
                self._write_here()
            elif not self._awake:
                self._awake = True
                writer = self._writer
                if writer is None:
                    self._start()
                else:
                    writer[1].put(True)  # noqa: FBT003 - an item of a queue
                    if self._writer is None:  # told to end meanwhile, perhaps before this came
                        self._start()
        except Exception as error:  # noqa: BLE001 - what a processor raises reaches the application
            self._lose("not_encodable", 1, f"a record cannot be written: {error!r}")
            self._tell()

    def _write_here(self) -> None:
        """Write what waits on the thread that brings it; a disk that does not answer is waited for once, not at every record."""
        before = self._written
        if self._drain(0.0 if self._stuck == before else _PATIENCE_S) or self._written != before:
            return  # done, or slow: a machine may be busy
        self._stuck = before
        while len(self._waiting) > _MOST_WAITING and self._take(1):
            self._fail(1, "the disk does not answer")
        self._tell()

    def put_metrics(self, data: MetricsData) -> bool:
        """Write a collection of metrics now; False when that failed."""
        groups: list[tuple[str, str, Sequence[str]]] = []
        points = 0
        for about in data.resource_metrics:
            for group in about.scope_metrics:
                texts = [text for text in map(self._metric, group.metrics) if text is not None]
                if texts:
                    groups.append((encoding.resource(about.resource), encoding.scope(group.scope), texts))
                    points += len(texts)
        if not groups:
            return True
        if not self._lock.acquire(timeout=_PATIENCE_S):
            self._fail(points, "the disk does not answer")
            done = False
        else:
            try:
                done = self._append("metrics", encoding.line("metrics", groups), points)
            finally:
                self._lock.release()
        self._tell()
        return done

    def _metric(self, of: Any) -> str | None:
        try:
            return encoding.metric(of, self._most_value)
        except Exception as error:  # noqa: BLE001 - one metric that cannot be written must not take the others with it
            self._lose("not_encodable", 1, f"a metric cannot be written: {error!r}")
            return None

    def flush(self, timeout_s: float = _PATIENCE_S) -> bool:
        """Write what waits; False when something since the last time was not written, or the disk took longer than `timeout_s` seconds."""
        done = self._drain(timeout_s)
        failed, self._failed = self._failed, False
        return done and not failed

    def close(self, timeout_s: float = _PATIENCE_S) -> bool:
        """Write what waits and end the thread; the next record starts another."""
        deadline = time.monotonic() + timeout_s
        writer, self._writer = self._writer, None
        done = self.flush(timeout_s)
        thread = None if writer is None else writer[0]
        if writer is not None and thread is not None and thread is not threading.current_thread():
            writer[1].put(False)  # noqa: FBT003 - an item of a queue
            with contextlib.suppress(RuntimeError):  # another call has made it and not started it yet: it will end by itself
                thread.join(max(0.0, deadline - time.monotonic()))
            done = done and not thread.is_alive()
        return done

    def _leave(self) -> None:
        self._leaving = True
        self.close(1.0)

    def _start(self) -> None:
        wake: queue.SimpleQueue[bool] = queue.SimpleQueue()  # of now: where threads are greenlets since, an older one would stop them all
        wake.put(True)  # noqa: FBT003 - an item of a queue: what made it start waits already
        with self._starting:
            if self._writer is not None:
                return
            thread = threading.Thread(target=self._write_on, args=(wake,), name="ravi-otel-store", daemon=True)
            writer = self._writer = (thread, wake)
        self._end_with_worker()
        try:
            with without_signals():
                thread.start()
        except RuntimeError:  # the interpreter is ending, or the system gives no more threads
            if self._writer is writer:
                self._writer = None
            self._drain(_PATIENCE_S)
            self._awake = False

    def _end_with_worker(self) -> None:
        """Be told of the end of a worker of `multiprocessing`, which leaves without `atexit`."""
        processes, util = sys.modules.get("multiprocessing.process"), sys.modules.get("multiprocessing.util")
        if processes is not None and util is not None and processes.parent_process() is not None:
            util.Finalize(None, _call, (weakref.WeakMethod(self._leave),), exitpriority=-10)

    def _write_on(self, wake: queue.SimpleQueue[bool]) -> None:
        while wake.get():
            quiet = 0
            while quiet < _QUIET and wake.empty():  # while records come, nobody has to wake us: that costs them 5 us
                quiet = 0 if self._waiting else quiet + 1
                self._drain(math.inf)
                time.sleep(_GATHER_S)  # what comes close together goes into one line
            self._awake = False
            self._drain(math.inf)

    def _drain(self, timeout_s: float) -> bool:
        """Write what waits now; False when another thread did not get done with its part in time."""
        if not self._lock.acquire(timeout=-1 if timeout_s == math.inf else timeout_s):
            return False
        try:
            if not self._writing:  # else a span ended inside our own writing, from a finaliser: it waits for the next turn
                self._write_waiting()
        finally:
            self._lock.release()
        self._tell()
        return True

    def _write_waiting(self) -> None:
        self._writing = True
        try:
            left: float = math.inf if self._leaving else len(self._waiting)  # others may bring more for ever
            while left > 0 and self._waiting:
                batch = self._take(min(left, _MOST_LINE))
                left -= len(batch)
                self._write(batch)
        except Exception as error:  # noqa: BLE001 - neither the application nor the thread may end by it
            self._fail(1, repr(error))
        finally:
            self._writing = False

    def _take(self, most: float) -> list[Waiting]:
        batch: list[Waiting] = []
        try:
            while len(batch) < most:
                batch.append(self._waiting.popleft())
        except IndexError:
            pass
        return batch

    def _write(self, batch: list[Waiting]) -> None:
        groups: _Groups = {}
        size = 0
        for signal, about, scope, record in batch:
            try:
                text = record if type(record) is str else encoding.record(signal, record, self._most_value)
                key = (signal, self._head(about, encoding.resource), self._head(scope, encoding.scope))
            except Exception as error:  # noqa: BLE001 - one record that cannot be written must not take the others with it
                self._lose("not_encodable", 1, f"a record cannot be written: {error!r}")
                continue
            groups.setdefault(key, []).append(text)
            size += len(text)
            if size > _MOST_LINE_CHARS:
                self._write_lines(groups)
                groups, size = {}, 0
        self._write_lines(groups)

    def _write_lines(self, groups: _Groups) -> None:
        for signal in ("traces", "logs"):
            found = [(about, scope, texts) for (of, about, scope), texts in groups.items() if of == signal]
            if found:
                self._append(signal, encoding.line(signal, found), sum(len(texts) for _, _, texts in found))

    def _head(self, about: Any, write: Callable[[Any], str]) -> str:
        """Write a resource or scope, once for as long as it lives: a process has few."""
        known = self._known.get(id(about))
        if known is not None and known[0] is about:
            return known[1]
        if len(self._known) >= _MOST_KNOWN:
            self._known.clear()
        text = write(about)
        self._known[id(about)] = (about, text)
        return text

    def _append(self, signal: Signal, line: str, records: int) -> bool:
        if self._parts is None:
            self._parts = Parts(self._directory, self._most)
        try:
            gone = self._parts.append(signal, line.encode("utf-8", "replace"), records)
        except OSError as error:
            self._fail(records, f"{error.strerror or error}")
            return False
        self._written += 1
        if gone:
            self._lose("store_full", gone, f"this process has written more than {self._most:,} bytes, its oldest records are removed")
        return True

    def _fail(self, number: int, why: str) -> None:
        self._failed = True
        self._lose("store_failed", number, why)

    def _lose(self, reason: str, number: int, why: str) -> None:
        self._untold.append((reason, number, why))

    def _tell(self) -> None:
        """Count what was lost and say it once; outside the lock, because counters and log handlers have locks of their own."""
        while self._untold:
            try:
                reason, number, why = self._untold.pop()
                self.lost(reason, number)
                if reason not in self._said:
                    self._said.add(reason)
                    _log.warning("ravi-otel: the local store at %s is not complete: %s", self._directory, why)
            except Exception as error:  # noqa: BLE001 - a broken log handler is the application's
                _log.debug("a loss could not be told: %r", error)


class _Spans(SpanProcessor):
    def __init__(self, sink: FileSink) -> None:
        self._sink = sink
        self.active = True

    def on_end(self, span: ReadableSpan) -> None:
        context = span.context
        if self.active and context is not None and context.trace_flags.sampled:
            self._sink.put("traces", span)

    def shutdown(self) -> None:
        self._sink.flush()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._sink.flush(timeout_millis / 1000)


class _Logs(LogRecordProcessor):
    def __init__(self, sink: FileSink, only: str | None) -> None:
        self._sink = sink
        self._only = only
        self.active = True

    def on_emit(self, log_record: Any) -> None:
        if self.active and (self._only is None or getattr(log_record.instrumentation_scope, "name", None) == self._only):
            self._sink.put("logs", log_record)

    def shutdown(self) -> None:
        self._sink.flush()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._sink.flush(timeout_millis / 1000)


class _Metrics(MetricExporter):
    def __init__(self, sink: FileSink) -> None:
        super().__init__()
        self._sink = sink

    def export(self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: Any) -> MetricExportResult:
        del timeout_millis, kwargs
        return MetricExportResult.SUCCESS if self._sink.put_metrics(metrics_data) else MetricExportResult.FAILURE

    def force_flush(self, timeout_millis: float = 10_000) -> bool:
        return self._sink.flush(timeout_millis / 1000)

    def shutdown(self, timeout_millis: float = 30_000, **kwargs: Any) -> None:
        del timeout_millis, kwargs
        self._sink.flush()


def _nobody(reason: str, number: int) -> None:
    del reason, number


def _call(method: weakref.WeakMethod[Callable[[], None]]) -> None:
    found = method()
    if found is not None:
        found()
