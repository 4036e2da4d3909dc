"""A record of what tools were asked for and what came of it, where no gate keeps one."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

from anyio import CancelScope, to_thread

from ravi_otel.agents.middleware._pipeline import Level, ToolUse
from ravi_otel.errors import BudgetError, CancellationError, MiddlewareTermination, StopRun, ToolDeniedError
from ravi_otel.policy import _checks as checks
from ravi_otel.policy._contracts import CallNext
from ravi_otel.supervisor import AuditLog
from ravi_otel.supervisor._audit import LIMIT_CHANGES, AuditError

_REFUSALS = (ToolDeniedError, StopRun, BudgetError, MiddlewareTermination)


class AuditTrail:
    """Record each tool call in an audit log: "proposed" before it, "executed" after it, with how it ended.

    `status` is "ok", "error", "refused" (a gate, a limit or a middleware let it not through), "cancelled", or "answered" where a
    middleware inside gave the result and the tool did not run. A call that cannot be noted is not made: AuditError. A gate that has
    an audit log of its own notes more, and needs no AuditTrail.
    """

    level: Level = "tool"

    def __init__(self, log: AuditLog) -> None:
        self._log = checks.instance("AuditTrail(log)", log, AuditLog, "AuditLog('audit')")
        LIMIT_CHANGES.note_in(log)

    async def process(self, context: ToolUse, call_next: CallNext) -> None:
        """Note, await the rest of the chain, and note how it ended."""
        op_id = uuid.uuid4().hex
        await to_thread.run_sync(self._line("proposed", context, op_id))
        try:
            await call_next()
        except BaseException as error:
            line = self._line("executed", context, op_id, status=_status(error))
            try:
                if isinstance(error, Exception):
                    await _write(line)
                else:  # of what is cancelled nothing more can be awaited
                    line()
            except AuditError as unwritten:  # what ended the call goes on all the same: a cancellation must not be lost
                error.add_note(f"ravi-otel: {unwritten}")
            raise
        await _write(self._line("executed", context, op_id, status="ok" if context.calls else "answered"))

    def _line(self, what: Literal["proposed", "executed"], context: ToolUse, op_id: str, **facts: Any) -> Callable[[], None]:
        """Return what writes a line, in a thread: a disk may be slow. The lines of one call are awaited one after the other."""
        return partial(
            self._log.note,
            what,
            run_id=context.run_id,
            agent_name=context.agent_name,
            tool=context.function_name,
            op_id=op_id,
            arguments=context.arguments,
            **facts,
        )


async def _write(line: Callable[[], None]) -> None:
    """Write what was done, also when nobody waits for it any more."""
    with CancelScope(shield=True):
        await to_thread.run_sync(line)


def _status(error: BaseException) -> str:
    if isinstance(error, _REFUSALS):
        return "refused"
    return "error" if isinstance(error, Exception) and not isinstance(error, CancellationError) else "cancelled"
