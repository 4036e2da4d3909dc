"""Go on with the caller's run in a service that is asked over ASGI."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from typing import Any, Final

from ravi_otel._flow import run_async
from ravi_otel._runtime.scopes import Limits, read_limits, scope_name
from ravi_otel.carrier._continue import ContinuedRun, continue_run
from ravi_otel.carrier._lending import RETURN_HEADER
from ravi_otel.hooks._listeners import swallow

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

_RETURN: Final = RETURN_HEADER.lower().encode("ascii")
_START: Final = "http.response.start"
_BODY: Final = "http.response.body"
_FILE: Final = "http.response.pathsend"


class Carried:
    """Run each request, and each web socket's connection, in the run that its caller carries on: `app = Carried(app)`.

    What the caller's headers say is believed only when it is signed, or the caller is trusted, and only tightens. `limits` hold for
    each request whatever they say, `otherwise` for one that carries nothing that is believed, which gets a run of its own; `name` is
    what such a run is called. What was lent and not used goes back with the headers of an answer that is known by then: one that
    tells its length, or comes in one piece. What the app raises is raised on.
    """

    def __init__(self, app: App, *, name: str | None = None, limits: Limits = (), otherwise: Limits | None = None) -> None:
        self.app = app
        self._name = scope_name("Carried(name)", name)
        self._limits = read_limits("Carried(limits)", limits)
        self._otherwise = None if otherwise is None else read_limits("Carried(otherwise)", otherwise)

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Be the app, in a run where the scope is a request or a web socket."""
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        client = scope.get("client")
        run = continue_run(
            scope.get("headers") or (), peer=client[0] if client else None, name=self._name, limits=self._limits, otherwise=self._otherwise
        )
        await run.__aenter__()
        answer = _Answer(run, send)
        try:
            await self.app(scope, receive, answer if scope["type"] == "http" else send)
            await answer.flush()
        except BaseException as error:
            try:
                if isinstance(error, Exception):
                    await answer.give_up()
            finally:
                await _leave(run, error)
            raise
        await _leave(run, None)


async def _leave(run: ContinuedRun, error: BaseException | None) -> None:
    """End the run; the app's work is done, and nothing of ours changes what became of it."""
    try:
        await run.__aexit__(None if error is None else type(error), error, None if error is None else error.__traceback__)
    except Exception as bug:  # noqa: BLE001 - see above
        swallow("carrier.leave", bug)


class _Answer:
    """Send an answer on; its headers wait for the first piece of the body where a loan may be given back with them."""

    __slots__ = ("_run", "_send", "_start")

    def __init__(self, run: ContinuedRun, send: Send) -> None:
        self._run = run
        self._send = send
        self._start: Message | None = None

    async def __call__(self, message: Message) -> None:
        """Be the app's `send`."""
        kind = message["type"]
        if kind == _START and self._run.lent:
            await self._begin({**message, "headers": list(message.get("headers") or ())})  # which may be readable only once
            return
        if self._start is not None:
            whole = kind == _FILE or (kind == _BODY and not message.get("more_body", False))
            await self.flush(whole=whole)
        await self._send(message)

    async def flush(self, *, whole: bool = False) -> None:
        """Send the headers that wait, if there are any; of an answer that is `whole`, with what comes back."""
        start, self._start = self._start, None
        if start is not None:
            await self._send(await self._with_return(start) if whole else start)

    async def give_up(self) -> None:
        """Send the headers that wait, because the app raised: that is what is to be told, not that nobody is there to be answered."""
        with suppress(Exception):
            await self.flush()

    async def _begin(self, start: Message) -> None:
        named = {bytes(name).lower(): bytes(value) for name, value in start["headers"]}
        if b"content-length" in named:
            await self._send(await self._with_return(start))
        elif named.get(b"content-type", b"").startswith(b"text/event-stream"):
            await self._send(start)  # its reader waits for the headers, not for the first event
        else:
            self._start = start

    async def _with_return(self, start: Message) -> Message:
        """Return the headers with what comes back of the loan, if anything does."""
        value = await run_async(self._run.give_back())
        return start if value is None else {**start, "headers": [*start["headers"], (_RETURN, value.encode("ascii"))]}
