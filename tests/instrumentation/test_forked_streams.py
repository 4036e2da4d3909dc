"""A child that is forked while a stream is open leaves it to its parent."""

from __future__ import annotations

import os
import sys
from typing import Any

import pytest

import ravi_otel
from ravi_otel._instrumentation.streams import OPEN
from ravi_otel.testing import Capture, Text

ASK: dict[str, Any] = {"model": "gpt-4o-mini", "messages": [{"role": "user", "content": "Say hello."}], "stream": True}


@pytest.mark.skipif(sys.platform == "win32", reason="nothing is forked there")
def test_the_parent_ends_it_and_the_child_tells_nothing(clients: Any, stage: Any, capture: Capture) -> None:
    client = clients.make("sync", stage.play(Text("one two three", usage=(9, 4))))
    with ravi_otel.instrument(tracer_provider=capture.tracer_provider), ravi_otel.run("r", limits=["tokens=1M"]) as run:
        before = len(OPEN)  # what a collection has not found of earlier tests
        stream = client.chat.completions.create(**ASK)
        next(stream)
        assert len(OPEN) == before + 1
        pid = os.fork()
        if pid == 0:
            told = len(OPEN)
            ravi_otel.flush()
            os._exit(told + len(capture.spans("chat gpt-4o-mini")))
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        list(stream)
    assert len(capture.spans("chat gpt-4o-mini")) == 1
    assert [reading.held for reading in run.limits] == [0]
