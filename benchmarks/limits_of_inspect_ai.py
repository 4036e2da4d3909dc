"""Work under inspect_ai's scoped limits: one, entered as a context manager around all `Model.generate` calls."""

from __future__ import annotations

import asyncio
from typing import Any

from inspect_ai.model import ChatMessageUser, GenerateConfig, ModelCost, get_model, set_model_cost
from inspect_ai.util import LimitExceededError, cost_limit, message_limit, token_limit, turn_limit
from peer_limits import MODEL, Told, in_tasks, refused_only, serve

LIMITS: dict[str, Any] = {"turns": turn_limit, "messages": message_limit, "tokens": token_limit, "cost": cost_limit}


def work(ask: Told) -> Told:
    """Generate many times at once; as many connections are allowed as there are calls, which inspect_ai remembers by key."""
    kind, count = ask["kind"], ask["count"]
    if kind not in LIMITS:
        return {"none": f"no limit on {kind}"}
    if ask["mode"] == "threads":
        return {"none": "no synchronous way to call a model, so no rows for threads"}
    config = GenerateConfig(max_connections=count, max_retries=0, max_tokens=ask["cap"])
    name, (dear_in, dear_out) = f"openai/{MODEL}", ask["prices"]
    set_model_cost(name, ModelCost(input=dear_in, output=dear_out, input_cache_write=0, input_cache_read=0))

    async def tasks() -> tuple[list[object], Any]:
        async with get_model(
            name, base_url=ask["url"], api_key=f"{count} at once", config=config, memoize=False, responses_api=False
        ) as model:
            texts = [[ChatMessageUser(content=ask["prompt"])] * (number + 1 if kind == "messages" else 1) for number in range(count)]
            with LIMITS[kind](ask["limit"]) as limit:
                return await in_tasks(count, lambda number: model.generate(texts[number])), limit

    results, limit = asyncio.run(tasks())
    refused_only(results, LimitExceededError)
    return {"charged": None if kind == "messages" else limit.usage, "ran": 0}


if __name__ == "__main__":
    serve(work)
