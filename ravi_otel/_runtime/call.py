"""Drive one model call as a flow, for wrappers that do not send its messages themselves."""

from __future__ import annotations

from typing import Any, Protocol

from ravi_otel._flow import Flow, Step, cause
from ravi_otel._runtime.model_call import ModelCall, Transport
from ravi_otel.policy.usage import Call


class Wire(Transport, Protocol):
    """What sends one call as a step of a flow."""

    def step(self, live: ModelCall | None) -> Step:
        """Return the step that sends it; without a live call nobody is to be told of its attempts."""
        ...


def walk(call: Call, wire: Wire, *, blocking: bool) -> Flow[Any]:
    """Send one call through every layer; the result or the exception is the client's own, or a refusal of ours."""
    live = ModelCall.start(call)
    if live is None:
        return (yield wire.step(None))
    try:
        wait = live.admit(wire, blocking=blocking)
        if wait is not None:
            yield from wait
        result = yield wire.step(live)
        live.conclude(wire, result)
    except BaseException as raised:  # noqa: BLE001 - it is raised again, or what we raise from it
        error = yield from live.failed(wire, cause(raised))
        try:
            if error is not cause(raised):
                raise error from raised
            raise
        finally:
            del live, error  # they know each other, and the error's traceback knows this frame: a cycle that would keep all alive
    return result
