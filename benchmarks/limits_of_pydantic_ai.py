"""Work under pydantic-ai's `UsageLimits`: one `RunUsage` and one `UsageLimits` given to every run of an agent."""

from __future__ import annotations

import asyncio
from decimal import Decimal
from typing import Any

from openai import AsyncOpenAI
from peer_limits import MODEL, Told, in_tasks, in_threads, refused_only, serve
from pydantic_ai import Agent, UsageLimitExceeded
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.usage import RunUsage, UsageLimits


def limits(kind: str, limit: float) -> UsageLimits | None:
    """Give the limit of a kind; None where there is none. The default of 50 requests is taken off."""
    if kind == "requests":
        return UsageLimits(request_limit=int(limit))
    if kind == "tool_calls":
        return UsageLimits(request_limit=None, tool_calls_limit=int(limit))
    if kind == "tokens":
        return UsageLimits(request_limit=None, total_tokens_limit=int(limit))
    return UsageLimits(request_limit=None, cost_limit=Decimal(str(limit))) if kind == "cost" else None


def work(ask: Told) -> Told:
    """Run an agent many times at once."""
    kind, count = ask["kind"], ask["count"]
    usage, limited, ran = RunUsage(), limits(kind, ask["limit"]), list[int]()
    if limited is None:
        return {"none": f"no limit on {kind}"}
    settings: Any = {} if ask["cap"] is None else {"max_tokens": ask["cap"]}

    async def work() -> str:
        await asyncio.sleep(0)
        ran.append(1)
        return "done"

    def client() -> AsyncOpenAI:
        return AsyncOpenAI(base_url=ask["url"], api_key="any", max_retries=0, timeout=120)

    async def run(client: AsyncOpenAI) -> object:
        model = OpenAIChatModel(MODEL, provider=OpenAIProvider(openai_client=client))
        agent = Agent(model, tools=[work] if kind == "tool_calls" else [], retries=0)
        return await agent.run(ask["prompt"], usage=usage, usage_limits=limited, model_settings=settings)

    async def tasks() -> list[object]:
        async with client() as shared:
            return await in_tasks(count, lambda _: run(shared))

    async def alone() -> object:
        async with client() as own:  # a client belongs to one event loop
            return await run(own)

    refused_only(asyncio.run(tasks()) if ask["mode"] == "tasks" else in_threads(count, lambda _: asyncio.run(alone())), UsageLimitExceeded)
    counted = {"requests": usage.requests, "tool_calls": usage.tool_calls, "tokens": usage.total_tokens}
    return {"charged": counted.get(kind, None if usage.cost is None else float(usage.cost)), "ran": len(ran)}


if __name__ == "__main__":
    serve(work)
