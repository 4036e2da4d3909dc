"""Clients that are not wrapped, the real ones: what the provider reports is counted, whole and streamed, under strict limits too."""

import asyncio
import json
import os

import pytest

if not os.environ.get("RAVI_TEST_FRAMEWORKS"):
    pytest.skip("make frameworks runs these, in an environment of their own", allow_module_level=True)

import ravi_otel
from ravi_otel._runtime.stopping import drain
from ravi_otel.testing import ScriptedLLM, Text

# What these packages warn of is theirs.
pytestmark = [pytest.mark.timeout(300), pytest.mark.filterwarnings("ignore")]
KEPT = []
"""Clients that are in use: one of google-genai closes itself when it is dropped, in the middle of its stream too."""
ANSWER = Text("It is in Oslo, as far as I know.", usage=(120, 80))
ASKED = [{"role": "user", "content": "hi"}]
CLAUDE = "anthropic.claude-3-haiku-20240307-v1:0"


async def _gather(stream):
    return [each async for each in stream]


def _google(url):
    from google import genai

    KEPT.append(genai.Client(api_key="any", http_options={"base_url": url}))
    return KEPT[-1]


def _bedrock(url):
    import boto3

    keys = {"region_name": "us-east-1", "aws_access_key_id": "any", "aws_secret_access_key": "any"}
    return boto3.client("bedrock-runtime", endpoint_url=url, **keys)


def _cohere(url):
    import cohere

    return cohere.ClientV2(api_key="any", base_url=url)


def _ollama(url):
    import ollama

    return ollama.Client(host=url)


def _mistral(url):
    from mistralai.client import Mistral

    return Mistral(api_key="any", server_url=url)


def _litellm(model, path, **more):
    def ask(url):
        import litellm

        return litellm.completion(model, messages=ASKED, api_base=url + path, api_key="any", num_retries=0, **more)

    return ask


async def _google_streamed(url):
    return await _gather(await _google(url).aio.models.generate_content_stream(model="gemini-2.5-flash", contents="hi"))


async def _litellm_streamed(url):
    import litellm

    path = "/v1beta/models/gemini-2.5-flash"
    more = {"api_base": url + path, "api_key": "any", "num_retries": 0, "stream": True}
    return await _gather(await litellm.acompletion("gemini/gemini-2.5-flash", messages=ASKED, **more))


TOLD = {"inferenceConfig": {}, "messages": [{"role": "user", "content": [{"text": "hi"}]}]}
INVOKED = json.dumps({"anthropic_version": "bedrock-2023-05-31", "max_tokens": 100, "messages": ASKED})
GEMINI = "/v1beta/models/gemini-2.5-flash"
CALLS = {
    "google": lambda url: _google(url).models.generate_content(model="gemini-2.5-flash", contents="hi"),
    "google stream": lambda url: list(_google(url).models.generate_content_stream(model="gemini-2.5-flash", contents="hi")),
    "google async stream": lambda url: asyncio.run(_google_streamed(url)),
    "bedrock converse": lambda url: _bedrock(url).converse(modelId="amazon.nova-lite-v1:0", **TOLD),
    "bedrock converse stream": lambda url: list(_bedrock(url).converse_stream(modelId="amazon.nova-lite-v1:0", **TOLD)["stream"]),
    "bedrock invoke": lambda url: _bedrock(url).invoke_model(modelId=CLAUDE, body=INVOKED)["body"].read(),
    "bedrock invoke stream": lambda url: list(_bedrock(url).invoke_model_with_response_stream(modelId=CLAUDE, body=INVOKED)["body"]),
    "mistral": lambda url: _mistral(url).chat.complete(model="mistral-small-latest", messages=ASKED),
    "cohere": lambda url: _cohere(url).chat(model="command-r", messages=ASKED),
    "cohere stream": lambda url: list(_cohere(url).chat_stream(model="command-r", messages=ASKED)),
    "ollama": lambda url: _ollama(url).chat(model="llama3", messages=ASKED),
    "ollama stream": lambda url: list(_ollama(url).chat(model="llama3", messages=ASKED, stream=True)),
    "litellm gemini": _litellm("gemini/gemini-2.5-flash", GEMINI),
    "litellm gemini stream": lambda url: list(_litellm("gemini/gemini-2.5-flash", GEMINI, stream=True)(url)),
    "litellm gemini async stream": lambda url: asyncio.run(_litellm_streamed(url)),
    "litellm anthropic": _litellm("anthropic/claude-3-haiku-20240307", ""),
    "litellm ollama": _litellm("ollama_chat/llama3", ""),
    "litellm cohere": _litellm("cohere_chat/command-r", "/v2/chat"),
    "litellm mistral": _litellm("mistral/mistral-small-latest", "/v1"),
    "litellm openai": _litellm("openai/gpt-4o-mini", "/v1"),
}


@pytest.fixture(autouse=True)
def _instrumented(monkeypatch):
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    with ravi_otel.instrument():
        yield


@pytest.mark.parametrize("limits", [[], ["tokens=5000:admission=strict"]], ids=["no limit", "strict"])
@pytest.mark.parametrize("name", CALLS)
def test_what_is_counted_is_what_the_answer_reports(name, limits):
    with ScriptedLLM(lambda _: ANSWER) as server:
        with ravi_otel.run("nightly", limits=limits) as run:
            CALLS[name](server.base_url.removesuffix("/v1"))
        drain()
        stats = run.stats()
        assert (len(server.requests), stats.requests, stats.input_tokens, stats.output_tokens) == (1, 1, 120, 80)
