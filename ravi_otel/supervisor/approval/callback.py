"""Ask a function of the program, which asks a person in its own way."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, TypeAlias, cast

import anyio

from ravi_otel._enforcement.sleeper import on_any_event_loop
from ravi_otel._runtime.state import STATE
from ravi_otel.errors import ConfigurationError
from ravi_otel.policy import _checks as checks
from ravi_otel.policy._contracts import Coloured
from ravi_otel.supervisor.approval import frozen
from ravi_otel.supervisor.approval.asking import LONGEST_PAUSE_S, refuse_ended, wall_clock
from ravi_otel.supervisor.approval.contract import ApprovalAnswer, ApprovalRequest

Callback: TypeAlias = Callable[[ApprovalRequest], Coloured[ApprovalAnswer | bool]]


class CallbackApprover:
    """Ask `fn(request)`, which gives True, False or an ApprovalAnswer: at once, or to await.

    A plain function runs where the call is made and should be quick; an `async def` may take its time, and is cancelled when the
    request expires ("expired") or when something ends the run. `fn` gets a copy of the arguments: what it changes in there changes
    nothing, an edit is `ApprovalAnswer(True, arguments=...)`. What it raises is raised by `ask()`, of which a gate makes a
    ToolDeniedError with it as the cause; so is a ConfigurationError for any other answer, which a gate raises as it is: what merely looks
    true is no approval. Nothing is executed then.
    """

    def __init__(self, fn: Callback) -> None:
        if not callable(fn):
            raise ConfigurationError(f"CallbackApprover(fn={checks.show(fn)}) cannot be called; give a function of one ApprovalRequest.")
        self._fn = fn

    def ask(self, request: ApprovalRequest) -> Coloured[ApprovalAnswer]:
        """Call the function; the answer, or what is to be awaited where the function is asynchronous."""
        text = frozen.exact(request.arguments)
        if _is_over(request):
            return _EXPIRED
        said: object = self._fn(replace(request, arguments=frozen.read(text)))
        if not inspect.isawaitable(said):
            return self._read(said, request)
        if not on_any_event_loop():
            if inspect.iscoroutine(said):
                said.close()
            raise ConfigurationError(
                "CallbackApprover(fn) gave something to await, and the tool is called by synchronous code. "
                "Give a plain function, or call the tool from a coroutine."
            )
        return self._awaited(cast("Awaitable[object]", said), request)

    def executed(self, request: ApprovalRequest, status: str) -> None:
        """Hear how it ended; a function has no use for it."""

    async def _awaited(self, said: Awaitable[object], request: ApprovalRequest) -> ApprovalAnswer:
        """Await the function, as long as the request is valid and nothing ends the scope."""
        scope, _ = STATE.locate()
        answered: list[object] = []
        failed: list[BaseException] = []

        async def watch() -> None:
            try:
                while not _is_over(request):
                    refuse_ended(scope)
                    await anyio.sleep(LONGEST_PAUSE_S)
            except Exception as error:  # noqa: BLE001 - raised outside of the group, as it is
                failed.append(error)
            group.cancel_scope.cancel()

        async with anyio.create_task_group() as group:
            group.start_soon(watch)
            try:
                answered.append(await said)
            except Exception as error:  # noqa: BLE001 - raised outside of the group, as it is
                failed.append(error)
            group.cancel_scope.cancel()
        if failed:
            raise failed[0]
        return self._read(answered[0], request) if answered else _EXPIRED

    def _read(self, said: object, request: ApprovalRequest) -> ApprovalAnswer:
        if _is_over(request):
            return _EXPIRED
        if isinstance(said, bool):
            return ApprovalAnswer(approved=said)
        if isinstance(said, ApprovalAnswer) and isinstance(cast("Any", said.approved), bool):
            return said
        raise ConfigurationError(
            f"CallbackApprover(fn) answered {checks.show(said)}, which is neither True, False nor an ApprovalAnswer: nothing was executed."
        )


_EXPIRED = ApprovalAnswer(approved=False, comment="expired")


def _is_over(request: ApprovalRequest) -> bool:
    return request.expires_at is not None and wall_clock() >= request.expires_at
