"""Runs that were really made, written as OTLP JSON Lines by the exporter's own encoder, in a store of their own."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import openai
import pytest
from google.protobuf.json_format import MessageToDict
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans

import ravi_otel
from ravi_otel.local import RunRecord
from ravi_otel.local.store import Store, StoredRun
from ravi_otel.testing import Capture, ScriptedLLM

CHAT = {"model": "gpt-4o-mini", "messages": [{"role": "user", "content": "Where is my order?"}]}


def lines_of(spans: Iterable[Any], *, each: bool = True) -> list[str]:
    """Encode spans as lines of the official file format: ids in hex, one document a line."""
    spans = list(spans)
    groups = [[span] for span in spans] if each else [spans]
    return [json.dumps(_hexed(MessageToDict(encode_spans(group), use_integers_for_enums=True))) for group in groups]


def _hexed(document: Any) -> Any:
    if isinstance(document, list):
        return [_hexed(item) for item in document]
    if not isinstance(document, dict):
        return document
    ids = ("traceId", "spanId", "parentSpanId")
    return {key: base64.b64decode(value).hex() if key in ids else _hexed(value) for key, value in document.items()}


class Desk:
    """Make runs against a scripted model, live and stored at once."""

    def __init__(self, root: Path) -> None:
        self.store = Store.open(root)
        self.run: StoredRun = self.store.begin("desk")
        self.live = RunRecord()
        self.capture = Capture()

    def keep(self, process: str = "4711-9a2c", **changes: Any) -> StoredRun:
        """Write what was captured since the last time as the spans of one process, and end the run."""
        path = self.run.path / f"{process}.traces.jsonl"
        with path.open("a") as file:
            file.writelines(f"{line}\n" for line in lines_of(self.capture.spans()))
        self.capture.clear()
        self.run = self.run.write(**({"outcome": "ok", "ended": self.run.manifest.started + 2.0, "status": 0} | changes))
        return self.run

    def working(self, model: Any, **options: Any) -> Any:
        return _Working(self, model, options)

    def fill(self, count: int = 1, *, tokens: tuple[int, int] = (30, 10), **run: Any) -> StoredRun:
        """Store one more run whose agent `clerk` made `count` calls."""
        from ravi_otel.testing import Text

        if self.run.manifest.outcome != "running":
            self.run = self.store.begin("desk")
        with (
            self.working(Text("x", usage=tokens)) as client,
            ravi_otel.run("desk", run_id=self.run.run_id, **run),
            ravi_otel.agent("clerk"),
        ):
            for _ in range(count):
                client.chat.completions.create(**CHAT)
        return self.keep()


class _Working:
    def __init__(self, desk: Desk, model: Any, options: dict[str, Any]) -> None:
        self._desk, self.server, self._options = desk, ScriptedLLM(model), options

    def __enter__(self) -> openai.OpenAI:
        capture = self._desk.capture
        self.server.__enter__()
        providers = (capture.tracer_provider, capture.meter_provider, capture.logger_provider)
        names = ("tracer_provider", "meter_provider", "logger_provider")
        ravi_otel.instrument(**dict(zip(names, providers, strict=True))).listen(self._desk.live)
        self._client = openai.OpenAI(base_url=self.server.base_url, api_key="any", **{"max_retries": 0, **self._options})
        return self._client

    def __exit__(self, *_: object) -> None:
        self._client.close()
        ravi_otel.uninstrument()
        self.server.__exit__(None, None, None)


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path / ".ravi")
