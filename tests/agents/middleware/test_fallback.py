"""Asking another model when one fails."""

from __future__ import annotations

import pytest

import ravi_otel
from ravi_otel import errors
from ravi_otel.agents import OpenAIModel
from ravi_otel.agents.middleware import MiddlewarePipeline, ModelFallback, Retry, chat_middleware
from ravi_otel.policy import parse_limit
from ravi_otel.policy._contracts import ChatMessage, Generation
from ravi_otel.testing import Failure, Text

pytestmark = pytest.mark.anyio
BOTH = pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])


def broken(*models, status=503):
    return lambda request: Failure(status) if request.model in models else Text(f"from {request.model}", usage=(10, 20))


@BOTH
async def test_the_next_model_is_asked_when_one_fails(stage, ask):
    stage.answer = broken("gpt-4o-mini", "gpt-4o")
    context = await ask(ModelFallback("gpt-4o", "gpt-4.1"))
    assert context.response.message.content == "from gpt-4.1"
    assert context.fallback_from == "gpt-4o-mini"
    assert [request.model for request in stage.requests] == ["gpt-4o-mini", "gpt-4o", "gpt-4.1"]


async def test_a_model_that_answers_is_the_only_one_asked(stage, ask):
    context = await ask(ModelFallback("gpt-4o"))
    assert (context.fallback_from, stage.sent) == (None, 1)


async def test_the_error_of_the_last_is_the_callers(stage, ask):
    stage.answer = broken("gpt-4o-mini", "gpt-4o")
    with pytest.raises(Exception, match="503"):
        await ask(ModelFallback("gpt-4o"))
    assert stage.sent == 2


async def test_what_will_not_pass_falls_back_nowhere(stage, ask):
    stage.answer = broken("gpt-4o-mini", status=400)
    with pytest.raises(Exception, match="400"):
        await ask(ModelFallback("gpt-4o"))
    assert stage.sent == 1


async def test_the_program_says_after_which_errors(stage, ask):
    stage.answer = broken("gpt-4o-mini", status=404)
    context = await ask(ModelFallback("gpt-4o", on=lambda error: getattr(error, "status_code", 0) == 404))
    assert context.response.message.content == "from gpt-4o"


@pytest.mark.parametrize("refusal", [errors.BudgetExhaustedError("b"), errors.StopRun("x"), errors.MiddlewareTermination("m")], ids=repr)
async def test_a_refusal_is_no_failure_of_a_model(instrumented, chat, refusal):
    async def final(context):
        raise refusal

    context = chat()
    with pytest.raises(type(refusal)):
        await MiddlewarePipeline(ModelFallback("gpt-4o", on=Exception)).run_chat(context, final)
    assert context.calls == 1


async def test_each_model_is_charged_and_limited(stage, ask, heard):
    stage.answer = broken("gpt-4o-mini", "gpt-4o")
    with ravi_otel.run("r", limits=[parse_limit("requests=2")]), pytest.raises(errors.BudgetExhaustedError):
        await ask(ModelFallback("gpt-4o", "gpt-4.1"))
    assert stage.sent == 2
    assert [record.status for record in heard.calls] == ["error", "error", "refused"]


async def test_another_client_may_answer(stage, ask):
    class Spare:
        async def generate(self, messages, *, tools=()):
            return Generation(ChatMessage("assistant", f"spare of {len(messages)}"))

    stage.answer = broken("gpt-4o-mini")
    context = await ask(ModelFallback(Spare()))
    assert context.response.message.content == "spare of 1"
    assert (context.fallback_from, context.client) == ("gpt-4o-mini", None)


async def test_a_client_is_asked_for_its_own_model(stage, ask):
    stage.answer = broken("gpt-4o-mini")
    async with stage.client() as client:
        context = await ask(ModelFallback(OpenAIModel("gpt-4.1", client=client)))
    assert context.response.message.content == "from gpt-4.1"


async def test_each_that_failed_is_told(stage, ask, effects):
    stage.answer = broken("gpt-4o-mini", "gpt-4o")
    with ravi_otel.run("r"):
        await ask(ModelFallback("gpt-4o", "gpt-4.1"))
    told = [(at["ravi.middleware.fallback_from"], at["gen_ai.request.model"], at["error.type"]) for _, at in effects()]
    assert told == [("gpt-4o-mini", "gpt-4o", "InternalServerError"), ("gpt-4o", "gpt-4.1", "InternalServerError")]


async def test_each_model_is_tried_as_often_as_the_retry_inside_says(stage, ask):
    stage.answer = broken("gpt-4o-mini")
    await ask(ModelFallback("gpt-4o"), Retry(2, wait_s=0, jitter_s=0))
    assert [request.model for request in stage.requests] == ["gpt-4o-mini", "gpt-4o-mini", "gpt-4o"]


async def test_the_model_is_the_callers_again_afterwards(stage, ask):
    models = []

    @chat_middleware
    async def watch(context, call_next):
        await call_next()
        models.append((context.model, context.fallback_from))

    stage.answer = broken("gpt-4o-mini")
    context = await ask(watch, ModelFallback("gpt-4o"))
    assert models == [("gpt-4o-mini", "gpt-4o-mini")]
    assert context.model == "gpt-4o-mini"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ((), "ModelFallback() needs the models"),
        ((7,), "ModelFallback(models)=7 is no LLMClient; give names of models"),
        ((OpenAIModel,), "ModelFallback(models)=OpenAIModel is a class; give an instance"),
        (("",), "ModelFallback(models)=''"),
    ],
)
async def test_what_cannot_be_used_is_refused_in_a_sentence(given, said):
    with pytest.raises(errors.ConfigurationError) as refused:
        ModelFallback(*given)
    assert said in str(refused.value)
