"""Three services, each its own process behind uvicorn: one trace, one budget, and the last one is cut off when it is spent."""

from __future__ import annotations

import importlib.util
import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import redis_servers
from played_once import played_once

import ravi_otel
from ravi_otel.testing import OtlpReceiver, ScriptedLLM

PROGRAM = Path(__file__).parents[2] / "examples" / "three_services" / "run_all.py"
_spec = importlib.util.spec_from_file_location("three_services_run_all", PROGRAM)
assert _spec is not None
assert _spec.loader is not None
run_all = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(run_all)


def ask(url: str, headers: dict[str, str] | None = None) -> dict[str, Any]:
    return httpx.post(url, json={"question": "Who wrote it?"}, headers=headers, timeout=60, trust_env=False).json()


def forged(url: str) -> dict[str, str]:
    """Sign with a key of one's own that has the known one's id, for a run that may use a million tokens."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAVI_CARRY_KEYS", "k1:what the forger thinks it is")
        patch.setenv("RAVI_CARRY_TO", "127.0.0.1")
        with ravi_otel.run("forger", run_id="f" * 32, session_id="victim", limits=["tokens=1M"]):
            return ravi_otel.outbound_headers(url)


def played(ledger: str | None) -> SimpleNamespace:
    """Ask the desk one question, and the library one with forged baggage; give what all of them said and told."""
    with ExitStack() as outer, pytest.MonkeyPatch.context() as patch:
        receiver = outer.enter_context(OtlpReceiver())
        patch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
        with ExitStack() as stack:
            server = stack.enter_context(ScriptedLLM(run_all.say))
            desk, _, library = run_all.start(stack, server, ledger)
            told, asked = ask(desk), len(server.requests)
            deceived = ask(library, forged(library))
            headers = [dict(request.headers) for request in server.requests]
        return SimpleNamespace(
            told=told, asked=asked, forged=deceived, spans=receiver.spans, logs=receiver.logs, sent=headers, ledger=ledger
        )


def over_redis() -> SimpleNamespace:
    with redis_servers.server() as redis:
        return played(redis.url)


@pytest.fixture(scope="module", params=["loans", "redis"])
def story(request: Any, tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    play = (lambda: played(None)) if request.param == "loans" else over_redis
    return played_once(tmp_path_factory, f"three-services-{request.param}", play)


def every(told: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield told
    for behind in told["behind"]:
        yield from every(behind)


def test_the_third_service_is_cut_off_and_the_others_are_not(story: SimpleNamespace) -> None:
    assert {(each["service"], each["stopped"] is not None) for each in every(story.told)} == {
        ("desk", False),
        ("research", False),
        ("library", True),
    }
    assert all(" tokens used in run " in each["stopped"] for each in every(story.told) if each["stopped"])


def test_one_budget_holds_for_all_of_them(story: SimpleNamespace) -> None:
    used = 50 * sum(len(each["notes"]) for each in every(story.told))
    assert used == 50 * story.asked
    if story.ledger is None:
        assert used == 50 + 2 * (50 + 400)  # what was lent to the library was used, and no more
        assert story.told["tokens"] == used  # and what the desk has been told of
    else:
        assert used == 2_000  # to the last token, though two of each were at it


def test_all_of_it_is_one_run_in_one_trace(story: SimpleNamespace) -> None:
    assert {each["run"] for each in every(story.told)} == {story.told["run"]}
    spans = [span for span in story.spans if span.attributes.get("ravi.run.id") == story.told["run"]]
    assert {span.resource["service.name"] for span in spans} == {"desk", "research", "library"}
    assert len({span.trace_id for span in spans}) == 1
    ids = {span.span_id for span in story.spans}
    assert [span.resource["service.name"] for span in spans if span.parent_span_id not in ids] == ["desk"]


def test_it_is_told_once_that_it_came_near_and_was_reached(story: SimpleNamespace) -> None:
    ours = [log for log in story.logs if log.attributes.get("ravi.run.id") == story.told["run"]]
    events = Counter((log.event_name, log.attributes["ravi.limit.threshold"]) for log in ours if log.event_name.startswith("ravi.limit."))
    times, limit = (2, 400) if story.ledger is None else (1, 2_000)
    assert events == {("ravi.limit.nearing", limit): times, ("ravi.limit.exceeded", limit): times}


def test_forged_baggage_changes_nothing(story: SimpleNamespace) -> None:
    assert story.forged["run"] not in ("f" * 32, story.told["run"])
    assert story.forged["tokens"] == 2_000  # what a request that carries nothing may use


def test_no_model_was_told_of_any_of_it(story: SimpleNamespace) -> None:
    assert len(story.sent) > 20
    assert not any("ravi" in f"{name}{value}" for headers in story.sent for name, value in headers.items())


def test_a_port_that_nobody_listens_on_is_not_waited_for_for_ever() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        with pytest.raises(TimeoutError, match="nobody listens on port"):
            run_all.wait_for(taken.getsockname()[1], within_s=0)
