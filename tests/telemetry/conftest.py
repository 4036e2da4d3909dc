"""Real SDK providers with in-memory exporters, and real records to drive the listener with."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import InMemoryLogRecordExporter, SimpleLogRecordProcessor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

sys.path.insert(0, str(Path(__file__).parent))

from heard import Telemetry

from ravi_otel._telemetry import Pipeline
from ravi_otel.hooks._events import CallRecord, LimitEvent, LimitReading, Spend, ToolRecord
from ravi_otel.policy._limits import Limit, ScopeKind
from ravi_otel.policy._runs import ScopeFacts, Supervision
from ravi_otel.policy._usage import Call


class Backend:
    """An application's own providers, and what reached them."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.tracer_provider = TracerProvider(shutdown_on_exit=False)
        self.tracer_provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.reader = InMemoryMetricReader()
        self.meter_provider = MeterProvider([self.reader], shutdown_on_exit=False)
        self.log_exporter = InMemoryLogRecordExporter()
        self.logger_provider = LoggerProvider(shutdown_on_exit=False)
        self.logger_provider.add_log_record_processor(SimpleLogRecordProcessor(self.log_exporter))

    def pipeline(self) -> Pipeline:
        return Pipeline(self.tracer_provider, self.meter_provider, self.logger_provider)

    def spans(self) -> list[Any]:
        return list(self.exporter.get_finished_spans())

    def span(self, name: str | None = None) -> Any:
        found = [span for span in self.spans() if name in {None, span.name}]
        assert len(found) == 1, [span.name for span in self.spans()]
        return found[0]

    def logs(self) -> list[Any]:
        return [data.log_record for data in self.log_exporter.get_finished_logs()]

    def metrics(self) -> dict[str, list[Any]]:
        data = self.reader.get_metrics_data()
        if data is None:
            return {}
        scopes = [scope for resource in data.resource_metrics for scope in resource.scope_metrics]
        return {metric.name: list(metric.data.data_points) for scope in scopes for metric in scope.metrics}

    def points(self, name: str) -> list[Any]:
        return self.metrics().get(name, [])

    def value(self, name: str, **attributes: Any) -> Any:
        """Sum what a counter or gauge shows where the attributes (dots written as __) match."""
        wanted = {key.replace("__", "."): value for key, value in attributes.items()}
        points = [point for point in self.points(name) if wanted.items() <= dict(point.attributes).items()]
        return sum(point.value for point in points)


@dataclass
class LiveScope:
    """A scope as listeners see it."""

    facts: ScopeFacts
    parent_id: str | None = None
    status: Any = "open"
    stop_reason: str | None = None
    error: BaseException | None = None
    limits: list[LimitReading] = field(default_factory=list)
    parent: LiveScope | None = None

    def readings(self) -> Sequence[LimitReading]:
        return list(self.limits)

    def spend(self) -> Spend:
        return Spend()


class Make:
    """Write records with what a test does not care about filled in."""

    def __init__(self) -> None:
        self._ids = 0

    def facts(self, kind: ScopeKind = ScopeKind.AGENT, **fields: Any) -> ScopeFacts:
        self._ids += 1
        known: dict[str, Any] = {"run_id": "r1", "run_name": "triage", "session_id": "s1", "tenant_id": "t1"}
        if kind is ScopeKind.AGENT:
            known |= {"name": "researcher", "agent_name": "researcher", "agent_id": "a1", "supervision": Supervision.root("a1")}
        elif kind is ScopeKind.RUN:
            known |= {"name": "triage"}
        return ScopeFacts(f"scope-{self._ids}", kind, **(known | fields))

    def scope(self, kind: ScopeKind = ScopeKind.AGENT, *, parent_id: str | None = None, limits: Any = (), **fields: Any) -> LiveScope:
        return LiveScope(self.facts(kind, **fields), parent_id, limits=list(limits))

    def reading(self, kind: str = "tokens", value: int = 100, used: float = 40, *, denied: int = 0, **fields: Any) -> LimitReading:
        limit = Limit(kind=kind, value=value, **fields)
        ratio = used / limit.amount if value else 1.0
        return LimitReading(limit, ScopeKind.AGENT, "researcher", used, 0, limit.amount - used, ratio, denied, ())

    def call(self, facts: ScopeFacts | None = None, **fields: Any) -> CallRecord:
        known: dict[str, Any] = {
            "operation": "chat",
            "endpoint": "chat.completions",
            "model": "gpt-4o",
            "server_address": "api.openai.com",
            "server_port": 443,
        }
        self._ids += 1
        return CallRecord(Call(**(known | fields)), facts or self.facts(), f"op-{self._ids}", time.perf_counter_ns())

    def tool(self, name: str = "lookup", facts: ScopeFacts | None = None, **fields: Any) -> ToolRecord:
        self._ids += 1
        return ToolRecord(name, facts or self.facts(), f"op-{self._ids}", time.perf_counter_ns(), **fields)

    def limit_event(self, event: Any = "limit_nearing", **fields: Any) -> LimitEvent:
        known: dict[str, Any] = {
            "limit_kind": "tokens",
            "scope": ScopeKind.AGENT,
            "scope_id": "scope-1",
            "scope_name": "researcher",
            "agent_name": "researcher",
            "agent_id": "a1",
            "run_id": "r1",
            "session_id": "s1",
            "threshold": 100,
            "used": 80,
            "held": 0,
            "remaining": 20,
            "exceeded_by": 0,
            "ratio": 0.8,
            "phase": "settle",
            "decision": "admitted",
        }
        return LimitEvent(event, **(known | fields))


@pytest.fixture(autouse=True)
def _bugs_are_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAVI_RAISE_BUGS", "1")


@pytest.fixture
def backend() -> Backend:
    return Backend()


@pytest.fixture
def telemetry(backend: Backend) -> Telemetry:
    return Telemetry(backend.pipeline())


@pytest.fixture
def make() -> Make:
    return Make()
