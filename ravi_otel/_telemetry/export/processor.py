"""Build what the SDK's providers of ours are given: its batch processors and its metric reader, with bounds, counts and an end."""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
from opentelemetry.sdk.metrics.export import MetricExporter, MetricExportResult, MetricsData, PeriodicExportingMetricReader
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExportResult

from ravi_otel._forksafe import renew_while_alive, without_signals
from ravi_otel._telemetry.export import DropCounters, Reason
from ravi_otel._telemetry.export.retry_queue import RetryQueue
from ravi_otel._telemetry.export.sender import GrpcSender, HttpSender, Sender, Signal, encode, encode_points, suppressed
from ravi_otel._telemetry.export.spool import SPOOL, Spool, spooling

_log = logging.getLogger("ravi_otel")

_MIB: Final = 1024 * 1024
_WAITING_BYTES: Final = {"traces": 4 * _MIB, "logs": 4 * _MIB}
_ENCODED_BYTES: Final = {"traces": 6 * _MIB, "metrics": 4 * _MIB, "logs": 4 * _MIB}
_QUEUE_SIZE: Final = 2_048
_END_S: Final = 1.4
_MARGIN_S: Final = 0.6
"""Left of the time for the end of a process, for what goes to the disk last."""

_ITEM: Final = 1_500
"""What the SDK's objects of a span or record hold besides its values, in bytes."""
_ENTRY: Final = 120
_PLAIN: Final = 32
_DEEPEST: Final = 32
_SHORT: Final = 256


class _Intake:
    """Be the exporter of a batch processor: count what waits for it, encode it, and leave the sending to the queue.

    It counts in items and bytes of memory: the SDK's queue would drop the oldest without a word.
    """

    def __init__(self, signal: Signal, queue: RetryQueue, drops: DropCounters) -> None:
        self._weigh: Callable[[Any], int] = _weight_of_span if signal == "traces" else _weight_of_record
        said = os.environ.get(f"OTEL_{'BSP' if signal == 'traces' else 'BLRP'}_MAX_QUEUE_SIZE", "").strip()
        self._most_items = int(said) if said.isdecimal() else _QUEUE_SIZE
        self._most_bytes = _WAITING_BYTES[signal]
        self._signal: Signal = signal
        self._drops = drops
        self.queue = queue
        self.renew()

    def renew(self) -> None:
        """Be empty, in a forked child."""
        self._lock = threading.RLock()  # a signal's handler may end a span while this thread ends one
        self._weights: deque[int] = deque()
        self._bytes = 0

    def admit(self, item: Any) -> bool:
        """Take room for one; where there is none, count it as dropped."""
        reason = "shutdown" if self.queue.end_s is not None else self._take(item)
        if reason is not None:
            self._drops.add(reason, 1)
        return reason is None

    def _take(self, item: Any) -> Reason | None:
        try:
            weight = self._weigh(item)
        except Exception:  # noqa: BLE001 - what cannot be weighed cannot be encoded
            return "malformed"
        if weight > self._most_bytes:
            return "too_large"
        with self._lock:
            if len(self._weights) >= self._most_items or self._bytes + weight > self._most_bytes:
                return "queue_full"
            self._weights.append(weight)
            self._bytes += weight
        return None

    def leave(self, amount: int) -> int:
        """Give the room of the oldest items back; return how many there were."""
        with self._lock:
            left = min(amount, len(self._weights))
            weight = sum(self._weights.popleft() for _ in range(left))
            self._bytes = self._bytes - weight if self._weights else 0
        return left

    @property
    def crowded(self) -> bool:
        """Whether no more of that size should wait for a batch to be full."""
        return self._bytes > self._most_bytes // 2

    def export(self, items: Sequence[Any]) -> SpanExportResult:
        """Send or keep a batch; what becomes of it is seen to by the queue."""
        batches = encode(self._signal, items, self._drops)
        self.leave(len(items))
        for batch in batches:
            self.queue.put(batch)
        return SpanExportResult.SUCCESS

    def shutdown(self) -> None:
        """See to what waits."""
        self.queue.close()


class _Processor:
    """Give a batch processor of the SDK bounds in bytes and an end in time; nothing that it is handed waits for the network."""

    def __init__(self, intake: _Intake, exports: Exports) -> None:
        self.intake = intake
        self._exports = exports
        super().__init__(intake)  # type: ignore[call-arg]  # it has what the SDK calls

    def _hand_over(self, item: Any, emit: Callable[[Any], object]) -> None:
        if self.intake.admit(item):
            emit(item)
            if self.intake.crowded:
                self._exports.wake()

    def export_now(self) -> None:
        """Hand all that waits to the exporter."""
        super().force_flush()  # type: ignore[misc]  # the SDK's

    def shutdown(self) -> None:
        """Send or keep what waits, within the time for the end."""
        self._exports.begin_end(self.intake.queue)
        super().shutdown()  # type: ignore[misc]  # the SDK's

    def force_flush(self, timeout_millis: int | None = 30_000) -> bool:
        """Have all sent that waits; return whether it was, within the time."""
        queue, by_s = self.intake.queue, time.monotonic() + (timeout_millis or 30_000) / 1_000
        failures = queue.failures
        self.export_now()
        return queue.flush(by_s, failures)


class _Spans(_Processor, BatchSpanProcessor):
    def on_end(self, span: ReadableSpan) -> None:
        if span.context is not None and span.context.trace_flags.sampled:
            self._hand_over(span, super().on_end)


class _Records(_Processor, BatchLogRecordProcessor):
    def on_emit(self, log_record: Any) -> None:
        self._hand_over(log_record, super().on_emit)


class _Metrics(MetricExporter):
    """Take what a reader has collected; temporality and aggregation are those of the stock exporter's variables."""

    def __init__(self, queue: RetryQueue, stock: Any) -> None:
        super().__init__(
            preferred_temporality=getattr(stock, "_preferred_temporality", None),
            preferred_aggregation=getattr(stock, "_preferred_aggregation", None),
        )
        self._queue = queue

    def export(self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: Any) -> MetricExportResult:  # noqa: ARG002 - the SDK's signature
        """Send or keep it; what becomes of it is seen to by the queue."""
        for batch in encode_points(metrics_data):
            self._queue.put(batch)
        return MetricExportResult.SUCCESS

    def shutdown(self, timeout_millis: float = 30_000, **kwargs: Any) -> None:  # noqa: ARG002 - the SDK's signature
        """See to what waits."""
        self._queue.close()

    def force_flush(self, timeout_millis: float = 10_000) -> bool:
        """Send what waits; raises when that failed or took longer, since a reader does not look at what is returned."""
        if not self._queue.flush(time.monotonic() + timeout_millis / 1_000, self._queue.failures):
            raise TimeoutError("the metrics could not be sent")
        return True


class _Reader(PeriodicExportingMetricReader):
    """The SDK's reader, with an end in time, and a lock of its own in a forked child."""

    def __init__(self, exporter: _Metrics, queue: RetryQueue, exports: Exports) -> None:
        self._queue = queue
        self._exports = exports
        super().__init__(exporter)
        renew_while_alive(self, _Reader.renew)

    def renew(self) -> None:
        """Be free of what another thread of the parent may have held."""
        self._export_lock = threading.Lock()

    def shutdown(self, timeout_millis: float = 30_000, **kwargs: Any) -> None:
        self._exports.begin_end(self._queue)
        super().shutdown(timeout_millis, **kwargs)  # pyright: ignore[reportUnknownMemberType]  # the SDK's


class Exports:
    """Make the ends that providers of ours are given, and hold what they share: the counts, and one thread that sends again."""

    def __init__(self, dropped: Callable[[str, int], object]) -> None:
        self._awake = threading.Event()
        self.drops = DropCounters(dropped, self.wake)
        self.queues: list[RetryQueue] = []
        self._processors: list[_Spans | _Records] = []
        self._end_s: float | None = None
        self._spooling = spooling()
        self._refused: set[str | None] = set()
        renew_while_alive(self, Exports.renew)

    def make(self, signal: Signal, protocol: str, exporter: Any) -> _Spans | _Records | _Reader:
        """Make the end of one signal; `exporter` is the stock exporter's class. Raises what that raises for its environment."""
        sender: Sender
        if protocol == "grpc":
            sender = GrpcSender(signal, exporter)
        else:
            sender = HttpSender(signal, exporter, MetricsData([]) if signal == "metrics" else ())
        stock = None
        if signal == "metrics":
            with suppressed():  # a provider of credentials may ask for them
                stock = exporter()
                stock.shutdown()
        queue = RetryQueue(signal, sender, self._spool(signal, sender), self.drops, _ENCODED_BYTES[signal])
        end: _Spans | _Records | _Reader
        if signal == "metrics":
            end = _Reader(_Metrics(queue, stock), queue, self)
        else:
            end = (_Spans if signal == "traces" else _Records)(_Intake(signal, queue, self.drops), self)
            self._processors.append(end)
        self.queues.append(queue)
        if len(self.queues) == 1:
            self._start()
        return end

    @property
    def complete(self) -> bool:
        """Whether nothing was lost at an end that this object was asked for."""
        return not self.drops.at_the_end

    def end_by(self, end_s: float) -> None:
        """Say until when, on the monotonic clock, what is shut down from now on has to be done."""
        self._end_s = end_s - _MARGIN_S

    def begin_end(self, queue: RetryQueue) -> None:
        """Have a queue take no longer than what is left."""
        queue.end_s = time.monotonic() + _END_S if self._end_s is None else self._end_s
        self.wake()

    def finish(self) -> None:
        """Count what nobody has come to in time, and log what was lost, whatever was logged in the last minute."""
        for processor in self._processors:
            self.drops.add("shutdown", processor.intake.leave(sys.maxsize))
        for queue in self.queues:
            queue.abandon()
        self.drops.report(end=True)
        self.wake()

    def wake(self) -> None:
        """Have the thread look at what is due."""
        if not self._awake.is_set():
            self._awake.set()

    def renew(self) -> None:
        """Give a forked child thread, locks and connections of its own; what waits is the parent's to send."""
        self._awake = threading.Event()
        self.drops.renew()
        for processor in self._processors:
            processor.intake.renew()
        for queue in self.queues:
            queue.renew()
        if not all(queue.over for queue in self.queues):
            self._start()

    def _start(self) -> None:
        with without_signals():
            threading.Thread(target=self._run, args=(self._awake,), name="ravi-otel-export", daemon=True).start()

    def _run(self, awake: threading.Event) -> None:
        while queues := [queue for queue in self.queues if not queue.over]:
            due_s = float("inf")
            try:
                for processor in self._processors:
                    if processor.intake.crowded:
                        processor.export_now()
                due_s = min(queue.supervise() for queue in queues)
                self.drops.report()
            except Exception as error:
                self.drops.note(f"a bug of ours: {type(error).__name__}")
                if "RAVI_RAISE_BUGS" in os.environ:
                    raise
            awake.wait(min(max(0.0, min(due_s, self.drops.due_s() or due_s) - time.monotonic()), 3_600.0))
            awake.clear()

    def _spool(self, signal: Signal, sender: Sender) -> Spool | None:
        if self._spooling is None:
            return None
        try:
            return Spool(self._spooling, signal, sender.place, self.drops)
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else str(error)
            if why not in self._refused:  # once, and not for each signal
                self._refused.add(why)
                _log.error("ravi-otel: %s=%.200r cannot be used: %s. Nothing is kept on disk.", SPOOL, str(self._spooling.path), why)
            return None


def _weight_of_span(span: Any) -> int:
    """Estimate the memory that a span holds, in bytes, without looking into its texts."""
    weight = _ITEM + _of_mapping(span.attributes, 0)
    # Both properties copy what they give: the lists behind them tell at a fifth of the cost that there is nothing.
    for each in span.events if getattr(span, "_events", True) else ():
        weight += _ITEM // 4 + _of_mapping(each.attributes, 0)
    for each in span.links if getattr(span, "_links", True) else ():
        weight += _ITEM // 4 + _of_mapping(each.attributes, 0)
    return weight


def _weight_of_record(record: Any) -> int:
    """Estimate the memory that a log record of the SDK holds, in bytes."""
    told = record.log_record
    return _ITEM + _of_mapping(told.attributes, 0) + _of_value(told.body, 0)


def _of_mapping(values: Any, depth: int) -> int:
    if not values:
        return 0
    plain = values.copy() if hasattr(values, "copy") else dict(values)  # the SDK's mapping gives its items far slower than a dict
    weight = _ENTRY * len(plain) + sum(map(len, plain))
    for value in plain.values():
        if type(value) is str and len(value) < _SHORT:
            weight += len(value)
        else:
            weight += _of_value(value, depth)
    return weight


def _of_value(value: Any, depth: int) -> int:
    if isinstance(value, (str, bytes)):
        return sys.getsizeof(value)
    if depth < _DEEPEST:
        if isinstance(value, Mapping):
            return _of_mapping(value, depth + 1)
        if isinstance(value, Sequence):
            return sum(_of_value(each, depth + 1) for each in value) + 8 * len(value)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]  # anybody's
    return _PLAIN
