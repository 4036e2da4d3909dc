"""What a call costs where its answer tells little, and which tier it is held at."""

from __future__ import annotations

import pytest

import ravi_otel
from ravi_otel._enforcement.engine import Engine
from ravi_otel._enforcement.scope import Scope
from ravi_otel._pricing import PriceBook
from ravi_otel._runtime.model_call import ModelCall, SendFailure
from ravi_otel.policy._limits import Kind, Limit
from ravi_otel.policy._usage import Call, Reply, Usage

PRICES = PriceBook()
DATE = PRICES.card("openai", "gpt-4o").table_date
USAGE = Usage(1_000, 100)
SPOKEN = Usage(10, 60, audio_output_tokens=60, characters=40)


def admitted(model, limits=(), **more):
    """Return a call that was admitted and sent."""
    call = ModelCall(Scope.of_process(Engine(prices=PRICES), limits), Call("any", "any", model=model, **more))
    assert call.admit(blocking=True) is None
    call.sent()
    return call


def answered(model, reply, **more):
    """Return the record of a call that was answered so."""
    call = admitted(model, **more)
    call.answered(reply)
    return call.record


def test_a_price_is_written_down_with_its_source_and_its_date():
    record = answered("gpt-4o", Reply(model="gpt-4o-2024-08-06", usage=USAGE))
    assert (record.cost_nano, record.cost_source, record.price_date) == (3_500_000, "response_model", DATE)


def test_an_unknown_price_has_no_source_and_no_date():
    record = answered("nobody-knows", Reply(usage=USAGE))
    assert (record.cost_nano, record.cost_source, record.price_date) == (None, None, None)


def test_the_price_of_a_guessed_provider_is_assumed():
    record = answered("gpt-4o", Reply(usage=USAGE), provider_assumed=True)
    assert (record.cost_source, record.price_date) == ("assumed", DATE)


def test_what_a_failed_call_is_charged_is_not_what_it_cost():
    call = admitted("gpt-4o", size=1_000)
    call.fail(OSError("gone"), SendFailure("OSError"))
    record = call.record
    assert (record.cost_nano, record.charged_nano, record.charged.input_tokens) == (None, 2_500_000, 1_000)


def test_characters_are_counted_where_they_are_what_is_sold():
    assert answered("tts-1", Reply(), expected=SPOKEN).usage == Usage(characters=40, source="estimated")


@pytest.mark.parametrize(("model", "expected"), [("gpt-4o-mini-tts", SPOKEN), ("nobody", SPOKEN), (None, SPOKEN), ("tts-1", None)])
def test_characters_are_not_counted_for_what_is_sold_otherwise(model, expected):
    assert answered(model, Reply(), expected=expected).usage is None


def test_what_is_given_away_is_free_however_much_it_was():
    record = answered(None, Reply(model="omni-moderation-latest"))
    assert (record.cost_nano, record.cost_source, record.price_date) == (0, "response_model", DATE)


@pytest.mark.parametrize("model", ["gpt-4o", "whisper-1", "tts-1", "dall-e-3", None, "nobody"])
def test_what_is_sold_or_unknown_is_not_free(model):
    assert answered(model, Reply()).cost_nano is None


@pytest.mark.parametrize(("asked", "held"), [("priority", "priority"), ("flex", None), ("auto", None), (None, None), (["priority"], None)])
def test_a_call_is_held_at_the_dear_tier_only_where_it_was_asked_for(asked, held):
    cost = Limit(kind=Kind.COST, value=10**12)
    call = admitted("gpt-4o", [cost], size=1_000, output_cap=100, parameters={"service_tier": asked})
    assert call.scope.accounts[0].held == PRICES.card("openai", "gpt-4o", held).estimate_nano(1_000, 100)


def test_a_tool_call_that_a_hook_ends_before_it_ran_is_not_charged(settings):
    hooks = ravi_otel.HookManager()

    @hooks.on(ravi_otel.HookEvent.LIMIT_NEARING)
    def leave(context):
        raise KeyboardInterrupt  # as a signal that comes while somebody is told

    ran = []
    with settings(), ravi_otel.run("r", limits=["tool_calls=3:warn=0.3"], hooks=[hooks]) as run:
        with pytest.raises(KeyboardInterrupt):
            ravi_otel.tool(lambda: ran.append(1), name="t")()
        assert [(one.used, one.held) for one in run.limits] == [(0, 0)]
    assert not ran
