"""A block of ours that goes wrong leaves the program's call as it is, but for what is meant to reach it."""

from __future__ import annotations

import asyncio
import logging

import pytest

from ravi_otel.errors import BudgetExhaustedError, RaviError
from ravi_otel.hooks._listeners import Guarded


def test_a_bug_in_a_guarded_block_is_logged_and_goes_no_further(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.delenv("RAVI_RAISE_BUGS", raising=False)
    with caplog.at_level(logging.WARNING, "ravi_otel"), Guarded("a place of this test"):
        raise KeyError("ours")
    assert "internal error in a place of this test (1 so far)" in caplog.text


@pytest.mark.parametrize("error", [BudgetExhaustedError("refused"), asyncio.CancelledError(), KeyboardInterrupt(), GeneratorExit()])
def test_a_refusal_that_may_pass_and_what_is_no_exception_reach_the_caller(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAVI_RAISE_BUGS", raising=False)
    with pytest.raises(type(error)), Guarded("another place", RaviError):
        raise error
