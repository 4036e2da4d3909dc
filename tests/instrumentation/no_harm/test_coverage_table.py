"""The page of what each method yields says what is found by calling them; RAVI_WRITE=1 writes it anew."""

from __future__ import annotations

import os
from pathlib import Path

import openai
import pytest
from coverage_table import NO_REQUEST, PLAIN, page, yields

import ravi_otel
from ravi_otel.testing import Capture

PAGE = Path(__file__).parents[3] / "docs" / "coverage.md"
WRITTEN_FOR = "3.52."


@pytest.fixture(scope="module")
def found() -> dict[str, dict[str, str]]:
    with Capture() as capture:
        told = {
            "tracer_provider": capture.tracer_provider,
            "meter_provider": capture.meter_provider,
            "logger_provider": capture.logger_provider,
        }
        with ravi_otel.instrument(**told), ravi_otel.run("walk"):
            return {colour: yields(colour, capture) for colour in ("sync", "async")}


def test_the_page_says_what_each_method_of_the_client_yields(found: dict[str, dict[str, str]]) -> None:
    assert found["sync"] == found["async"]
    if not openai.__version__.startswith(WRITTEN_FOR):
        pytest.skip(f"the page is about openai {WRITTEN_FOR}x")
    written = page(found["sync"])
    if "RAVI_WRITE" in os.environ:
        PAGE.write_text(written, encoding="utf-8")
    assert PAGE.read_text(encoding="utf-8") == written, "RAVI_WRITE=1 writes it anew"


def test_no_method_asks_a_server_unseen(found: dict[str, dict[str, str]]) -> None:
    assert [path for path, kind in found["sync"].items() if kind == "nothing"] == []


def test_lists_and_lookups_are_plain_spans(found: dict[str, dict[str, str]]) -> None:
    plain = [path for path, kind in found["sync"].items() if path.endswith((".list", ".delete")) and kind not in (PLAIN, NO_REQUEST)]
    assert plain == []
