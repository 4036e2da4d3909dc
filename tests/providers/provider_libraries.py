"""Each library's endpoints as a program uses them: how its client is made for a server, and how it is asked."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

QUESTION = "Where is parcel P-31?"
ASKED = [{"role": "user", "content": QUESTION}]
BLOCKS = [{"role": "user", "content": [{"text": QUESTION}]}]
AWS = {"region_name": "us-east-1", "aws_access_key_id": "any", "aws_secret_access_key": "any"}
os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # else it is fetched
os.environ |= {"AWS_ACCESS_KEY_ID": "any", "AWS_SECRET_ACCESS_KEY": "any", "AWS_DEFAULT_REGION": "us-east-1"}


@dataclass(frozen=True)
class Case:
    """One endpoint of a library, in one colour, whole or as a stream.

    `provider` is who is taken to answer, `model` what is asked for by its name on the wire, `operation` what that is in the convention's
    words. `signed` says that the library signs its bodies where nobody can write to them before. `make` gives a client for a server's
    URL, `ask` its answer: the text, and the tokens as the library tells them.
    """

    library: str
    endpoint: str
    colour: str
    stream: bool
    provider: str
    model: str
    make: Callable[[str], Any]
    ask: Callable[[Any], Any]
    operation: str = "chat"
    signed: bool = False

    @property
    def name(self):
        return f"{self.library} {self.endpoint} {self.colour}{' stream' if self.stream else ''}"


CASES: list[Case] = []


def case(library, endpoint, colour, provider, model, make, *, stream=False, operation="chat", signed=False):
    """Take the function below for one more case."""

    def taken(ask):
        CASES.append(Case(library, endpoint, colour, stream, provider, model, make, ask, operation, signed))
        return ask

    return taken


# -- google-genai -------------------------------------------------------------------------------------------------------

GEMINI = "gemini-2.5-flash"


def gemini(url):
    from google import genai

    return genai.Client(api_key="any", http_options={"base_url": url})


def of_gemini(chunks):
    used = chunks[-1].usage_metadata
    return "".join(each.text or "" for each in chunks), (used.prompt_token_count, used.candidates_token_count)


def google_case(colour, endpoint="generateContent", **more):
    return case("google-genai", endpoint, colour, "gcp.gemini", GEMINI, gemini, operation="generate_content", **more)


@google_case("sync")
def _(client):
    return of_gemini([client.models.generate_content(model=GEMINI, contents=QUESTION)])


@google_case("sync", stream=True)
def _(client):
    return of_gemini(list(client.models.generate_content_stream(model=GEMINI, contents=QUESTION)))


@google_case("async")
async def _(client):
    return of_gemini([await client.aio.models.generate_content(model=GEMINI, contents=QUESTION)])


@google_case("async", stream=True)
async def _(client):
    return of_gemini([each async for each in await client.aio.models.generate_content_stream(model=GEMINI, contents=QUESTION)])


# -- boto3 --------------------------------------------------------------------------------------------------------------

NOVA = "amazon.nova-lite-v1:0"
LLAMA = "meta.llama3-8b-instruct-v1:0"
CLAUDE = "anthropic.claude-3-haiku-20240307-v1:0"


def bedrock(url):
    import boto3
    from botocore.config import Config

    return boto3.client("bedrock-runtime", endpoint_url=url, config=Config(max_pool_connections=32), **AWS)


@case("boto3", "Converse", "sync", "aws.bedrock", NOVA, bedrock)
def _(client):
    found = client.converse(modelId=NOVA, messages=BLOCKS)
    used = found["usage"]
    return found["output"]["message"]["content"][0]["text"], (used["inputTokens"], used["outputTokens"])


@case("boto3", "Converse", "sync", "aws.bedrock", NOVA, bedrock, stream=True)
def _(client):
    text, used = "", {}
    for each in client.converse_stream(modelId=NOVA, messages=BLOCKS)["stream"]:
        text += each.get("contentBlockDelta", {}).get("delta", {}).get("text", "")
        used = each.get("metadata", {}).get("usage", used)
    return text, (used["inputTokens"], used["outputTokens"])


def llama_asked():
    import json

    return json.dumps({"prompt": QUESTION, "max_gen_len": 200})


@case("boto3", "InvokeModel (Llama)", "sync", "aws.bedrock", LLAMA, bedrock, operation="text_completion")
def _(client):
    import json

    found = json.loads(client.invoke_model(modelId=LLAMA, body=llama_asked())["body"].read())
    return found["generation"], (found["prompt_token_count"], found["generation_token_count"])


@case("boto3", "InvokeModel (Llama)", "sync", "aws.bedrock", LLAMA, bedrock, stream=True, operation="text_completion")
def _(client):
    import json

    body = client.invoke_model_with_response_stream(modelId=LLAMA, body=llama_asked())["body"]
    found = [json.loads(each["chunk"]["bytes"]) for each in body]
    return "".join(each["generation"] for each in found), (found[-1]["prompt_token_count"], found[-1]["generation_token_count"])


def claude_asked():
    import json

    return json.dumps({"anthropic_version": "bedrock-2023-05-31", "max_tokens": 200, "messages": ASKED})


@case("boto3", "InvokeModel (Claude)", "sync", "aws.bedrock", CLAUDE, bedrock)
def _(client):
    import json

    found = json.loads(client.invoke_model(modelId=CLAUDE, body=claude_asked())["body"].read())
    return found["content"][0]["text"], (found["usage"]["input_tokens"], found["usage"]["output_tokens"])


@case("boto3", "InvokeModel (Claude)", "sync", "aws.bedrock", CLAUDE, bedrock, stream=True)
def _(client):
    import json

    body = client.invoke_model_with_response_stream(modelId=CLAUDE, body=claude_asked())["body"]
    found = [json.loads(each["chunk"]["bytes"]) for each in body]
    text = "".join(each["delta"].get("text", "") for each in found if each["type"] == "content_block_delta")
    used = next(each["usage"] for each in found if each["type"] == "message_delta")
    return text, (used["input_tokens"], used["output_tokens"])


# -- mistralai ----------------------------------------------------------------------------------------------------------

MISTRAL = "mistral-small-latest"


def mistral(url):
    from mistralai.client import Mistral

    return Mistral(api_key="any", server_url=f"{url}/mistral")


def of_mistral(found):
    return found.choices[0].message.content, (found.usage.prompt_tokens, found.usage.completion_tokens)


def of_mistral_stream(events):
    used = next(each.data.usage for each in reversed(events) if each.data.usage)
    said = [each.data.choices[0].delta.content for each in events if each.data.choices]
    return "".join(each for each in said if isinstance(each, str)), (used.prompt_tokens, used.completion_tokens)


def mistral_case(colour, **more):
    return case("mistralai", "chat", colour, "mistral_ai", MISTRAL, mistral, **more)


@mistral_case("sync")
def _(client):
    return of_mistral(client.chat.complete(model=MISTRAL, messages=ASKED))


@mistral_case("sync", stream=True)
def _(client):
    with client.chat.stream(model=MISTRAL, messages=ASKED) as stream:
        return of_mistral_stream(list(stream))


@mistral_case("async")
async def _(client):
    return of_mistral(await client.chat.complete_async(model=MISTRAL, messages=ASKED))


@mistral_case("async", stream=True)
async def _(client):
    return of_mistral_stream([each async for each in await client.chat.stream_async(model=MISTRAL, messages=ASKED)])


# -- cohere -------------------------------------------------------------------------------------------------------------

COMMAND = "command-r-08-2024"


def of_cohere(found):
    used = found.usage.billed_units
    return found.message.content[0].text, (int(used.input_tokens), int(used.output_tokens))


def of_cohere_stream(events):
    used = events[-1].delta.usage.billed_units
    text = "".join(each.delta.message.content.text for each in events if each.type == "content-delta")
    return text, (int(used.input_tokens), int(used.output_tokens))


def cohere_client(url):
    import cohere

    return cohere.ClientV2(api_key="any", base_url=url)


def cohere_async(url):
    import cohere

    return cohere.AsyncClientV2(api_key="any", base_url=url)


@case("cohere", "chat v2", "sync", "cohere", COMMAND, cohere_client)
def _(client):
    return of_cohere(client.chat(model=COMMAND, messages=ASKED))


@case("cohere", "chat v2", "sync", "cohere", COMMAND, cohere_client, stream=True)
def _(client):
    return of_cohere_stream(list(client.chat_stream(model=COMMAND, messages=ASKED)))


@case("cohere", "chat v2", "async", "cohere", COMMAND, cohere_async)
async def _(client):
    return of_cohere(await client.chat(model=COMMAND, messages=ASKED))


@case("cohere", "chat v2", "async", "cohere", COMMAND, cohere_async, stream=True)
async def _(client):
    return of_cohere_stream([each async for each in client.chat_stream(model=COMMAND, messages=ASKED)])


# -- ollama -------------------------------------------------------------------------------------------------------------

LOCAL = "llama3.2"


def of_ollama(chunks):
    return "".join(each.message.content for each in chunks), (chunks[-1].prompt_eval_count, chunks[-1].eval_count)


def of_generate(chunks):
    return "".join(each.response for each in chunks), (chunks[-1].prompt_eval_count, chunks[-1].eval_count)


def ollama_client(url):
    import ollama

    return ollama.Client(host=url)


def ollama_async(url):
    import ollama

    return ollama.AsyncClient(host=url)


@case("ollama", "/api/chat", "sync", "ollama", LOCAL, ollama_client)
def _(client):
    return of_ollama([client.chat(model=LOCAL, messages=ASKED)])


@case("ollama", "/api/chat", "sync", "ollama", LOCAL, ollama_client, stream=True)
def _(client):
    return of_ollama(list(client.chat(model=LOCAL, messages=ASKED, stream=True)))


@case("ollama", "/api/chat", "async", "ollama", LOCAL, ollama_async)
async def _(client):
    return of_ollama([await client.chat(model=LOCAL, messages=ASKED)])


@case("ollama", "/api/chat", "async", "ollama", LOCAL, ollama_async, stream=True)
async def _(client):
    return of_ollama([each async for each in await client.chat(model=LOCAL, messages=ASKED, stream=True)])


@case("ollama", "/api/generate", "sync", "ollama", LOCAL, ollama_client, operation="text_completion")
def _(client):
    return of_generate([client.generate(model=LOCAL, prompt=QUESTION)])


@case("ollama", "/api/generate", "sync", "ollama", LOCAL, ollama_client, stream=True, operation="text_completion")
def _(client):
    return of_generate(list(client.generate(model=LOCAL, prompt=QUESTION, stream=True)))


# -- litellm ------------------------------------------------------------------------------------------------------------

ROUTES = {
    "openai": ("openai", "gpt-4o-mini", "chat", lambda url: {"api_base": f"{url}/v1", "api_key": "any"}),
    "anthropic": ("anthropic", "claude-opus-4-8", "chat", lambda url: {"api_base": url, "api_key": "any"}),
    "gemini": ("gcp.gemini", GEMINI, "generate_content", lambda url: {"api_base": f"{url}/v1beta", "api_key": "any"}),
    "bedrock": ("aws.bedrock", NOVA, "chat", lambda url: {"aws_bedrock_runtime_endpoint": url}),
    "ollama_chat": ("ollama", LOCAL, "chat", lambda url: {"api_base": url}),
    "mistral": ("mistral_ai", MISTRAL, "chat", lambda url: {"api_base": f"{url}/mistral/v1", "api_key": "any"}),
}
"""Of each route who is taken to answer, the model, what that is in the convention's words, and how it is told of a server."""


def route(name):
    provider, model, operation, place = ROUTES[name]
    asked = {"model": f"{name}/{model}", "messages": ASKED, "num_retries": 0, "max_retries": 0}

    def make(url):
        import litellm

        litellm.suppress_debug_info = True
        return litellm, {**asked, **place(url)}

    def whole(found):
        return found.choices[0].message.content, (found.usage.prompt_tokens, found.usage.completion_tokens)

    def joined(chunks):
        used = next((each.usage for each in reversed(chunks) if getattr(each, "usage", None)), None)
        text = "".join(each.choices[0].delta.content or "" for each in chunks if each.choices)
        return text, None if used is None else (used.prompt_tokens, used.completion_tokens)

    streamed = {"stream": True, "stream_options": {"include_usage": True}}

    def litellm_case(colour, **more):
        return case("litellm", name, colour, provider, model, make, operation=operation, signed=name == "bedrock", **more)

    @litellm_case("sync")
    def _(client):
        return whole(client[0].completion(**client[1]))

    @litellm_case("sync", stream=True)
    def _(client):
        return joined(list(client[0].completion(**client[1], **streamed)))

    @litellm_case("async")
    async def _(client):
        return whole(await client[0].acompletion(**client[1]))

    @litellm_case("async", stream=True)
    async def _(client):
        return joined([each async for each in await client[0].acompletion(**client[1], **streamed)])


for each_route in ROUTES:
    route(each_route)
