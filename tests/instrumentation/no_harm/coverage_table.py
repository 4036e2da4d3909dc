"""Find out what each public method of the client yields, by calling it, and write it down as a table."""

from __future__ import annotations

import asyncio
import warnings
from collections import defaultdict
from contextlib import suppress
from typing import Any

import openai
from client_walk import CLIENT_ITSELF, answer_for, call, connects, methods
from memory_wire import AsyncMemoryTransport, MemoryTransport, Wire
from opentelemetry.sdk.trace import ReadableSpan
from socket_walk import opened

from ravi_otel._runtime.stopping import drain
from ravi_otel.testing import Capture

Yields = dict[str, str]

NO_REQUEST = "nothing: it sends no request"
PLAIN = "a plain span"
SESSION = "a session span"
_USAGE = ("gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens")
_OWN_USAGE = ("ravi.usage.characters", "ravi.usage.audio.duration_s", "ravi.usage.searches")
_COST = "ravi.usage.cost_usd"

HEAD = """# What each method of the client yields

Every public method of `openai` {version}, as called with plain arguments and answered as the API ordinarily answers. A test calls them \
all, and holds this page to what it finds; the blocking and the awaiting client yield the same.

A *GenAI span* has the operation that is named, and counts as a request against limits. *Usage* means that the answer's tokens, or what is \
billed instead of them, are on it; *cost*, that there is a price for them. A *plain span* tells that a request was made, how long it took \
and how it ended: no model was asked for anything, so nothing is counted but what the limit on time says.

`client.get`, `post`, `put`, `patch`, `delete`, `request` and `get_api_list` yield whatever the path they are given yields.
"""


def client_of(colour: str, wire: Wire) -> Any:
    more = {} if openai.__version__.startswith(("1.", "2.")) else {"admin_api_key": "admin"}
    if colour == "sync":
        pool: Any = openai.DefaultHttpxClient(transport=MemoryTransport(wire))
        return openai.OpenAI(api_key="k", base_url="https://api.openai.com/v1", http_client=pool, **more)
    pool = openai.DefaultAsyncHttpxClient(transport=AsyncMemoryTransport(wire))
    return openai.AsyncOpenAI(api_key="k", base_url="https://api.openai.com/v1", http_client=pool, **more)


def yields(colour: str, capture: Capture) -> Yields:
    """Call every method on a client of this colour; instrumented by whoever calls."""
    wire = Wire()
    client = client_of(colour, wire)
    found: Yields = {}
    with asyncio.Runner() as runner, warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # methods that will go some day
        for path in methods(client):
            capture.clear()
            if path in CLIENT_ITSELF:
                found[path] = NO_REQUEST
            elif connects(path):
                _run(runner, colour, opened(colour, path))
                *answers, _ = capture.spans()
                found[path] = SESSION + "; for each answer " + ", ".join(kind_of(span) for span in answers)
            else:
                found[path] = _called(runner, colour, client, path, wire, capture)
    return found


def _run(runner: asyncio.Runner, colour: str, program: Any) -> None:
    if colour == "async":
        runner.run(program)
    else:
        with suppress(StopIteration):
            program.send(None)
    drain()


def _called(runner: asyncio.Runner, colour: str, client: Any, path: str, wire: Wire, capture: Capture) -> str:
    wire.play(answer_for(path))
    # A result that was read, or arguments it does not like: what was told counts.
    with suppress(ValueError, AttributeError, TypeError, RuntimeError, openai.OpenAIError):
        more = {"file_id": f"file-{colour}"} if path == "files.content" else None  # what a batch used counts once
        _run(runner, colour, call(client, path, more=more))
    drain()
    spans = capture.spans()
    if not wire.sent:
        return NO_REQUEST
    kinds = list(dict.fromkeys(kind_of(span) for span in spans))
    return ", then ".join(kinds) if kinds else "nothing"


def kind_of(span: ReadableSpan) -> str:
    told = span.attributes or {}
    operation = told.get("gen_ai.operation.name")
    if operation is None:
        return PLAIN
    parts = [f"a GenAI span `{operation}`"]
    if any(name in told for name in (*_USAGE, *_OWN_USAGE)):
        parts.append("usage")
    if _COST in told:
        parts.append("cost")
    return ", ".join(parts)


def page(found: Yields) -> str:
    """Write the page: what yields more than a plain span one row a resource and kind, the rest by resource."""
    rows: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for path, kind in found.items():
        owner, _, name = path.rpartition(".")
        rows[kind][owner or "client"].append(name)
    sockets = sorted(kind for kind in rows if kind.startswith(SESSION))
    models = sorted(kind for kind in rows if kind not in (PLAIN, NO_REQUEST, *sockets))
    lines = [HEAD.format(version=".".join(openai.__version__.split(".")[:2]))]
    lines += ["## GenAI spans", "", "| Resource | Methods | Yield |", "|---|---|---|"]
    told = sorted((owner, kind, names) for kind in models for owner, names in rows[kind].items())
    lines += [f"| {owner} | {_names(names)} | {kind} |" for owner, kind, names in told]
    lines += ["", "## WebSockets", "", "| Resource | Methods | Yield |", "|---|---|---|"]
    lines += [f"| {owner} | {_names(names)} | {kind} |" for kind in sockets for owner, names in sorted(rows[kind].items())]
    for title, kind in (("Plain spans", PLAIN), ("No request", NO_REQUEST)):
        lines += ["", f"## {title}", "", "| Resource | Methods |", "|---|---|"]
        lines += [f"| {owner} | {_names(names)} |" for owner, names in sorted(rows[kind].items())]
    count = {kind: sum(map(len, names.values())) for kind, names in rows.items()}
    spans, sessions = sum(count[kind] for kind in models), sum(count[kind] for kind in sockets)
    lines += ["", f"{len(found)} methods: {spans} yield GenAI spans, {sessions} sessions, {count.get(PLAIN, 0)} plain spans."]
    return "\n".join(lines) + "\n"


def _names(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(names))
