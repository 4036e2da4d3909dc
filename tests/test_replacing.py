"""Under a launcher, `instrument()` and `uninstrument()` replace what is there, and nothing gets through in between."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import openai._base_client as base_client
import pytest

import ravi_otel
from ravi_otel import BudgetExhaustedError
from ravi_otel._enforcement.ledger.memory import MemoryLedger
from ravi_otel._enforcement.opening import Opening
from ravi_otel._local.otlp import Sink
from ravi_otel._runtime.settings import Surroundings
from ravi_otel._setup import surround
from ravi_otel.hooks._listeners import Listener
from ravi_otel.policy._grammar import parse_limit
from ravi_otel.policy._limits import ScopeKind
from ravi_otel.testing import ScriptedLLM

ASK: dict[str, Any] = {"model": "gpt-4o-mini", "messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture
def launched(tmp_path: Path) -> Iterator[openai.OpenAI]:
    run = Opening(kind=ScopeKind.RUN, name="program", run_id="r1", limits=(parse_limit("requests=0"),), surrounding=True)
    with ScriptedLLM("hello") as server, openai.OpenAI(base_url=server.base_url, api_key="k", max_retries=0) as client:
        surround(Surroundings(run=run, ledger=MemoryLedger(), store=tmp_path / "store"))
        try:
            yield client
        finally:
            surround(None)
            assert not server.requests


def refused(client: openai.OpenAI) -> bool:
    with pytest.raises(BudgetExhaustedError):
        client.chat.completions.create(**ASK)
    return True


class Asking(Listener):
    """Call the model while the run around the process is being replaced."""

    def __init__(self, client: openai.OpenAI) -> None:
        self.client = client
        self.asked = 0

    def scope_closed(self, scope: Any, totals: Any) -> None:
        self.asked += refused(self.client)


@pytest.mark.parametrize("change", [ravi_otel.uninstrument, lambda: ravi_otel.instrument(prices={"m": {"input": 1, "output": 1}})])
def test_a_call_in_the_middle_of_a_replacement_is_refused_like_any_other(launched, change):
    refused(launched)
    asking = Asking(launched)
    ravi_otel.instrument().listen(asking)
    wrapped = base_client.SyncAPIClient.__dict__["request"]
    change()
    assert asking.asked == 1
    assert base_client.SyncAPIClient.__dict__["request"] is wrapped
    refused(launched)


def test_uninstrument_changes_nothing_where_the_program_had_set_up_nothing(launched):
    before = ravi_otel.instrument()
    ravi_otel.uninstrument()
    assert ravi_otel.instrument() is before


def test_a_store_that_cannot_be_closed_keeps_nobody_from_replacing(launched, monkeypatch):
    monkeypatch.delenv("RAVI_RAISE_BUGS")
    monkeypatch.setattr(Sink, "close", broken)
    ravi_otel.instrument(prices={"m": {"input": 1, "output": 1}})
    refused(launched)
    for cost in (2, 3):
        ravi_otel.instrument(prices={"m": {"input": cost, "output": 1}})
        refused(launched)
    monkeypatch.undo()
    ravi_otel.uninstrument()
    refused(launched)


def broken(_self: Sink, _timeout_s: float) -> bool:
    raise RuntimeError("cannot join thread before it is started")
