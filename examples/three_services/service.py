"""Be one of three services that answer a question together: each asks a model, and then the service behind it.

    SERVICE=library uvicorn service:app --port 8003
    SERVICE=research BEHIND=http://127.0.0.1:8003 LEND=400 uvicorn service:app --port 8002
    SERVICE=desk BEHIND=http://127.0.0.1:8002 LEND=900 AT_ONCE=2 uvicorn service:app --port 8001

All three are given the same `RAVI_CARRY_KEYS=ID:SECRET`, and `RAVI_CARRY_TO=127.0.0.1:8002,127.0.0.1:8003`. With `LEND` a service lends so
many tokens with each request; with `RAVI_LEDGER=redis://...` in all three they count in one place, and nothing need be lent.
`run_all.py` beside this file starts everything, with a scripted model. `docs/carriers.md` explains each word.
"""

import asyncio
import json
import os

import httpx
from openai import AsyncOpenAI

import ravi_otel
from ravi_otel.carrier.asgi import Carried

NAME = os.environ["SERVICE"]
BEHIND = os.environ.get("BEHIND")
LEND = int(os.environ.get("LEND", "0"))
ASKS = int(os.environ.get("ASKS", "1"))
AT_ONCE = int(os.environ.get("AT_ONCE", "1"))

ravi_otel.instrument()
model = AsyncOpenAI()


async def think(question, notes):
    """Ask the model as often as this service does, and keep what it says in `notes`."""
    for number in range(ASKS):
        prompt = [{"role": "user", "content": f"{NAME}, {number + 1}: {question}"}]
        reply = await model.chat.completions.create(model="gpt-4.1-mini", messages=prompt, max_tokens=40)
        notes.append(reply.choices[0].message.content)


async def ask_behind(question):
    """Ask the service behind this one, with a part of what is left."""
    async with httpx.AsyncClient(timeout=60) as http:
        if not LEND:
            return (await http.post(BEHIND, json={"question": question})).json()
        async with ravi_otel.lend(tokens=LEND):
            return (await http.post(BEHIND, json={"question": question})).json()


async def answer(question):
    """Work on a question; what a limit stopped is in the answer, with what was done until then."""
    scope = ravi_otel.current_scope()
    told = {"service": NAME, "run": scope.facts.run_id, "notes": [], "behind": [], "stopped": None}
    try:
        async with ravi_otel.agent(NAME):
            await think(question, told["notes"])
            if BEHIND:
                told["behind"] = await asyncio.gather(*(ask_behind(question) for _ in range(AT_ONCE)))
    except ravi_otel.BudgetExhaustedError as error:
        told["stopped"] = str(error)
    told["tokens"] = scope.spend().total_tokens
    return told


async def serve(scope, receive, send):
    """Answer `POST / {"question": ...}`, over plain ASGI; any framework's app can stand here."""
    if scope["type"] == "lifespan":
        return await lifespan(receive, send)
    body, more = b"", True
    while more:
        message = await receive()
        body, more = body + message.get("body", b""), message.get("more_body", False)
    told = json.dumps(await answer(json.loads(body)["question"])).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(told)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    return await send({"type": "http.response.body", "body": told})


async def lifespan(receive, send):
    """Start and stop with the server, and send on what is still to be told: uvicorn ends by a signal, and no `atexit` runs."""
    await receive()
    await send({"type": "lifespan.startup.complete"})
    await receive()
    await asyncio.to_thread(ravi_otel.flush, 10)
    await send({"type": "lifespan.shutdown.complete"})


app = Carried(serve, name=NAME, otherwise=["tokens=2000"])  # what a request that carries nothing may use
