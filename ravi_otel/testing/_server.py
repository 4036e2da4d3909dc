"""Answer the clients of models over real HTTP with what a script says."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final, cast

from ravi_otel.testing._loopback import Loopback, Message, Receive, Send, body_of, respond
from ravi_otel.testing._script import FINAL, Answer, Failure, Generated, Request, Script, read
from ravi_otel.testing._wire.form import fields_of, is_form
from ravi_otel.testing._wire.payload import Payload
from ravi_otel.testing._wire.router import objection, render

_BEGUN: Final = re.compile(r"/v1/responses/resp_(\d{1,9})(?:/|$)")
"""The path of a response by the number of the request that began it."""


@dataclass(frozen=True, slots=True)
class Sent:
    """Count what the server sent: whole `answers`, `chunks` and `bytes` of bodies, and clients that hung up early."""

    answers: int = 0
    chunks: int = 0
    bytes: int = 0
    hang_ups: int = 0


class ScriptedLLM(Loopback):
    """Be a server of models on 127.0.0.1 whose answers are a script, in OpenAI's format and in those of others.

    `script` is one `Answer` for ever, an iterable of answers taken in the order in which requests arrive, or a
    function of the `Request`, called on the server's thread (it must not block); a string is a `Text`. When the script
    runs out or raises, the request fails with a status the openai client does not retry.

    Serves POST /v1/chat/completions, /v1/responses, /v1/embeddings, /v1/completions, /v1/moderations and
    GET /v1/models, the same below /openai for groq's client, and Anthropic's /v1/messages, /v1/messages/count_tokens and
    /v1/complete (both clients are told `url`, not `base_url`). Told `url`, other libraries find Google's models (`generateContent`
    and its stream, embeddings; AI Studio's paths and Vertex AI's, there also others' models), Bedrock's (Converse and InvokeModel
    with their streams, for Claude, Llama, Titan, Mistral), Cohere's /v2/chat and /v2/embed, Ollama's /api/chat, /api/generate and
    /api/embed; Mistral's client is told `url` with `/mistral`. Anything else is a 404, and a body that cannot be read a 400,
    in OpenAI's shape, without taking an answer from the script. Keys are not looked at. Ids and times are the same in every
    run: the third request is `chatcmpl-3`. A response asked for in the background is queued, and whole when it is retrieved;
    /v1/batches, /v1/files, /v1/threads and other such paths answer what the script writes out as `Raw`. Everything on it may be
    called from any thread.
    """

    def __init__(self, script: Script, *, models: Iterable[str] = ("gpt-4o-mini", "text-embedding-3-small")) -> None:
        super().__init__(self._handle)
        self._script = read(script)
        self._models = tuple(models)
        self._changed = threading.Condition()
        self._requests: list[Request] = []
        self._errors: list[Exception] = []
        self._sent = Sent()
        self._open: set[int] = set()
        self._peak = 0
        self._gate = _Gate()

    @property
    def base_url(self) -> str:
        """Give what the client is told: `OpenAI(base_url=server.base_url, api_key="any")`."""
        return f"{self.url}/v1"

    @property
    def requests(self) -> tuple[Request, ...]:
        """Give every request so far, in order of arrival."""
        with self._changed:
            return tuple(self._requests)

    @property
    def sent(self) -> Sent:
        """Give the counts so far."""
        with self._changed:
            return self._sent

    @property
    def in_flight(self) -> int:
        """Give the number of requests that arrived and are not answered yet."""
        with self._changed:
            return len(self._open)

    @property
    def peak_concurrency(self) -> int:
        """Give the largest number of requests that were in flight at once."""
        with self._changed:
            return self._peak

    @property
    def script_errors(self) -> tuple[Exception, ...]:
        """Give what the script's function raised, if it did."""
        with self._changed:
            return tuple(self._errors)

    def wait_for(self, count: int, timeout_s: float = 10.0) -> tuple[Request, ...]:
        """Block until `count` requests have arrived and give all; raises TimeoutError with the number that did."""
        self._wait(lambda: len(self._requests), count, "requests arrived", timeout_s)
        return self.requests

    def wait_for_hang_ups(self, count: int, timeout_s: float = 10.0) -> None:
        """Block until `count` clients have hung up before their answer was whole; raises TimeoutError."""
        self._wait(lambda: self._sent.hang_ups, count, "clients hung up", timeout_s)

    def wait_until_idle(self, timeout_s: float = 10.0) -> None:
        """Block until no request is in flight; raises TimeoutError with the number that still are."""
        with self._changed:
            if not self._changed.wait_for(lambda: not self._open, timeout_s):
                msg = f"{len(self._open)} requests were still in flight after timeout_s={timeout_s:g}."
                raise TimeoutError(msg)

    def hold(self) -> None:
        """Let requests arrive and keep their answers back until `release()`."""
        self._gate.close()

    def release(self, count: int | None = None) -> None:
        """Let `count` answers go, in order of arrival, present or to come, and hold on; None opens for good."""
        self._gate.open(count)

    def stop(self) -> None:
        """Cut what is in flight and end; the requests and counts stay readable."""
        super().stop()
        self._gate.open(None)

    def _wait(self, seen: Callable[[], int], count: int, what: str, timeout_s: float) -> None:
        with self._changed:
            if not self._changed.wait_for(lambda: seen() >= count, timeout_s):
                msg = f"{seen()} of {count} {what} within timeout_s={timeout_s:g}."
                raise TimeoutError(msg)

    async def _handle(self, scope: Message, receive: Receive, send: Send) -> None:
        raw = await body_of(receive)
        if raw is None:
            return
        request = self._arrived(scope, raw)
        with contextlib.suppress(asyncio.CancelledError):  # stop() cut the connection; there is nobody to tell
            await self._answer(request, scope, receive, send)

    def _arrived(self, scope: Message, raw: bytes) -> Request:
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        with self._changed:
            request = Request(
                index=len(self._requests),
                method=scope["method"],
                path=scope["path"],
                query=scope["query_string"].decode("latin-1"),
                headers=MappingProxyType(headers),
                body=_object(raw, headers.get("content-type", "")),
                raw=raw,
                arrived_ns=time.monotonic_ns(),
            )
            self._requests.append(request)
            self._open.add(request.index)
            self._peak = max(self._peak, len(self._open))
            self._changed.notify_all()
        return request

    async def _answer(self, request: Request, scope: Message, receive: Receive, send: Send) -> None:
        refused = objection(request, self._models)
        answer = Answer() if refused is not None else self._ask(request)
        payload = _headed(refused or self._render(request, self._begun(request, answer)), request)
        work = asyncio.ensure_future(self._deliver(request, answer, payload, send))
        gone = asyncio.ensure_future(_hung_up(receive))
        try:
            await asyncio.wait((work, gone), return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                self._update(hang_ups=1, closed=request.index)
            elif not work.result():
                self._update(closed=request.index)
                await self.cut(scope, receive)
        finally:
            await _end(work, gone)
            self._update(closed=request.index)

    def _ask(self, request: Request) -> Answer:
        try:
            return self._script(request)
        except Exception as error:  # noqa: BLE001 - the script is the test's own code; its failure is kept and told
            return self._failed(error)

    def _begun(self, request: Request, answer: Answer) -> Answer:
        """Have a response that was begun before keep the model it was asked of."""
        found = _BEGUN.match(request.path)
        if found is None or not isinstance(answer, Generated) or answer.model is not None:
            return answer
        before = self.requests[: request.index]
        number = int(found[1])
        return replace(answer, model=before[number - 1].model) if 1 <= number <= len(before) else answer

    def _render(self, request: Request, answer: Answer) -> Payload:
        try:
            return render(request, answer)
        except Exception as error:  # noqa: BLE001 - an answer may hold what no JSON can; the same
            return render(request, self._failed(error))

    def _failed(self, error: Exception) -> Failure:
        with self._changed:
            self._errors.append(error)
        return Failure(500, f"The script failed with {error!r}.", "script_error", headers=FINAL)

    async def _deliver(self, request: Request, answer: Answer, payload: Payload, send: Send) -> bool:
        """Send a payload, and tell whether all of it was handed to the socket."""
        await self._gate.passed()
        if answer.think_s > 0:
            await asyncio.sleep(answer.think_s)
        if payload.parts:
            await respond(send, payload.status, payload.headers, self._paced(request, payload, answer.chunk_s))
        return not payload.cut

    async def _paced(self, request: Request, payload: Payload, pause_s: float) -> AsyncIterator[tuple[bytes, bool]]:
        """Count each part before it is sent, so that whoever has it finds it counted."""
        for at, part in enumerate(payload.parts, 1):
            if at > 1:
                await asyncio.sleep(pause_s)
            last = at == len(payload.parts) and not payload.cut
            self._update(chunks=1, sent_bytes=len(part), answers=int(last), closed=request.index if last else None)
            yield part, last

    def _update(self, *, answers: int = 0, chunks: int = 0, sent_bytes: int = 0, hang_ups: int = 0, closed: int | None = None) -> None:
        with self._changed:
            sent = self._sent
            self._sent = replace(
                sent,
                answers=sent.answers + answers,
                chunks=sent.chunks + chunks,
                bytes=sent.bytes + sent_bytes,
                hang_ups=sent.hang_ups + hang_ups,
            )
            if closed is not None:
                self._open.discard(closed)
            self._changed.notify_all()


class _Gate:
    """Keep answers back, in order of arrival; closed and opened from any thread, waited at on the server's loop."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._closed = False
        self._permits = 0
        self._waiting: deque[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = deque()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._permits = 0

    def open(self, count: int | None) -> None:
        with self._lock:
            if count is None:
                self._closed = False
                count = len(self._waiting)
            else:
                self._permits += count
                count = 0
            freed = self._free(count)
        for loop, future in freed:
            with contextlib.suppress(RuntimeError):  # the server was stopped: its loop is closed and nobody waits
                loop.call_soon_threadsafe(_settle, future)

    def _free(self, count: int) -> list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]]:
        freed: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []
        while self._waiting and (count > 0 or self._permits > 0):
            entry = self._waiting.popleft()
            if entry[1].done():
                continue  # its client hung up while it waited
            freed.append(entry)
            if count > 0:
                count -= 1
            else:
                self._permits -= 1
        return freed

    async def passed(self) -> None:
        loop = asyncio.get_running_loop()
        with self._lock:
            if not self._closed:
                return
            if self._permits > 0:
                self._permits -= 1
                return
            future: asyncio.Future[None] = loop.create_future()
            self._waiting.append((loop, future))
        await future


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


async def _hung_up(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _end(*tasks: asyncio.Future[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _headed(payload: Payload, request: Request) -> Payload:
    usual = {
        "content-type": payload.content_type,
        "x-request-id": f"req_{request.index + 1}",
        "openai-processing-ms": "1",
        "openai-version": "2020-10-01",
    }
    if not payload.streamed and not payload.cut:
        usual["content-length"] = str(sum(map(len, payload.parts)))
    return replace(payload, headers=usual | {name.lower(): value for name, value in payload.headers.items()})


def _object(raw: bytes, content_type: str) -> MappingProxyType[str, Any]:
    if is_form(content_type):
        return MappingProxyType(fields_of(raw, content_type))
    try:
        found: object = json.loads(raw)
    except (ValueError, RecursionError):
        found = None
    return MappingProxyType(cast("dict[str, Any]", found) if isinstance(found, dict) else {})
