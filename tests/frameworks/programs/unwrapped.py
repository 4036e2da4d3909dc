"""Ask a model twice through a client that is not wrapped, or do less with it: `unwrapped.py CLIENT [import|make]`."""

import asyncio
import os
import sys

URL = os.environ["OPENAI_BASE_URL"].removesuffix("/v1")
ASKED = [{"role": "user", "content": "Where is parcel P-31?"}]
AWS = {"region_name": "us-east-1", "aws_access_key_id": "any", "aws_secret_access_key": "any"}


def google_genai():
    from google import genai

    return lambda: genai.Client(api_key="any", http_options={"base_url": URL}), lambda client: client.models.generate_content(
        model="gemini-2.5-flash", contents="Where is parcel P-31?"
    )


def google_genai_async():
    from google import genai

    return lambda: genai.Client(api_key="any", http_options={"base_url": URL}), lambda client: asyncio.run(
        client.aio.models.generate_content(model="gemini-2.5-flash", contents="Where is parcel P-31?")
    )


def boto3():
    import boto3

    return lambda: boto3.client("bedrock-runtime", endpoint_url=URL, **AWS), lambda client: client.converse(
        modelId="any", messages=[{"role": "user", "content": [{"text": "Where is parcel P-31?"}]}]
    )


def mistralai():
    from mistralai.client import Mistral

    return lambda: Mistral(api_key="any", server_url=URL), lambda client: client.chat.complete(model="any", messages=ASKED)


def cohere():
    import cohere

    return lambda: cohere.ClientV2(api_key="any", base_url=URL), lambda client: client.chat(model="any", messages=ASKED)


def ollama():
    import ollama

    return lambda: ollama.Client(host=URL), lambda client: client.chat(model="any", messages=ASKED)


def ollama_functions():
    os.environ["OLLAMA_HOST"] = URL
    import ollama

    return lambda: ollama, lambda module: module.chat(model="any", messages=ASKED)


def litellm():
    import litellm

    return lambda: litellm, lambda module: module.completion("anthropic/claude-opus-4-8", api_base=URL, api_key="any", messages=ASKED)


def litellm_async():
    import litellm

    return lambda: litellm, lambda module: asyncio.run(
        module.acompletion("gemini/gemini-2.5-flash", api_base=URL, api_key="any", messages=ASKED)
    )


def litellm_openai():
    import litellm

    return lambda: litellm, lambda module: module.completion("openai/gpt-4.1-mini", api_base=f"{URL}/v1", api_key="any", messages=ASKED)


def litellm_openai_async():
    import litellm

    return lambda: litellm, lambda module: asyncio.run(
        module.acompletion("openai/gpt-4.1-mini", api_base=f"{URL}/v1", api_key="any", messages=ASKED)
    )


make, ask = globals()[sys.argv[1]]()
if sys.argv[2:] != ["import"]:
    client = make()
    if sys.argv[2:] != ["make"]:
        for _ in range(2):
            try:
                ask(client)
            except Exception as error:
                print(type(error).__name__)
