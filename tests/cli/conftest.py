"""A store with runs written by hand, as the OTLP file format has them."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from ravi_otel.cli.entry import commands
from ravi_otel.local.store import Store, StoredRun

UNKNOWN: Any = None


class Shelf:
    """Put runs into a store, a line each, and call commands on it."""

    def __init__(self, root: Path) -> None:
        self.store = Store.open(root)
        self._ids = itertools.count(1)

    def add(self, name: str = "desk", *, outcome: str = "ok", seconds: float | None = 2.0, ago: float = 0.0, **changes: Any) -> StoredRun:
        run = self.store.begin(name)
        started = run.manifest.started - ago
        ended = None if seconds is None else started + seconds
        return run.write(**({"started": started, "ended": ended, "outcome": outcome, "status": 0} | changes))

    def span(self, run: StoredRun, attributes: Mapping[str, Any], *, kind: int = 3, parent: str = "", **fields: Any) -> str:
        span_id = f"{next(self._ids):016x}"
        start = int(run.manifest.started * 1e9)
        known = {"traceId": "a" * 32, "spanId": span_id, "parentSpanId": parent, "name": "x", "kind": kind}
        times = {"startTimeUnixNano": str(start), "endTimeUnixNano": str(start + fields.pop("ns", 5_000_000))}
        listed = [{"key": key, "value": _value(value)} for key, value in attributes.items() if value is not None]
        line = {
            "resourceSpans": [
                {"scopeSpans": [{"scope": {"name": "ravi_otel"}, "spans": [known | times | {"attributes": listed} | fields]}]}
            ]
        }
        with (run.path / "4711-9a2c.traces.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")
        return span_id

    def call(
        self,
        run: StoredRun,
        tokens: tuple[int, int] | None = (30, 10),
        cost: float | None = 0.001,
        *,
        agent: str | None = None,
        model: str = "m-1",
        parent: str = "",
        **attributes: Any,
    ) -> None:
        given, taken = tokens or (None, None)
        known = {
            "gen_ai.operation.name": "chat",
            "gen_ai.request.model": model,
            "gen_ai.agent.name": agent,
            "gen_ai.usage.input_tokens": given,
            "gen_ai.usage.output_tokens": taken,
            "ravi.usage.cost_usd": cost,
            "ravi.limit.decision": "admitted",
        }
        self.span(run, known | attributes, parent=parent)

    def agent(self, run: StoredRun, name: str, *, seconds: float = 1.0, **attributes: Any) -> str:
        known = {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": name, "ravi.scope.id": f"s{next(self._ids)}"}
        return self.span(run, known | attributes, kind=1, ns=int(seconds * 1e9))

    def files(self) -> dict[str, bytes]:
        """Give every file of every run, to compare."""
        return {str(path): path.read_bytes() for path in sorted(self.store.runs_path.rglob("*")) if path.is_file()}

    def __call__(self, *arguments: str, width: int = 120, **environment: str) -> Result:
        given = {"COLUMNS": str(width), "NO_COLOR": "1"} | environment
        return CliRunner().invoke(commands, [*arguments, "--store", str(self.store.root)], env=given)


def _value(value: Any) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    return {"doubleValue": value} if isinstance(value, float) else {"stringValue": value}


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    return Shelf(tmp_path / ".ravi")
