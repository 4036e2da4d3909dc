"""Whose API lies at a host, as the providers' own documents and the GenAI conventions' well-known values have it."""

from __future__ import annotations

import openai
import pytest

from ravi_otel._instrumentation.client_profile import profile_of

KNOWN = {
    "https://api.openai.com/v1": "openai",
    "https://eu.api.openai.com/v1": "openai",
    "https://desk.openai.azure.com/openai/v1": "azure.ai.openai",
    "https://desk.cognitiveservices.azure.com/openai/v1": "azure.ai.openai",
    "https://desk.services.ai.azure.com/openai/v1": "azure.ai.openai",
    "https://desk.openai.azure.us/openai/v1": "azure.ai.openai",
    "https://desk.eastus2.models.ai.azure.com/v1": "azure.ai.inference",
    "https://bedrock-runtime.us-west-2.amazonaws.com/openai/v1": "aws.bedrock",
    "https://bedrock-mantle.eu-central-1.api.aws/v1": "aws.bedrock",
    "https://vpce-1a2b.bedrock-runtime.us-east-1.vpce.amazonaws.com/openai/v1": "aws.bedrock",
    "https://us-central1-aiplatform.googleapis.com/v1/projects/p/locations/us-central1/endpoints/openapi": "gcp.vertex_ai",
    "https://aiplatform.googleapis.com/v1/projects/p/locations/global/endpoints/openapi": "gcp.vertex_ai",
    "https://generativelanguage.googleapis.com/v1beta/openai": "gcp.gemini",
    "https://api.groq.com/openai/v1": "groq",
    "https://api.deepseek.com": "deepseek",
    "https://api.mistral.ai/v1": "mistral_ai",
    "https://us-east-1.api.x.ai/v1": "x_ai",
    "https://api.perplexity.ai": "perplexity",
    "https://api.moonshot.ai/v1": "moonshot_ai",
    "https://api.cohere.com/compatibility/v1": "cohere",
    "https://us-south.ml.cloud.ibm.com/ml/gateway/v1": "ibm.watsonx.ai",
    "https://openrouter.ai/api/v1": "openrouter",
    "https://api.together.xyz/v1": "together",
    "https://api.fireworks.ai/inference/v1": "fireworks",
    "http://localhost:11434/v1": "ollama",
    "http://127.0.0.1:11434/v1": "ollama",
}
STRANGE = [
    "http://localhost:8000/v1",
    "https://ec2-1-2-3-4.compute-1.amazonaws.com/v1",
    "https://mine.us-east-1.elb.amazonaws.com/v1",
    "https://bedrock.example.com/v1",
    "https://api.openai.com.example.com/v1",
    "https://notopenai.azure.com.example.com/v1",
    "http://model.example.com:11434/v1",
]


def _host(url, named=None):
    with openai.OpenAI(api_key="none", base_url=url) as client:
        return profile_of("openai").host_of(client, named or {})


@pytest.mark.parametrize(("url", "provider"), KNOWN.items())
def test_a_host_that_is_known_says_who_answers(url, provider):
    host = _host(url)
    assert (host.provider, host.assumed) == (provider, False)
    assert host.port in {443, 11434}


@pytest.mark.parametrize("url", STRANGE)
def test_a_host_that_nobody_knows_is_taken_for_the_clients_own_and_that_is_a_guess(url):
    host = _host(url)
    assert (host.provider, host.assumed) == ("openai", True)


@pytest.mark.parametrize(
    ("url", "named", "seller"),
    [
        ("http://localhost:11434/v1", {}, "ollama@localhost"),
        ("http://127.0.0.1:8000/v1", {"127.0.0.1:8000": "vllm"}, "vllm@localhost"),
        ("https://ollama.com/v1", {}, "ollama"),
        ("http://gpu.example.com:8000/v1", {"gpu.example.com": "vllm"}, "vllm"),
        ("http://127.0.0.1:4000/v1", {"127.0.0.1:4000": "litellm"}, "litellm"),
        ("https://ai-gateway.vercel.sh/v1", {}, "vercel"),
    ],
)
def test_only_a_server_of_open_models_on_this_machine_is_ones_own(url, named, seller):
    assert _host(url, named).seller == seller


def test_the_users_own_word_goes_before_what_is_known():
    assert _host("http://localhost:11434/v1", {"localhost:11434": "vllm"}).provider == "vllm"
