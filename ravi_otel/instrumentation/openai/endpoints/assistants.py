"""Read runs of threads, which go on in the background: what one used is counted when it is over, and somebody looks."""

from __future__ import annotations

from typing import Any, Final

from ravi_otel.instrumentation.http.contract import Collector, Endpoint, Quiet
from ravi_otel.instrumentation.http.fields import get, text
from ravi_otel.instrumentation.openai.endpoints.other import Other, Plain, any_usage
from ravi_otel.instrumentation.openai.endpoints.responses_looks import named
from ravi_otel.policy.usage import Call, Reply

_OVER: Final = frozenset({"completed", "failed", "cancelled", "expired", "incomplete"})
_FINISHED: Final = {"completed": "stop", "failed": "error", "cancelled": "error", "expired": "error", "incomplete": "length"}


def _reply(result: Any, name: str | None) -> Reply:
    """Read a run; one that was begun before has a name, and an answer about another one brings nothing."""
    if text(result, "object") != "thread.run" or name not in (None, text(result, "id")):
        return Reply()
    awaited = name is not None
    status = text(result, "status")
    over = status in _OVER
    reason = _FINISHED.get(status or "")
    return Reply(
        id=text(result, "id"),
        model=text(result, "model"),
        usage=any_usage(get(result, "usage")) if over else None,
        finish_reasons=() if reason is None else (reason,),
        error_type=(text(get(result, "last_error"), "code") or "run_failed") if status == "failed" and not awaited else None,
        pending=not over,
        awaited=awaited,
    )


class Begun(Other):
    """Read what begins a run, or gives one on its way what its tools answered: a request either way."""

    def __init__(self, name: str | None = None) -> None:
        """Read about the run `name`, None for one that begins."""
        self._name = name

    def reply(self, result: Any) -> Reply:
        """See `Endpoint.reply`."""
        return _reply(result, self._name)

    def collector(self, call: Call) -> Collector:  # noqa: ARG002 - the protocol's
        """See `Endpoint.collector`."""
        return RunCollector(self._name)


class Look(Plain):
    """Read a look at a run, or its cancellation."""

    def __init__(self, name: str) -> None:
        self._name = name

    def reply(self, result: Any) -> Reply:
        """See `Endpoint.reply`."""
        return _reply(result, self._name)


class RunCollector(Quiet):
    """Follow a run's stream for what became of it; a run goes on when its stream is left."""

    __slots__ = ("_name", "_run", "_spoke")

    def __init__(self, name: str | None) -> None:
        self._name = name
        self._run: Any = None
        self._spoke = False

    @property
    def complete(self) -> bool:
        """See `Collector.complete`."""
        return text(self._run, "status") in (*_OVER, "requires_action")

    @property
    def spoke(self) -> bool:
        """See `Collector.spoke`."""
        return self._spoke

    def add(self, event: Any) -> None:
        """See `Collector.add`."""
        kind, data = text(event, "event") or "", get(event, "data")
        self._spoke = self._spoke or kind in ("thread.message.delta", "thread.run.step.delta")
        if text(data, "object") == "thread.run":
            self._run = data

    def reply(self) -> Reply:
        """See `Collector.reply`."""
        return _reply(self._run, self._name)


_BEGUN: Final = Begun()


def of_runs(method: str, parts: tuple[str, ...], path: str) -> Endpoint | None:
    """Give the reader of a request about a thread's run; None where it is about something else."""
    if "threads" not in parts or "runs" not in parts or "chatkit" in parts:
        return None
    if method == "POST" and parts[-1] == "runs":
        return _BEGUN
    if method == "POST" and parts[-1] == "submit_tool_outputs" and parts[-3] == "runs":
        return Begun(named(path, 2))
    if method == "GET" and parts[-2] == "runs":
        return Look(named(path, 1))
    if method == "POST" and parts[-1] == "cancel" and parts[-3] == "runs":
        return Look(named(path, 2))
    return None
