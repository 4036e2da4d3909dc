"""What each library sends again by itself is a request, and one call with the first where one method of the library sends both."""

import asyncio
import os
import sys
from pathlib import Path

import pytest

if not os.environ.get("RAVI_TEST_PROVIDERS"):
    pytest.skip("make providers runs these, in an environment of their own", allow_module_level=True)

sys.path.insert(0, str(Path(__file__).parent))  # as the modules beside the tests have it
from provider_libraries import ASKED, AWS, BLOCKS, COMMAND, GEMINI, MISTRAL, NOVA, QUESTION, ROUTES

import ravi_otel
from ravi_otel._runtime.stopping import drain
from ravi_otel.testing import Capture, Failure, ScriptedLLM, Text

pytestmark = pytest.mark.timeout(300)
SENT = 3
"""Two errors and an answer."""


def gemini(url):
    from google import genai
    from google.genai.types import HttpOptions, HttpRetryOptions

    retry = HttpRetryOptions(attempts=SENT, initial_delay=0.01, max_delay=0.01)
    return genai.Client(api_key="any", http_options=HttpOptions(base_url=url, retry_options=retry))


def ask_gemini(url):
    client = gemini(url)  # which closes its connections when it goes
    client.models.generate_content(model=GEMINI, contents=QUESTION)


def ask_gemini_async(url):
    client = gemini(url)
    asyncio.run(client.aio.models.generate_content(model=GEMINI, contents=QUESTION))


def ask_bedrock(url):
    import boto3
    from botocore.config import Config

    config = Config(retries={"mode": "standard", "total_max_attempts": SENT})
    boto3.client("bedrock-runtime", endpoint_url=url, config=config, **AWS).converse(modelId=NOVA, messages=BLOCKS)


def mistral(url):
    from mistralai.client import Mistral
    from mistralai.client.utils import BackoffStrategy, RetryConfig

    retry = RetryConfig("backoff", BackoffStrategy(10, 20, 1.0, 60_000), retry_connection_errors=True)
    return Mistral(api_key="any", server_url=f"{url}/mistral", retry_config=retry)


def ask_mistral(url):
    client = mistral(url)
    client.chat.complete(model=MISTRAL, messages=ASKED)


def ask_mistral_async(url):
    client = mistral(url)
    asyncio.run(client.chat.complete_async(model=MISTRAL, messages=ASKED))


def ask_cohere(url):
    import cohere

    cohere.ClientV2(api_key="any", base_url=url).chat(model=COMMAND, messages=ASKED)


def ask_cohere_async(url):
    import cohere

    asyncio.run(cohere.AsyncClientV2(api_key="any", base_url=url).chat(model=COMMAND, messages=ASKED))


def litellm_of(route):
    _, model, _, place = ROUTES[route]
    asked = {"model": f"{route}/{model}", "messages": ASKED, "num_retries": SENT - 1}

    def ask(url):
        import litellm

        litellm.suppress_debug_info = True
        litellm.completion(**asked, **place(url))

    return ask


CASES = {
    "google-genai": (ask_gemini, SENT),
    "google-genai async": (ask_gemini_async, SENT),
    "boto3": (ask_bedrock, 1),
    "mistralai": (ask_mistral, SENT),
    "mistralai async": (ask_mistral_async, SENT),
    "cohere": (ask_cohere, SENT),
    "cohere async": (ask_cohere_async, SENT),
    "LiteLLM over openai": (litellm_of("openai"), 1),
    "LiteLLM over gemini": (litellm_of("gemini"), SENT),
    "LiteLLM over anthropic": (litellm_of("anthropic"), SENT),
    "LiteLLM over ollama": (litellm_of("ollama_chat"), SENT),
}
"""How each asks, and how many calls three requests of it are."""


@pytest.mark.parametrize("name", CASES)
def test_what_a_library_sends_again_is_a_request_and_one_call_where_one_method_sends_it(name):
    ask, calls = CASES[name]
    with ScriptedLLM([Failure(503, "later"), Failure(503, "later"), *[Text("Oslo.", usage=(12, 8))] * 3]) as server, Capture() as capture:
        ravi_otel.instrument(tracer_provider=capture.tracer_provider)
        try:
            with ravi_otel.run("answer") as run:
                ask(server.url)
            drain()
        finally:
            ravi_otel.uninstrument()
        sent = [each for each in server.requests if not each.path.endswith("/api/show")]
        spans = [each for each in capture.spans() if "gen_ai.request.model" in each.attributes]
    stats = run.stats()
    assert (len(sent), stats.requests) == (SENT, SENT)
    assert (stats.turns, len(spans), stats.output_tokens) == (calls, calls, 8)


def test_ollama_sends_nothing_again():
    import ollama

    with ScriptedLLM([Failure(503, "later"), Text("Oslo.")]) as server:
        ravi_otel.instrument()
        try:
            with ravi_otel.run("answer") as run, pytest.raises(ollama.ResponseError):
                ollama.Client(host=server.url).chat(model="llama3.2", messages=ASKED)
        finally:
            ravi_otel.uninstrument()
    assert run.stats().requests == 1
