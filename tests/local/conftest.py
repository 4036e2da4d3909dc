from __future__ import annotations

import io
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from recorded import Record
from rich.console import Console

from ravi_otel._local.render import render
from ravi_otel.errors import BudgetExhaustedError
from ravi_otel.hooks._events import CallRecord, LimitEvent, LimitReading, RetryRecord, Spend, ToolRecord
from ravi_otel.policy._limits import Limit, ScopeKind
from ravi_otel.policy._runs import ScopeFacts
from ravi_otel.policy._usage import Call, Reply, Usage

sys.path.insert(0, str(Path(__file__).parent))  # for the tests' own `kept_by`


@dataclass
class Place:
    """A scope as listeners see it."""

    facts: ScopeFacts
    parent: Place | None = None
    status: Any = "ok"
    stop_reason: str | None = None
    error: BaseException | None = None
    limits: list[LimitReading] = field(default_factory=list)
    spent: Spend = field(default_factory=Spend)

    @property
    def parent_id(self) -> str | None:
        return None if self.parent is None else self.parent.facts.scope_id

    def readings(self) -> Sequence[LimitReading]:
        return list(self.limits)

    def spend(self) -> Spend:
        return self.spent


class Story:
    """Tell a record what happened, one line each."""

    def __init__(self, record: Record) -> None:
        self.record = record
        self._ids = count(1)

    def scope(self, kind: ScopeKind, name: str | None = None, parent: Place | None = None, **fields: Any) -> Place:
        place = Place(ScopeFacts(f"s{next(self._ids)}", kind, name=name, run_id="r1"), parent, **fields)
        self.record.scope_opened(place)
        return place

    def run(self, name: str | None = "desk", **fields: Any) -> Place:
        return self.scope(ScopeKind.RUN, name, **fields)

    def agent(self, name: str, parent: Place, **fields: Any) -> Place:
        return self.scope(ScopeKind.AGENT, name, parent, **fields)

    def begin(self, place: Place, model: str = "m-1", **call: Any) -> CallRecord:
        started = CallRecord(Call("chat", "chat.completions", model=model, **call), place.facts, f"op{next(self._ids)}", 0)
        self.record.call_started(started)
        return started

    def end(self, started: CallRecord, **outcome: Any) -> None:
        known: dict[str, Any] = {"status": "ok", "reply": Reply(), "duration_ns": 12_000_000}
        for name, value in (known | outcome).items():
            setattr(started, name, value)
        self.record.call_ended(started)

    def call(self, place: Place, tokens: tuple[int, int] | None = (210, 80), cost: int | None = 250_000, **outcome: Any) -> None:
        model = outcome.pop("model", "m-1")
        source = outcome.pop("source", "reported")
        usage = None if tokens is None else Usage(*tokens, source=source)
        self.end(self.begin(place, model), usage=usage, cost_nano=cost, **outcome)

    def refusal(self, place: Place, sentence: str = "Token budget exceeded: 90 + 20 > 100.", **outcome: Any) -> None:
        error = BudgetExhaustedError(sentence)
        known: dict[str, Any] = {
            "limit_kind": "tokens",
            "limit_reason": "exhausted",
            "error_type": "ravi.limit_exceeded",
            "decision": "denied",
        }
        self.end(self.begin(place), status="refused", error=error, reply=None, **(known | outcome))

    def tool(self, place: Place, name: str, **outcome: Any) -> None:
        record = ToolRecord(name, place.facts, f"op{next(self._ids)}", 0)
        self.record.tool_started(record)
        for field_name, value in ({"status": "ok", "duration_ns": 3_000_000} | outcome).items():
            setattr(record, field_name, value)
        self.record.tool_ended(record)

    def retries(self, number: int) -> list[RetryRecord]:
        return [RetryRecord(at + 1, 429, 0.1, "RateLimitError") for at in range(number)]

    def reading(self, kind: str = "tokens", value: int = 100, used: float = 40, **fields: Any) -> LimitReading:
        limit = Limit(kind=kind, value=value)
        known = LimitReading(limit, ScopeKind.AGENT, "a", used, 0, limit.amount - used, used / limit.amount if value else 1.0, 0, ())
        return replace(known, **fields)

    def event(self, place: Place, event: Any = "limit_nearing", **fields: Any) -> LimitEvent:
        known: dict[str, Any] = {
            "event": event, "limit_kind": "tokens", "scope": place.facts.kind, "scope_id": place.facts.scope_id,
            "scope_name": place.facts.name, "agent_name": None, "agent_id": None, "run_id": "r1", "session_id": None,
            "threshold": 100, "used": 83, "held": 0, "remaining": 17, "exceeded_by": 0, "ratio": 0.83,
            "phase": "settle", "decision": "admitted",
        }  # fmt: skip
        return LimitEvent(**(known | fields))


@pytest.fixture
def record() -> Record:
    return Record()


@pytest.fixture
def story(record: Record) -> Story:
    return Story(record)


@pytest.fixture
def shown(record: Record) -> Callable[..., str]:
    def show(width: int = 100, *, terminal: bool = False, what: Record | None = None, encoding: str = "utf-8") -> str:
        raw = io.BytesIO()
        stream = io.TextIOWrapper(raw, encoding=encoding)
        to = Console(file=stream, width=width, force_terminal=terminal, color_system="truecolor" if terminal else None, highlight=False)
        render(what or record, to)
        stream.flush()
        return raw.getvalue().decode(encoding)

    return show
