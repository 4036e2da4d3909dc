"""With content captured: a value without end is written down in no time, and the client says itself what is wrong with it."""

from __future__ import annotations

from typing import Any

import pytest

import ravi_otel
from ravi_otel._instrumentation.formats.fields import fields_of, plain
from ravi_otel.testing import Capture


def endless() -> dict[str, Any]:
    made: dict[str, Any] = {}
    made["a"] = made["b"] = made["c"] = [made, made]
    return made


def size_of(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + sum(size_of(inner) for inner in value.values())
    return 1 + sum(size_of(inner) for inner in value) if isinstance(value, list) else 1


def test_a_value_that_holds_itself_is_copied_up_to_a_bound() -> None:
    assert size_of(plain(endless())) < 500_000


def test_fields_that_are_secret_are_left_out_at_any_depth() -> None:
    given = {"a": [{"Authorization": "sk-1", "b": None}], "headers": {"x": "sk-2"}}
    assert fields_of(given, without=frozenset({"authorization", "headers"})) == {"a": [{"b": None}]}


@pytest.mark.parametrize("api", ["chat.completions", "responses"])
def test_a_body_that_holds_itself_fails_as_it_does_without_us(
    api: str, clients: Any, stage: Any, monkeypatch: Any, capture: Capture
) -> None:
    monkeypatch.setenv("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", "SPAN_ONLY")
    client = clients.make("sync", stage.play())
    words: dict[str, Any] = {"messages": []} if api == "chat.completions" else {"input": []}
    with ravi_otel.instrument(tracer_provider=capture.tracer_provider):
        for name in api.split("."):
            client = getattr(client, name)
        with pytest.raises(ValueError, match="Circular reference"):
            client.create(model="gpt-4o-mini", **words, extra_body={next(iter(words)): [endless()], "tools": [endless()]})
