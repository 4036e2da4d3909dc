"""A limit event says how much more was asked for by what was refused, and how far that would have gone."""

from __future__ import annotations

import contextlib
import json

import pytest

import ravi_otel
from ravi_otel import BudgetExhaustedError, HookEvent, HookManager
from ravi_otel.testing import Capture, Text

LEDGERS = ["memory", "sqlite", "redis"]


@pytest.fixture(params=LEDGERS)
def ledger(request, tmp_path):
    if request.param == "memory":
        return None
    if request.param == "sqlite":
        return f"sqlite:{tmp_path}/counted.db"
    return request.getfixturevalue("redis_server").url


@pytest.fixture
def told():
    """Instrument with a pipeline of the test's own, and give what was told of exceeded limits on every channel."""

    @contextlib.contextmanager
    def instrumented(**settings):
        capture, hooks, fired = Capture(), HookManager(), []
        hooks.register(HookEvent.LIMIT_EXCEEDED, fired.append)
        providers = {name: getattr(capture, name) for name in ("tracer_provider", "meter_provider", "logger_provider")}
        with ravi_otel.instrument(hooks=hooks, **providers, **settings):
            yield capture, fired

    return instrumented


@pytest.mark.parametrize(("limit", "used"), [("charge.rows=100", 90), ("tenant.charge.rows=100", 100)])
def test_what_was_asked_for_is_in_the_event_with_every_ledger(told, ledger, limit, used):
    with told(ledger=ledger) as (capture, fired), ravi_otel.run("r", tenant_id="acme", limits=[limit]):
        scope = ravi_otel.current_scope()
        scope.charge("rows", used)
        for _ in range(2):
            with pytest.raises(BudgetExhaustedError):
                scope.charge("rows", 14)
    (event,) = capture.events("ravi.limit.exceeded")
    (payload,) = fired
    assert (payload["used"], payload["threshold"], payload["requested"], payload["exceeded_by"]) == (used, 100, 14, used - 86)
    seen = [event.attributes[f"ravi.limit.{name}"] for name in ("used", "threshold", "requested", "exceeded_by")]
    assert seen == [used, 100, 14, used - 86]
    assert f"{used} of 100 used, 14 more asked for" in event.body


@pytest.mark.parametrize(
    ("limits", "act", "figures"),
    [
        (["agents=1"], lambda: ravi_otel.agent("b").__enter__(), (1, 1, 1, 1)),
        (["agents_total=1"], lambda: ravi_otel.agent("b").__enter__(), (1, 1, 1, 1)),
        (["fan_out=0"], lambda: ravi_otel.agent("b").__enter__(), (0, 0, 1, 1)),
        (["depth=0"], lambda: ravi_otel.agent("b").__enter__(), (0, 0, 1, 1)),
        (["tool_calls=0"], ravi_otel.tool(lambda: None), (0, 0, 1, 1)),
    ],
)
def test_levels_and_counts_say_it_too(told, limits, act, figures):
    with told() as (_, fired), ravi_otel.run("r", limits=limits), ravi_otel.agent("a"), pytest.raises(BudgetExhaustedError):
        act()
    (payload,) = fired
    assert (payload["used"], payload["threshold"], payload["requested"], payload["exceeded_by"]) == figures


def test_a_refused_model_call_says_how_many_tokens_it_needed_at_least(told, stage):
    stage.answer = Text("ok", usage=(90, 5))
    with told() as (_, fired), stage.client() as client, ravi_otel.run("r", limits=["tokens=100"]):
        create = client.chat.completions.create
        create(model="gpt-4o-mini", messages=[{"role": "user", "content": "hi"}])
        with pytest.raises(BudgetExhaustedError) as refused:
            create(model="gpt-4o-mini", messages=[{"role": "user", "content": "hi"}])
    (payload,) = fired
    assert payload["used"] == 95
    assert payload["exceeded_by"] == payload["used"] + payload["requested"] - payload["threshold"] > 0
    assert f"{payload['requested']} more" in str(refused.value)


def test_of_what_was_let_through_nothing_was_asked_for(told, stage):
    stage.answer = Text("ok", usage=(100, 100))
    with told() as (capture, fired), stage.client() as client, ravi_otel.run("r", limits=["tokens=150"]):
        client.chat.completions.create(model="gpt-4o-mini", messages=[{"role": "user", "content": "hi"}])
    (payload,) = fired
    assert (payload["used"], payload["requested"], payload["exceeded_by"]) == (200, None, 50)
    (event,) = capture.events("ravi.limit.exceeded")
    assert "ravi.limit.requested" not in event.attributes
    assert json.dumps(dict(event.attributes))
