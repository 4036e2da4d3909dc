"""Read batches: what their output files tell was used, when a program fetches them, and which files those are."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

from ravi_otel.instrumentation.http.contract import Endpoint, Quiet, Request, Wordless
from ravi_otel.instrumentation.http.fields import get, items, text
from ravi_otel.instrumentation.openai.endpoints.batch_files import FILES
from ravi_otel.instrumentation.openai.endpoints.other import Other, Plain, any_usage
from ravi_otel.instrumentation.openai.endpoints.responses import usage as responses_usage
from ravi_otel.instrumentation.openai.endpoints.responses_looks import named
from ravi_otel.policy.usage import Call, Reply, Spent, Usage, add_to

_MOST_BYTES: Final = 8 * 1024 * 1024
"""How much of a file is read: a tenth of a second of a program that may be one event loop."""
_SMALL: Final = 1024 * 1024
"""From here on a file is not read whose batch has said what all of it used."""
_MOST_LINE: Final = 4 * 1024 * 1024
_MOST_LINES: Final = 50_000
"""As many requests as a batch may have."""
_MOST_MODELS: Final = 64
_MOST_LISTED: Final = 1_000
_TIER: Final = "batch"


class Begun(Other):
    """Read what begins a batch; what it will cost is told by its output."""

    def __init__(self, provider: str) -> None:
        self._provider = provider

    def reply(self, result: Any) -> Reply:
        """See `Endpoint.reply`."""
        learn(result, self._provider)
        return Reply()


class Seen(Plain):
    """Read answers that show batches: one, or a page of them."""

    def __init__(self, provider: str) -> None:
        self._provider = provider

    def reply(self, result: Any) -> Reply:
        """See `Endpoint.reply`."""
        learn(result, self._provider)
        for batch in items(result, "data")[:_MOST_LISTED]:
            learn(batch, self._provider)
        return Reply()


class Contents(Wordless):
    """Read the content of a file: the output of a batch tells what was used, any other file nothing."""

    def __init__(self, name: str, provider: str) -> None:
        self._name = name
        self._key = (provider, name)

    def call(self, request: Request) -> Call:
        """See `Endpoint.call`."""
        host, known = request.host, self._key in FILES
        return Call(
            operation="fetch_response" if known else "GET files.content",
            endpoint="files.content",
            provider=host.provider,
            provider_assumed=host.assumed,
            generative=False,
            turn=False,
            server_address=host.address,
            server_port=host.port,
            fetches=known,
        )

    @property
    def reads_bytes(self) -> bool:
        """See `Endpoint.reads_bytes`."""
        return True

    def parse(self, body: bytes) -> Any:
        """Give the body as it is: lines of JSON are no JSON."""
        return body

    def reply(self, result: Any) -> Reply:
        """See `Endpoint.reply`."""
        body = result if isinstance(result, (bytes, str)) else get(result, "content")
        if isinstance(body, str):
            body = body[:_MOST_BYTES].encode("utf-8", "surrogatepass")  # what is beyond is told from the batch, or missing
        if not isinstance(body, bytes) or not (self._key in FILES or _is_output(body)):
            return Reply()
        return Reply(id=self._name, spent=self._spent(body))

    def _spent(self, body: bytes) -> tuple[Spent, ...]:
        known = FILES.usage(self._key)
        if known is not None and len(body) > _SMALL:
            return (known,)
        spent, whole = _spent(body)
        if not whole and known is not None:
            return (known,)
        for part in () if whole else spent:
            part.usage.source = "estimated"  # a lower bound
        return spent

    def collector(self, call: Call) -> Unread:  # noqa: ARG002 - the protocol's
        """See `Endpoint.collector`."""
        return Unread()


class Unread(Quiet):
    """Follow a file that comes as a stream of events, which none does."""

    complete = True
    spoke = True

    def add(self, event: Any) -> None:
        """See `Collector.add`."""

    def reply(self) -> Reply:
        """See `Collector.reply`."""
        return Reply()


def learn(batch: Any, provider: str) -> None:
    """Note which file a batch put its output in, and what all of it used, where the batch tells."""
    name = text(batch, "output_file_id")
    if name is None or text(batch, "object") != "batch":
        return
    usage = responses_usage(get(batch, "usage"))
    FILES.add((provider, name), None if usage is None or not usage.total_tokens else Spent(text(batch, "model"), usage, _TIER))


def _is_output(body: bytes) -> bool:
    """Tell the output of a batch by its first line."""
    line = next(_lines(body), b"")
    try:
        first = json.loads(line)
    except (ValueError, RecursionError):
        return False
    if not isinstance(first, dict) or "custom_id" not in first or "method" in first:  # that would be the input of one
        return False
    return get(get(first, "response"), "status_code") is not None


def _lines(body: bytes) -> Iterator[bytes]:
    at, end = 0, min(len(body), _MOST_BYTES)
    while at < end:
        stop = body.find(b"\n", at, end)
        stop = len(body) if stop < 0 and end == len(body) else stop
        if stop < 0:
            return
        if at < stop:
            yield body[at : min(stop, at + _MOST_LINE + 1)]
        at = stop + 1


def _spent(body: bytes) -> tuple[tuple[Spent, ...], bool]:
    """Add up the lines by model; False where a part of the file was not read, or a line could not be."""
    sums: dict[str | None, Usage] = {}
    whole = len(body) <= _MOST_BYTES
    for number, line in enumerate(_lines(body)):
        if number >= _MOST_LINES:
            whole = False
            break
        try:
            told = json.loads(line) if len(line) <= _MOST_LINE else None
        except (ValueError, RecursionError):
            told = None
        if not isinstance(told, dict):
            whole = whole and not line.strip()
            continue
        answer = get(get(told, "response"), "body")
        usage = any_usage(get(answer, "usage"))
        if usage is None:
            continue  # a request that failed, and was not billed
        model = text(answer, "model")
        name = model if model in sums or len(sums) < _MOST_MODELS else None
        add_to(sums.setdefault(name, Usage()), usage)
    return tuple(Spent(model, usage, _TIER) for model, usage in sums.items()), whole


def of_batches(method: str, parts: tuple[str, ...], path: str, provider: str) -> Endpoint | None:
    """Give the reader of a request about batches or a file's content; None where it is about something else."""
    if parts[-1:] == ("batches",):
        return Begun(provider) if method == "POST" else Seen(provider)
    if parts[-2:-1] == ("batches",) or (parts[-3:-2] == ("batches",) and parts[-1] == "cancel"):
        return Seen(provider)
    if method == "GET" and parts[-3:-2] == ("files",) and parts[-1] == "content" and "containers" not in parts:
        return Contents(named(path, 2), provider)
    return None
