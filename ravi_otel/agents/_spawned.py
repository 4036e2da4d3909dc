"""An agent that another one has spawned in the background."""

from __future__ import annotations

import contextlib
import math
import threading

import anyio
from anyio.abc import TaskGroup, TaskStatus

from ravi_otel._enforcement.ending import Ending
from ravi_otel._runtime.scopes import apply_limits
from ravi_otel._runtime.spawning import spawn
from ravi_otel.agents._results import AgentResult, Delegate, check_timeout
from ravi_otel.errors import CancellationError, ConfigurationError
from ravi_otel.policy._contracts import ChatMessage
from ravi_otel.policy._runs import Priority, StopReason


class _Message:
    """One message to a spawned agent, and its result."""

    __slots__ = ("done", "error", "late", "result", "scope", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self.scope = anyio.CancelScope()
        self.done = anyio.Event()
        self.result: AgentResult | None = None
        self.error: Exception | None = None
        self.late = False

    def unanswered(self) -> Ending:
        """Return the ending of a message without an answer: its caller's timeout, or a cancellation."""
        return Ending("stopped", StopReason.ASK_TIMEOUT if self.late else StopReason.CANCELLED)


class SpawnedAgent:
    """An agent that runs in the background of another one, in a slot of its own; `AgentContext.ask` sends it messages.

    It works on one message at a time, in their order. `result` is that of its latest message, None before the first.
    """

    def __init__(self, agent: Delegate, priority: Priority | None = None) -> None:
        self.agent = agent
        self.priority = priority
        self.result: AgentResult | None = None
        self._said: tuple[ChatMessage, ...] = ()
        self._thread = threading.get_ident()  # the thread of its event loop
        self._to, self._from = anyio.create_memory_object_stream[_Message](math.inf)

    def __repr__(self) -> str:
        return f"<SpawnedAgent {self.agent_id!r} {'at work' if self.result is None else self.result.stop_reason}>"

    @property
    def agent_id(self) -> str:
        """Its id."""
        return str(getattr(self.agent, "id", self.agent.name))

    async def start(self, group: TaskGroup, boot: str) -> None:
        """Acquire the slot, and start with the message `boot`; for `AgentContext.spawn`."""
        self._to.send_nowait(_Message(boot))
        await group.start(self._live)

    async def _live(self, *, task_status: TaskStatus[None]) -> None:
        with self._to, self._from:
            try:
                async with spawn(self.agent_id, priority=self.priority):
                    task_status.started()
                    async for message in self._from:
                        await self._work(message)
            finally:
                # Wake the callers whose messages are still queued: nobody will work on them.
                with contextlib.suppress(anyio.WouldBlock, anyio.EndOfStream, anyio.ClosedResourceError):
                    while True:
                        self._from.receive_nowait().done.set()

    async def _work(self, message: _Message) -> None:
        try:
            with message.scope, apply_limits(()) as around:
                around.scope.when_cancelled = message.unanswered
                try:
                    result = await self.agent.run([*self._said, ChatMessage("user", message.text)])
                except anyio.get_cancelled_exc_class():
                    around.close()  # also ends the work of threads that the agent has left behind
                    raise
                message.result = self.result = result
                self._said = tuple(each for each in result.history if isinstance(each, ChatMessage))
        except Exception as error:  # noqa: BLE001 - raised by the `ask()` that waits for it, and nowhere else
            message.error = error
        finally:
            message.done.set()

    async def ask(self, message: str, timeout_s: float | None = None) -> AgentResult:
        """Send another message, and return its result; see `AgentContext.ask`."""
        check_timeout("ask(timeout)", timeout_s)
        if threading.get_ident() != self._thread:
            raise ConfigurationError(
                f"ask() of agent {self.agent_id!r} belongs to the event loop that has spawned it. From a thread, such as that of a "
                "plain function, write anyio.from_thread.run(ctx.ask, handle, message)."
            )
        asked = _Message(message)
        try:
            self._to.send_nowait(asked)
        except (anyio.ClosedResourceError, anyio.BrokenResourceError):
            raise ConfigurationError(f"agent {self.agent_id!r} has ended, with the agent that spawned it or by leave().") from None
        patience = anyio.move_on_after(timeout_s)
        try:
            with patience:
                await asked.done.wait()
        finally:
            if not asked.done.is_set():
                asked.late = patience.cancelled_caught
                asked.scope.cancel()
        if asked.error is not None:
            raise asked.error
        if asked.result is not None:
            return asked.result
        error = None if asked.late else CancellationError(f"agent {self.agent_id!r} was ended before it had answered.")
        run_id = "" if self.result is None else self.result.run_id
        return AgentResult.ended(self.agent.name, run_id, asked.unanswered(), history=self._said, error=error)

    def leave(self) -> None:
        """Let the agent end after the messages it has got; its slot is returned then."""
        self._to.close()
