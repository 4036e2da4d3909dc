"""With content off, nothing of headers, URLs, bodies and error texts is told: not on spans, logs, events or metrics."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

import ravi_otel
from ravi_otel.testing import Capture, Disconnect, Failure, Malformed, Raw, Text

SECRETS = {
    "key": "sk-proj-PLANTEDKEY0001",
    "header": "PLANTEDHEADER0002",
    "query": "PLANTEDQUERY0003",
    "path": "plantedpathfour",
    "prompt": "PLANTEDPROMPT0005",
    "extra": "PLANTEDEXTRA0006",
    "answer": "PLANTEDANSWER0007",
    "error": "PLANTEDERROR0008",
    "user": "PLANTEDUSER0009",
    "metadata": "PLANTEDMETADATA0010",
    "tool": "PLANTEDTOOLDOC0011",
    "password": "PLANTEDPASSWORD0012",
}
ANSWERS = {
    "text": Text(SECRETS["answer"]),
    "401": Failure(401, f"Incorrect API key provided: {SECRETS['error']}", "invalid_api_key"),
    "400": Failure(400, f"Invalid value: {SECRETS['error']}", param=SECRETS["error"]),
    "500": Failure(500, SECRETS["error"], headers={"retry-after-ms": "1"}),
    "html": Raw(SECRETS["error"].encode(), 502, content_type="text/html", headers={"retry-after-ms": "1"}),
    "not json": Raw(SECRETS["answer"].encode()),
    "disconnect": Disconnect(1),
    "error event": Malformed(json.dumps({"error": {"message": SECRETS["error"], "code": "busy"}})),
    "broken event": Malformed(SECRETS["answer"]),
}


def everything(capture: Capture, lines: list[logging.LogRecord]) -> str:
    """Write down all that left us: spans, events, log records with their tracebacks, metrics."""
    spans = [
        (
            span.name,
            dict(span.attributes or {}),
            span.status.description,
            [(event.name, dict(event.attributes or {})) for event in span.events],
        )
        for span in capture.spans()
    ]
    metrics = [(name, [(dict(point.attributes), point.value) for point in capture.metric(name)]) for name in capture.metric_names()]
    events = [(event.name, dict(event.attributes), event.body) for event in capture.events()]
    said = [logging.Formatter().format(line) for line in lines if line.name.startswith(("ravi", "opentelemetry"))]
    assert spans
    assert metrics
    return repr((spans, metrics, events, said))


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("answer", ANSWERS)
def test_nothing_secret_is_told(
    answer: str, stream: bool, colour: str, stage: Any, clients: Any, instrumented: Capture, caplog: Any
) -> None:
    url = stage.play(ANSWERS[answer])
    client = clients.make(
        colour,
        url.replace("://", f"://{SECRETS['user']}:{SECRETS['password']}@"),
        api_key=SECRETS["key"],
        max_retries=1,
        default_query={"k": SECRETS["query"]},
    )

    refusals: list[str] = []

    async def got(made: Any) -> Any:
        return await made if hasattr(made, "__await__") else made

    async def program() -> None:
        ask: dict[str, Any] = {
            "model": "gpt-4o-mini",
            "messages": [{"role": "system", "content": SECRETS["prompt"]}, {"role": "user", "content": "x", "name": SECRETS["user"]}],
            "tools": [{"type": "function", "function": {"name": "f", "description": SECRETS["tool"], "parameters": {}}}],
            "metadata": {"a": SECRETS["metadata"]},
            "user": SECRETS["user"],
        }
        hidden: dict[str, Any] = {
            "extra_headers": {"X-Secret": SECRETS["header"]},
            "extra_query": {"q": SECRETS["query"]},
            "extra_body": {"x": SECRETS["extra"]},
        }
        calls = [
            lambda: client.chat.completions.create(**ask, **hidden, stream=stream),
            lambda: client.embeddings.create(model="text-embedding-3-small", input=SECRETS["prompt"]),
            lambda: client.post(
                f"/proxy/{SECRETS['path']}/{SECRETS['key']}/chat/completions?key={SECRETS['query']}", body=ask, cast_to=dict
            ),
            lambda: client.get(f"/files/{SECRETS['path']}/content", cast_to=dict),
            lambda: client.delete(f"/models/{SECRETS['path']}", cast_to=dict),
            lambda: client.get(f"http://{SECRETS['user']}:{SECRETS['password']}@127.0.0.1:9/{SECRETS['path']}", cast_to=dict),
        ]
        for call in calls:
            try:
                result = await got(call())
                if hasattr(result, "__aiter__") and stream:
                    async for _ in result:
                        pass
                elif stream and hasattr(result, "response"):
                    list(result)
            except ravi_otel.BudgetExhaustedError as refusal:
                refusals.append(str(refusal))
            except Exception:
                continue  # what it raises is the client's affair

    with caplog.at_level(logging.DEBUG), ravi_otel.run("r", limits=["tokens=100000", "requests=2"]):
        clients.run(colour, program())
        told = everything(instrumented, caplog.records)
    assert {name: secret for name, secret in SECRETS.items() if secret in told + repr(refusals)} == {}
    assert refusals
